"""Terminal progress: lines, bars, JSON lines, and what `run_tasks` tells them."""

import http.client
import io
import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import time
from urllib.parse import urlsplit

import psutil
import pytest
from rich.console import Console
from rich.progress import Progress

import ammrank_dask.workflows.session.progress
from ammrank_dask.workflows.cluster.cluster_file import BUILT_IN
from ammrank_dask.workflows.session.progress import JsonWriter, LineWriter, Stages, Terminal, progress_for


@pytest.fixture
def clock(monkeypatch):
    """A clock that a test sets."""
    now = [0.0]
    monkeypatch.setattr(ammrank_dask.workflows.session.progress.time, "monotonic", lambda: now[0])
    return now


def report(update, clock, kind, total, *, units=0, unit="users", seconds=1.0):
    """Report the tasks of one kind, each of which takes some seconds."""
    update(kind, 0, total)
    for done in range(1, total + 1):
        clock[0] += seconds
        if units:
            update.count(kind, units, unit)
        update(kind, done, total)


def test_stages__the_first_word_of_the_tasks_is_the_stage(clock, capsys):
    update = Stages(LineWriter(), verbose=False)
    report(update, clock, "evaluate-read", 2, units=30_000, seconds=2.0)
    report(update, clock, "evaluate-fit", 1, units=500)
    report(update, clock, "draw", 1)
    update.close()
    assert capsys.readouterr().err == "evaluate           5.0 s        60,000 users\ndraw               1.0 s\n"


def test_stages__a_night_names_its_stages(clock, capsys):
    update = Stages(LineWriter(), verbose=False)
    update.begin_night("2026-01-05", ["ingest", "training_features", "train"])
    update.begin_stage("ingest")
    report(update, clock, "ingest-read", 1, units=900, unit="events")
    report(update, clock, "fold", 1, units=40)
    update.end_stage(None)
    update.begin_stage("training_features")
    clock[0] += 0.5
    update.end_stage("12 users with clicks")
    update.skip_stage("train")
    clock[0] += 60.0
    update.end_night()
    update.close()
    assert capsys.readouterr().err.splitlines() == [
        "night of 2026-01-05",
        "ingest             2.0 s        900 events, 40 users",
        "training features  0.5 s        12 users with clicks",
        "total              1 min 02 s",
    ]


def test_stages__verbose_shows_the_tasks(clock, capsys):
    update = Stages(LineWriter(), verbose=True)
    for kind in ("train-e000-r00", "train-e000-r01"):
        report(update, clock, kind, 2, units=500)
    update.close()
    assert capsys.readouterr().err.splitlines() == [
        "  train-e000-r00   2.0 s        2 tasks, 1,000 users, 500 users/s",
        "  train-e000-r01   2.0 s        2 tasks, 1,000 users, 500 users/s",
        "train              4.0 s        1,000 users",
    ]


def test_stages__a_long_stage_shows_how_far_it_is(clock, capsys):
    update = Stages(LineWriter(), verbose=False)
    update("score", 0, 1_000)
    clock[0] = 29.0
    update("score", 100, 1_000)
    assert capsys.readouterr().err == ""
    clock[0] = 40.0
    update("score", 200, 1_000)
    clock[0] = 41.0
    update("score", 201, 1_000)
    assert capsys.readouterr().err == "  score: 200 of 1,000 tasks, 5 tasks/s, 2 min 40 s left\n"


def test_stages__json_has_one_object_per_line(clock, capsys):
    update = Stages(JsonWriter(), verbose=True)
    report(update, clock, "read", 1, units=7, unit="events", seconds=0.5)
    update.close()
    assert [json.loads(line) for line in capsys.readouterr().err.splitlines()] == [
        {"tasks": "read", "done": 1, "total": 1, "seconds": 0.5, "events": 7},
        {"stage": "read", "seconds": 0.5, "summary": "7 events"},
    ]


