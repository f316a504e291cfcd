"""Run benchmarks: `python -m benchmarks [NAME …] [--work DIR]`; without a name, all that take minutes."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from benchmarks import ingest, scale, store

BENCHMARKS = {
    "day": ingest.compare_day,
    "night": ingest.compare_night,
    "read": store.compare_read,
    "scale": scale.run_scale,
}
QUICK = ("day", "night", "read")


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(sorted(BENCHMARKS)))
@click.option("--work", type=click.Path(file_okay=False, path_type=Path), help="Folder of lakes, kept.")
@click.option("--users", type=click.IntRange(min=1_000), help="Simulated users, where the benchmark has them.")
def main(names: tuple[str, ...], work: Path | None, users: int | None) -> None:
    """Measure this package on this machine."""
    with tempfile.TemporaryDirectory(prefix="ammrank-bench-") as temporary:
        folder = (work or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        for name in names or QUICK:
            BENCHMARKS[name](folder, **({} if users is None else {"users": users}))


if __name__ == "__main__":
    main()
