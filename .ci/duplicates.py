#!/usr/bin/env python3
"""Name lines of the product that stand in two places: 12 or more, without comments, docstrings, imports and signatures.

Takes folders, reads every source below them, and ends with 1 where there are any.
"""

import ast
import collections
import sys
import tokenize
from pathlib import Path
from typing import TypeGuard

LEAST = 12
NO_CODE = {tokenize.COMMENT, tokenize.ENCODING}


def code_lines(path: Path) -> list[tuple[int, str]]:
    """Return number and code of the lines that count."""
    tree = ast.parse(path.read_bytes())
    left_out: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            left_out.update(range(node.lineno, node.body[0].lineno))
        elif isinstance(node, ast.Import | ast.ImportFrom) or _is_text(node):
            left_out.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines: dict[int, list[str]] = collections.defaultdict(list)
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.string.strip() and token.type not in NO_CODE and token.start[0] not in left_out:
                lines[token.start[0]].append(token.string)
    return [(number, " ".join(words)) for number, words in sorted(lines.items())]


def _is_text(node: ast.AST) -> TypeGuard[ast.Expr]:
    """Return whether a statement is a string and nothing else."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def main(folders: list[str]) -> int:
    """Print where each repeated stretch of lines begins."""
    first: dict[tuple[str, ...], str] = {}
    n_found = 0
    for path in sorted(path for folder in folders for path in Path(folder).rglob("*.py")):
        lines = code_lines(path)
        before = False
        for start in range(len(lines) - LEAST + 1):
            window = tuple(code for _, code in lines[start : start + LEAST])
            here = f"{path}:{lines[start][0]}"
            other = first.setdefault(window, here)
            if other != here and not before:
                print(f"{here}: {LEAST} lines or more stand at {other}, too")
                n_found += 1
            before = other != here
    return int(n_found > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
