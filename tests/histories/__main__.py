"""Try random histories of sites: `python -m tests.histories --minutes 60 [--seed N]`."""

import faulthandler
import os
import secrets
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import click

from tests.histories.invariants import Differs
from tests.histories.machine import History, simulate_lakes

SHRINKING_MINUTES = 20
STUCK_SECONDS = 1200
"""A history that takes longer hangs: where it does is printed."""


@click.command(context_settings={"max_content_width": 120})
@click.option("--minutes", type=float, default=10, show_default=True, help="Begin histories for so long.")
@click.option("--seed", type=click.IntRange(0), help="Of the first history; those after it have the next numbers.")
@click.option("--histories", type=click.IntRange(1), help="At most so many.")
@click.option("--steps", type=click.IntRange(1), default=12, show_default=True, help="Steps of a history.")
@click.option("--without", multiple=True, type=int, help="Number of a step to leave out; may be given several times.")
@click.option("--shrink/--no-shrink", default=True, show_default=True, help="Leave steps out of one that differs.")
@click.option("--verbose", is_flag=True, help="Print every step.")
def main(
    minutes: float,
    seed: int | None,
    histories: int | None,
    steps: int,
    without: tuple[int, ...],
    shrink: bool,
    verbose: bool,
) -> None:
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
            begin = time.monotonic()
            error = try_history(seed, Path(work), steps, without, click.echo if verbose else lambda line: None)
            n_done += 1
            click.echo(f"seed {seed}: {'whole' if error is None else 'differs'}, {time.monotonic() - begin:.0f} s")
            if error is not None:
                n_failed += 1
                click.echo("\n".join([str(error), *error.__notes__]))
                if shrink:
                    more = leave_out(seed, Path(work), steps, without)
                    options = " ".join(f"--without {number}" for number in more)
                    click.echo(f"it still differs with --seed {seed} --steps {steps} --histories 1 {options}")
            seed += 1
    click.echo(f"{n_done} histories, {n_failed} of them differ")
    sys.exit(1 if n_failed else 0)


def try_history(
    seed: int, lakes: Path, steps: int, without: tuple[int, ...], say: Callable[[str], object]
) -> Differs | None:
    """Make a history; return how it differs. The folder of one that does is kept."""
    faulthandler.dump_traceback_later(STUCK_SECONDS, exit=True)
    folder = Path(tempfile.mkdtemp(prefix=f"ammrank-history-{seed}-"))
    history = History(seed, lakes, folder / "worlds", say)
    try:
        history.run(steps, without)
    except Differs as error:
        error.add_note(f"its worlds are in {folder}")
        return error
    finally:
        faulthandler.cancel_dump_traceback_later()
    history.remove()
    folder.rmdir()
    return None


def leave_out(seed: int, lakes: Path, steps: int, without: tuple[int, ...]) -> tuple[int, ...]:
    """Return more steps without which a history still differs: first many at once, then one by one."""
    end = time.monotonic() + 60 * SHRINKING_MINUTES
    size = steps // 2
    while size:
        for first in range(steps, 0, -size):
            gone = tuple(sorted({*without, *range(max(1, first - size + 1), first + 1)}))
            if gone == tuple(sorted(without)):
                continue
            if time.monotonic() > end:
                return without
            if try_history(seed, lakes, steps, gone, lambda line: None) is not None:
                without = gone
        size //= 2
    return without


if __name__ == "__main__":
    main()
