"""Chances: whether they come true for gate users, beside those of logistic regression, simulated and real."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from distributed import Client

from ammrank_dask.features.build import build_features
from ammrank_dask.features.store import Features, open_features
from ammrank_dask.methods.logistic import Logistic
from ammrank_dask.model.amm_rank import AMMRank
from ammrank_dask.scoring.learn_chances import ChanceSums, learn_and_measure
from ammrank_dask.storage.site.site import Site
from ammrank_dask.storage.vocabulary import CLICK_GROUP
from ammrank_dask.user_hash import split_of
from ammrank_dask.workflows.session.config import load_config
from ammrank_dask.workflows.session.night import Night
from ammrank_dask.workflows.stages.features import plan_chance_features, training_features
from ammrank_dask.workflows.stages.ingest import ingest
from ammrank_dask.workflows.stages.models import load_site_model
from ammrank_dask.workflows.stages.train import train_model
from benchmarks.command_line import Option, Users, benchmark
from benchmarks.complete_journey import NIGHTS, build_lake
from benchmarks.measure import cluster, describe_machine, make_lake, site_of
from benchmarks.real import run_command

FIRST, DAYS = dt.date(2026, 1, 5), 60
PENALTIES = (0.1, 0.3, 1.0, 3.0)
"""Values of C of logistic regression; shown is the one whose chances are best on the gate users."""


@benchmark("chances")
def compare_chances(
    work: Path,
    *,
    users: Users = 60_000,
    real: Annotated[bool, Option("On Complete Journey.")] = False,
    seeds: Annotated[Sequence[int], Option("Seeds of simulated worlds, with commas between.")] = (1,),
    dates: Annotated[Sequence[str], Option("Nights of Complete Journey, with commas between.")] = NIGHTS,
    bins: Annotated[bool, Option("Also the 20 bins.")] = False,
) -> None:
    """Print how chances come true for simulated gate users, or with `real` for those of Complete Journey.

    A world is simulated for each of `seeds`; of the real log the nights are `dates`. `bins` shows the 20 bins too.
    """
    print(f"\nchances on gate users, 20 bins of equal count; {describe_machine()}")
    print(f"  {'':34} {'Brier':>9} {'base rate':>9} {'log loss':>9} {'base rate':>9} {'bins off':>8} {'by cells':>8}")
    with cluster(2) as client:
        nights = _real_nights(client, work, dates) if real else _simulated_nights(client, work, users, seeds)
        for name, night in nights:
            ingested = ingest(night)
            labelled = training_features(night, ingested)
            model = load_site_model(train_model(night, ingested, labelled))
            planned = plan_chance_features(night, ingested)
            features = open_features(build_features(client, planned, click_group=CLICK_GROUP, stage="chances").path)
            learnt, _ = learn_and_measure(client, model, features, scratch=night.site.scratch)
            others = {}
            for penalty in PENALTIES:
                fitted = fit_logistic(open_features(labelled.path), penalty)
                others[penalty] = learn_and_measure(client, fitted, features, scratch=night.site.scratch)[0].sums
            best = min(others, key=lambda penalty: others[penalty].brier)
            gate_users = learnt.sums.n_cells // features.n_categories
            print(f"  {name}: {learnt.n_users:,} validation users, {gate_users:,} gate users")
            _show(model.method, learnt.sums)
            _show(f"lr (C {best:g}), calibrated the same way", others[best])
            if bins:
                _show_bins(learnt.sums)


def _show(name: str, sums: ChanceSums) -> None:
    print(
        f"  {name:34} {sums.brier:9.5f} {sums.base_brier:9.5f} {sums.log_loss:9.4f} {sums.base_log_loss:9.4f}"
        f" {sums.n_unreliable():2} of 20 {sums.n_unreliable(by_cells=True):2} of 20"
    )


def _show_bins(sums: ChanceSums) -> None:
    print("    the last columns: off by how many standard errors, by user (as counted) and of independent cells")
    print(f"    {'cells':>10} {'chance':>9} {'clicked':>9} {'off by':>8} {'by user':>8} {'by cells':>8}")
    for cells, chance, clicked, *errors in sums.reliability().tolist():
        off = f"{chance / clicked - 1:+8.1%}" if clicked else f"{'':8}"
        in_errors = " ".join(f"{(chance - clicked) / error:+8.1f}" for error in errors)
        print(f"    {cells:10.0f} {chance:9.5f} {clicked:9.5f} {off} {in_errors}")


def _simulated_nights(client: Client, work: Path, users: int, seeds: Sequence[int]) -> Iterator[tuple[str, Night]]:
    for seed in seeds:
        lake = work / f"chances-{users}-{seed}"
        make_lake(client, lake, users=users, days=DAYS, seed=seed)
        site, config = site_of(work / f"chances-{users}-{seed}-site", lake, users)
        yield f"seed {seed}, {users:,} users", Night(client, site, config, FIRST + dt.timedelta(DAYS - 1))


def _real_nights(client: Client, work: Path, dates: Sequence[str]) -> Iterator[tuple[str, Night]]:
    site = real_site(work)
    for date in dates:
        yield f"night {date}", Night(client, site, load_config(site.config_path), dt.date.fromisoformat(date))


def real_site(work: Path, name: str = "real-chances-site") -> Site:
    """Return a site on the lake of Complete Journey, made by `ammrank init` unless it is there."""
    lake, folder = build_lake(work / "real-lake"), work / name
    if not (folder / "ammrank.yaml").exists():
        run_command("init", str(folder), "--lake", str(lake))
    return Site(folder)


def fit_logistic(features: Features, penalty: float) -> AMMRank:
    """Return logistic regression on the training users as planes, one a category, which all of scoring takes."""
    blocks = list(_training_blocks(features))
    fitted = Logistic(C=penalty, n_categories=features.n_categories).fit_blocks(blocks)
    model = AMMRank()
    codes = np.arange(features.n_categories, dtype=np.int32)
    model.set_planes(fitted.weights_, codes, fitted.popularity_, n_steps=1)
    return model


def _training_blocks(features: Features) -> Iterator[tuple[Any, np.ndarray]]:
    for number in range(features.n_partitions):
        part = features.partition(number)
        rows = np.flatnonzero(split_of(part.user_ids) == 0)
        if part.rankings is not None and len(rows):
            yield part.X[rows], np.asarray(part.rankings)[rows]
