"""Write a comparison of methods: figures for machines, a table, and a page for people."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from ammrank_dask.evaluation import charts
from ammrank_dask.report.charts import clicks_chart, fairness_chart
from ammrank_dask.report.page import harmless, page_environment
from ammrank_dask.storage.objects.atomic import json_text
from ammrank_dask.storage.site.reports import write_files

RESULT, TABLE, PAGE = "evaluation.json", "evaluation.csv", "evaluation.html"
_TEMPLATE = "evaluation.html.j2"
_Z = 1.96
"""Standard errors on each side of a 95 % interval."""


def write_evaluation(folder: str | Path, evaluation: Mapping[str, Any]) -> None:
    """Write `evaluation.csv`, `evaluation.html` and, last, `evaluation.json` into `folder`, each whole or not at all.

    Parameters
    ----------
    folder
        Made when it is not there.
    evaluation
        The content of `evaluation.json`; table and page are made from it.
    """
    files = {
        TABLE: harmless(flatten(evaluation)).to_csv(index=False, lineterminator="\n"),
        PAGE: render_evaluation(evaluation),
        RESULT: json_text(dict(evaluation)),
    }
    write_files(folder, files)


def flatten(evaluation: Mapping[str, Any]) -> pd.DataFrame:
    """Return one row for each variant and method."""
    rows = []
    for variant, methods in evaluation["variants"].items():
        details = evaluation["details"][variant]
        for method, found in methods.items():
            error = found["disagreement"]
            low, high = details["intervals"][method]["disagreement"]
            versus = details["differences"].get(method)
            row: dict[str, Any] = {
                "variant": variant,
                "method": method,
                "disagreement": error["mean"],
                "disagreement_std": error["std"],
                "disagreement_low": low,
                "disagreement_high": high,
                "difference_to": evaluation["reference"],
                "difference": None if versus is None else versus["disagreement"],
                "difference_low": None if versus is None else versus["interval"][0],
                "difference_high": None if versus is None else versus["interval"][1],
                "kendall_tau": found["kendall_tau"],
                "fit_seconds": found["fit_seconds"],
                "score_seconds": found["score_seconds"],
            }
            for measure in ("precision", "recall", "f1"):
                row |= {f"{measure}_{k + 1}": value for k, value in enumerate(found[measure])}
            row |= {f"ndcg_{k + 1}": value for k, value in enumerate(details["ndcg"][method])}
            row["params"] = ", ".join(f"{name}={value}" for name, value in found["params"].items())
            rows.append(row)
    return pd.DataFrame(rows)


def render_evaluation(evaluation: Mapping[str, Any]) -> str:
    """Return the page: everything inline, every name from the data escaped."""
    environment = page_environment(Path(__file__).parent)
    environment.filters["error"] = lambda value: "–" if value is None else f"{value:.4f}"
    environment.filters["seconds"] = lambda value: f"{value:,.0f}" if value >= 10 else f"{value:.2g}"
    environment.filters["first_value"] = lambda found: next(iter(found.values()))
    styles = charts.style_methods(method for methods in evaluation["variants"].values() for method in methods)
    return environment.get_template(_TEMPLATE).render(
        evaluation=evaluation, verdict=describe_choice(evaluation), charts=charts, styles=styles,
        clicks_chart=clicks_chart, fairness_chart=fairness_chart,
        **_VIEWS,
    )  # fmt: skip


def describe_choice(evaluation: Mapping[str, Any]) -> tuple[bool, str] | None:
    """Return whether to switch to our method, and in a sentence why; None where it was not compared with another.

    Lists made before the clicks decide by their hits; without them the error on held-out users of the first variant.
    """
    ours, forward = evaluation["reference"], evaluation["forward"] or {}
    if ours in forward.get("sources", {}):
        k, other = forward["k"], forward["reference"]
        own, base = forward["sources"][ours]["hits"], forward["sources"][other]["hits"]
        low, high = (own["difference"] + sign * _Z * own["standard_error"] for sign in (-1, 1))
        what = f"users clicked {own['mean']:.2f} of its {k} categories and {base['mean']:.2f} of those of {other}"
        change = f"{own['difference']:+.2f}, 95 % interval {low:+.2f} to {high:+.2f}, {forward['users']:,} users"
    else:
        variant, details = next(iter(evaluation["details"].items()))
        best = details["best_others"].get(ours)
        if best is None:
            return None
        other = best["method"]
        versus = details["differences"][other]
        low, high = versus["interval"]
        errors = [evaluation["variants"][variant][name]["disagreement"]["mean"] for name in (ours, other)]
        what = f"it ranks {100 * errors[0]:.1f} % of pairs in the wrong order and {other} {100 * errors[1]:.1f} %"
        change = f"{other} minus {ours} {versus['disagreement']:+.4f}, 95 % interval {low:+.4f} to {high:+.4f}"
    close = f"{ours} and {other} are too close to tell"
    choice = f"Switch to {ours}" if low > 0 else f"Keep {other}" if high < 0 else close
    return low > 0, f"{choice}: {what} ({change})."


def _worse_than_random(evaluation: Mapping[str, Any], details: Mapping[str, Any]) -> list[tuple[str, int]]:
    """Return the categories that our method ranks worse than at random, and how many test users clicked them."""
    slices = details["slices"].get(evaluation["reference"], {}).get("category", [])
    names = [part["category"] for part in slices if part["disagreement"] is not None and part["disagreement"] > 0.5]
    return [(name, evaluation["clicks"][name]) for name in names]


def _means(methods: Mapping[str, Any]) -> dict[str, float]:
    return {name: found["disagreement"]["mean"] for name, found in methods.items()}


def _interval_table(details: Mapping[str, Any]) -> dict[str, list[float]]:
    return {name: found["disagreement"] for name, found in details["intervals"].items()}


def _costs(methods: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    return {name: (found["fit_seconds"], found["disagreement"]["mean"]) for name, found in methods.items()}


def _curves(methods: Mapping[str, Any], measure: str) -> dict[str, list[float]]:
    return {name: found[measure] for name, found in methods.items()}


def _shown(details: Mapping[str, Any]) -> list[str]:
    """Return the methods that slices are shown for, the one of interest last."""
    methods = list(details["slices"])
    return [name for name in methods if name in _SLICED] or methods[-3:]


def _sliced(details: Mapping[str, Any], name: str) -> dict[str, list[float | None]]:
    return {method: [part["disagreement"] for part in details["slices"][method][name]] for method in _shown(details)}


def _of_category(parts: list[dict[str, Any]], category: str) -> float | None:
    return next((part["disagreement"] for part in parts if part["category"] == category), None)


def _worst(parts: list[dict[str, Any]], n: int) -> list[dict[str, Any]]:
    """Return the parts of a slice with the largest errors."""
    known = [part for part in parts if part["disagreement"] is not None]
    return sorted(known, key=lambda part: -part["disagreement"])[:n]


_SLICED = ("lr", "pw-lr", "amm-rank", "amm-rank-plus")
_VIEWS: dict[str, Any] = {
    "means": _means,
    "intervals": _interval_table,
    "costs": _costs,
    "curves": _curves,
    "shown": _shown,
    "sliced": _sliced,
    "of_category": _of_category,
    "worst": _worst,
    "worse_than_random": _worse_than_random,
    "colors": range(charts.N_COLORS),
    "deciles": [str(decile) for decile in range(1, 11)],
}
