"""Compare AMM-rank with what one runs today, on one's own data."""

from __future__ import annotations

import contextlib
import datetime as dt
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ammrank_dask.evaluation.compare import (
    MethodResult,
    check_variant,
    compare_methods,
    prepare_features,
    prepare_table_rows,
)
from ammrank_dask.evaluation.fairness import price_comparison
from ammrank_dask.evaluation.folds import Rows, count_clicks, tuning_share
from ammrank_dask.evaluation.oracle import measure_floor, read_simulation
from ammrank_dask.evaluation.summary import PAPER, describe_checks, describe_details, describe_floor, describe_variant
from ammrank_dask.features.store import Features, open_features
from ammrank_dask.methods.registry import reference_of
from ammrank_dask.model.rankings import rankings_from_ranks
from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.lake.rank_tables import read_rank_table
from ammrank_dask.storage.vocabulary import AD_VIEW_GROUP
from ammrank_dask.tasks import Progress
from ammrank_dask.workflows.session.night import Night
from ammrank_dask.workflows.stages.features import training_features
from ammrank_dask.workflows.stages.ingest import ingest
from ammrank_dask.workflows.stages.train import require_history

TABLE_VARIANT = "table"


def evaluate_site(
    night: Night,
    *,
    variants: Sequence[str],
    methods: Sequence[str],
    n_folds: int,
    seed: int,
    truth: Path | None,
    scratch: Path,
) -> dict[str, Any]:
    """Return the comparison on the users who clicked in the label window that ends with a date.

    The site is held only while its features are read; methods then work on decoded rows.
    """
    client, progress = night.client, night.progress
    with night.site.exclusive():
        ingested = ingest(night)
        require_history(night.config, ingested)
        features = open_features(training_features(night, ingested).path)
        chosen = list(dict.fromkeys(variants)) or _default_variants(features)
        for variant in chosen:
            check_variant(features, variant)
        prepared = {
            variant: prepare_features(client, features, variant, scratch / variant, n_folds=n_folds, progress=progress)
            for variant in chosen
        }
        floor = _measure_floor(night, features, truth, n_folds)
    found = {
        variant: compare_methods(client, rows, methods, stage=f"evaluate-{variant}", seed=seed, progress=progress)
        for variant, rows in prepared.items()
    }
    source = {
        "kind": "site",
        "date": str(night.date),
        "features": features.run.digest,
        "labelled_users": features.n_users,
        "tuning_users": next(iter(prepared.values())).n_tuning,
    }
    described = _describe_evaluation(found, prepared, features.categories, source, n_folds, seed)
    clicks = count_clicks(next(iter(prepared.values())))
    for variant, results in found.items():
        described["details"][variant]["fairness"] = price_comparison(
            client, results, prepared[variant], methods, features.categories, clicks, scratch / f"{variant}-fairness",
            seed=seed, progress=progress,
        )  # fmt: skip
    return {**described, **floor}


def evaluate_table(
    client: Any, path: Path, *, methods: Sequence[str], n_folds: int, seed: int, scratch: Path, progress: Progress
) -> dict[str, Any]:
    """Return the comparison on the rows of a table."""
    table = read_rank_table(path)
    if len(table.X) < n_folds:
        raise BadInput(f"{path} must have at least as many ranked rows as folds ({n_folds}), found {len(table.X)}")
    rankings, tied = rankings_from_ranks(table.ranks)
    rows = prepare_table_rows(table.X, rankings, tied, len(table.labels), scratch, n_folds=n_folds)
    found = compare_methods(client, rows, methods, seed=seed, count_exposure=False, progress=progress)
    source = {
        "kind": "table",
        "table": path.name,
        "rows": len(table.X),
        "rows_without_preference": table.n_dropped,
        "features": len(table.features),
        "constant_features": [
            name for name, column in zip(table.features, table.X.T, strict=True) if (column == column[0]).all()
        ],
    }
    described = _describe_evaluation({TABLE_VARIANT: found}, {TABLE_VARIANT: rows}, table.labels, source, n_folds, seed)
    return {**described, "floor": None, "simulation": None}


@contextlib.contextmanager
def scratch_rows(out: Path) -> Iterator[Path]:
    """Yield a folder for decoded rows and remove it after; one of a comparison that was killed goes too.

    Workers read the rows from there, so it lies beside the results, in a folder that they see.
    """
    for left in out.glob(".rows-*"):
        shutil.rmtree(left, ignore_errors=True)
    scratch = (out / f".rows-{uuid.uuid4().hex[:12]}").resolve()
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _describe_evaluation(
    by_variant: dict[str, dict[str, MethodResult]],
    prepared: dict[str, Rows],
    categories: Sequence[str],
    source: dict[str, Any],
    n_folds: int,
    seed: int,
) -> dict[str, Any]:
    clicks = count_clicks(next(iter(prepared.values())))
    return {
        "format": 1,
        "source": source,
        "folds": n_folds,
        "seed": seed,
        "reference": reference_of(next(iter(by_variant.values()))),
        "categories": list(categories),
        "clicks": dict(zip(categories, clicks.tolist(), strict=True)),
        "variants": {variant: describe_variant(results) for variant, results in by_variant.items()},
        "details": {
            variant: describe_details(results, prepared[variant], categories, clicks, variant)
            for variant, results in by_variant.items()
        },
        "paper": {variant: PAPER[variant] for variant in by_variant if variant in PAPER},
    }


