"""Try random histories of sites: `python -m tests.histories --minutes 60 [--seed N]`."""

import os
import secrets
import sys
import tempfile
import time
from pathlib import Path

import click

from tests.histories.machine import Differs, History, simulate_lakes


@click.command(context_settings={"max_content_width": 120})
@click.option("--minutes", type=float, default=10, show_default=True, help="Begin histories for so long.")
@click.option("--seed", type=click.IntRange(0), help="Of the first history; those after it have the next numbers.")
@click.option("--histories", type=click.IntRange(1), help="At most so many.")
@click.option("--steps", type=click.IntRange(1), default=12, show_default=True, help="Steps of a history.")
@click.option("--verbose", is_flag=True, help="Print every step.")
def main(minutes: float, seed: int | None, histories: int | None, steps: int, verbose: bool) -> None:
    """Make random histories with crashes, and compare each with the same history without them.

    A history that differs is printed with its seed, `--seed N --histories 1` makes it again, and its folder is kept.
    """
    # Semaphores of processes that were killed are removed when this one ends; that is not worth a warning.
    os.environ.setdefault("PYTHONWARNINGS", "ignore:resource_tracker")
    seed = secrets.randbelow(1_000_000) if seed is None else seed
    began, n_done, n_failed = time.monotonic(), 0, 0
    with tempfile.TemporaryDirectory(prefix="ammrank-histories-") as work:
        simulate_lakes(Path(work))
        while time.monotonic() - began < 60 * minutes and n_done != histories:
            folder = Path(tempfile.mkdtemp(prefix=f"ammrank-history-{seed}-"))
            click.echo(f"seed {seed}")
            history = History(seed, Path(work), folder / "worlds", click.echo if verbose else lambda line: None)
            try:
                history.run(steps)
            except Differs as error:
                n_failed += 1
                click.echo(f"{error}\nits worlds are in {folder}")
            else:
                history.remove()
                folder.rmdir()
            seed, n_done = seed + 1, n_done + 1
    click.echo(f"{n_done} histories, {n_failed} of them differ")
    sys.exit(1 if n_failed else 0)


if __name__ == "__main__":
    main()
