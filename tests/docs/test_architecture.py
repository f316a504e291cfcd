"""The house: import directions, what each room must not contain, and files that must agree."""

import ast
import functools
import importlib
import importlib.metadata
import itertools
import re
import sys
from pathlib import Path

import pytest

from ammrank_dask.storage.store.registry import describe_formats
from ammrank_dask.workflows.cli import COMMANDS

ROOT = Path(__file__).parents[2]
ROOMS = {"storage": 0, "ammrank_dask": 1, "workflows": 2}
# What a room never imports: storage knows no cluster, no compiler and no page, workflows no array store.
FORBIDDEN = {
    "storage": {"dask", "distributed", "numba", "click", "jinja2", "markupsafe"},
    "ammrank_dask": {"click", "argparse", "rich"},
    "workflows": {"zarr", "numba", "numcodecs"},
}
# A stage imports only earlier ones, and what all stages use; simulation stands apart.
STAGES = ["ingest", "features", "model", "training", "scoring", "report", "evaluation"]
COMMON = {"kernels", "methods", "monitor", "runtime", "user_hash"}
MAX_COMMAND_LINES = 80
MAX_FUNCTION_LINES = 60
# What may only fall: modules, lines that the command of a night imports before it begins, the path of an event.
MAX_MODULES = 304
MAX_LINES_OF_A_NIGHT = 37_950
MIN_LINES_FOR_ONE_IMPORTER = 60
MAX_STOPS, MAX_CHANGES = 81, 31
PLACEHOLDERS = {"found", "known", "place", "facts", "told", "shown", "held"}
KERNEL_IMPORTS = ("math", "typing", "numpy", "numba")
# rglob does not follow the links to the other two rooms.
SOURCES = [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]


@functools.cache
def tree_of(path):
    """Return the syntax tree of a source; nobody changes it."""
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def nodes_of(path):
    """Return all nodes of a source."""
    return list(ast.walk(tree_of(path)))


@functools.cache
def imported_names(path):
    names = set()
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            names.add(node.module or "")
    return names


def room_of(name):
    """Return the room of an imported module, None for what is not ours."""
    top, _, rest = name.partition(".")
    inside = rest.partition(".")[0]
    return None if top != "ammrank_dask" else inside if inside in ROOMS else top


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports__go_one_way(path):
    room = path.relative_to(ROOT).parts[0]
    names = imported_names(path)
    against = {name for name in names if ROOMS.get(room_of(name), -1) > ROOMS[room]}
    assert not against, f"{room} must not import {against}"
    tops = {name.split(".")[0] for name in names}
    assert not tops & FORBIDDEN[room]
    assert "pickle" not in tops


