"""Compare AMM-rank with what one runs today, on one's own data."""

from __future__ import annotations

import contextlib
import datetime as dt
import shutil
import textwrap
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ammrank_dask.evaluation.compare import (
    SIMPLE_METHODS,
    MethodResult,
    check_variant,
    compare_methods,
    fit_on_window,
    prepare_features,
    prepare_table_rows,
)
from ammrank_dask.evaluation.fairness import price_comparison
from ammrank_dask.evaluation.folds import Rows, count_clicks, tuning_share
from ammrank_dask.evaluation.measures import TOP, measure_floor, read_simulation
from ammrank_dask.evaluation.summary import (
    describe_checks,
    describe_details,
    describe_floor,
    describe_sources,
    describe_variant,
)
from ammrank_dask.features.store import Features, open_features
from ammrank_dask.methods.registry import reference_of
from ammrank_dask.model.rows import rankings_from_ranks
from ammrank_dask.runtime.tasks import Progress, run_tasks
from ammrank_dask.storage.errors import BadInput, TooFewUsers
from ammrank_dask.storage.lake.rank_tables import read_rank_table
from ammrank_dask.storage.store.manifests import FeaturesManifest
from ammrank_dask.storage.store.runs import Run
from ammrank_dask.storage.vocabulary import AD_VIEW_GROUP
from ammrank_dask.training.forward import DISAGREEMENT, HITS, NDCG, VALUE
from ammrank_dask.workflows.session.night import Night
from ammrank_dask.workflows.session.options import table_lines
from ammrank_dask.workflows.stages.features import MIN_USERS, earlier_windows, training_features, write_windows
from ammrank_dask.workflows.stages.forward import measure_sources, simple_sources, train_before
from ammrank_dask.workflows.stages.ingest import Ingested, ingest
from ammrank_dask.workflows.stages.score import night_values, score_settings
from ammrank_dask.workflows.stages.train import require_history