def _default_variants(features: Features) -> list[str]:
    """Return both variants of the paper, or the one without ad views where the store has none."""
    has_views = AD_VIEW_GROUP in (name for name, _ in features.feature_columns.groups)
    return [AD_VIEW_GROUP, f"no-{AD_VIEW_GROUP}"] if has_views else [f"no-{AD_VIEW_GROUP}"]


def _measure_floor(night: Night, features: Features, truth: Path | None, n_folds: int) -> dict[str, Any]:
    """Return the floor and the digest of the world when the lake is a simulated one, else nothing for both."""
    config = night.config
    lake = (night.site.path / config.lake.events).resolve().parent
    folder = lake.with_name(f"{lake.name}-truth") if truth is None else truth
    simulation = read_simulation(folder)
    if simulation is None:
        if truth is not None:
            raise BadInput(f"{truth} must hold the truth of a simulated lake, found no simulation.json")
        return {"floor": None, "simulation": None}
    if set(features.categories) - set(simulation["categories"]):
        return {"floor": None, "simulation": None}
    share = tuning_share(features.n_users)
    floor = measure_floor(night.client, features, folder, n_folds=n_folds, tuning_share=share, progress=night.progress)
    parameters = simulation["parameters"]
    last = dt.date.fromisoformat(parameters["start"]) + dt.timedelta(parameters["days"] - 1)
    # Expected clicks are of the last label window of the lake only; tastes do not change with time.
    if last != night.date or parameters["label_days"] != config.label.days or parameters["alpha"] != config.alpha:
        floor.pop("expected_clicks", None)
    described = {"world": simulation["world"], "parameters": parameters}
    return {"floor": describe_floor(floor), "simulation": described}


def describe_fairness(fairness: Mapping[str, Any] | None) -> list[str]:
    """Return what every floor costs in a line: expected clicks against user_top_k, and starved categories.

    Examples
    --------
    >>> base = {"expected_clicks": 200.0, "starved_categories": 7}
    >>> floors = [{"floor": 0.5, "expected_clicks": 190.0, "starved_categories": 0, "gap": 0.0}]
    >>> describe_fairness({"method": "lr", "users": 9, "policies": {"user_top_k": base}, "floors": floors})
    ['price of fairness (lr): user_top_k 7 starved; floor 0.5: -5.00 %, 0 starved']
    """
    if fairness is None:
        return []
    base = fairness["policies"]["user_top_k"]
    clicks = max(base["expected_clicks"], 1e-300)
    said = [
        f"floor {entry['floor']:g}: {100 * (entry['expected_clicks'] / clicks - 1):+.2f} %,"
        f" {entry['starved_categories']} starved"
        for entry in fairness["floors"]
        if "gap" in entry
    ]
    return [
        f"price of fairness ({fairness['method']}): user_top_k {base['starved_categories']} starved; {'; '.join(said)}"
    ]


def describe_evaluation(evaluation: dict[str, Any]) -> list[str]:
    """Return the table as text."""
    lines = []
    for variant, found in evaluation["variants"].items():
        details = evaluation["details"][variant]
        lines.append(f"{variant}: {details['users']:,} users, {evaluation['folds']} folds")
        lines.append(f"  {'method':12} {'ε_dis':>7} {'95 % interval':>17} {'τ':>7} {'fit s':>8} {'score s':>8}")
        for method, row in found.items():
            low, high = details["intervals"][method]["disagreement"]
            tau = "" if row["kendall_tau"] is None else f"{row['kendall_tau']:.3f}"
            lines.append(
                f"  {method:12} {row['disagreement']['mean']:7.4f} {low:8.4f} –{high:7.4f} {tau:>7}"
                f" {row['fit_seconds']:8.2f} {row['score_seconds']:8.2f}"
            )
        lines += [f"  {line}" for line in describe_checks(details["tuning_checks"])]
        lines += [f"  {line}" for line in describe_fairness(details.get("fairness"))]
    for name, found in (evaluation["floor"] or {}).items():
        lines.append(f"floor, the simulator's {name.replace('_', ' ')}: {found['disagreement']:.4f}")
    return lines
