"""Run benchmarks: `python -m benchmarks [NAME [OPTIONS] …]`; without a name, those that take minutes in all."""

from __future__ import annotations

import importlib
import pkgutil
import tempfile
from pathlib import Path

import click

import benchmarks
from benchmarks.command_line import BENCHMARKS, FOLDER, QUICK

for _module in pkgutil.walk_packages(benchmarks.__path__, "benchmarks."):
    if _module.name != "benchmarks.__main__":
        importlib.import_module(_module.name)


@click.group(commands=BENCHMARKS, chain=True, invoke_without_command=True, context_settings={"max_content_width": 120})
@click.option("--work", type=FOLDER, help="Folder of lakes and results, kept, for all that are named.")
@click.pass_context
def main(context: click.Context, work: Path | None) -> None:
    """Measure this package on this machine; several benchmarks may be named, each with its own options.

    benchmarks/README.md has them by the question that they answer. Without a name the quick ones run.
    """
    temporary = tempfile.TemporaryDirectory(prefix="ammrank-bench-")
    context.obj = work or Path(context.with_resource(temporary)).resolve()
    if context.invoked_subcommand is None:
        for name in QUICK:
            context.invoke(BENCHMARKS[name])


if __name__ == "__main__":
    main()