TABLE_VARIANT = "table"
LINE_WIDTH = 80
UNTRIED = "nothing was tried on clicks that are later than all that was learned"


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

    First come lists that were made without that window, then methods that learn from some of its users and rank for
    the others. The site is held while windows and features are read; methods then work on decoded rows.
    """
    client, progress = night.client, night.progress
    with night.site.exclusive():
        ingested = ingest(night)
        require_history(night.config, ingested)
        write_windows(night, ingested)
        run = training_features(night, ingested)
        features = open_features(run.path)
        chosen = list(dict.fromkeys(variants)) or _default_variants(features)
        for variant in chosen:
            check_variant(features, variant)
        prepared = {
            variant: prepare_features(client, features, variant, scratch / variant, n_folds=n_folds, progress=progress)
            for variant in chosen
        }
        floor = _measure_floor(night, features, truth, n_folds)
        forward = _compare_forward(night, ingested, run, seed)
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
    return {**described, **floor, "forward": forward}


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
    return {**described, "floor": None, "simulation": None, "forward": None}


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
            variant: describe_details(results, prepared[variant], categories, clicks)
            for variant, results in by_variant.items()
        },
    }


def _compare_forward(night: Night, ingested: Ingested, features: Run, seed: int) -> dict[str, Any]:
    """Return how lists made before the last label window rank the clicks in it; the reason where none can be made.

    The simple methods learn from the newest earlier window alone, and stay out if that is of other categories.
    """
    days = night.config.label.days
    first = night.date - dt.timedelta(days - 1)
    earlier = earlier_windows(night, ingested)
    if not earlier:
        needed = f"{4 * days} days of events, train.model amm-rank-plus and train.windows above 1"
        return {"reason": f"{UNTRIED}; that takes an earlier label window of {MIN_USERS} users or more: {needed}"}
    try:
        model = train_before(night, ingested, features, earlier)
    except TooFewUsers as too_few:
        return {"reason": f"{UNTRIED}: {too_few}"}
    n_rows, variant = earlier[0].n_rows, model.variant_
    simple = simple_sources(night.config, model, n_rows)
    has_same = FeaturesManifest.of(earlier[0]).categories == list(ingested.taxonomy.categories)
    names = SIMPLE_METHODS if has_same else ()
    tasks = [(name, earlier[0].path, variant, seed) for name in names]
    fitted = run_tasks(night.client, "evaluate-forward", fit_on_window, tasks, progress=night.progress)
    sources = {**simple, model.method: model, **dict(zip(names, fitted, strict=True))}
    since = ingested.date - dt.timedelta(night.config.label.days)
    given = night_values(night, ingested, since)
    values = None
    if given is not None:
        values = score_settings(night.config, values=given).click_values(ingested.taxonomy.categories)
    there = {name: source for name, source in sources.items() if source is not None}
    result = measure_sources(night, features, there, values=values)
    if not result.n_users:
        return {"reason": f"nobody with events before {first} clicked since, so there are no later clicks to try on"}
    return {"from": str(first), "to": str(night.date), "windows": len(earlier), **describe_sources(result)}


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
    if last != night.date or parameters["label_days"] != config.label.days or parameters["alpha"] != config.label.alpha:
        floor.pop("expected_clicks", None)
    described = {"world": simulation["world"], "parameters": parameters}
    return {"floor": describe_floor(floor), "simulation": described}


def describe_fairness(fairness: Mapping[str, Any] | None) -> list[str]:
    """Return a line for user_top_k and one for every floor: expected clicks against it, and starved categories.

    Examples
    --------
    >>> base = {"expected_clicks": 200.0, "starved_categories": 7}
    >>> floors = [{"floor": 0.5, "expected_clicks": 190.0, "starved_categories": 0, "gap": 0.0}]
    >>> describe_fairness({"method": "lr", "users": 9, "policies": {"user_top_k": base}, "floors": floors})
    ['price of fairness (lr): user_top_k 7 starved', '  floor 0.5: -5.00 %, 0 starved']
    """
    if fairness is None:
        return []
    base = fairness["policies"]["user_top_k"]
    clicks = max(base["expected_clicks"], 1e-300)
    floors = [
        f"  floor {entry['floor']:g}: {100 * (entry['expected_clicks'] / clicks - 1):+.2f} %,"
        f" {entry['starved_categories']} starved"
        for entry in fairness["floors"]
        if "gap" in entry
    ]
    return [f"price of fairness ({fairness['method']}): user_top_k {base['starved_categories']} starved", *floors]


def list_sources(forward: Mapping[str, Any] | None) -> list[str]:
    """Return what lists made before the last label window are worth in it, as text; nothing for a table of ranks.

    Examples
    --------
    >>> list_sources({"reason": "nothing was tried"})
    ['forward: nothing was tried']
    """
    if forward is None:
        return []
    if "reason" in forward:
        return textwrap.wrap(f"forward: {forward['reason']}", LINE_WIDTH, subsequent_indent="  ")
    k, reference = forward["k"], forward["reference"]
    sentence = (
        f"forward: lists made before {forward['from']} against the clicks from then to {forward['to']} of all"
        f" {forward['users']:,} users with history; beside each measure its difference from {reference} and ± its"
        " standard error, paired by user"
    )
    has_value = VALUE in forward["sources"][reference]  # page and JSON have precision, too
    head = ["source", f"hits@{k}", f"NDCG@{k}", "ε_dis", *([f"value@{k}"] if has_value else [])]
    rows = []
    for source, measures in forward["sources"].items():
        cells = []
        for measure in (HITS, NDCG, DISAGREEMENT, *([VALUE] if has_value else [])):
            entry = measures[measure]
            n = 4 if measure == DISAGREEMENT else 3
            versus = "" if source == reference else f" {entry['difference']:+.{n}f}±{entry['standard_error']:.{n}f}"
            cells.append(f"{entry['mean']:.{n}f}{versus}")
        rows.append([source, *cells])
    lines = textwrap.wrap(sentence, LINE_WIDTH, subsequent_indent="  ", break_on_hyphens=False)
    return [*lines, *(f"  {line}" for line in table_lines(head, rows, n_left=len(head)))]


def describe_evaluation(evaluation: dict[str, Any]) -> list[str]:
    """Return the tables as text, in lines of at most 80 characters where names are not longer.

    Where all rankings are complete Kendall's τ stands in the place of precision, which is 1 there for every method.
    """
    lines = list_sources(evaluation["forward"])
    window = "" if evaluation["forward"] is None else "held-out users of the same window, "
    last = min(TOP, len(evaluation["categories"]))
    for variant, found in evaluation["variants"].items():
        details = evaluation["details"][variant]
        lines.append(f"{window}{variant}: {details['users']:,} users, {evaluation['folds']} folds")
        is_complete = all(row["kendall_tau"] is not None for row in found.values())
        quality = ["τ"] if is_complete else ["prec@1", f"prec@{last}"]
        rows = []
        for method, row in found.items():
            low, high = details["intervals"][method]["disagreement"]
            versus = details["best_others"].get(method)
            change = "" if versus is None else f"{versus['disagreement']:+.4f}±{versus['standard_error']:.4f}"
            top = [row["kendall_tau"]] if is_complete else [row["precision"][0], row["precision"][last - 1]]
            error, seconds = f"{row['disagreement']['mean']:.4f}", f"{row['fit_seconds']:.2f}"
            rows.append([method, error, f"{low:.4f}–{high:.4f}", change, *(f"{value:.3f}" for value in top), seconds])
        head = ["method", "ε_dis", "95 % interval", "vs. best other", *quality, "fit s"]
        lines += [f"  {line}" for line in table_lines(head, rows)]
        for line in describe_checks(details["tuning_checks"]):
            lines += textwrap.wrap(line, LINE_WIDTH, initial_indent="  ", subsequent_indent="    ")
        lines += [f"  {line}" for line in describe_fairness(details.get("fairness"))]
    for name, found in (evaluation["floor"] or {}).items():
        lines.append(f"oracle error, the simulator's {name.replace('_', ' ')}: {found['disagreement']:.4f}")
    return lines
