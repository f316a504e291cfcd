"""The house: import directions, what each room must not contain, and files that must agree."""

import ast
import importlib
import importlib.metadata
from pathlib import Path

import pytest

from ammrank_dask.storage.store.registry import describe
from ammrank_dask.workflows.cli import COMMANDS

ROOT = Path(__file__).parents[2]
ROOMS = {"storage": 0, "ammrank_dask": 1, "workflows": 2}
# What a room never imports: storage knows no cluster, no compiler and no page, workflows no array store.
FORBIDDEN = {
    "storage": {"dask", "distributed", "numba", "click", "jinja2", "markupsafe"},
    "ammrank_dask": {"click", "argparse", "rich"},
    "workflows": {"zarr", "numba", "numcodecs"},
}
KERNEL_IMPORTS = ("math", "typing", "numpy", "numba")
# rglob does not follow the links to the other two rooms.
SOURCES = [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]


def imported_names(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            yield node.module or ""


def room_of(name):
    """Return the room of an imported module, None for what is not ours."""
    top, _, rest = name.partition(".")
    inside = rest.partition(".")[0]
    return None if top != "ammrank_dask" else inside if inside in ROOMS else top


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports__go_one_way(path):
    room = path.relative_to(ROOT).parts[0]
    names = set(imported_names(path))
    against = {name for name in names if ROOMS.get(room_of(name), -1) > ROOMS[room]}
    assert not against, f"{room} must not import {against}"
    tops = {name.split(".")[0] for name in names}
    assert not tops & FORBIDDEN[room]
    assert "pickle" not in tops


def test_imports__name_one_package():
    for path in [*SOURCES, *(ROOT / "tests").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")]:
        tops = {name.split(".")[0] for name in imported_names(path)}
        assert not tops & {"storage", "workflows"}, f"{path} must import ammrank_dask.{tops}"


@pytest.mark.parametrize("name", ["storage", "workflows"])
def test_rooms__refuse_any_other_name(name, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    with pytest.raises(ImportError, match=f"this package is ammrank_dask.{name}, not {name}"):
        importlib.import_module(name)


def test_kernels__import_only_numpy_and_each_other():
    for path in sorted((ROOT / "ammrank_dask" / "kernels").glob("*.py")):
        tops = set(imported_names(path))
        assert all(name in KERNEL_IMPORTS or name.startswith("ammrank_dask.kernels") for name in tops), path
        if path.name != "jit.py":
            assert "numba" not in tops, f"{path} must take its decorator from jit.py"


def test_storage_readme__is_what_the_registry_says():
    assert (ROOT / "storage" / "README.md").read_text(encoding="utf-8") == describe()


def test_cluster_yaml__equals_the_built_in_default():
    assert (ROOT / "cluster.yaml").read_bytes() == (ROOT / "workflows" / "cluster" / "cluster.yaml").read_bytes()


def test_entry_points__are_the_console_script_and_the_dask_command():
    points = importlib.metadata.distribution("ammrank-dask").entry_points
    assert {(point.group, point.name, point.value) for point in points} == {
        ("console_scripts", "ammrank", "ammrank_dask.workflows.cli:main"),
        ("dask_cli", "ammrank", "ammrank_dask.workflows.cli:ammrank"),
    }


def test_constraints__pin_every_dependency_without_addresses():
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    names = {line.partition("==")[0].lower().replace("_", "-") for line in pins}
    assert all("==" in line and "/" not in line and "@" not in line for line in pins)
    for requirement in importlib.metadata.requires("ammrank-dask") or []:
        name = requirement.split(";")[0].split("[")[0].strip()
        name = name.split(">")[0].split("<")[0].split("=")[0].strip().lower().replace("_", "-")
        assert name in names, f"{name} is not pinned in constraints.txt"


def test_commands__listed_help_is_the_help_of_the_command():
    for name, sentence in COMMANDS.items():
        command = importlib.import_module(f"ammrank_dask.workflows.{name}").command
        assert command.name == name
        assert command.help.splitlines()[0] == sentence
