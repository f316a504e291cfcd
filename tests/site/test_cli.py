"""The command line: suggestions, exit codes, dates, and the cluster file."""

import datetime as dt
import importlib
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import time
import weakref
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from distributed import LocalCluster
from lakes import write_lake, write_site

from ammrank_dask.storage.errors import AmmrankError, BadInput, SiteBusy
from ammrank_dask.workflows.cli import COMMANDS, SECTIONS, ammrank
from ammrank_dask.workflows.cluster.cluster_file import BUILT_IN, ClusterConfig, find_cluster_file, load_cluster
from ammrank_dask.workflows.cluster.open import open_cluster
from ammrank_dask.workflows.operations.demo import HISTORY_DAYS
from ammrank_dask.workflows.session.options import AmmrankCommand, show

ROOT = Path(__file__).parents[2]


def run(*arguments):
    return CliRunner().invoke(ammrank, [str(argument) for argument in arguments])


def run_function(function):
    """Run a function as a command."""
    return CliRunner().invoke(click.command("test", cls=AmmrankCommand)(function))


# Commands and options


def test_ammrank__help_lists_every_command_once():
    assert sorted(name for names in SECTIONS.values() for name in names) == sorted(COMMANDS)
    text = run("--help").output
    assert [title for title in SECTIONS if f"{title}:" in text] == list(SECTIONS)
    assert "  nightly  Run a night, or several: ingest" in text


def test_ammrank__a_warning_of_ours_is_shown_once(caplog):
    def warn():
        for name in ("ammrank_dask.training", "ammrank_dask.scoring", "elsewhere", "elsewhere"):
            logging.getLogger(name).warning("look here")

    for _ in range(2):
        caplog.clear()
        assert run_function(warn).exit_code == 0
        assert [record.name for record in caplog.records] == ["ammrank_dask.training", "elsewhere", "elsewhere"]


@pytest.mark.parametrize("name", COMMANDS)
def test_ammrank__every_command_has_help(name):
    result = run(name, "--help")
    assert result.exit_code == 0
    assert result.output.startswith("Usage: ")
    assert importlib.import_module(f"ammrank_dask.workflows.{name}").command.help


@pytest.mark.parametrize(
    ("name", "hint"),
    [("ingets", "; did you mean ingest?"), ("zzz", f"; commands are {', '.join(COMMANDS)}")],
)
def test_ammrank__unknown_command_is_a_usage_error(name, hint):
    result = run(name)
    assert result.exit_code == 2
    assert f"there is no command {name!r}{hint}" in result.stderr


@pytest.mark.parametrize("date", ["2026-02-30", "yesterday", "05.01.2026", ""])
def test_ammrank__bad_date_is_a_usage_error(tmp_path, date):
    result = run("ingest", tmp_path, "--date", date)
    assert result.exit_code == 2
    assert f"{date!r} is not a date YYYY-MM-DD" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("ingest",), "Missing argument 'SITE'"),
        (("ingest", ".", "--dat", "x"), "No such option"),
        (("ingest", str(ROOT / "pyproject.toml")), "is a file"),
        (("demo", "site", "--nights", 10**9), "1000000000 is not in the range 1<=x<=365"),
        (("simulate", "lake", "--days", 10**9), "1000000000 is not in the range 1<=x<=3650"),
    ],
)
def test_ammrank__usage_errors_exit_2(arguments, sentence):
    result = run(*arguments)
    assert result.exit_code == 2
    assert sentence in result.stderr


@pytest.mark.parametrize(
    ("error", "exit_code", "sentence"),
    [
        (BadInput("the lake is empty; fill it"), 65, "the lake is empty; fill it"),
        (SiteBusy("another run holds it"), 75, "another run holds it"),
        (AmmrankError("it broke"), 1, "it broke"),
        (OSError(28, "No space left on device", "/site/a"), 1,
         "No space left on device: /site/a; what is published is whole, run the command again"),
        (KeyboardInterrupt(), 130, "interrupted; run the same command again to go on"),
        (SystemExit(143), 143, "stopped by SIGTERM; run the same command again to go on"),
        (MemoryError(), 1, "memory ran out; give the command or its workers more, or use more partitions"),
    ],
)  # fmt: skip
def test_ammrank_command__errors_are_sentences_with_their_exit_code(error, exit_code, sentence):
    def fail():
        raise error

    result = run_function(fail)
    assert result.exit_code == exit_code
    assert result.stderr == f"ammrank: {sentence}\n"


