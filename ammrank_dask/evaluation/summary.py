"""Turn the results of a comparison into what `evaluation.json` says: numbers only, no user in them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ammrank_dask.evaluation.compare import POLICIES, MethodResult
from ammrank_dask.evaluation.folds import Rows
from ammrank_dask.evaluation.measures import TOP_K, Measures, SliceSums
from ammrank_dask.methods.registry import reference_of
from ammrank_dask.report.exposure import measure_policy
from ammrank_dask.report.thresholds import Thresholds
from ammrank_dask.storage.vocabulary import AGE_BUCKETS, GENDERS
from ammrank_dask.training.forward import ForwardResult

_CURVES = ("precision", "recall", "f1", "ndcg")


def describe_variant(results: Mapping[str, MethodResult]) -> dict[str, Any]:
    """Return the entries of one variant under `variants`, by method."""
    return {name: _describe_method(result) for name, result in results.items()}


def _describe_method(result: MethodResult) -> dict[str, Any]:
    errors = [fold.measures.disagreement for fold in result.folds]
    measures = result.measures
    return {
        "disagreement": {"mean": float(np.mean(errors)), "std": float(np.std(errors)), "folds": errors},
        "kendall_tau": measures.kendall_tau,
        "precision": measures.precision.tolist(),
        "recall": measures.recall.tolist(),
        "f1": measures.f1.tolist(),
        "fit_seconds": float(np.mean([fold.fit_seconds for fold in result.folds])),
        "score_seconds": float(np.mean([fold.score_seconds for fold in result.folds])),
        "params": result.params,
    }


def describe_details(
    results: Mapping[str, MethodResult],
    rows: Rows,
    categories: Sequence[str],
    clicks: np.ndarray,
) -> dict[str, Any]:
    """Return what is said of one variant beside the table: intervals, differences, tuning, slices, exposure.

    Parameters
    ----------
    clicks
        (L,) test users who clicked the category.
    """
    measures = {name: result.measures for name, result in results.items()}
    return {
        "users": next(iter(measures.values())).n_users,
        "intervals": {name: _intervals(found) for name, found in measures.items()},
        "ndcg": {name: found.ndcg.tolist() for name, found in measures.items()},
        "differences": _differences(measures),
        "standard_errors": {name: found.standard_error() for name, found in measures.items()},
        "best_others": _compare_with_best(measures),
        "tuning": {name: _describe_tuning(result) for name, result in results.items()},
        "tuning_checks": {name: _check_tuning(result) for name, result in results.items()},
        "fitted": {name: [fold.params for fold in result.folds] for name, result in results.items()},
        "slices": {name: _describe_slices(found.slices, rows, categories) for name, found in measures.items()},
        "exposure": _describe_exposure(results, clicks),
    }


def _intervals(measures: Measures) -> dict[str, Any]:
    return {name: measures.interval(name).tolist() for name in ("disagreement", *_CURVES)}


def _differences(measures: Mapping[str, Measures]) -> dict[str, Any]:
    """Return each method's error minus that of the reference, on the same users."""
    reference = reference_of(measures)
    if reference is None:
        return {}
    found = {}
    for name, own in measures.items():
        if name != reference:
            change, low, high = own.difference(measures[reference])
            found[name] = {"disagreement": change, "interval": [low, high]}
    return found


def _compare_with_best(measures: Mapping[str, Measures]) -> dict[str, Any]:
    """Return each method's error minus that of the best other one, on the same users; nothing for a single method."""
    compared = {}
    for name, own in measures.items():
        others = [other for other in measures if other != name]
        if others:
            best = min(others, key=lambda other: measures[other].disagreement)
            change = own.disagreement - measures[best].disagreement
            error = own.standard_error(measures[best])
            compared[name] = {"method": best, "disagreement": change, "standard_error": error}
    return compared


def _describe_tuning(result: MethodResult) -> list[dict[str, Any]]:
    return [
        {"fold": fold + 1 if len(result.tried) > 1 else None, "params": params, "disagreement": error}
        for fold, tried in enumerate(result.tried)
        for params, error in tried
        if not math.isnan(error)
    ]


