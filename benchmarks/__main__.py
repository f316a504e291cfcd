"""Run benchmarks: `python -m benchmarks [NAME …] [--work DIR]`; without a name, all that take minutes."""

from __future__ import annotations

import inspect
import tempfile
from pathlib import Path
from typing import Any

import click

from ammrank_dask.storage.errors import AmmrankError
from ammrank_dask.workflows.session.options import CommandFailed, exit_code_of
from benchmarks import (
    balanced,
    chances,
    comparison,
    event_path,
    exploration,
    forget,
    growth,
    ingest,
    label_ranking,
    monitor,
    object_store,
    options,
    paper,
    peers,
    plan,
    real,
    safety,
    scale,
    scoring,
    serving,
    store,
    tls,
    training,
)
from benchmarks import nights as whole_nights

BENCHMARKS = {
    "balanced": balanced.compare_balanced,
    "chances": chances.compare_chances,
    "comparison": comparison.compare_methods_on_world,
    "comparison-order": comparison.compare_order,
    "comparison-time": comparison.compare_training_time,
    "tables": comparison.compare_on_tables,
    "paper": paper.run_paper,
    "peers": peers.compare_peers,
    "day": ingest.compare_day,
    "exploration": exploration.compare_exploration,
    "event-path": event_path.follow_event,
    "forget": forget.compare_forget,
    "growth": growth.measure_growth,
    "label-ranking": label_ranking.run_label_ranking,
    "monitor": monitor.compare_monitor,
    "large-site": whole_nights.run_large_site,
    "night": ingest.compare_night,
    "nights": whole_nights.compare_nights,
    "object-store": object_store.compare_object_store,
    "options": options.compare_options,
    "plan": plan.compare_plan,
    "read": store.compare_read,
    "real": real.compare_on_real_log,
    "safety": safety.compare_safety,
    "scale": scale.run_scale,
    "score": scoring.compare_score,
    "score-plus": scoring.compare_score_plus,
    "score-million": scoring.score_million,
    "serve-import": serving.measure_import,
    "tls": tls.compare_tls,
    "epoch": training.compare_epoch,
    "shards": training.compare_shards,
    "toolbox": training.compare_toolbox,
    "workers": training.compare_workers,
    "memory": training.measure_memory,
    "start": training.measure_start,
}
QUICK = ("day", "night", "read", "epoch", "score")


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(sorted(BENCHMARKS)))
@click.option("--work", type=click.Path(file_okay=False, path_type=Path), help="Folder of lakes, kept.")
@click.option("--users", type=click.IntRange(min=1_000), help="Simulated users, where the benchmark has them.")
@click.option("--nights", type=click.IntRange(min=1), help="Nights that are kept, in forget.")
@click.option(
    "--data",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder of label-ranking tables, for safety too.",
)
@click.option("--sets", help="Tables of label-ranking to take, by name, with commas between; by default all.")
@click.option("--folds", type=click.IntRange(min=2), default=5, show_default=True, help="Folds over rows or users.")
@click.option(
    "--fold-seed", type=click.IntRange(min=0), default=0, show_default=True, help="How rows are dealt to folds."
)
@click.option("--households", type=click.IntRange(min=1), help="Households of real, chosen by hash; by default all.")
@click.option("--methods", help="Methods to compare, by name or FILE.py, with commas between.")
@click.option("--rivals", is_flag=True, help="Also EASE and LightGBM, in real.")
@click.option("--real", is_flag=True, help="On Complete Journey, in balanced and chances.")
@click.option("--seeds", help="Seeds of simulated worlds, with commas between, in chances.")
@click.option("--dates", help="Nights of Complete Journey, with commas between, in chances.")
@click.option("--bins", is_flag=True, help="Also the 20 bins, in chances.")
@click.option("--model", type=click.Choice(["amm-rank", "amm-rank-plus"]), help="What is trained, in paper.")
@click.option("--large", is_flag=True, help="Also 200,000 users, in safety.")
def main(
    names: tuple[str, ...],
    work: Path | None,
    users: int | None,
    nights: int | None,
    data: Path | None,
    sets: str | None,
    folds: int,
    fold_seed: int,
    households: int | None,
    methods: str | None,
    rivals: bool,
    real: bool,
    seeds: str | None,
    dates: str | None,
    bins: bool,
    large: bool,
    model: str | None,
) -> None:
    """Measure this package on this machine."""
    given: dict[str, Any] = {
        "users": users,
        "nights": nights,
        "households": households,
        "methods": methods.split(",") if methods else None,
        "rivals": rivals or None,
        "real": real or None,
        "seeds": [int(seed) for seed in seeds.split(",")] if seeds else None,
        "dates": dates.split(",") if dates else None,
        "bins": bins or None,
        "large": large or None,
        "model": model,
        "data": data,
    }
    with tempfile.TemporaryDirectory(prefix="ammrank-bench-") as temporary:
        folder = (work or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        for name in names or QUICK:
            try:
                if name == "label-ranking":
                    chosen = {"methods": given["methods"]} if methods else {}
                    names_of_sets = sets.split(",") if sets else None
                    BENCHMARKS[name](data, sets=names_of_sets, n_folds=folds, fold_seed=fold_seed, **chosen)
                elif name == "tables":
                    BENCHMARKS[name](data, sets=sets.split(",") if sets else None, n_folds=folds)
                else:
                    BENCHMARKS[name](folder, **_options_of(name, given, folds))
            except AmmrankError as error:
                raise CommandFailed(f"benchmark {name}: {error}", exit_code_of(error)) from None


def _options_of(name: str, given: dict[str, Any], folds: int) -> dict[str, Any]:
    """Return the options that a benchmark takes, refusing one that was given and means nothing to it."""
    takes = inspect.signature(BENCHMARKS[name]).parameters
    chosen = {option: value for option, value in given.items() if value is not None}
    unknown = [option for option in chosen if option not in takes]
    if unknown:
        raise click.UsageError(f"{name} takes no --{unknown[0]}")
    return chosen | ({"folds": folds} if "folds" in takes else {})


if __name__ == "__main__":
    main()
