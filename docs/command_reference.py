"""Write the reference of the commands from their help: `python docs/command_reference.py > docs/commands.md`."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator

import click

from ammrank_dask.workflows.cli import SECTIONS, ammrank

HEAD = """# Commands

Every command with its options, from their help; written by `python docs/command_reference.py > docs/commands.md`.
`dask ammrank COMMAND` and `python -m ammrank_dask COMMAND` are the same. `ammrank completion bash` prints a script that
completes commands and options. Commands end with an [exit code](exit-codes.md).
"""


def reference() -> str:
    """Return the page as Markdown: the commands by what they are for."""
    context = click.Context(ammrank, info_name="ammrank")
    lines = [HEAD]
    for title, names in SECTIONS.items():
        lines += [f"## {title}", ""]
        for name in names:
            command = ammrank.get_command(context, name)
            lines += _entry(command, click.Context(command, info_name=name, parent=context))
    return "\n".join(lines)


def _entry(command: click.Command, context: click.Context) -> Iterator[str]:
    """Yield usage, help and options of a command, then its subcommands."""
    usage = command.get_usage(context).removeprefix("Usage: ")
    yield from (f"### {context.command_path}", "", "```text", usage, "```", "")
    yield from (inspect.cleandoc(command.help or ""), "")
    records = [option.get_help_record(context) or ("", "") for option in command.get_params(context)]
    records = [(option, meaning) for option, meaning in records if meaning and "--help" not in option]
    if records:
        yield from ("| option | meaning |", "|---|---|")
        yield from (f"| `{_cell(option)}` | {_cell(meaning)} |" for option, meaning in records)
        yield ""
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from _entry(inner, click.Context(inner, info_name=name, parent=context))


def _cell(text: str) -> str:
    """Return the text as one cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(reference())