def module_of(path):
    """Return the name under which a source is imported."""
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    parts = parts if parts[0] == "ammrank_dask" else ["ammrank_dask", *parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


STATEMENTS = (ast.stmt, ast.excepthandler, ast.match_case)
"""Where imports are: most nodes of a tree are parts of expressions."""


def is_for_types(node):
    """Tell whether a node is imports for type checkers only."""
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def imported_modules(path, modules, *, is_late=True):
    """Return which of our modules a source imports, also inside functions unless told not to; not for types only."""
    found, nodes = set(), [tree_of(path)]
    while nodes:
        node = nodes.pop()
        if is_for_types(node) or (isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not is_late):
            continue
        nodes += [inside for inside in ast.iter_child_nodes(node) if isinstance(inside, STATEMENTS)]
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (names & modules) or {node.module}
    return found & modules


@pytest.fixture(scope="module")
def graph():
    modules = {module_of(path) for path in SOURCES}
    return {module_of(path): imported_modules(path, modules) for path in SOURCES}


def find_cycle(graph):
    """Return modules that import each other in a circle, an empty list when there are none."""
    state = {}

    def visit(module, path):
        state[module] = "open"
        for other in sorted(graph[module]):
            if state.get(other) == "open":
                return [*path[path.index(other) :], other] if other in path else [module, other]
            if other not in state:
                cycle = visit(other, [*path, other])
                if cycle:
                    return cycle
        state[module] = "closed"
        return []

    return next((cycle for module in sorted(graph) if module not in state and (cycle := visit(module, [module]))), [])


def test_find_cycle__finds_one():
    assert find_cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert find_cycle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_imports__have_no_cycle_even_inside_functions(graph):
    assert find_cycle(graph) == []


def test_imports__stages_go_one_way(graph):
    places = {stage: number for number, stage in enumerate(STAGES)}
    for module, imported in graph.items():
        stage = module.split(".")[1] if module.count(".") else ""
        for other in imported:
            parts = other.split(".")
            if stage in places and parts[0] == "ammrank_dask" and parts[1] not in ROOMS:
                assert parts[1] in COMMON or places.get(parts[1], len(STAGES)) <= places[stage], (
                    f"{module} must not import {other}: the order is {' < '.join(STAGES)}"
                )
            assert parts[1:2] != ["simulation"] or stage in ("simulation", "workflows"), f"{module} imports {other}"


def n_lines(path):
    """Return the lines of a source."""
    return len(path.read_text(encoding="utf-8").splitlines())


def test_modules__are_few():
    assert len(SOURCES) <= MAX_MODULES


def test_modules__with_one_importer_are_not_small(graph):
    importers = {module: {other for other in graph if module in graph[other]} - {module} for module in graph}
    small = {
        module_of(path): importers[module_of(path)]
        for path in SOURCES
        if path.name != "__init__.py" and n_lines(path) < MIN_LINES_FOR_ONE_IMPORTER
    }
    assert {module: which for module, which in small.items() if len(which) == 1} == {}, "join them with their importer"


def test_modules__a_night_imports_few_lines():
    paths = {module_of(path): path for path in SOURCES}
    loaded, todo = set(), ["ammrank_dask.workflows.nightly"]
    while todo:
        module = todo.pop()
        if module not in loaded:
            loaded.add(module)
            packages = {module.rsplit(".", number)[0] for number in range(1, module.count(".") + 1)}
            todo += packages | imported_modules(paths[module], set(paths), is_late=False)
    assert "ammrank_dask.kernels.jit" in loaded  # what is imported by imports counts
    assert sum(n_lines(paths[module]) for module in loaded) <= MAX_LINES_OF_A_NIGHT


@pytest.mark.parametrize("name", COMMANDS)
def test_commands__are_short_and_import_no_other_command(name, graph):
    others = {f"ammrank_dask.workflows.{other}" for other in COMMANDS}
    assert not graph[f"ammrank_dask.workflows.{name}"] & others
    assert n_lines(ROOT / "workflows" / f"{name}.py") <= MAX_COMMAND_LINES


def test_stages__import_no_command(graph):
    commands = {f"ammrank_dask.workflows.{name}" for name in [*COMMANDS, "cli"]}
    for module, imported in graph.items():
        assert module in commands or not imported & commands, f"{module} imports a command"
        if module.startswith("ammrank_dask.workflows.stages."):
            operations = {other for other in imported if other.startswith("ammrank_dask.workflows.operations")}
            assert not operations, f"{module} is of a night and imports {operations}"


def test_imports__files_are_read_and_written_in_storage():
    formats = {"pyarrow.parquet", "pyarrow.dataset", "google_crc32c", "zarr", "numcodecs"}
    scratch = ROOT / "ammrank_dask" / "ingest" / "exchange.py"  # its files live for a minute
    for path in SOURCES:
        if path.relative_to(ROOT).parts[0] != "storage" and path != scratch:
            assert not imported_names(path) & formats, f"{path} must leave the format of files to storage"


def test_imports__name_one_package():
    other = re.compile(r"^\s*(?:from|import) +(storage|workflows)\b", re.MULTILINE)
    for path in [*SOURCES, *(ROOT / "tests").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")]:
        named = other.search(path.read_text(encoding="utf-8"))
        assert named is None, f"{path} must import ammrank_dask.{named[1]}"


@pytest.mark.parametrize("name", ["storage", "workflows"])
def test_rooms__refuse_any_other_name(name, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    with pytest.raises(ImportError, match=f"this package is ammrank_dask.{name}, not {name}"):
        importlib.import_module(name)


def test_names__of_classes_and_functions_have_one_meaning():
    seen = {}
    for path in SOURCES:
        for node in tree_of(path).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
                seen.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    # Every command is called `command`, and click names it after its module.
    assert {name: paths for name, paths in seen.items() if len(paths) > 1 and name != "command"} == {}


def test_functions__have_at_most_60_lines():
    sizes = {}
    for path in SOURCES:
        for node in nodes_of(path):
            if isinstance(node, ast.FunctionDef):
                text = node.body[0] if ast.get_docstring(node) else None
                described = 0 if text is None else text.end_lineno - text.lineno + 1
                sizes[f"{path.relative_to(ROOT)}:{node.name}"] = node.end_lineno - node.lineno + 1 - described
    assert {name: size for name, size in sizes.items() if size > MAX_FUNCTION_LINES} == {}


def test_event_path__every_stop_of_the_page_is_a_function_there():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    stops = re.findall(r"^ *(\d+)  (\w+) +(\S+\.py):(\S+)$", page, flags=re.MULTILINE)
    assert [int(number) for number, *_ in stops] == list(range(1, len(stops) + 1))
    changes = sum(one[1] != other[1] for one, other in itertools.pairwise(stops))
    assert f"{len(stops)} stops (bar 80), {changes} changes of package (bar 35)" in page
    assert len(stops) <= MAX_STOPS
    assert changes <= MAX_CHANGES
    for _, room, file, function in stops:
        assert file.startswith(room)
        names = set()
        for node in tree_of(ROOT / file).body:
            names.add(getattr(node, "name", None))
            inside = node.body if isinstance(node, ast.ClassDef) else []
            names |= {f"{node.name}.{method.name}" for method in inside if isinstance(method, ast.FunctionDef)}
        assert function in names, f"{file} has no {function}; run python -m benchmarks event-path"


def test_parameters__have_names_that_say_what_they_are():
    named = [
        f"{path.relative_to(ROOT)}:{node.name}({argument.arg})"
        for path in SOURCES
        for node in nodes_of(path)
        if isinstance(node, ast.FunctionDef)
        for argument in [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        if argument.arg in PLACEHOLDERS
    ]
    assert named == []


def test_manifests__are_read_by_name_outside_the_store():
    inside = ROOT / "storage" / "store"
    looked_up = re.compile(r"""manifest(\[|\.get\()""")
    others = [path for path in SOURCES if not path.is_relative_to(inside) and looked_up.search(path.read_text())]
    assert others == [], "a manifest is read through storage/store/manifests.py"


def test_kernels__import_only_numpy_and_each_other():
    for path in sorted((ROOT / "ammrank_dask" / "kernels").glob("*.py")):
        names = imported_names(path)
        if path.name == "jit.py":  # how kernels are compiled, and no kernel
            assert {name.split(".")[0] for name in names} <= {"numba", *sys.stdlib_module_names}, path
            continue
        assert all(name in KERNEL_IMPORTS or name.startswith("ammrank_dask.kernels") for name in names), path
        assert "numba" not in names, f"{path} must take its decorator from jit.py"


def test_storage_readme__is_what_the_registry_says():
    assert (ROOT / "storage" / "README.md").read_text(encoding="utf-8") == describe_formats()


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


def test_benchmarks__can_be_imported():
    for path in sorted((ROOT / "benchmarks").rglob("[a-z]*.py")):
        importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))


OF_PATHS = frozenset(
    [
        "mkdir",
        "rmdir",
        "unlink",
        "is_file",
        "is_dir",
        "iterdir",
        "glob",
        "rglob",
        "read_bytes",
        "read_text",
        "write_bytes",
        "write_text",
        "touch",
        "samefile",
        "symlink_to",
        "hardlink_to",
        "readlink",
        "lstat",
        "stat",
        "exists",
        "chmod",
    ]
)
OF_MODULES = {
    "os": frozenset(
        [
            "open",
            "replace",
            "rename",
            "link",
            "scandir",
            "listdir",
            "walk",
            "fsync",
            "remove",
            "unlink",
            "mkdir",
            "makedirs",
            "rmdir",
            "stat",
            "lstat",
            "statvfs",
            "chmod",
            "access",
            "umask",
            "fchmod",
            "pread",
            "write",
            "symlink",
            "truncate",
        ]
    ),
    "shutil": None,
    "tempfile": None,
    "fcntl": None,
    "np": frozenset(["memmap", "load", "save", "fromfile"]),
    "pq": frozenset(["read_table", "write_table"]),
}
"""What touches files: methods of paths, and functions of modules, None for all of them."""
OF_THE_FILE_SYSTEM = ("storage/objects/", "storage/lake/")
FREE = frozenset(
    {
        "ammrank_dask/evaluation/measures.py",
        "ammrank_dask/kernels/jit.py",
        "ammrank_dask/monitor/page.py",
        "ammrank_dask/runtime/collections.py",
        "ammrank_dask/simulation/simulate.py",
        "ammrank_dask/simulation/world.py",
        "workflows/category.py",
        "workflows/check.py",
        "workflows/cluster/cluster_file.py",
        "workflows/cluster/checks.py",
        "workflows/cluster/local.py",
        "workflows/cluster/open.py",
        "workflows/examples/fair_shares.py",
        "workflows/examples/own_cluster.py",
        "workflows/export.py",
        "workflows/nights.py",
        "workflows/operations/backtest.py",
        "workflows/operations/demo.py",
        "workflows/operations/evaluate.py",
        "workflows/operations/lake_init/findings.py",
        "workflows/operations/lake_init/places.py",
        "workflows/session/config.py",
        "workflows/session/deadline.py",
        "workflows/session/options.py",
    }
)
"""Modules that are not on the path of a site's data: config and cluster files, simulation, folders that a user names
for the output of a command, and caches of kernels and workers."""
MOST_CALLS_OF_FREE = 80


def file_calls(path):
    """Return how often a module touches files."""
    count = 0
    for node in nodes_of(path):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in OF_MODULES:
            names = OF_MODULES[node.value.id]
            count += names is None or node.attr in names
        elif isinstance(node, ast.Attribute):
            count += node.attr in OF_PATHS
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            count += node.func.id == "open"
    return count


def test_file_system__is_called_in_one_place():
    found = {str(path.relative_to(ROOT)): file_calls(path) for path in SOURCES}
    calls = {name: n for name, n in found.items() if n and not name.startswith(OF_THE_FILE_SYSTEM)}
    assert {name: n for name, n in calls.items() if name not in FREE} == {}, "what they need is in storage/objects"
    assert calls.keys() >= FREE
    assert sum(calls[name] for name in FREE) <= MOST_CALLS_OF_FREE
