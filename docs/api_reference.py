"""Write the reference of the public names from their docstrings: `python docs/api_reference.py > docs/api.md`."""

from __future__ import annotations

import inspect
import math
import re
import sys
from collections.abc import Iterator
from typing import Any

import ammrank_dask

HEAD = """# Python reference

The names of `ammrank_dask`, from their docstrings; written by `python docs/api_reference.py > docs/api.md`.
[Use it from Python](python.md) shows how they go together.
"""
_SECTION = re.compile(r"^(\w[\w ]*)\n-{3,}\n", re.MULTILINE)
_ADDRESS = re.compile(r"<function (\w+) at 0x\w+>")
_LISTED = ("Parameters", "Returns", "Attributes", "Raises")


def reference() -> str:
    """Return the page as Markdown: the estimators first, then what takes a cluster, each in the order of the names."""
    objects = {name: getattr(ammrank_dask, name) for name in ammrank_dask.__all__}
    ordered = sorted(objects, key=lambda name: (not inspect.isclass(objects[name]), name.lower()))
    links = " · ".join(f"[{name}](#{name.lower()})" for name in ordered)
    return "\n".join([HEAD, links, *(line for name in ordered for line in _entry(name, objects[name]))]) + "\n"


def _entry(name: str, value: Any) -> Iterator[str]:
    yield from ("", f"## {name}", "", "```text", _signature(name, value, width=110), "```", "")
    yield _text(value)
    if inspect.isclass(value):
        yield from ("", "| call | what it does |", "|---|---|")
        yield from (f"| `{call}` | {_first_line(function)} |" for call, function in _public_methods(value))


def _public_methods(value: type) -> Iterator[tuple[str, Any]]:
    """Yield the methods and properties that our classes define, as one calls them."""
    ours = [base for base in value.__mro__ if base.__module__.startswith("ammrank_dask")]
    for name in sorted({name for base in ours for name in vars(base) if not name.startswith("_")}):
        member = inspect.getattr_static(value, name)
        if isinstance(member, property):
            yield name, member
        elif inspect.isfunction(function := getattr(member, "__func__", member)):
            yield _signature(name, function), function


def _signature(name: str, value: Any, width: float = math.inf) -> str:
    """Return the call with defaults and without types, one parameter a line where it is longer than `width`."""
    shown, has_star = [], False
    for parameter in inspect.signature(value).parameters.values():
        if parameter.name in ("self", "cls"):
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not has_star:
            shown, has_star = [*shown, "*"], True
        has_star |= parameter.kind is parameter.VAR_POSITIONAL
        text = str(parameter.replace(annotation=inspect.Parameter.empty))
        shown.append(_ADDRESS.sub(r"\1", text))
    line = f"{name}({', '.join(shown)})"
    return line if len(line) <= width else f"{name}(\n" + "".join(f"    {part},\n" for part in shown) + ")"


def _first_line(value: Any) -> str:
    return (inspect.getdoc(value) or "").partition("\n")[0].replace("|", "\\|")


def _text(value: Any) -> str:
    """Return a docstring as Markdown: sections in bold, the entries of lists as points, examples as code."""
    first, *sections = _SECTION.split(inspect.getdoc(value) or "")
    parts = [first.strip()]
    for title, body in zip(sections[::2], sections[1::2], strict=True):
        shown = _points(body) if title in _LISTED else f"```text\n{body.strip()}\n```"
        parts += [f"**{title}**", shown]
    return "\n\n".join(part for part in parts if part)


def _points(body: str) -> str:
    """Return numpydoc entries, a name and its indented meaning, as a list."""
    points = []
    for line in body.strip().splitlines():
        if line and not line.startswith(" "):
            points.append(f"- `{line.strip()}`:")
        elif line.strip() and points:
            points[-1] += f" {line.strip()}"
    return "\n".join(points)


if __name__ == "__main__":
    sys.stdout.write(reference())
