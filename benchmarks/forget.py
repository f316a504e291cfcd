"""Forgetting users in a site with many nights, against a plain read and rewrite of the files concerned."""

from __future__ import annotations

import datetime as dt
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from distributed import Client

from ammrank_dask.storage.site.site import Site
from ammrank_dask.storage.store.atomic import read_json
from ammrank_dask.storage.store.parts import PartRef, part_path, write_part
from ammrank_dask.storage.store.qualifications import write_table
from ammrank_dask.storage.store.registry import PART_SCHEMAS
from ammrank_dask.storage.store.runs import MANIFEST, open_run, write_manifest
from ammrank_dask.storage.vocabulary import USER_ID
from ammrank_dask.workflows.session.config import Config
from ammrank_dask.workflows.session.night import Night
from ammrank_dask.workflows.stages.forget import forget_users
from ammrank_dask.workflows.stages.nightly import nightly
from benchmarks.measure import cluster, cpu_seconds, describe_machine, make_lake, site_of

FIRST = dt.date(2026, 1, 5)
HISTORY = 40


def compare_forget(work: Path, *, users: int = 100_000, nights: int = 10) -> None:
    """Print what forgetting one user and a thousandth of all costs, by the clock and of CPU.

    One night is run; the others are copies of its qualifications.
    """
    folder = work / f"forget-{users}"
    shutil.rmtree(folder / "site", ignore_errors=True)
    with cluster(2) as client:
        make_lake(client, folder / "lake", users=users, days=HISTORY, activity=0.3)
        site, config = site_of(folder / "site", folder / "lake", users)
        _make_site(client, site, config, nights)
        names = [path for path in site.path.rglob("part-*") if path.is_file() and "models" not in path.parts]
        by_category = sum("by_category" in path.parts for path in names)
        print(f"\nforgetting in {users:,} users, {nights} nights, {config.partitions} partitions, {len(names):,} files"
              f" ({by_category / nights:.0f} a night by category), 2 workers; {describe_machine()}")  # fmt: skip
        print(f"  {'users':>8} {'seconds':>8} {'CPU':>8} {'files':>7} {'plain rewrite, CPU':>19} {'ratio':>6}")
        by_user = sorted((site.qualifications_folder(site.published_nights()[-1]) / "by_user").iterdir())
        everyone = np.unique(pa.concat_tables([pq.read_table(path, columns=[USER_ID]) for path in by_user])[USER_ID])
        for n in (1, max(1, users // 1000)):
            chosen = np.random.default_rng([n, 7]).choice(everyone, n, replace=False)
            _measure(client, site, folder, chosen, names)
    shutil.rmtree(site.path)


def _make_site(client: Client, site: Site, config: Config, nights: int) -> None:
    last = FIRST + dt.timedelta(HISTORY - 1)
    nightly(Night(client, site, config, last))
    first = site.qualifications_folder(last)
    manifest = read_json(first / MANIFEST)
    for number in range(1, nights):
        night = last - dt.timedelta(number)
        shutil.copytree(first, site.qualifications_folder(night))
        config_of_night = {**manifest["config"], "date": str(night)}
        write_manifest(site.qualifications_folder(night), {**manifest, "config": config_of_night})


def _measure(client: Client, site: Site, folder: Path, chosen: np.ndarray, names: Sequence[Path]) -> None:
    (folder / "list.txt").write_text("\n".join(map(str, chosen.tolist())), encoding="utf-8")
    before = {path: path.stat().st_ino for path in names}
    cpu, started = cpu_seconds(), time.perf_counter()
    forget_users(client, site, folder / "list.txt")
    seconds, cpu = time.perf_counter() - started, cpu_seconds() - cpu
    concerned = [path for path, inode in before.items() if path.stat().st_ino != inode]
    plain = _rewrite(concerned, folder / "plain")
    print(f"  {len(chosen):8,} {seconds:8.1f} {cpu:8.1f} {len(concerned):7,} {plain:19.1f} {cpu / plain:6.2f}")


def _rewrite(paths: Sequence[Path], folder: Path) -> float:
    """Return the CPU seconds of one process that reads the files and writes them again elsewhere."""
    folder.mkdir(exist_ok=True)
    started = time.process_time()
    for path in paths:
        if path.suffix == ".parquet":
            write_table(folder / path.name, pq.read_table(path, partitioning=None))
            continue
        run = open_run(path.parent)
        partition = int(path.name.removeprefix("part-")[:5])
        schema = PART_SCHEMAS[run.kind]
        arrays = PartRef(run.path, partition).read(schema)
        write_part(folder, partition, schema, arrays)
        part_path(folder, partition).unlink()
    seconds = time.process_time() - started
    shutil.rmtree(folder)
    return seconds
