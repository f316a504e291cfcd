"""Write a comparison of methods or a backtest: figures for machines, a table, and a page for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from markupsafe import Markup

from ammrank_dask.evaluation import charts
from ammrank_dask.evaluation.backtest import GAIN, LOGISTIC, MEASURES, POLICY, STANDARD_ERROR
from ammrank_dask.evaluation.charts import Style, lines_chart
from ammrank_dask.report.charts import clicks_chart, fairness_chart
from ammrank_dask.report.page import harmless, page_environment
from ammrank_dask.storage.objects.atomic import json_text
from ammrank_dask.storage.site.reports import write_files
from ammrank_dask.training.forward import OWN_HISTORY, POPULARITY

RESULT, TABLE, PAGE = "evaluation.json", "evaluation.csv", "evaluation.html"
_TEMPLATE = "evaluation.html.j2"
_Z = 1.96
"""Standard errors on each side of a 95 % interval."""


BACKTEST_RESULT, BACKTEST_TABLE, BACKTEST_PAGE = "backtest.json", "backtest.csv", "backtest.html"
EXPOSURE = ("coverage", "gini", "starved_users", "overexposed_users", "starved_categories")
"""What is shown of the exposure of a night."""
LABELS = {
    POLICY: "published",
    OWN_HISTORY: "own history",
    POPULARITY: "popularity",
    LOGISTIC: "logistic regression",
}
_BACKTEST_TEMPLATE = "backtest.html.j2"
_DASHES = {"own history": "10 3", "popularity": "6 3", "logistic regression": "2 3"}


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
    "numbers_to": lambda last: range(1, last + 1),
}


def write_backtest(folder: str | Path, backtest: Mapping[str, Any]) -> None:
    """Write `backtest.csv`, `backtest.html` and, last, `backtest.json` into `folder`, each whole or not at all."""
    files = {
        BACKTEST_TABLE: harmless(tabulate_backtest(backtest)).to_csv(index=False, lineterminator="\n"),
        BACKTEST_PAGE: render_backtest(backtest),
        BACKTEST_RESULT: json_text(dict(backtest)),
    }
    write_files(folder, files)


def tabulate_backtest(backtest: Mapping[str, Any]) -> pd.DataFrame:
    """Return one row per night: the measures of every method, then the exposure."""
    rows = []
    for night in backtest["nights"]:
        row: dict[str, Any] = {name: night[name] for name in ("date", "until", "users")}
        for method in backtest["means"]:
            found = (night["methods"] or {}).get(method) or {}
            measures = MEASURES if method == POLICY else (*MEASURES, GAIN, STANDARD_ERROR)
            row |= {f"{method}_{measure}": found.get(measure) for measure in measures}
        row |= {name: (night["exposure"] or {}).get(name) for name in EXPOSURE}
        rows.append({**row, "model_of": (night["model"] or {}).get("date")})
    return pd.DataFrame(rows)


def render_backtest(backtest: Mapping[str, Any]) -> str:
    """Return the page: everything inline, every name from the data escaped."""
    environment = page_environment(Path(__file__).parent)
    environment.filters["figure"] = lambda value, digits=4: "–" if value is None else f"{value:.{digits}f}"
    environment.filters["gain"] = gain_text
    nights = backtest["nights"]
    dates = [night["date"] for night in nights]

    def draw(name: str, series: Mapping[str, Sequence[float | None]], **options: Any) -> Markup:
        styles = {label: Style(f"s{line}", _DASHES.get(label)) for line, label in enumerate(series)}
        return lines_chart(name, f"{name.replace('-', ' ')} by night", dates, series, styles, **options)

    def of_methods(measure: str) -> Markup:
        return draw(
            measure,
            {
                LABELS[method]: [(night["methods"] or {}).get(method, {}).get(measure) for night in nights]
                for method in backtest["means"]
            },
        )

    def of_exposure(*names: str) -> dict[str, list[float | None]]:
        return {name.replace("_", " "): [(night["exposure"] or {}).get(name) for night in nights] for name in names}

    k = backtest["k"]
    evenness = draw("evenness", of_exposure("coverage", "gini"), bounds=(0.0, 1.0))
    users = draw("starved-users", of_exposure("starved_users", "overexposed_users"))
    charts = [
        ("Ranking error ε_dis", "share of pairs in the wrong order", of_methods("disagreement")),
        ("Hits", f"clicked categories of {k}", of_methods("hits")),
        (f"NDCG@{k}", "1 is the best possible", of_methods("ndcg")),
        ("Evenness of exposure", "coverage: share of categories; Gini: 0 is even", evenness),
        ("Starved categories", "categories", draw("starved-categories", of_exposure("starved_categories"))),
        ("Starved and over-exposed users", "users", users),
    ]
    return environment.get_template(_BACKTEST_TEMPLATE).render(
        backtest=backtest,
        verdict=describe_gain(backtest),
        charts=charts,
        labels=LABELS,
        exposure_names=EXPOSURE,
        own_history=OWN_HISTORY,
    )


def describe_gain(backtest: Mapping[str, Any]) -> tuple[bool, str]:
    """Return whether the published lists have more hits than the best other method, and that in a sentence."""
    means, k = backtest["means"], backtest["k"]
    others = {name: found for name, found in means.items() if found.get(GAIN) is not None}
    nights = f"{len(backtest['nights'])} night{'s' if len(backtest['nights']) != 1 else ''}"
    said = f"Over {nights} users clicked {means[POLICY]['hits']:.2f} of the {k} categories of a published list"
    if not others:
        return True, f"{said}."
    best = max(others, key=lambda name: others[name]["hits"])
    gain, error = others[best][GAIN], others[best][STANDARD_ERROR]
    low, high = gain - 1.96 * error, gain + 1.96 * error
    words = "more than with" if low > 0 else "fewer than with" if high < 0 else "too close to tell from"
    interval = f"{gain:+.2f}, 95 % interval {low:+.2f} to {high:+.2f}"
    return low > 0, f"{said}, {words} the best other method, {LABELS[best]} ({interval})."


def gain_text(means: Mapping[str, Any] | None) -> str:
    """Return by how many hits the policy is ahead of a method, with the standard error; a dash where nothing is."""
    if means is None or means.get(GAIN) is None:
        return "–"
    return f"{means[GAIN]:+.3f} ± {means[STANDARD_ERROR]:.3f}"
