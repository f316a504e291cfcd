"""What label windows and parts of the model are worth in the window after all that was learned.

The kept windows of a site are moments: at each of the newest ones, models learn from the windows before it and rank its
users, whose clicks none has seen. Every variant is the default with one thing changed, and stands beside the default,
paired by user. `--until` leaves out windows that end later: what is chosen is chosen on nights before those reported.
"""

from __future__ import annotations

import datetime as dt
import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import click
from distributed import Client

from ammrank_dask.features.store import Features, open_features
from ammrank_dask.model.amm_rank_plus import AMMRankPlus
from ammrank_dask.model.saved import RankModel
from ammrank_dask.model.simple import own_history_model
from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.site.site import Site
from ammrank_dask.training.forward import DISAGREEMENT, HITS, NDCG, OWN_HISTORY, ForwardResult, compare_forward
from ammrank_dask.training.train import train
from ammrank_dask.workflows.session.night import Night
from ammrank_dask.workflows.stages.features import MIN_USERS, write_windows
from ammrank_dask.workflows.stages.ingest import ingest
from benchmarks.command_line import Option, benchmark
from benchmarks.measure import cluster, cpu_seconds, describe_machine, make_lake, site_of

K, DEFAULT = 10, "default"
ALL_ROWS = 1 << 40
SITE = click.Path(exists=True, file_okay=False, path_type=Path)


@dataclass(frozen=True)
class Variant:
    """Keywords of `train` that differ from the default, and how many windows it learns from; None for all."""

    options: Mapping[str, Any] = field(default_factory=dict)
    windows: int | None = None


PARTS = {
    "no clusterings": Variant({"n_clusterings": 0}),
    "one clustering": Variant({"n_clusterings": 1}),
    "one plane a category": Variant({"max_planes": 1}),
    "2 epochs": Variant({"epochs": 2}),
    "5 epochs": Variant({"epochs": 5}),
    "pace 1": Variant({"pace": 1.0}),
    "pace 1/4": Variant({"pace": 0.25}),
    "kappa .05": Variant({"kappa": 0.05}),
    "another seed": Variant({"seed": 1}),
}


def windows_of(counts: Iterable[int]) -> dict[str, Variant]:
    """Return the default with fewer windows."""
    return {f"{n} window{'s' * (n != 1)}": Variant({"max_rows": ALL_ROWS}, n) for n in counts}


CURVE = windows_of((1, 2, 3, 6))


@benchmark("forward-parts")
def compare_parts(
    *, site: Annotated[Path, Option("A site that keeps rows of closed windows.", SITE)],
    moments: Annotated[int, Option("Windows to try on, the newest first.")] = 3,
    until: Annotated[str | None, Option("Leave out windows that end after this date, YYYY-MM-DD.")] = None,
) -> None:  # fmt: skip
    """Print what parts of the model and fewer windows gain or lose on clicks that are later than all that was learned.

    Each row is the default with one thing changed: its hits of ten, its NDCG and its ε_dis minus those of the default,
    ± the standard error, paired by user, and how often it was better.
    """
    windows = kept_windows(Site(site), None if until is None else dt.date.fromisoformat(until))
    with cluster() as client:
        tried = [try_variants(client, windows[at:], CURVE | PARTS) for at in range(min(moments, len(windows) - 1))]
    for (date, _), (facts, result) in zip(windows, tried, strict=False):
        print(describe_moment(date, facts, result))
    print(describe_all([result for _, result in tried]))
    print(describe_machine())


@benchmark("window-curve")
def measure_curve(
    work: Path, *, users: Annotated[int, Option("Users of the simulated lake.")] = 500_000,
    days: Annotated[int, Option("Days of it.")] = 420,
    counts: Annotated[Sequence[str], Option("Numbers of windows, with commas between.")] = ("1", "2", "3", "6", "12"),
    rows: Annotated[Sequence[str], Option("Rows that are sampled from 12 windows.")] = ("500000", "1000000", "2000000"),
) -> None:  # fmt: skip
    """Print error and CPU of a training against the number of label windows, on a simulated lake.

    The users of the newest closed window judge models that learn from so many windows before it.
    """
    variants = windows_of(map(int, counts)) | {f"12 windows, {int(n):,}": Variant({"max_rows": int(n)}) for n in rows}
    with cluster() as client:
        lake = work / f"curve-{users}-lake"
        make_lake(client, lake, users=users, days=days)
        site, config = site_of(work / f"curve-{users}-site", lake, users)
        last = max(dt.date.fromisoformat(path.name[5:]) for path in (lake / "events").glob("date=*"))
        with site.exclusive():
            night = Night(client, site, config, last)
            write_windows(night, ingest(night))
        windows = kept_windows(site, None)
        facts, result = try_variants(client, windows, variants, reference=f"{counts[-1]} windows")
    print(f"\n{users:,} users, {days} days; {describe_machine()}")
    print(describe_moment(windows[0][0], facts, result))