def test_ammrank_command__an_unexpected_error_is_one_sentence_without_its_text(monkeypatch):
    def fail():
        raise KeyError("user 4711")

    result = run_function(fail)
    assert result.exit_code == 1
    assert re.fullmatch(
        r"ammrank: an unexpected KeyError at \w+\.py:\d+; what is published is whole; this is a bug in"
        r" ammrank-dask, and AMMRANK_TRACEBACK=1 shows where\n",
        result.stderr,
    )
    monkeypatch.setenv("AMMRANK_TRACEBACK", "1")
    assert isinstance(run_function(fail).exception, KeyError)


def test_ammrank_command__control_characters_of_file_names_are_not_sent_to_the_terminal(tmp_path):
    named = "clear\x1b[2J\x9b2Jthe screen.yaml"
    done = CliRunner().invoke(ammrank, ["simulate", str(tmp_path / "lake"), "--cluster", str(tmp_path / named)])
    assert done.exit_code == 65
    assert done.stderr.startswith(f"ammrank: cannot read {tmp_path}/clear\\x1b[2J\\x9b2Jthe screen.yaml: No such file")


def test_ammrank__a_reader_that_has_seen_enough_is_no_error(tmp_path):
    site = write_site(tmp_path / "site", write_lake(tmp_path / "lake", n_days=1))
    command = [sys.executable, "-m", "ammrank_dask.workflows.cli", "status", str(site.path)]
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


def test_demo__refuses_a_folder_with_files_of_others(tmp_path):
    (tmp_path / "lake" / "events").mkdir(parents=True)
    result = run("demo", tmp_path / "lake", "--users", "100")
    assert (result.exit_code, result.stdout) == (65, "")
    assert result.stderr == (
        f"ammrank: {tmp_path / 'lake'} must be empty or a demo, found 'events'; give a folder that does not exist\n"
    )
    assert [path.name for path in (tmp_path / "lake").iterdir()] == ["events"]


@pytest.mark.parametrize(("option", "before", "now"), [("nights", 2, 3), ("users", 100, 200), ("seed", 0, 1)])
def test_demo__refuses_other_options_in_the_words_of_the_command(tmp_path, option, before, now):
    site = tmp_path / "demo"
    parameters = {"users": 100, "days": HISTORY_DAYS + 1, "seed": 0, "start": "2026-01-05"}
    (site / "lake-truth").mkdir(parents=True)
    (site / "lake-truth" / "simulation.json").write_text(json.dumps({"parameters": parameters}))
    options = {"users": 100, "nights": 2, "seed": 0, option: now}
    result = run("demo", site, *(word for name, value in options.items() for word in (f"--{name}", str(value))))
    assert result.exit_code == 65
    assert result.stderr == (
        f"ammrank: {site} is a demo with --{option} {before}, found --{option} {now}; give another folder, or"
        f" --{option} {before} to go on with this one\n"
    )


def test_demo__refuses_a_site_that_is_not_a_demo(tmp_path):
    site = write_site(tmp_path / "site", write_lake(tmp_path / "lake", n_days=1))
    before = sorted(path.name for path in site.path.iterdir())
    result = run("demo", site.path, "--users", "100")
    assert result.exit_code == 65
    assert result.stderr == (
        f"ammrank: {site.path} is a site and not a demo; give a folder that does not exist, or that of a demo\n"
    )
    assert sorted(path.name for path in site.path.iterdir()) == before