def _check_tuning(result: MethodResult) -> list[dict[str, Any]]:
    """Describe whether each choice is better than popularity on the held-out users; nothing where there was none."""
    checks = []
    for fold, (tried, popularity) in enumerate(zip(result.tried, result.popularity, strict=True)):
        errors = [error for _, error in tried if not math.isnan(error)]
        if errors:
            checks.append(
                {
                    "fold": fold + 1 if len(result.tried) > 1 else None,
                    "settings": len(errors),
                    "best": min(errors),
                    "popularity": popularity,
                    "beats_popularity": min(errors) < popularity,
                }
            )
    return checks


def describe_checks(checks: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    """Return a sentence for every method whose parameters were chosen among none that beats popularity.

    Examples
    --------
    >>> check = {"fold": None, "settings": 20, "best": 0.18, "popularity": 0.15, "beats_popularity": False}
    >>> describe_checks({"amm-rank": [check], "lr": [{**check, "beats_popularity": True}]})
    ['amm-rank: none of 20 settings is better than popularity on the tuning users (0.1800 against 0.1500)']
    """
    lines = []
    for method, found in checks.items():
        lost = [check for check in found if not check["beats_popularity"]]
        if lost:
            where = f" of {len(lost)} of {len(found)} folds" if lost[0]["fold"] else ""
            lines.append(
                f"{method}: none of {lost[0]['settings']} settings is better than popularity on the tuning users{where}"
                f" ({lost[0]['best']:.4f} against {lost[0]['popularity']:.4f})"
            )
    return lines


def _describe_slices(
    slices: Mapping[str, SliceSums], rows: Rows, categories: Sequence[str]
) -> dict[str, list[dict[str, Any]]]:
    """Return mean errors: by category over the pairs in which it is preferred, else over users."""
    labels: dict[str, list[dict[str, Any]]] = {"category": [{"category": name} for name in categories]}
    if "group" in slices:
        labels["group"] = [{"gender": gender, "age": age} for gender in GENDERS for age in AGE_BUCKETS]
    if "activity" in slices:
        bounds = [0, *rows.activity_bounds]
        labels["activity"] = [{"decile": i + 1, "from": bound} for i, bound in enumerate(bounds)]
    described = {}
    for name, parts in labels.items():
        found = slices[name]
        unit = "pairs" if name == "category" else "users"
        described[name] = [
            {**label, unit: int(count), "disagreement": float(error / count) if count else None}
            for label, error, count in zip(parts, found.error, found.count, strict=True)
        ]
    return described


def _describe_exposure(results: Mapping[str, MethodResult], clicks: np.ndarray) -> dict[str, Any]:
    described = {}
    for method, policies in POLICIES.items():
        for policy in policies:
            if method in results and policy in results[method].folds[0].exposure:
                counts = results[method].exposure(policy)
                k = min(TOP_K, len(clicks))
                described[f"{method} + {policy}"] = measure_policy(counts, clicks, k, Thresholds())
    return described


def describe_floor(floor: Mapping[str, Measures]) -> dict[str, Any]:
    """Return the error of the simulator's truth."""
    return {
        name: {"disagreement": found.disagreement, "interval": found.interval("disagreement").tolist()}
        for name, found in floor.items()
    }


def describe_sources(result: ForwardResult) -> dict[str, Any]:
    """Return a result for `evaluation.json`: by source each measure, and what it is above that of the first source."""
    reference = next(iter(result.sums))
    sources: dict[str, dict[str, Any]] = {}
    for name in result.sums:
        sources[name] = {measure: {"mean": result.mean(name, measure)} for measure in result.measures}
        if name != reference:
            for measure, entry in sources[name].items():
                gain, entry["standard_error"] = result.gain(name, measure)
                entry["difference"] = -gain
    return {"users": result.n_users, "k": result.k, "reference": reference, "sources": sources}
