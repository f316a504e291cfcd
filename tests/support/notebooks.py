"""Run the cells of a notebook as Jupyter does, without Jupyter: what a cell ends with is shown as HTML or as text."""

import ast
import json
import re
import sys
import types
from pathlib import Path


def read_notebook(path):
    """Return the content of a notebook."""
    return json.loads(Path(path).read_text(encoding="utf-8"))


def run_notebook(path, **parameters):
    """Run all code cells in one module, with other values in the cell of parameters; return its names, what was shown.

    Names are those of `__main__`, as in a notebook: classes defined in a cell are sent to workers whole.
    """
    module = types.ModuleType("__main__")
    names, before = vars(module), sys.modules["__main__"]
    sys.modules["__main__"] = module
    shown = []
    try:
        for number, cell in enumerate(read_notebook(path)["cells"]):
            if cell["cell_type"] != "code":
                continue
            source = "".join(cell["source"])
            if "parameters" in cell["metadata"].get("tags", []):
                for name, value in parameters.items():
                    source, times = re.subn(rf"^{name} = .*$", f"{name} = {value!r}", source, flags=re.MULTILINE)
                    assert times == 1, f"{path} has no parameter {name}"
            shown.append(_run_cell(source, f"{Path(path).name}[{number}]", names))
    finally:
        sys.modules["__main__"] = before
    return names, [each for each in shown if each is not None]


def _run_cell(source, name, names):
    """Run a cell and return what it shows of its last expression."""
    tree = ast.parse(source, name)
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        shown = ast.Assign([ast.Name("_", ast.Store())], tree.body[-1].value)
        tree.body[-1] = ast.fix_missing_locations(ast.copy_location(shown, tree.body[-1]))
    names["_"] = None
    exec(compile(tree, name, "exec"), names)
    value = names["_"]
    return value._repr_html_() if hasattr(value, "_repr_html_") else None if value is None else repr(value)
