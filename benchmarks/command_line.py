"""Benchmarks as commands: the options of each, their help and their defaults are those of its function."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import click

from ammrank_dask.storage.errors import AmmrankError
from ammrank_dask.workflows.session.options import CommandFailed, exit_code_of

Function = TypeVar("Function", bound=Callable[..., None])

BENCHMARKS: dict[str, click.Command] = {}
"""All that `@benchmark` has named, filled when their modules are imported."""
QUICK: list[str] = []
"""Those that run when none is named."""


@dataclass(frozen=True)
class Option:
    """What an option of a benchmark says: the help, and the values that it takes when its type takes too many."""

    help: str
    type: click.ParamType | None = None


Users = Annotated[int, Option("Simulated users.", click.IntRange(min=1_000))]
Days = Annotated[int, Option("Days of simulated events.")]
History = Annotated[int, Option("Days before the night that is measured.")]
Workers = Annotated[int, Option("Workers of one thread.")]
Memory = Annotated[str, Option("Memory limit of a worker, as 1GiB.")]
Epochs = Annotated[int, Option("Epochs of training.")]
Model = Annotated[Literal["amm-rank", "amm-rank-plus"], Option("What is trained.")]
Folds = Annotated[int, Option("Folds over rows or users.", click.IntRange(min=2))]
Methods = Annotated[Sequence[str], Option("Methods to compare, by name or FILE.py, with commas between.")]
Data = Annotated[
    Path,
    Option("Folder of label-ranking tables.", click.Path(exists=True, file_okay=False, path_type=Path)),
]
MinCategories = Annotated[int, Option("Clicked categories from which a user trains and counts; before 0.3.0, 3.")]
Sets = Annotated[Sequence[str], Option("Tables to take, by name, with commas between; by default all.")]

FOLDER = click.Path(file_okay=False, resolve_path=True, path_type=Path)


def benchmark(name: str, *, quick: bool = False) -> Callable[[Function], Function]:
    """Make a function a benchmark of the command line, and leave the function as it is.

    Its keyword arguments are the options, each `Annotated` with an `Option`; its docstring is the help. An argument
    `work` is the folder that `--work` names, or one that is removed in the end. `quick` ones run when none is named.
    """

    def register(function: Function) -> Function:
        if name in BENCHMARKS:
            raise ValueError(f"two benchmarks have the name {name}")
        BENCHMARKS[name] = _make_command(name, function)
        if quick:
            QUICK.append(name)
        return function

    return register


def _make_command(name: str, function: Callable[..., None]) -> click.Command:
    hints = get_type_hints(function, include_extras=True)
    parameters = inspect.signature(function).parameters
    options = [_make_option(key, hints[key], parameters[key].default) for key in parameters if key != "work"]
    if "work" in parameters:
        options.append(click.Option(["--work"], type=FOLDER, help="Folder of lakes and results, kept."))

    @click.pass_obj
    def run(folder: Path, **values: Any) -> None:
        if "work" in parameters:
            values["work"] = values["work"] or folder
            values["work"].mkdir(parents=True, exist_ok=True)
        try:
            function(**values)
        except AmmrankError as error:
            raise CommandFailed(f"benchmark {name}: {error}", exit_code_of(error)) from None

    return click.Command(name, callback=run, params=list(options), help=inspect.getdoc(function))


def _make_option(name: str, hint: Any, default: Any) -> click.Option:
    """Return the option of an argument; an argument without a default must be given."""
    if get_origin(hint) in (Union, types.UnionType):
        hint = next(part for part in get_args(hint) if part is not type(None))
    kind, *notes = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    option = next((note for note in notes if isinstance(note, Option)), None)
    if option is None:
        raise TypeError(f"{name} must be Annotated with an Option that says what it is for, got {hint}")
    flag = f"--{name.replace('_', '-')}"
    if kind is bool:
        flag = f"{flag}/--no-{flag.removeprefix('--')}" if default else flag
        return click.Option([flag], is_flag=True, default=default, show_default=default, help=option.help)
    settings: dict[str, Any] = {"type": option.type or _type_of(kind), "help": option.help}
    if default is inspect.Parameter.empty:
        settings["required"] = True
    elif default is not None:
        settings["default"] = ",".join(map(str, default)) if isinstance(default, tuple | list) else default
        settings["show_default"] = True
    return click.Option([flag], **settings)


def _type_of(kind: Any) -> click.ParamType:
    if get_origin(kind) is Literal:
        return click.Choice(get_args(kind))
    if get_args(kind):
        return CommaList(get_args(kind)[0])
    return {int: click.IntRange(min=1), float: click.FLOAT, str: click.STRING}[kind]


class CommaList(click.ParamType):
    """Values with commas between them."""

    name = "a,b,…"

    def __init__(self, kind: type) -> None:
        self.kind = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Sequence[Any]:
        """Return the values that a text has."""
        try:
            return [self.kind(part) for part in value.split(",")]
        except ValueError:
            self.fail(f"{value!r} must be values of type {self.kind.__name__} with commas between", param, ctx)
