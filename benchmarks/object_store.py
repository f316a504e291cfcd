"""Ingest of a lake in an object store against the same lake on a disk: CPU of our processes, and the same digest."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
from pyarrow import fs

from ammrank_dask.storage.site.site import Site
from ammrank_dask.workflows.session.config import Config
from ammrank_dask.workflows.session.night import Night
from ammrank_dask.workflows.stages.ingest import ingest
from benchmarks.command_line import Days, Users, Workers, benchmark
from benchmarks.measure import cluster, cpu_seconds, describe_machine, make_lake, site_of

FIRST = dt.date(2026, 1, 5)
BUCKET = "lake"


@benchmark("object-store")
def compare_object_store(work: Path, *, users: Users = 200_000, days: Days = 3, workers: Workers = 2) -> None:
    """Print the CPU seconds of an ingest from S3 (moto's server, a process of its own) and from the disk."""
    keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_EC2_METADATA_DISABLED": "true"}
    os.environ.update(keys)
    with _serve() as (server, port), cluster(workers) as client:
        lake = work / f"store-{users}"
        events = make_lake(client, lake, users=users, days=days)
        options = f"endpoint_override=127.0.0.1:{port}&scheme=http&region=us-east-1"
        store = fs.S3FileSystem(
            endpoint_override=f"127.0.0.1:{port}", scheme="http", region="us-east-1", allow_bucket_creation=True
        )
        store.create_dir(BUCKET)
        fs.copy_files(str(lake), BUCKET, source_filesystem=fs.LocalFileSystem(), destination_filesystem=store)
        seconds: dict[str, list[float]] = {"disk": [], "s3": []}
        digests = set()
        for number in range(3):  # in turns, so that both meet the same noise; the first warms up
            for name in seconds:
                site, config = site_of(work / f"store-site-{name}-{number}", lake, users)
                if name == "s3":
                    config = _remote(config, options)
                before = cpu_seconds() - sum(server.cpu_times()[:2])
                digests.add(_ingest(client, site, config, days))
                seconds[name].append(cpu_seconds() - sum(server.cpu_times()[:2]) - before)
                shutil.rmtree(site.path)
    print(f"\ningest of {days} days, {events:,} events, {users:,} users, {workers} workers; {describe_machine()}")
    for name, found in seconds.items():
        print(f"  {name:6} {min(found[1:]):6.2f} CPU s")
    print(f"  s3 / disk {min(seconds['s3'][1:]) / min(seconds['disk'][1:]):.2f} (bar 1.5)")
    print(f"  {'the same digest' if len(digests) == 1 else 'OTHER DIGESTS'}")


def _remote(config: Config, options: str) -> Config:
    named = {"events": "events", "users": "users.parquet", "taxonomy": "taxonomy.csv"}
    lake = {key: f"s3://{BUCKET}/{name}?{options}" for key, name in named.items()}
    return config.model_copy(update={"lake": config.lake.model_copy(update=lake)})


def _ingest(client: object, site: Site, config: Config, days: int) -> str:
    date = FIRST + dt.timedelta(days - 1)
    ingested = ingest(Night(client, site, config, date))
    site.publish(date, ingested.roles)
    return site.digest()


@contextlib.contextmanager
def _serve() -> Iterator[tuple[psutil.Process, int]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            for _ in range(600):
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                    break
                time.sleep(0.1)
            yield psutil.Process(process.pid), port
        finally:
            process.terminate()
