"""The library on Dask collections: what it needs beside the stages of a site, and how much the client holds."""

from __future__ import annotations

import datetime as dt
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import scipy.sparse as sp

from ammrank_dask import AMMRankPlus, interest_features, write_features
from ammrank_dask.workflows.session.night import Night
from ammrank_dask.workflows.stages.features import score_features
from ammrank_dask.workflows.stages.ingest import ingest
from benchmarks.command_line import Days, Epochs, Memory, Option, Users, benchmark
from benchmarks.measure import (
    cluster,
    cpu_seconds,
    describe_machine,
    make_lake,
    peak_memory,
    reset_peak_memory,
    site_of,
    worker_facts,
)

N_COLUMNS, VALUES_PER_ROW, N_CATEGORIES = 400, 200, 50
BLOCK_ROWS = 10_000
MOST_CLIENT_MIB = 200
MOST_CPU = 3


@benchmark("library-events")
def measure_events(work: Path, *, users: Users = 500_000, days: Days = 60, memory: Memory = "2GiB") -> None:
    """Print CPU and memory of `interest_features` and `write_features` on a Dask DataFrame, beside those of a site."""
    last = dt.date(2026, 1, 5) + dt.timedelta(days - 1)
    lake = work / f"ingest-{users}"
    with cluster(2, memory) as client:
        events = make_lake(client, lake, users=users, days=days)
    site, config = site_of(work / "library-site", lake, users)

    def of_site(client: Any) -> int:
        known = ingest(Night(client, site, config, last))
        return score_features(Night(client, site, config, known.date), known).n_rows

    def of_library(_client: Any) -> int:
        log = dd.read_parquet(lake / "events")
        people, taxonomy = pd.read_parquet(lake / "users.parquet"), pd.read_csv(lake / "taxonomy.csv")
        X, user_ids, columns = interest_features(log, last + dt.timedelta(1), people, taxonomy)
        return write_features(work / "library-rows", X, user_ids, columns).n_users

    rows = {
        name: _measure(call, memory)
        for name, call in {"site: ingest and features": of_site, "library: from a Dask DataFrame": of_library}.items()
    }
    print(f"\n{events:,} events, {users:,} users, 2 workers of {memory}; {describe_machine()}")
    for name, (found, seconds, cpu, after) in rows.items():
        print(
            f"  {name:32} {seconds:7.1f} s {cpu:7.1f} CPU s   peak of a worker {after['peak_mib']:5.0f} MiB"
            f"   {found:,} rows"
        )
    ratio = rows["library: from a Dask DataFrame"][2] / rows["site: ingest and features"][2]
    print(f"  CPU, library / site {ratio:.2f} (bar {MOST_CPU})")
    for name in ("library-site", "library-rows"):
        shutil.rmtree(work / name)


def _measure(call: Callable[[Any], int], memory: str) -> tuple[int, float, float, dict[str, Any]]:
    """Return what a call returns on a cluster of its own, seconds, CPU seconds, and the facts of the workers."""
    with cluster(2, memory) as client:
        before = worker_facts(client)["pids"]
        started, used = time.perf_counter(), cpu_seconds()
        found = call(client)
        seconds, cpu = time.perf_counter() - started, cpu_seconds() - used
        after = worker_facts(client)
        if after["pids"] != before:
            raise SystemExit(f"workers were killed: {sorted(set(before) - set(after['pids']))}")
    return found, seconds, cpu, after


@benchmark("library-fit")
def measure_fit(
    work: Path,
    *,
    megabytes: Annotated[int, Option("Size of all rows, as CSR in memory.")] = 1_000,
    memory: Memory = "1GiB",
    epochs: Epochs = 2,
) -> None:
    """Print how far the client's memory rises while `fit` and `predict_top_k` work on CSR blocks, and the workers'."""
    n_blocks = max(1, megabytes * 10**6 // (BLOCK_ROWS * VALUES_PER_ROW * 8))
    with cluster(2, memory) as client:
        numbers = da.arange(n_blocks, chunks=1)
        chunks = ((BLOCK_ROWS,) * n_blocks, (N_COLUMNS,))
        X = numbers.map_blocks(make_rows, new_axis=1, chunks=chunks, meta=sp.csr_matrix((0, 0), dtype=np.float32))
        rankings = X.map_blocks(rank_rows, chunks=(chunks[0], (3,)), meta=np.empty((0, 0), np.int32))
        before = worker_facts(client)["pids"]
        reset_peak_memory()
        start, started = peak_memory()[1], time.perf_counter()
        model = AMMRankPlus(epochs=epochs).fit(X, rankings, scratch=work)
        fitted = peak_memory()[1], time.perf_counter()
        codes, _ = model.predict_top_k(X, k=10)
        hits = (codes[:, :1] == rankings[:, :1]).mean().compute()
        scored = peak_memory()[1], time.perf_counter()
        after = worker_facts(client)
    size = X.shape[0] * VALUES_PER_ROW * 8 / 2**20
    print(
        f"\n{X.shape[0]:,} rows in {n_blocks} blocks, {size:,.0f} MiB of CSR, {epochs} epochs, 2 workers of {memory};",
        end=" ",
    )
    print(describe_machine())
    for name, (peak, ended), begun in (("fit", fitted, started), ("predict_top_k", scored, fitted[1])):
        rise = (peak - start) / 2**20
        print(f"  {name:14} {ended - begun:7.1f} s   client {rise:+.0f} MiB (bar {MOST_CLIENT_MIB})")
    print(
        f"  peak of a worker {after['peak_mib']:.0f} MiB, bytes spilled {after['spilled']:,}, workers killed", end=" "
    )
    print(f"{len(set(before) - set(after['pids']))}; first category right for {hits:.1%} of the rows; {model.digest()}")


def make_rows(numbers: np.ndarray) -> sp.csr_matrix:
    """Return one block of rows of random values."""
    rng = np.random.default_rng([7, int(numbers[0])])
    n_values = BLOCK_ROWS * VALUES_PER_ROW
    # Every second column or the one after it: the columns of a row ascend and differ.
    columns = 2 * np.tile(np.arange(VALUES_PER_ROW, dtype=np.int32), BLOCK_ROWS) + rng.integers(
        0, 2, n_values, np.int32
    )
    values = rng.random(n_values, np.float32)
    return sp.csr_matrix((values, columns, np.arange(0, n_values + 1, VALUES_PER_ROW)), shape=(BLOCK_ROWS, N_COLUMNS))


def rank_rows(X: sp.csr_matrix) -> np.ndarray:
    """Return the three categories that a row is near to."""
    tastes = np.random.default_rng(3).normal(size=(N_COLUMNS, N_CATEGORIES)).astype(np.float32)
    return np.argsort(-(X @ tastes), axis=1)[:, :3].astype(np.int32)