@pytest.mark.parametrize(
    ("arguments", "content", "code", "sentence"),
    [
        ([], "", 2, "give the user's id with --user, a file that has it with --user-file, or --any"),
        (["--user", "1", "--user-file", "-"], "1", 2, "give the user's id with --user, a file"),
        (["--any", "--user-file", "-"], "1", 2, "give the user's id with --user, a file"),
        (["--user-file", "-"], "", 65, "--user-file must hold one id on one line, found 0 lines"),
        (["--user-file", "-"], "4711\n4712\n", 65, "--user-file must hold one id on one line, found 2 lines"),
    ],
    ids=["none", "both", "any-too", "empty", "two"],
)
def test_explain__the_id_may_come_from_a_file(tmp_path, arguments, content, code, sentence):
    result = CliRunner().invoke(ammrank, ["explain", str(tmp_path), *arguments], input=content)
    assert result.exit_code == code
    assert sentence in result.stderr
    assert "4711" not in result.output


def test_ammrank_command__sigterm_exits_143():
    result = run_function(lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert result.exit_code == 143
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


each_signal = pytest.mark.parametrize(
    ("number", "code", "sentence"),
    [
        (signal.SIGINT, 130, "ammrank: interrupted; run the same command again to go on\n"),
        (signal.SIGTERM, 143, "ammrank: stopped by SIGTERM; run the same command again to go on\n"),
    ],
    ids=["SIGINT", "SIGTERM"],
)


@pytest.fixture
def interruptible():
    """Let SIGINT raise, also where a shell runs the tests in the background."""
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, handler)


@each_signal
def test_ammrank__a_signal_while_a_command_is_imported(monkeypatch, interruptible, number, code, sentence):
    monkeypatch.setattr(importlib, "import_module", lambda name: os.kill(os.getpid(), number))
    result = run("status", "site")
    assert (result.exit_code, result.stderr) == (code, sentence)


@each_signal
@pytest.mark.parametrize("finalize", ["__del__", "weakref"])
def test_ammrank_command__a_signal_in_a_finalizer_is_not_lost(interruptible, number, code, sentence, finalize):
    class Released:
        if finalize == "__del__":

            def __del__(self):
                os.kill(os.getpid(), number)

    def work():
        released = Released()
        watched = weakref.ref(released, lambda _: os.kill(os.getpid(), number)) if finalize == "weakref" else None
        del released
        time.sleep(60)
        return watched

    begin = time.monotonic()
    result = run_function(work)
    assert (result.exit_code, result.stderr) == (code, sentence)
    assert time.monotonic() - begin < 30


@each_signal
def test_ammrank_command__a_signal_in_a_finalizer_at_the_very_end_is_not_lost(interruptible, number, code, sentence):
    class Released:
        def __del__(self):
            os.kill(os.getpid(), number)

    def work():
        Released()

    result = run_function(work)
    assert (result.exit_code, result.stderr) == (code, sentence)
    time.sleep(0.1)  # it is not sent once more


def test_ammrank_command__other_errors_of_finalizers_are_told_as_before(monkeypatch):
    dropped = []
    monkeypatch.setattr(sys, "unraisablehook", dropped.append)

    class Released:
        def __del__(self):
            raise ValueError("odd")

    def work():
        Released()

    assert run_function(work).exit_code == 0
    assert [each.exc_type for each in dropped] == [ValueError]
    assert sys.unraisablehook == dropped.append


def test_ammrank__commands_to_type_have_odd_paths_in_quotes(tmp_path):
    site = write_site(tmp_path / "shop #2", write_lake(tmp_path / "lake", n_days=1))
    assert f"run `ammrank nightly '{site.path}'` until a night" in run("export", site.path).stderr
    assert f"run `ammrank nightly '{site.path}'` first" in run("explain", site.path, "--user", "1").stderr
    site.config_path.unlink()
    assert f"make one with `ammrank init '{site.path}' --lake LAKE`" in run("status", site.path).stderr


