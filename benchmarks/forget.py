"""Forgetting users in a site with many nights, against a plain read and rewrite of the files concerned."""

from __future__ import annotations

import datetime as dt
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from distributed import Client

from ammrank_dask.storage.objects.atomic import bytes_below, read_json
from ammrank_dask.storage.objects.folders import remove
from ammrank_dask.storage.site.site import Site
from ammrank_dask.storage.store.parts import write_part
from ammrank_dask.storage.store.qualification_files import write_table
from ammrank_dask.storage.store.registry import PART_SCHEMAS
from ammrank_dask.storage.store.runs import MANIFEST, open_run, write_manifest
from ammrank_dask.storage.vocabulary import USER_ID
from ammrank_dask.workflows.operations.forget import forget_users
from ammrank_dask.workflows.session.config import Config
from ammrank_dask.workflows.session.night import Night
from ammrank_dask.workflows.stages.nightly import nightly
from benchmarks.command_line import Option, Users, benchmark
from benchmarks.measure import cluster, cpu_seconds, describe_machine, make_lake, site_of

FIRST = dt.date(2026, 1, 5)
HISTORY = 40


@benchmark("forget")
def compare_forget(
    work: Path, *, users: Users = 100_000, nights: Annotated[int, Option("Nights that are kept.")] = 40
) -> None:
    """Print what forgetting one user and a thousand costs, by the clock and of CPU, and one by the command itself.

    One night is run, of 40 days of events. The other nights are copies of its qualifications under other dates: files
    of their own, of the size that a night has, but for the delta, which names all pairs as new and is larger than most.
    """
    folder = work / f"forget-{users}"
    shutil.rmtree(folder / "site", ignore_errors=True)
    with cluster(2) as client:
        make_lake(client, folder / "lake", users=users, days=HISTORY, activity=0.3)
        site, config = site_of(folder / "site", folder / "lake", users)
        config = config.model_copy(update={"train": config.train.model_copy(update={"epochs": 1})})
        _make_site(client, site, config, nights)
        names = [path for path in site.path.rglob("part-*") if "models" not in path.parts]
        by_category = sum("by_category" in path.parts for path in names)
        n_bytes = sum(bytes_below(path) if path.is_dir() else path.stat().st_size for path in names)
        print(f"\nforgetting in {users:,} users, {nights} nights, {config.partitions} partitions, {len(names):,} files"
              f" ({by_category / nights:.0f} a night by category), {n_bytes / 1e9:.1f} GB, 2 workers;"
              f" {describe_machine()}")  # fmt: skip
        print(f"  {'':>12} {'':>7} {'forget':>17} {'plain rewrite':>17} {'ratio':>15}")
        print(f"  {'users':>12} {'files':>7}" + f" {'seconds':>8} {'CPU':>8}" * 2 + f" {'seconds':>8} {'CPU':>6}")
        by_user = sorted((site.qualifications_folder(site.published_nights()[-1]) / "by_user").iterdir())
        everyone = np.unique(pa.concat_tables([pq.read_table(path, columns=[USER_ID]) for path in by_user])[USER_ID])
        chosen = np.random.default_rng([users, 7]).permutation(everyone)
        listed = folder / "list.txt"
        for n in (1, 1000):
            _write_list(listed, chosen[1 : n + 1])
            _measure(f"{n:,}", lambda: forget_users(client, site, listed), folder, names)
    config_text = yaml.safe_dump({"lake": config.lake.model_dump(), "partitions": config.partitions})
    (site.path / "ammrank.yaml").write_text(config_text, encoding="utf-8")
    _write_list(listed, chosen[:1])
    command = [sys.executable, "-m", "ammrank_dask.workflows.forget", str(site.path), "--users", str(listed), "--quiet"]
    _measure("1, command", lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL), folder, names)
    shutil.rmtree(site.path)


def _write_list(path: Path, ids: np.ndarray) -> None:
    path.write_text("\n".join(map(str, ids.tolist())), encoding="utf-8")


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


def _measure(name: str, forget: Callable[[], object], folder: Path, names: Sequence[Path]) -> None:
    before = {path: path.stat().st_ino for path in names}
    cpu, started = _cpu_with_ended(), time.perf_counter()
    forget()
    seconds, cpu = time.perf_counter() - started, _cpu_with_ended() - cpu
    concerned = [path for path, inode in before.items() if path.stat().st_ino != inode]
    plain, plain_cpu = _rewrite(concerned, folder / "plain")
    ratios = f"{seconds / plain:8.2f} {cpu / plain_cpu:6.2f}"
    print(
        f"  {name:>12} {len(concerned):7,} {seconds:8.1f} {cpu:8.1f} {plain:8.1f} {plain_cpu:8.1f} {ratios}", flush=True
    )


def _cpu_with_ended() -> float:
    """Return the CPU time of this process, its workers, and processes that it started and that have ended."""
    ended = os.times()
    return cpu_seconds() + ended.children_user + ended.children_system


def _rewrite(paths: Sequence[Path], folder: Path) -> tuple[float, float]:
    """Return the seconds, by the clock and of CPU, of one process that reads files and writes them again elsewhere.

    It waits for no disk and proves nothing.
    """
    folder.mkdir(exist_ok=True)
    started, cpu = time.perf_counter(), time.process_time()
    for path in paths:
        if path.suffix == ".parquet":
            write_table(folder / path.name, pq.read_table(path, partitioning=None))
            continue
        run = open_run(path.parent)
        partition = int(path.name.removeprefix("part-")[:5])
        schema = PART_SCHEMAS[run.kind]
        remove(folder / write_part(folder, partition, schema, run.part(partition).read(schema)).name)
    seconds = time.perf_counter() - started, time.process_time() - cpu
    shutil.rmtree(folder)
    return seconds
