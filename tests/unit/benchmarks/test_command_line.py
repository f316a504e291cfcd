"""`python -m benchmarks`: every benchmark is a command whose options are the arguments of its function."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import click
import pytest
from click.testing import CliRunner

from ammrank_dask.storage.errors import BadInput
from benchmarks import command_line
from benchmarks.__main__ import main
from benchmarks.command_line import BENCHMARKS, QUICK, Data, Option, Users, benchmark

README = Path(__file__).parents[3] / "benchmarks" / "README.md"


@pytest.fixture
def registered(monkeypatch):
    """Let a test name benchmarks of its own, and return a group that has them, and what they were called with."""
    monkeypatch.setattr(command_line, "BENCHMARKS", {})
    monkeypatch.setattr(command_line, "QUICK", [])
    calls = []

    @benchmark("sizes")
    def measure_sizes(
        work: Path,
        *,
        users: Users = 5_000,
        seeds: Annotated[Sequence[int], Option("Seeds.")] = (1, 2),
        model: Annotated[Literal["one", "two"], Option("Model.")] = "one",
        fold_seed: Annotated[int, Option("Folds.", click.IntRange(min=0))] = 0,
        bins: Annotated[bool, Option("Bins.")] = False,
        real: Annotated[bool, Option("Real.")] = True,
        households: Annotated[int, Option("Households.")] | None = None,
    ) -> None:
        """Measure sizes."""
        calls.append((users, seeds, model, fold_seed, bins, real, households, work))

    @benchmark("tables")
    def measure_tables(*, data: Data) -> None:
        """Measure tables."""
        raise BadInput(f"{data.name} has no table")

    return click.Group(commands=command_line.BENCHMARKS, chain=True), calls


def test_benchmark__options_and_defaults_are_those_of_the_function(registered, tmp_path):
    group, calls = registered
    given = ["--users", "1000", "--seeds", "3", "--model", "two", "--fold-seed", "4", "--bins", "--no-real"]
    given += ["--households", "7", "--work", str(tmp_path / "kept")]
    result = CliRunner().invoke(group, ["sizes", *given, "sizes"], obj=tmp_path)
    assert result.exit_code == 0, result.output
    assert calls == [
        (1_000, [3], "two", 4, True, False, 7, tmp_path / "kept"),
        (5_000, [1, 2], "one", 0, False, True, None, tmp_path),
    ]
    assert (tmp_path / "kept").is_dir()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["sizes", "--users", "999"], "999 is not in the range x>=1000"),
        (["sizes", "--seeds", "1,b"], "'1,b' must be values of type int with commas between"),
        (["sizes", "--data", "."], "No such option '--data'"),
        (["sizes", "--households", "0"], "0 is not in the range x>=1"),
        (["tables"], "Missing option '--data'"),
    ],
)
def test_benchmark__refuses_what_it_does_not_take(registered, arguments, said):
    group, calls = registered
    result = CliRunner().invoke(group, arguments)
    assert result.exit_code == 2
    assert said in result.output
    assert calls == []


def test_benchmark__errors_of_ours_name_it(registered, tmp_path):
    result = CliRunner().invoke(registered[0], ["tables", "--data", str(tmp_path)])
    assert result.exit_code == 65
    assert f"benchmark tables: {tmp_path.name} has no table" in result.output


def test_benchmark__needs_a_name_of_its_own_and_help_for_every_argument(registered):
    with pytest.raises(ValueError, match="two benchmarks have the name sizes"):
        benchmark("sizes")(lambda: None)
    with pytest.raises(TypeError, match="users must be Annotated with an Option that says what it is for"):

        @benchmark("other")
        def measure_other(users: int = 1) -> None: ...


@pytest.mark.parametrize(("arguments", "run"), [([], ["day", "epoch", "night", "read", "score"]), (["read"], ["read"])])
def test_main__without_a_name_runs_the_quick_ones(monkeypatch, arguments, run):
    called = []
    for name in QUICK:
        monkeypatch.setitem(BENCHMARKS, name, click.Command(name, callback=lambda name=name: called.append(name)))
    assert CliRunner().invoke(main, arguments).exit_code == 0
    assert sorted(called) == run


def test_main__help_of_a_benchmark_has_its_options_only():
    result = CliRunner().invoke(main, ["balanced", "--help"])
    assert re.findall(r"^  --([\w-]+)", result.output, flags=re.MULTILINE) == [
        "users", "memory", "real", "work", "help",
    ]  # fmt: skip
    assert "[default: 1000000; x>=1000]" in result.output


def test_readme__has_every_benchmark_under_one_question():
    rows = [line for line in README.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    questions = [line for line in rows[: rows.index("| **Where does an event go?** | `event-path` |") + 1]]
    named = [name for line in questions[1:] for name in re.findall(r"`([a-z-]+)`", line.split("|")[2])]
    assert sorted(named) == sorted(BENCHMARKS)