def test_terminal__one_bar_of_the_tasks_and_one_of_the_night(clock):
    console = Console(file=io.StringIO(), width=80)
    with Progress(console=console) as shown:
        terminal = Terminal(shown, verbose=False)
        terminal.begin_night("2026-01-05", ["ingest", "train", "score"])
        terminal.begin_stage("ingest")
        report(terminal, clock, "ingest-read", 1, units=900, unit="events")
        terminal.end_stage("one day [of many], " + "and what else there is to say of it " * 2)
        terminal.skip_stage("train")
        terminal.begin_stage("score")
        terminal("score", 0, 4)
        clock[0] += 2.0
        terminal.count("score", 100, "users")
        terminal("score", 1, 4)
        bars = [(task.description, task.completed, task.total, task.fields["rate"]) for task in shown.tasks]
    assert bars == [("  score", 1, 4, "50 users/s"), ("night 2026-01-05", 2, 3, "")]
    lines = [line.rstrip() for line in console.file.getvalue().splitlines()]
    assert "ingest             1.0 s        one day [of many], and what else there is to say" in lines
    assert " " * 32 + "of it and what else there is to say of it" in lines


def test_progress_for__on_a_terminal_draws_bars():
    code = (
        "import time\n"
        "from ammrank_dask.workflows.session.progress import progress_for\n"
        "with progress_for(False, False) as update:\n"
        "    for done in range(3): update('score', done, 2)\n"
        "    time.sleep(0.3)\n"  # the bar is drawn ten times per second
    )
    ours, theirs = pty.openpty()
    subprocess.run([sys.executable, "-c", code], stderr=theirs, check=True, env={**os.environ, "TERM": "xterm"})
    os.close(theirs)
    drawn = os.read(ours, 100_000).decode()
    os.close(ours)
    assert "score" in drawn
    assert "2/2" in drawn
    assert re.search(r"score\s+\S* +\S*0\.\d s", drawn)  # the line of the stage
    assert "━" in drawn


def test_progress_for__a_warning_stands_above_the_bars():
    code = (
        "import logging, sys, time\n"
        "from ammrank_dask.workflows.session.progress import progress_for\n"
        "logging.basicConfig(format='%(levelname)s %(message)s', stream=sys.stderr)\n"
        "with progress_for(False, False) as update:\n"
        "    update('score', 1, 2)\n"
        "    time.sleep(0.3)\n"
        "    logging.warning('look here')\n"
        "    update('score', 2, 2)\n"
        "logging.warning('after')\n"
    )
    ours, theirs = pty.openpty()
    subprocess.run([sys.executable, "-c", code], stderr=theirs, check=True, env={**os.environ, "TERM": "xterm"})
    os.close(theirs)
    drawn = os.read(ours, 100_000).decode()
    os.close(ours)
    # The line of the bar is erased before the warning, which then has a line of its own.
    assert "\x1b[2KWARNING look here" in drawn
    assert "\r\x1b[2K\x1b[?25hWARNING after" in drawn


@pytest.mark.parametrize(
    ("quiet", "as_json", "pattern"),
    [(True, False, ""), (False, False, "read               0.0 s\n"), (False, True, '{"stage": "read", "seconds": ')],
)
def test_progress_for__off_a_terminal_is_a_line_per_stage(capsys, quiet, as_json, pattern):
    with progress_for(quiet, as_json) as update:
        for done in range(3):
            update("read", done, 2)
    written = capsys.readouterr().err
    assert written.startswith(pattern)
    assert written.count("\n") == (0 if quiet else 1)


INTERRUPTED = "ammrank: interrupted; run the same command again to go on\n"
TERMINATED = "ammrank: stopped by SIGTERM; run the same command again to go on\n"