def test_ammrank__missing_config_exits_65_and_makes_no_folder(tmp_path):
    result = run("ingest", tmp_path / "site")
    assert result.exit_code == 65
    assert f"there is no config at {tmp_path / 'site' / 'ammrank.yaml'}; make one with `ammrank init" in result.stderr
    assert not (tmp_path / "site").exists()


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["init", "s3://bucket/site", "--lake", "lake"], "a site"),
        (["nightly", "s3://bucket/site"], "a site"),
        (["status", "file:///tmp/site"], "a site"),
        (["demo", "gs://bucket/site"], "a site"),
        (["plan", "s3://bucket/site"], "a site"),
        (["evaluate", "s3://bucket/site"], "a site"),
        (["simulate", "s3://bucket/lake"], "lake"),
        (["simulate", "lake", "--truth", "s3://bucket/truth"], "--truth"),
        (["evaluate", "site", "--out", "s3://bucket/evaluation"], "--out"),
    ],
)
def test_ammrank__a_url_where_a_folder_must_be_exits_65_and_makes_no_folder(tmp_path, monkeypatch, arguments, name):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(ammrank, arguments)
    assert result.exit_code == 65, result.output
    sentence = rf"ammrank: {name} must be a folder of a file system that all workers see, got a URL of \w+://; give"
    assert re.match(sentence, result.stderr)
    assert result.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_show__prints_json_or_a_line_a_fact(capsys):
    facts = {"date": dt.date(2026, 1, 5), "users": 12345, "published": True}
    show(facts, True)
    assert json.loads(capsys.readouterr().out) == {"date": "2026-01-05", "users": 12345, "published": True}
    show(facts, False)
    assert capsys.readouterr().out.splitlines() == ["date       2026-01-05", "users      12,345", "published  yes"]


# The cluster file


def test_load_cluster__file_of_the_repository_is_the_built_in_one():
    assert (ROOT / "cluster.yaml").read_text() == BUILT_IN.read_text()
    assert load_cluster(BUILT_IN).class_ == "distributed.LocalCluster"


def test_find_cluster_file__given_then_site_then_folder_then_built_in(tmp_path, monkeypatch):
    site, folder = tmp_path / "site", tmp_path / "folder"
    for path in (site, folder):
        path.mkdir()
    monkeypatch.chdir(folder)
    assert find_cluster_file(None, site) == BUILT_IN
    (folder / "cluster.yaml").touch()
    assert find_cluster_file(None, site) == folder / "cluster.yaml"
    (site / "cluster.yaml").touch()
    assert find_cluster_file(None, site) == site / "cluster.yaml"
    assert find_cluster_file("mine.yaml", site) == Path("mine.yaml")


TLS = "security: {ca_file: a, cert: b, key: c}"
BAD_CLUSTERS = {
    "two ways": (
        "version: 1\nclass: distributed.LocalCluster\naddress: tcp://127.0.0.1:1",
        "must have exactly one of class, address and scheduler_file, found 2",
    ),
    "no way": ("version: 1", "must have exactly one of class, address and scheduler_file, found 0"),
    "unknown key": ("version: 1\nadress: x", "there is no key adress; known keys are version, class, address, "),
    "no version": ("class: distributed.LocalCluster", "version: Field required"),
    "other version": ("version: 2\naddress: tcp://127.0.0.1:1", "version: Input should be 1, got 2"),
    "wrong type": ("version: 1\naddress: tcp://127.0.0.1:1\ntimeout: soon", "timeout: Input should be a valid number"),
    "remote without TLS": (
        "version: 1\naddress: tcp://10.0.0.7:8786",
        "tcp://10.0.0.7:8786 is remote and has no `security`; name its TLS certificates",
    ),
    "remote in the clear": (
        f"version: 1\naddress: tcp://10.0.0.7:8786\n{TLS}",
        "the scheduler at tcp://10.0.0.7:8786 is remote and not encrypted; use TLS",
    ),
    "no port": (
        f"version: 1\naddress: tls://host\n{TLS}",
        "an address must be PROTOCOL://HOST:PORT, as tls://host:8786, got 'tls://host'",
    ),
    "local without a port": ("version: 1\naddress: tcp://127.0.0.1", "got 'tcp://127.0.0.1'"),
    "local by name only": ("version: 1\naddress: tcp://127.0.0.1.evil.example:1", "is remote and has no `security`"),
    "list": ("- a", "must be a mapping of keys, found a list"),
    "nothing": ("", "must be a mapping of keys, found a NoneType"),
    "not YAML": ("a: [", "cannot read"),
    "alias": ("version: 1\nclass: &a x\naddress: *a", "write the value of *a out: aliases are not read"),
    "key twice": ("version: 1\nscale: 2\nscale: 3", "the key 'scale' is there twice; keep one"),
    "no such day": ("version: 2026-02-31", "a value cannot be read (day is out of range for month)"),
    "yes for the version": ("version: yes", "version: must be a number, got True, which YAML also makes of yes"),
    "yes for a number": ("version: 1\nclass: a.B\nscale: yes", "scale: must be a number, got True, which YAML"),
}


