"""Reading a features store against what numpy alone reads of the same files."""

from __future__ import annotations

import datetime as dt
import shutil
from pathlib import Path

import numpy as np

from ammrank_dask.features.store import open_features
from ammrank_dask.storage.store.registry import FEATURES
from ammrank_dask.workflows.session.night import Night
from ammrank_dask.workflows.stages.features import score_features
from ammrank_dask.workflows.stages.ingest import ingest
from benchmarks.command_line import Days, Users, benchmark
from benchmarks.measure import best_of, cluster, describe_machine, make_lake, site_of


@benchmark("read", quick=True)
def compare_read(work: Path, *, users: Users = 400_000, days: Days = 60) -> None:
    """Print the rate at which a worker reads partitions, and at which numpy reads their chunks."""
    first = dt.date(2026, 1, 5)
    with cluster(2) as client:
        lake = work / f"store-{users}"
        make_lake(client, lake, users=users, days=days)
        site, config = site_of(work / "store-site", lake, users)
        known = ingest(Night(client, site, config, first + dt.timedelta(days - 1)))
        run = score_features(Night(client, site, config, known.date), known)
        # In a worker, where partitions are read every night, with the memory settings of cluster.yaml.
        size, bare, parts, rows = client.submit(_time_reads, run.path, pure=False).result()
    print(f"\nreading features, {run.n_rows:,} users, {run.nnz / run.n_rows:.0f} values a user, {size / 2**20:,.0f} MiB"
          f", one core; {describe_machine()}")  # fmt: skip
    for name, seconds in (
        ("numpy alone", bare),
        ("the store: checksum, read", parts),
        ("and columns chosen, rows normalised, as CSR", rows),
    ):
        print(f"  {name:44} {size / seconds / 1e9:5.2f} GB/s")
    shutil.rmtree(site.path)


def _time_reads(path: Path) -> tuple[int, float, float, float]:
    features = open_features(path)
    chunks = sorted(path.glob("part-*/**/c/0"))

    def read_bare() -> None:
        for chunk in chunks:
            np.fromfile(chunk, np.uint8)

    def read_parts() -> None:
        for partition in range(features.n_partitions):
            features.run.part(partition).read(FEATURES)

    def read_rows() -> None:
        for partition in range(features.n_partitions):
            features.partition(partition)

    best = [float("inf")] * 3
    for _ in range(4):  # in turns, so that all meet the same noise
        for i, function in enumerate((read_bare, read_parts, read_rows)):
            best[i] = min(best[i], best_of(2, function))
    return sum(chunk.stat().st_size for chunk in chunks), best[0], best[1], best[2]
