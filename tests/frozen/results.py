"""Run the sites, keep the hashes of their tables in `recorded.json`, and compare others with them."""

import json
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from ammrank_dask.storage.store.runs import version_of
from ammrank_dask.workflows.cluster.checks import cpu_type
from tests.frozen.export import Frozen, differences, freeze
from tests.frozen.sites import SITES, own_cluster, run_site, simulate_lakes, without_performance_pages

RECORDED = Path(__file__).with_name("recorded.json")
PACKAGES = ("numba", "numpy", "pyarrow", "scikit-learn", "scipy")
"""Those that calculate: with others of them, values may differ in their last bits."""

Results = dict[int, dict[str, Frozen]]
"""By site and date what is kept of a night."""


def run_sites(
    numbers: Iterable[int], *, workers: int, out: Path | None = None, say: Callable[[str], Any] = lambda text: None
) -> Results:
    """Run sites on a cluster of so many workers; write all rows to `out`, if it is given."""
    results: Results = {}
    with (
        tempfile.TemporaryDirectory(prefix="ammrank-frozen-") as work,
        without_performance_pages(),
        own_cluster(Path(work), workers) as (client, cluster_file),
    ):
        simulate_lakes(client, Path(work) / "lakes")
        for number in numbers:
            results[number] = {}
            for date, texts in run_site(SITES[number], Path(work) / "lakes", Path(work) / str(number), cluster_file):
                results[number][date] = freeze(texts)
                if out is not None:
                    write_texts(out / f"{number:02d}" / date, texts)
            rows = sum(rows for night in results[number].values() for rows, _ in night.values())
            say(f"site {number}: {len(results[number])} nights, {rows:,} rows")
    return results


def write_texts(folder: Path, texts: dict[str, str]) -> None:
    """Write the rows of a night, a file for each table."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / f"{name}.txt").write_text(text, encoding="utf-8")


def compare(results: Results) -> list[str]:
    """Return a line for every site, night and table that is not as recorded, the first one first."""
    recorded = read_recorded()
    found = []
    for number, nights in results.items():
        site = recorded["sites"].get(str(number), {"commit": "never", "nights": {}})
        for date in sorted({**site["nights"], **nights}):
            lines = differences(site["nights"].get(date, {}), nights.get(date, {}))
            found += [f"site {number}, {date}, {line} (recorded at {site['commit']})" for line in lines]
    here = machine()
    others = [
        f"{name} is {here[name]}, recorded with {was}" for name, was in recorded["machine"].items() if here[name] != was
    ]
    return [*found, *others] if found else []


def record(results: Results) -> None:
    """Keep results; those of sites that were not run stay."""
    sites = read_recorded()["sites"] if RECORDED.exists() else {}
    sites |= {str(number): {"commit": _commit(), "nights": nights} for number, nights in results.items()}
    content = {"machine": machine(), "sites": dict(sorted(sites.items(), key=lambda site: int(site[0])))}
    # A table a line: short, and a diff of two commits names the tables.
    text = re.sub(r"\[\s+(\d+),\s+(\S+)\s+\]", r"[\1, \2]", json.dumps(content, indent=1))
    RECORDED.write_text(text + "\n", encoding="utf-8")


def read_recorded() -> dict[str, Any]:
    """Return what is recorded: the `machine`, and by site the `commit` and its `nights`."""
    content: dict[str, Any] = json.loads(RECORDED.read_text(encoding="utf-8"))
    return content


def machine() -> dict[str, str]:
    """Return what values may depend on beside the code: the type of CPU, and packages."""
    return {"cpu": cpu_type(), **{name: version_of(name) for name in PACKAGES}}


def _commit() -> str:
    """Return the commit, with a plus when the product is not as committed."""
    git = ["git", "-C", str(RECORDED.parent)]
    head = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=True)
    rooms = [f":/{room}" for room in ("ammrank_dask", "storage", "workflows")]
    changed = subprocess.run([*git, "status", "--porcelain", "--", *rooms], capture_output=True, check=True)
    return head.stdout.strip() + ("+" if changed.stdout else "")