@pytest.mark.parametrize(("text", "sentence"), BAD_CLUSTERS.values(), ids=BAD_CLUSTERS)
def test_load_cluster__says_what_is_wrong(tmp_path, text, sentence):
    path = tmp_path / "cluster.yaml"
    path.write_text(text)
    with pytest.raises(BadInput) as raised:
        load_cluster(path)
    assert sentence in str(raised.value)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_load_cluster__missing_file(tmp_path):
    with pytest.raises(BadInput, match=r"cannot read .*nowhere.yaml: .*No such file"):
        load_cluster(tmp_path / "nowhere.yaml")


@pytest.mark.parametrize(
    "address", ["tcp://127.0.0.1:8786", "localhost:8786", "tcp://[::1]:8786", f"tls://10.0.0.7:8786\n{TLS}"]
)
def test_load_cluster__local_and_encrypted_addresses_are_fine(tmp_path, address):
    path = tmp_path / "cluster.yaml"
    path.write_text(f"version: 1\naddress: {address}")
    assert isinstance(load_cluster(path), ClusterConfig)


def test_ammrank__bad_cluster_file_exits_65_before_anything_starts(tmp_path):
    site = write_site(tmp_path / "site", write_lake(tmp_path / "lake", n_days=1))
    (site.path / "cluster.yaml").write_text("version: 1\naddress: tcp://10.0.0.7:8786\n")
    result = run("ingest", site.path, "--date", "2026-01-05")
    assert result.exit_code == 65
    assert "tcp://10.0.0.7:8786 is remote and has no `security`" in result.stderr


@pytest.mark.parametrize("name", ["distributed.NoCluster", "nowhere.Cluster", "LocalCluster"])
def test_open_cluster__unknown_class(tmp_path, name):
    path = tmp_path / "cluster.yaml"
    path.write_text(f"version: 1\nclass: {name}")
    with pytest.raises(BadInput, match=f"there is no cluster class {name}; install its package or correct"):
        open_cluster(str(path), None).__enter__()


