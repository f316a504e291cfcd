"""SIGTERM ends every command within seconds, whatever its workers are at, and no process of it is left."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

import dask
import psutil
import pytest
import stuck_preload
import yaml
from distributed import LocalCluster
from nights import CONFIG, day

from ammrank_dask.storage.site.site import Site
from ammrank_dask.workflows.session.config import check_config, write_config

pytestmark = pytest.mark.system  # measures seconds
SENTENCE = "ammrank: stopped by SIGTERM; run the same command again to go on\n"
SECONDS_ALLOWED = 20
"""The process ends itself within 5 seconds; a busy machine may need longer."""
PRELOAD = {"distributed.worker.preload": [stuck_preload.__file__]}
NEXT = str(day(6))
COMMANDS = {
    "simulate": ["simulate", "{lake}-2", "--users", "3000", "--days", "3"],
    "nightly": ["nightly", "{site}", "--date", NEXT],
    "ingest": ["ingest", "{site}", "--date", NEXT],
    "features": ["features", "{site}", "--date", str(day(5)), "--rebuild"],
    "train": ["train", "{site}", "--date", str(day(5))],
    "score": ["score", "{site}", "--date", str(day(5)), "--rebuild"],
    "report": ["report", "{site}", "--date", str(day(5)), "--rebuild"],
    "evaluate": ["evaluate", "{site}", "--out", "{lake}-evaluation"],
    "repartition": ["repartition", "{site}", "--partitions", "4"],
}
QUICK = [("nightly", "fold", "stopped", "own"), ("nightly", "close", "busy", "own")]
LONG = [
    ("simulate", "simulate", "busy", "own"),
    ("simulate", "start", "busy", "own"),
    ("simulate", "simulate", "stopped", "joined"),
    ("nightly", "start", "stopped", "own"),
    ("nightly", "scan", "task", "own"),
    ("nightly", "fold", "busy", "own"),
    ("nightly", "select", "stopped", "own"),
    ("nightly", "train", "busy", "own"),
    ("nightly", "train", "stopped", "joined"),
    ("nightly", "score", "stopped", "own"),
    ("nightly", "score", "busy", "joined"),
    ("report", "", "busy", "own"),
    ("nightly", "close", "stopped", "own"),
    ("ingest", "fold", "stopped", "own"),
    ("ingest", "fold", "task", "joined"),
    ("features", "", "busy", "own"),
    ("train", "", "stopped", "own"),
    ("score", "score", "task", "own"),
    ("evaluate", "", "stopped", "own"),
    ("repartition", "", "busy", "own"),
]


@contextlib.contextmanager
def stuck_cluster(folder, settings, where):
    """Yield the cluster file and the environment of a command whose workers get stuck."""
    os.environ[stuck_preload.SETTINGS] = json.dumps(settings)
    try:
        content = {"version": 1, "dask": PRELOAD, "timeout": 120}
        with contextlib.ExitStack() as stack:
            if where == "own":
                content["class"] = "distributed.LocalCluster"
                content["kwargs"] = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": "127.0.0.1:0"}
            else:
                stack.enter_context(dask.config.set(PRELOAD))
                network = {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}
                cluster = stack.enter_context(LocalCluster(n_workers=2, threads_per_worker=1, **network))
                content |= {"address": cluster.scheduler_address, "network": "trusted"}
            file = folder / "stuck.yaml"
            file.write_text(yaml.safe_dump(content), encoding="utf-8")
            yield file
    finally:
        del os.environ[stuck_preload.SETTINGS]


def wait_for_mark(mark, process, said):
    end = time.monotonic() + 120
    while not mark.exists():
        assert process.poll() is None, said.read_text()
        assert time.monotonic() < end, said.read_text()
        time.sleep(0.02)
    return int(mark.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("command", "stage", "kind", "where"), [*QUICK, *(pytest.param(*case, marks=pytest.mark.long) for case in LONG)]
)
def test_ammrank__sigterm_ends_it_within_seconds(site, tmp_path, command, stage, kind, where):
    config = check_config({**CONFIG, "train": {"epochs": 1, "every_nights": 1}}, "test")
    (site.path / "ammrank.yaml").write_text(write_config(config), encoding="utf-8")
    places = {"site": site.path, "lake": tmp_path / "lake"}
    arguments = [word.format(**places) for word in COMMANDS[command]]
    mark, said = tmp_path / "stuck", tmp_path / "said"
    settings = {"stage": stage, "kind": kind, "mark": str(mark)}
    with stuck_cluster(tmp_path, settings, where) as cluster, open(said, "w", encoding="utf-8") as stderr:
        options = ["--cluster", str(cluster), "--quiet"]
        process = subprocess.Popen(
            [sys.executable, "-m", "ammrank_dask.workflows.cli", *arguments, *options],
            stdout=subprocess.DEVNULL,
            stderr=stderr,
        )
        try:
            stuck = wait_for_mark(mark, process, said)
            time.sleep(0.5)
            children = psutil.Process(process.pid).children(recursive=True)
            before = said.read_text()  # what a small world is warned of
            begin = time.monotonic()
            process.send_signal(signal.SIGTERM)
            code = process.wait(timeout=SECONDS_ALLOWED)
            seconds = time.monotonic() - begin
        finally:
            process.kill()
            process.wait()
        print(f"{command} {stage} {kind} {where}: {seconds:.2f} s")
        assert (code, said.read_text().removeprefix(before)) == (143, SENTENCE)
        assert psutil.wait_procs(children, timeout=SECONDS_ALLOWED)[1] == []
        assert psutil.pid_exists(stuck) == (where == "joined")
        if command != "simulate":
            with Site(site.path).exclusive():  # nobody holds it any more
                pass