def kept_windows(site: Site, until: dt.date | None) -> list[tuple[dt.date, Features]]:
    """Return the kept windows with enough users, the newest first, and the date after which each begins."""
    found = []
    for path in sorted(site.finished_runs("windows"), reverse=True):
        features = open_features(path)
        end = features.manifest.settings["label_end"]
        if features.n_users >= MIN_USERS and (until is None or dt.date.fromisoformat(end) <= until):
            found.append((dt.date.fromisoformat(path.name[5:15]), features))
    if len(found) < 2:
        raise BadInput(f"{site.path} must keep two closed windows or more to try anything, found {len(found)}")
    return found


def try_variants(
    client: Client,
    windows: Sequence[tuple[dt.date, Features]],
    variants: Mapping[str, Variant],
    *,
    reference: str = DEFAULT,
) -> tuple[dict[str, tuple[int, float]], ForwardResult]:
    """Return rows and CPU seconds of each training, and how the users of the newest window judge its lists.

    The first source is the reference: the default, or one of the variants.
    """
    (_, tonight), *earlier = windows
    chosen = variants if reference in variants else {DEFAULT: Variant(), **variants}
    facts: dict[str, tuple[int, float]] = {}
    models: dict[str, RankModel] = {}
    for name in sorted(chosen, key=lambda name: name != reference):
        variant = chosen[name]
        newest, *others = [features for _, features in earlier[: variant.windows]]
        started = cpu_seconds()
        models[name] = train(newest, client=client, earlier=others, tonight=tonight, **variant.options)
        facts[name] = (newest.n_users + sum(each.n_users for each in others), cpu_seconds() - started)
    own_history = own_history_model(models[reference], earlier[0][1].n_users)
    if own_history is not None:
        models[OWN_HISTORY] = own_history
    return facts, compare_forward(client, tonight, models, k=K)


def describe_moment(date: dt.date, facts: Mapping[str, tuple[int, float]], result: ForwardResult) -> str:
    """Return a table of the sources at a moment."""
    reference = next(iter(result.sums))
    lines = [f"\nclicks of the window after {date}, {result.n_users:,} users; differences from: {reference}"]
    lines.append(f"  {'':22} {'rows':>9} {'CPU s':>7}  {'hits@10':>7} {'':18}  {'ε_dis':>6}")
    for name in result.sums:
        rows, seconds = facts.get(name, (0, 0.0))
        told = f"{rows:>9,} {seconds:7.1f}" if rows else f"{'':17}"
        line = f"  {name:22} {told}  {result.mean(name):7.3f} {_versus(result, name, HITS):18}"
        lines.append(f"{line}  {result.mean(name, DISAGREEMENT):6.4f} {_versus(result, name, DISAGREEMENT)}".rstrip())
    return "\n".join(lines)


def describe_all(results: Iterable[ForwardResult]) -> str:
    """Return the table over all moments: users of several moments count at each."""
    each = list(results)
    total = functools.reduce(ForwardResult.__add__, each)
    reference = next(iter(total.sums))
    lines = [f"\nall {len(each)} moments, differences from: {reference} ({AMMRankPlus.method})"]
    lines.append(f"  {'':22} {'hits@10':18} {'NDCG@10':18} {'ε_dis':18} more hits at")
    for name in total.sums:
        if name != reference:
            ahead = sum(result.gain(name)[0] < 0 for result in each)
            versus = " ".join(f"{_versus(total, name, measure):18}" for measure in (HITS, NDCG, DISAGREEMENT))
            lines.append(f"  {name:22} {versus} {ahead} of {len(each)}")
    return "\n".join(lines)


def _versus(result: ForwardResult, name: str, measure: str) -> str:
    """Return how far a source is above the first one, as text; nothing for the first itself."""
    if name == next(iter(result.sums)):
        return ""
    gain, error = result.gain(name, measure)
    return f"{0.0 - gain:+.4f} ± {error:.4f}"