def test_open_cluster__scheduler_that_does_not_answer(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        path = tmp_path / "cluster.yaml"
        path.write_text(f"version: 1\naddress: tcp://127.0.0.1:{taken.getsockname()[1]}\ntimeout: 0.3")
        with pytest.raises(AmmrankError, match=r"the cluster did not come up within 0.3 s"):
            open_cluster(str(path), None).__enter__()


@pytest.mark.parametrize(("content", "found"), [(None, "no file"), ("{}", "a file without an address")])
def test_open_cluster__scheduler_file_that_never_comes(tmp_path, content, found):
    path, file = tmp_path / "cluster.yaml", tmp_path / "scheduler.json"
    path.write_text(f"version: 1\nscheduler_file: {file}\ntimeout: 0.3")
    if content is not None:
        file.write_text(content)
    with pytest.raises(
        AmmrankError, match=rf"to scheduler_file {file}, found {found} within 0\.3 s; start the scheduler"
    ):
        open_cluster(str(path), None).__enter__()


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("foo://127.0.0.1:1", r"the scheduler cannot be reached \(unknown address scheme 'foo'.*correct its address"),
        ("tls://127.0.0.1:1", "tls://127.0.0.1:1 speaks TLS and there is no `security`; name its TLS certificates"),
        ("tcp://127.0.0.1", "an address must be PROTOCOL://HOST:PORT, as tls://host:8786, got 'tcp://127.0.0.1'"),
    ],
)
def test_open_cluster__scheduler_file_with_an_address_that_is_none(tmp_path, address, sentence):
    path, file = tmp_path / "cluster.yaml", tmp_path / "scheduler.json"
    path.write_text(f"version: 1\nscheduler_file: {file}\ntimeout: 3")
    file.write_text(json.dumps({"address": address}))
    with pytest.raises(BadInput, match=sentence):
        open_cluster(str(path), None).__enter__()


@pytest.mark.parametrize(
    ("adapt", "sentence"),
    [
        ("{min: 1}", "there is no key adapt.min; known keys are minimum, maximum, minimum_cores, .*, interval, "),
        ("{minimum_memory: lots}", r"the cluster cannot be sized \(Could not interpret 'lots' .*check scale and adapt"),
    ],
)
def test_ammrank__bad_adapt_exits_65(tmp_path, adapt, sentence):
    site = write_site(tmp_path / "site", write_lake(tmp_path / "lake", n_days=1))
    kwargs = "{processes: false, n_workers: 1, dashboard_address: null}"
    (site.path / "cluster.yaml").write_text(
        f"version: 1\nclass: distributed.LocalCluster\nkwargs: {kwargs}\nadapt: {adapt}\n"
    )
    result = run("ingest", site.path, "--date", "2026-01-05")
    assert result.exit_code == 65
    assert re.search(sentence, result.stderr)


def test_open_cluster__joins_a_scheduler_file_and_leaves_the_cluster_running(tmp_path, capsys):
    path = tmp_path / "cluster.yaml"
    scheduler_file = tmp_path / "scheduler.json"
    path.write_text(f"version: 1\nscheduler_file: {scheduler_file}")
    with LocalCluster(
        processes=False, protocol="tcp", host="127.0.0.1", n_workers=1, threads_per_worker=1, dashboard_address=None
    ) as cluster:
        scheduler_file.write_text(json.dumps(cluster.scheduler.identity()))
        with open_cluster(str(path), None) as client:
            assert client.submit(sum, [1, 2]).result() == 3
        assert cluster.scheduler.workers
    assert capsys.readouterr().err.startswith("dashboard ")


def test_open_cluster__refuses_a_scheduler_that_others_can_reach_unencrypted(tmp_path):
    path = tmp_path / "cluster.yaml"
    path.write_text(
        "version: 1\nclass: distributed.LocalCluster\nkwargs: {processes: false, n_workers: 1, dashboard_address: null,"
        " protocol: tcp, host: 127.0.0.2}\nsecurity: none\n"
    )
    with pytest.raises(BadInput, match=r"the scheduler at tcp://127.0.0.2:\d+ is remote and not encrypted; use TLS"):
        open_cluster(str(path), None).__enter__()


def test_ammrank__version_names_ammrank_also_below_dask():
    result = CliRunner().invoke(ammrank, ["--version"], prog_name="dask")
    assert result.exit_code == 0
    assert re.fullmatch(r"ammrank, version \d+\.\d+\.\d+\S*\n", result.stdout)


def test_nightly__missing_cluster_file_is_one_clean_sentence(site):
    result = CliRunner().invoke(
        ammrank, ["nightly", str(site.path), "--date", "2026-01-09", "--rebuild", "--cluster", "nowhere.yaml"]
    )
    assert result.exit_code == 65
    assert "cannot read nowhere.yaml: No such file or directory; check --cluster" in result.stderr
    assert "Errno" not in result.stderr
