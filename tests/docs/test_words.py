"""Text for users is plain English: short paragraphs, and none of the words that readers stumbled over."""

import ast
import re
from pathlib import Path

import click
import pytest

from ammrank_dask.workflows.cli import COMMANDS, ammrank

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "SECURITY.md", "storage/README.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]  # fmt: skip
TEMPLATES = sorted((ROOT / "ammrank_dask").glob("[!sw]*/*.html*"))
MAX_WORDS = 120
# What not to write, and what CONTRIBUTING.md says instead.
WORST = {
    r"hand(s|ed|ing)? (it |them |what |who )?out": "assign, publish",
    r"c[ao]mes? true": "actual clicks",
    r"h[eo]ld(s|ing)? [^.|]{0,60}\bagainst": "compare with",
    r"in force": "active",
    r"let(s|ting)? (it |them )?through": "release",
    r"held back|holds? back": "on hold",
    r"(old|new) rule": "per-category cutoff, top-K per user",
    r"brought to (the night|tonight)|carried chances": "recalibrated for tonight",
    r"\b(the house|three rooms)\b": "repository layout, packages",
    r"mistake in ammrank": "bug in ammrank-dask",
    r"\b(files|rows|lines|users|events?|nights|one|object|row|task|planes?|file|line|value|id|folders?) an? "
    r"(day|night|user|category|file|line|row|second|partition|command|stage|fold)\b": "per day, per user",
}
# Words that commands began with.
FIRST_WORDS = {"Say", "Tell", "Try", "Look", "Hold", "Bring"}


def paragraphs(text):
    """Return the paragraphs, points of lists and headings of a page, without code and tables."""
    text = re.sub(r"^( *)```.*?^ *```", "\n", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^(\||    ).*$", "", text, flags=re.MULTILINE)
    return re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )|\n(?=#)", text)


def helps(command, path):
    """Yield where and what every help of a command and its options says."""
    yield path, command.help or ""
    for option in command.params:
        yield f"{path} {option.name}", getattr(option, "help", None) or ""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            yield from helps(command.get_command(context, name), f"{path} {name}")


def strings(path):
    """Return all strings of a module, its docstrings and messages: `{}` stands for what a message names."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    inside = {part for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            found.append("".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in inside:
            found.append(node.value)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages__have_no_paragraph_above_120_words(page):
    long = [text.strip()[:60] for text in paragraphs(page.read_text(encoding="utf-8")) if len(text.split()) > MAX_WORDS]
    assert long == []


@pytest.mark.parametrize("bad", WORST)
def test_text_for_users__has_none_of_the_worst_words(bad):
    texts = {str(page.relative_to(ROOT)): page.read_text(encoding="utf-8") for page in [*PAGES, *TEMPLATES]}
    texts |= dict(helps(ammrank, "ammrank"))
    assert len(texts) > 100
    pattern = re.compile(bad, re.IGNORECASE)
    lines = {name: " ".join(text.split()) for name, text in texts.items()}
    found = [f"{name}: {match[0]}" for name, line in lines.items() for match in pattern.finditer(line)]
    assert found == [], f"better: {WORST[bad]}"


def test_modules__have_none_of_the_worst_words():
    modules = [
        path for room in ("ammrank_dask", "storage", "workflows") for path in sorted((ROOT / room).rglob("*.py"))
    ]
    assert len(modules) > 200
    patterns = [re.compile(bad, re.IGNORECASE) for bad in WORST]
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in modules
        for text in strings(path)
        for pattern in patterns
        for match in pattern.finditer(" ".join(text.split()))
    ]
    assert found == []


def test_docstrings__begin_with_a_plain_verb():
    modules = [
        path for room in ("ammrank_dask", "storage", "workflows") for path in sorted((ROOT / room).rglob("*.py"))
    ]
    first = re.compile(r'"""(Say|Tell|Look|Hold|Bring|Mend|Try)\b[^"\n]*')
    found = [
        f"{path.name}: {match[0]}" for path in modules for match in first.finditer(path.read_text(encoding="utf-8"))
    ]
    assert found == []


def test_commands__begin_with_a_plain_verb():
    assert {name for name, sentence in COMMANDS.items() if sentence.split()[0] in FIRST_WORDS} == set()


def test_contributing__lists_the_words():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert all(better in text for better in WORST.values())
