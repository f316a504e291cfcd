"""The command line `ammrank`; each command is a module of this package and is imported when it is called."""

from __future__ import annotations

import importlib
from typing import Any

import click
from click.shell_completion import CompletionItem

from ammrank_dask.storage.errors import suggest
from ammrank_dask.workflows.session.deadline import ended_in_time
from ammrank_dask.workflows.session.options import stopped_in_a_sentence

# The first sentence of every command's help, so that `ammrank --help` imports none of them (a test compares).
COMMANDS = {
    "backtest": "Compare the lists of past nights with the clicks that followed: table, curves, JSON, HTML.",
    "category": "Show one category over the kept nights: exposure, click share, ratio, ranks, click probability.",
    "check": "Test what a site needs: file system, cluster, versions, memory, clocks, and where copies go.",
    "compare": "Compare two nights and their models: users whose lists changed, measures, and exposure by category.",
    "completion": "Print the script for shell completion of commands and options.",
    "config": "Validate and show the config of a site, without a cluster.",
    "demo": "Simulate a lake, create a site, run some nights, and print where the report is.",
    "evaluate": "Compare AMM-rank with other methods on your own data: table, curves, JSON, HTML.",
    "explain": "Show why a user got their categories: each score as a sum of its causes.",
    "export": "Write the lists of a published night for other systems, one line per user.",
    "features": "Build the features of every user at the end of a date.",
    "forget": "Remove users from everything a site keeps, and leave them out of later nights.",
    "ingest": "Update the interest state to a date.",
    "init": "Inspect a lake and write the config of a site.",
    "nightly": "Run a night, or several: ingest, features, training when due, scoring, report, publish.",
    "nights": "List the nights of a site: status, users, hits, error, starved categories, seconds.",
    "plan": "Scale the recorded nights of a site to another size: time, disk, memory, workers.",
    "publish": "Publish a night that a check of publish.hold put on hold.",
    "repartition": "Change the number of partitions of a site, without reading the lake.",
    "report": "Write the exposure report of a scored night.",
    "score": "Write the list of every user at the end of a date.",
    "simulate": "Write a lake of simulated events whose truth is known.",
    "status": "Show what is published, how old it is, and what is missing.",
    "train": "Train a model on the users who clicked in the label window that ends with a date.",
    "verify": "Check every manifest and every checksum of a site.",
}

SECTIONS = {
    "Get started": ("demo", "init", "config", "check", "plan"),
    "Every night": ("nightly", "publish", "status", "nights", "export"),
    "One stage of a night": ("ingest", "features", "train", "score", "report"),
    "Inspect and compare": ("explain", "category", "compare", "evaluate", "backtest", "verify"),
    "Other": ("forget", "repartition", "simulate", "completion"),
}


class LazyGroup(click.Group):
    """A group that imports a command's module only when the command is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"ammrank_dask.workflows.{cmd_name}")
        command: click.Command = module.command
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the commands that begin so, without importing any."""
        commands = [CompletionItem(name, help=COMMANDS[name]) for name in COMMANDS if name.startswith(incomplete)]
        return [*commands, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands by what they are for."""
        for title, names in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, COMMANDS[name]) for name in names])

    def invoke(self, ctx: click.Context) -> Any:
        """Import and run a command: an import takes a second or two, and may be interrupted as well."""
        with stopped_in_a_sentence():
            return super().invoke(ctx)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """Find the command, or suggest one."""
        name = args[0] if args else ""
        if name and not name.startswith("-") and name not in COMMANDS:
            raise click.UsageError(f"there is no command {name!r}; {suggest(name, COMMANDS, 'commands are')}", ctx)
        return super().resolve_command(ctx, args)


@click.group("ammrank", cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="ammrank-dask", prog_name="ammrank")
def ammrank() -> None:
    """Rank ad categories for every user, night by night, from event logs larger than memory."""


def main() -> None:
    """Run the command line."""
    with ended_in_time():
        ammrank(prog_name="ammrank")


if __name__ == "__main__":
    main()