@pytest.mark.parametrize("is_at_work", [False, True], ids=["starting", "working"])
@pytest.mark.parametrize(
    ("number", "code", "sentence"),
    [(signal.SIGINT, 130, INTERRUPTED), (signal.SIGTERM, 143, TERMINATED)],
    ids=["SIGINT", "SIGTERM"],
)
def test_ammrank__a_signal_to_all_its_processes_ends_with_one_sentence(tmp_path, number, code, sentence, is_at_work):
    """A terminal sends Ctrl-C to all processes of the command, systemd SIGTERM: none may end with a traceback."""
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(BUILT_IN.read_text().replace("127.0.0.1:8787", "127.0.0.1:0"))
    arguments = ["simulate", str(tmp_path / "lake"), "--users", "40000", "--days", "60", "--verbose"]
    arguments += ["--cluster", str(cluster)]
    with subprocess.Popen(
        [sys.executable, "-m", "ammrank_dask.workflows.cli", *arguments],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # Tests that a shell runs in the background inherit that the signal is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        begun = []
        if is_at_work:
            begun = [process.stderr.readline(), process.stderr.readline()]  # the dashboard, and the first tasks
        else:
            wait_for_worker_process(process)
        os.killpg(process.pid, number)
        said = process.stderr.readlines()
        assert process.wait(timeout=300) == code
    assert [line.split()[0] for line in begun] == (["dashboard", "simulate-users"] if is_at_work else [])
    assert said == [sentence]


@pytest.mark.parametrize(
    ("number", "code", "sentence"),
    [(signal.SIGINT, 130, INTERRUPTED), (signal.SIGTERM, 143, TERMINATED)],
    ids=["SIGINT", "SIGTERM"],
)
def test_ammrank__a_signal_with_a_page_open_ends_with_one_sentence(tmp_path, number, code, sentence):
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(BUILT_IN.read_text().replace("127.0.0.1:8787", "127.0.0.1:0"))
    arguments = ["simulate", str(tmp_path / "lake"), "--users", "400000", "--days", "60", "--cluster", str(cluster)]
    with subprocess.Popen(
        [sys.executable, "-m", "ammrank_dask.workflows.cli", *arguments],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        page = process.stderr.readline().split()[1].replace("/ammrank", "/status")
        with open_page_of_a_sleeping_browser(page):
            time.sleep(3)  # for the server to be in the midst of sending
            process.send_signal(number)
            said = process.stderr.readlines()
            assert process.wait(timeout=300) == code
    assert [line for line in said if not re.match(r" +simulate-\w+:? ", line)] == [sentence]


def open_page_of_a_sleeping_browser(page):
    """Return a websocket of a page that is asked for more than the connection takes, and of which nothing is read."""
    address = urlsplit(page)
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=60)
    connection.request("GET", address.path)
    (token,) = re.findall(r'"token":\s*"([^"]+)"', connection.getresponse().read().decode())
    connection.close()
    connection.sock = opened = socket.socket()
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)  # the server buffers little for small segments
    opened.connect((address.hostname, address.port))
    headers = {
        "Origin": f"http://{address.netloc}", "Upgrade": "websocket", "Connection": "Upgrade",
        "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
        "Sec-WebSocket-Protocol": f"bokeh, {token}",
    }  # fmt: skip
    connection.request("GET", f"{address.path}/ws", headers=headers)
    kept = opened.dup()  # the answer closes its own
    assert connection.getresponse().status == 101
    assert kept.recv(1)  # whoever asks before the server has made its session is told off
    for number in range(200):
        for text in (json.dumps({"msgid": str(number), "msgtype": "PULL-DOC-REQ"}), "{}", "{}"):
            kept.sendall(bytes([0x81, 0x80 | len(text), 0, 0, 0, 0]) + text.encode())
    return kept


def wait_for_worker_process(process):
    """Wait until a command has started the first process of a worker; it is at its imports then."""
    command = psutil.Process(process.pid)
    end = time.monotonic() + 120
    while not any("spawn_main" in word for child in command.children() for word in child.cmdline()):
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.01)


def test_progress__importing_it_does_not_import_dask():
    code = "import sys, ammrank_dask.workflows.session.progress; sys.exit('distributed' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
