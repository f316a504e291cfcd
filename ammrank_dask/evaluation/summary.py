"""Turn the results of a comparison into what `evaluation.json` says: numbers only, no user in them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ammrank_dask.evaluation.compare import POLICIES, MethodResult
from ammrank_dask.evaluation.folds import Rows
from ammrank_dask.evaluation.measures import TOP_K, Measures, SliceSums
from ammrank_dask.methods.registry import AMM_RANK, reference_of
from ammrank_dask.report.exposure import measure_policy
from ammrank_dask.report.thresholds import Thresholds
from ammrank_dask.storage.vocabulary import AGE_BUCKETS, GENDERS
from ammrank_dask.training.forward import ForwardResult

PAPER = {
    "no-adv": {"amm": 0.3446, "central-mal": 0.2957, "ag-mal": 0.2820, "ib-mal": 0.2694, "lr": 0.2110,
               "pw-lr": 0.2091, AMM_RANK: 0.1996},
    "adv": {"amm": 0.2611, "central-mal": 0.2957, "ag-mal": 0.2820, "ib-mal": 0.1899, "lr": 0.1419,
            "pw-lr": 0.1226, AMM_RANK: 0.1083},
}  # fmt: skip
"""The disagreement errors that the paper printed, of its own 3,289,229 users."""
ORDER = ("central-mal", "ag-mal", "ib-mal", "lr", "pw-lr", AMM_RANK)
"""Methods from the largest to the smallest error in the paper."""
FIGURE_GROUPS = (("female", "21-24"), ("male", "21-24"), ("female", "65+"), ("male", "65+"))
_ALIKE = "both rank every test user alike: the features tell no groups of users apart"
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
    variant: str,
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
        "order": _check_order(measures, variant),
        "gain": _gain(measures, variant),
        "tuning": {name: _describe_tuning(result) for name, result in results.items()},
        "tuning_checks": {name: _check_tuning(result) for name, result in results.items()},
        "fitted": {name: [fold.params for fold in result.folds] for name, result in results.items()},
        "slices": {name: _describe_slices(found.slices, rows, categories) for name, found in measures.items()},
        "exposure": _describe_exposure(results, clicks),
        "planes": {
            name: dict(zip(categories, result.folds[0].n_planes, strict=True))
            for name, result in results.items()
            if result.folds[0].n_planes is not None
        },
        "groups": _describe_groups(results, categories),
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


def _check_order(measures: Mapping[str, Measures], variant: str) -> list[dict[str, Any]]:
    """Return of each neighbouring pair of the paper's table whether it has the same order here."""
    present = [name for name in ORDER if name in measures]
    pairs = []
    for worse, better in itertools.pairwise(present):
        change, low, high = measures[worse].difference(measures[better])
        verdict = "holds" if low > 0 else "turned round" if high < 0 else "too close to tell"
        is_alike = change == low == high == 0
        printed = PAPER.get(variant)
        pairs.append(
            {
                "worse": worse,
                "better": better,
                "difference": change,
                "interval": [low, high],
                "verdict": verdict,
                "why": _ALIKE if is_alike else _explain(worse, better, measures, verdict),
                "paper": None if printed is None else printed[worse] - printed[better],
            }
        )
    return pairs


def _explain(worse: str, better: str, measures: Mapping[str, Measures], verdict: str) -> str | None:
    """Describe a pair that does not have the order of the paper, None when it does."""
    if verdict == "holds":
        return None
    one, other = measures[worse], measures[better]
    if verdict == "too close to tell":
        told = f"the interval includes 0: {one.n_users:,} test users do not tell the two apart"
        return told + _where(worse, better, one, other)
    top = one.precision[0] - other.precision[0]
    first = (
        "also puts a clicked category first more often" if top > 0 else "yet puts a clicked category first less often"
    )
    return f"{worse} is the better one on this data, and {first} ({top:+.4f} precision@1)" + _where(
        worse, better, one, other
    )


def _where(worse: str, better: str, one: Measures, other: Measures) -> str:
    """Describe in which activity deciles each is the better one, nothing without deciles."""
    if "activity" not in one.slices:
        return ""
    counted = one.slices["activity"].count > 0
    gaps = np.zeros(len(counted))
    gaps[counted] = (one.slices["activity"].error - other.slices["activity"].error)[counted]
    gaps[counted] /= one.slices["activity"].count[counted]
    widest = int(np.abs(gaps).argmax())
    leader = worse if gaps[widest] < 0 else better
    return (
        f"; {worse} has the smaller error in {int((gaps < 0).sum())} and {better} in {int((gaps > 0).sum())} of the"
        f" {int(counted.sum())} activity deciles, widest in decile {widest + 1} ({abs(gaps[widest]):.4f} for {leader})"
    )


def _gain(measures: Mapping[str, Measures], variant: str) -> dict[str, Any] | None:
    """Return by how much amm-rank's error is below that of pw-lr, as a share of it; None where that is 0."""
    base = measures["pw-lr"].disagreement if "pw-lr" in measures else 0.0
    if AMM_RANK not in measures or base == 0:
        return None
    change, low, high = measures["pw-lr"].difference(measures[AMM_RANK])
    printed = PAPER.get(variant)
    return {
        "over": "pw-lr",
        "gain": change / base,
        "interval": [low / base, high / base],
        "paper": None if printed is None else 1 - printed[AMM_RANK] / printed["pw-lr"],
    }


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


def _describe_groups(results: Mapping[str, MethodResult], categories: Sequence[str]) -> list[dict[str, Any]]:
    """Return the ten first categories of the groups that the paper's figure 2 shows, in the first fold."""
    for result in results.values():
        orders = result.folds[0].group_orders
        if orders is not None:
            described = []
            for gender, age in FIGURE_GROUPS:
                order = orders.get((AGE_BUCKETS.index(age), GENDERS.index(gender)))
                if order is not None:
                    top = [categories[code] for code in order[:10]]
                    described.append({"gender": gender, "age": age, "top": top})
            return described
    return []


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
