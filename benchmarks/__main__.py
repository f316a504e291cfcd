"""Run benchmarks: `python -m benchmarks [NAME …] [--work DIR]`; without a name, all that take minutes."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from benchmarks import (
    comparison,
    ingest,
    label_ranking,
    monitor,
    nights,
    options,
    peers,
    scale,
    scoring,
    store,
    training,
)

BENCHMARKS = {
    "comparison": comparison.compare_methods_on_world,
    "comparison-order": comparison.compare_order,
    "comparison-time": comparison.compare_training_time,
    "tables": comparison.compare_on_tables,
    "peers": peers.compare_peers,
    "day": ingest.compare_day,
    "label-ranking": label_ranking.run_label_ranking,
    "monitor": monitor.compare_monitor,
    "large-site": nights.run_large_site,
    "night": ingest.compare_night,
    "nights": nights.compare_nights,
    "options": options.compare_options,
    "read": store.compare_read,
    "scale": scale.run_scale,
    "score": scoring.compare_score,
    "score-million": scoring.score_million,
    "epoch": training.compare_epoch,
    "shards": training.compare_shards,
    "workers": training.compare_workers,
    "memory": training.measure_memory,
    "start": training.measure_start,
}
QUICK = ("day", "night", "read", "epoch", "score")


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(sorted(BENCHMARKS)))
@click.option("--work", type=click.Path(file_okay=False, path_type=Path), help="Folder of lakes, kept.")
@click.option("--users", type=click.IntRange(min=1_000), help="Simulated users, where the benchmark has them.")
@click.option(
    "--data", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Folder of label-ranking tables."
)
@click.option("--sets", help="Tables of label-ranking to take, by name, with commas between; by default all.")
@click.option("--folds", type=click.IntRange(min=2), default=5, show_default=True, help="Folds of label-ranking.")
@click.option(
    "--fold-seed", type=click.IntRange(min=0), default=0, show_default=True, help="How rows are dealt to folds."
)
def main(
    names: tuple[str, ...],
    work: Path | None,
    users: int | None,
    data: Path | None,
    sets: str | None,
    folds: int,
    fold_seed: int,
) -> None:
    """Measure this package on this machine."""
    with tempfile.TemporaryDirectory(prefix="ammrank-bench-") as temporary:
        folder = (work or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        for name in names or QUICK:
            if name == "label-ranking":
                BENCHMARKS[name](data, sets=sets.split(",") if sets else None, n_folds=folds, fold_seed=fold_seed)
            elif name == "tables":
                BENCHMARKS[name](data, sets=sets.split(",") if sets else None, n_folds=folds)
            else:
                BENCHMARKS[name](folder, **({} if users is None else {"users": users}))


if __name__ == "__main__":
    main()
