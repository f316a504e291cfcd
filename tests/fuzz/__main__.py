"""Try odd files of all kinds that come from outside: `python -m tests.fuzz --minutes 60 [--seed N]`."""

import secrets
import sys

import click

from tests.fuzz.machine import try_files


@click.command(context_settings={"max_content_width": 120})
@click.option("--minutes", type=float, default=10, show_default=True, help="Try files for so long.")
@click.option("--seed", type=click.IntRange(0), help="The same seed makes the same files.")
@click.option("--files", type=click.IntRange(1), help="At most so many.")
@click.argument("targets", nargs=-1)
def main(minutes: float, seed: int | None, files: int | None, targets: tuple[str, ...]) -> None:
    """Change files of all kinds, or of TARGETS, at random; each must be read, or refused in one sentence."""
    seed = secrets.randbelow(1_000_000) if seed is None else seed
    click.echo(f"seed {seed}")
    outcome = try_files(seed, 60 * minutes, targets, files)
    for finding in outcome.findings:
        click.echo(finding)
    for name in sorted(outcome.read | outcome.refused):
        click.echo(f"{name}: {outcome.read[name]:,} read, {outcome.refused[name]:,} refused")
    click.echo(f"{outcome.cases:,} files, {len(outcome.findings)} of them neither read nor refused")
    sys.exit(1 if outcome.findings else 0)


if __name__ == "__main__":
    main()
