"""What a night leaves for those who watch it: run.json, log.jsonl, `ammrank status`, commands to run afterwards."""

import json
import os
import re
import shutil
import stat
import sys

import pytest
from click.testing import CliRunner
from nights import CONFIG, config_of, copy_world, day

from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.objects.atomic import private_files, write_text
from ammrank_dask.storage.site.run_log import read_attempt, write_attempt
from ammrank_dask.storage.site.site import Site
from ammrank_dask.storage.site.verdicts import Verdict, read_verdict, verdict_dates, write_verdict
from ammrank_dask.storage.store.qualifications import KIND
from ammrank_dask.storage.store.runs import finish_run
from ammrank_dask.workflows.nightly import command as night_command
from ammrank_dask.workflows.operations.status import describe_site
from ammrank_dask.workflows.session.config import check_config, load_config, write_config
from ammrank_dask.workflows.session.night import Night, record_night
from ammrank_dask.workflows.session.notify import announce
from ammrank_dask.workflows.session.options import nights_options
from ammrank_dask.workflows.stages.nightly import nightly
from ammrank_dask.workflows.stages.publishing import old_nights, prune, prune_reports
from ammrank_dask.workflows.status import command


@pytest.fixture(scope="module")
def site(client, small_world, tmp_path_factory):
    """A site with one published night and one that failed."""
    place = copy_world(small_world, tmp_path_factory.mktemp("status"))
    place.path.chmod(0o755)
    shutil.rmtree(place.path.parent / "lake" / "events" / f"date={day(8)}")  # the lake ends with day 7
    write_text(place.config_path, write_config(config_of()))
    with private_files(), place.exclusive():
        nightly(Night(client, place, load_config(place.config_path), day(5)))
        with pytest.raises(BadInput):
            nightly(Night(client, place, check_config({**CONFIG, "score": {"k": 51}}, "test"), day(6)))
    return place


def test_nightly__records_stages_bytes_memory_and_versions(site):
    attempt = read_attempt(site.run_folder(day(5)))
    assert attempt["status"] == "done"
    assert attempt["exit_code"] == 0
    names = [stage["name"] for stage in attempt["stages"]]
    assert names == [
        "ingest",
        "features",
        "training_features",
        "train",
        "gate",
        "chances",
        "score",
        "report",
        "publish",
    ]
    assert sum(stage["seconds"] for stage in attempt["stages"]) <= attempt["seconds"]
    assert set(attempt["bytes"]) == set(site.current().runs)
    assert min(attempt["bytes"].values()) > 0
    assert attempt["peak_memory"]["driver"] > 1 << 20
    assert max(attempt["peak_memory"]["workers"].values()) > 1 << 20
    assert attempt["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert attempt["facts"]["published"] is True


def test_status__says_who_holds_the_site_and_since_when(empty_site):
    write_text(empty_site.config_path, write_config(config_of()))
    with empty_site.exclusive():
        shown = CliRunner().invoke(command, [str(empty_site.path)]).stdout
        facts = json.loads(CliRunner().invoke(command, [str(empty_site.path), "--json"]).stdout)
    assert facts["running"]
    assert re.fullmatch(rf"\S+@\S+, process {os.getpid()}, since 20\d\d-\d\d-\d\d \d\d:\d\d UTC", facts["holder"])
    assert re.search(rf"^holder +{re.escape(facts['holder'])}$", shown, re.MULTILINE)
    assert "holder" not in json.loads(CliRunner().invoke(command, [str(empty_site.path), "--json"]).stdout)


def test_nightly__a_failure_is_recorded_with_its_sentence(site):
    attempt = read_attempt(site.run_folder(day(6)))
    assert (attempt["status"], attempt["exit_code"]) == ("failed", 65)
    assert attempt["error"]["message"].startswith("score.k must be between 1 and the number of categories (50)")
    lines = [json.loads(line) for line in (site.run_folder(day(6)) / "log.jsonl").read_text().splitlines()]
    assert lines[0]["message"] == f"night of {day(6)} began"
    assert lines[-1]["level"] == "ERROR"
    assert all(set(line) == {"time", "level", "logger", "message"} for line in lines)


def test_record_night__an_unexpected_error_is_logged_without_its_text(client, tmp_path):
    user = 4700 + 11

    def fail():
        with record_night(client, Site(tmp_path), day(5)):
            try:
                raise KeyError(user)
            except KeyError as error:
                raise ValueError(f"also {user}") from error

    with pytest.raises(ValueError, match="also 4711"):
        fail()
    folder = Site(tmp_path).run_folder(day(5))
    line = json.loads((folder / "log.jsonl").read_text().splitlines()[-1])
    assert line["message"] == "night failed: ValueError"
    assert "in fail\n" in line["traceback"]
    assert read_attempt(folder)["error"] == {"type": "ValueError", "message": "ValueError"}
    assert not [path for path in folder.iterdir() if "4711" in path.read_text()]


def test_write_attempt__remembers_the_attempts_before(tmp_path):
    for number, status in enumerate(("failed", "failed", "done")):
        write_attempt(tmp_path, {"started": f"t{number}", "status": "running"})
        write_attempt(tmp_path, {"started": f"t{number}", "status": status, "seconds": number, "exit_code": number})
    attempt = read_attempt(tmp_path)
    assert attempt["status"] == "done"
    assert [(found["started"], found["status"]) for found in attempt["earlier"]] == [("t0", "failed"), ("t1", "failed")]
    (tmp_path / "run.json").write_text("half")
    assert read_attempt(tmp_path) is None


def test_site__no_file_is_open_to_everybody(site):
    assert not site.path.stat().st_mode & 0o007
    made = [path for path in site.path.rglob("*") if path != site.config_path]
    assert len(made) > 50
    open_ones = [path for path in made if path.stat().st_mode & 0o007]
    assert open_ones == []
    assert stat.S_IMODE((site.path / ".lock").stat().st_mode) == 0o600


def test_describe_site__what_is_published_and_what_is_missing(site):
    facts = describe_site(site, load_config(site.config_path), day(9))
    assert facts["published"] == str(day(5))
    assert facts["nights_behind"] == 4
    assert facts["whole"] is True
    assert facts["running"] is False
    assert facts["model_of"] == str(day(5))
    assert facts["days_waiting"] == [str(day(6)), str(day(7))]
    assert facts["days_missing"] == [str(day(8)), str(day(9))]
    assert facts["last_run"]["status"] == "failed"
    with site.exclusive():
        assert describe_site(site, load_config(site.config_path), day(9))["running"] is True


def test_describe_site__an_attempt_that_ended_without_a_word_was_killed(site, tmp_path):
    place = Site(tmp_path / "site")
    write_attempt(place.run_folder(day(0)), {"date": str(day(0)), "started": "t", "status": "running"})
    (tmp_path / "lake" / "events" / f"date={day(0)}").mkdir(parents=True)
    facts = describe_site(place, check_config(CONFIG, "test"), day(1))
    assert facts["last_run"]["status"] == "killed"
    assert facts["published"] is None
    assert facts["days_waiting"] == [str(day(0))]


def test_status__for_a_person_and_for_a_monitor(site):
    text = CliRunner().invoke(command, [str(site.path)])
    assert text.exit_code == 0, text.output
    assert any(line.split() == ["published", str(day(5))] for line in text.output.splitlines())
    assert "score.k must be between" in text.output
    facts = json.loads(CliRunner().invoke(command, [str(site.path), "--json"]).output)
    assert facts["published"] == str(day(5))
    late = CliRunner().invoke(command, [str(site.path), "--max-behind", "1"])
    assert late.exit_code == 1
    assert "nights old, allowed are 1; see" in late.output


@pytest.mark.night
def test_status__says_first_which_source_makes_the_lists(compared_world):
    lines = CliRunner().invoke(command, [str(compared_world.path)]).output.splitlines()
    assert lines[2].split() == ["published", str(day(8))]
    name, _, sentence = lines[3].partition(" ")
    assert name == "lists"
    # Night 8 did not train: the figures are those of night 7.
    forward = read_verdict(compared_world, day(7)).facts["forward"]
    model, own = forward["sources"]["model"], forward["sources"]["own-history"]
    assert forward["source"] == "model"
    assert sentence.strip() == (
        f"Lists come from the model: in the label window to {day(7)} lists of a model that had not seen it had"
        f" {model['hits']:.2f} of 10 clicked, own history {own['hits']:.2f}"
        f" ({own['gain']:+.2f} ± {own['standard_error']:.2f}, {forward['users']} users)."
    )
    facts = json.loads(CliRunner().invoke(command, [str(compared_world.path), "--json"]).output)
    assert facts["lists"] == sentence.strip()


def test_describe_site__own_history_makes_the_lists_until_a_model_can_be_tried(client, empty_site):
    config = config_of(gate={"forward": True})
    nightly(Night(client, empty_site, config, day(5)))
    nightly(Night(client, empty_site, config, day(6)))
    expected = f"Lists come from own history: a model is tried once there are 12 days of events (training of {day(5)})."
    assert describe_site(empty_site, config, day(6))["lists"] == expected
    page = (empty_site.report_folder(day(6)) / "report.html").read_text()
    assert f"<p>{expected}</p>" in page
    assert "A new model passes the promotion check" not in page
    page = (empty_site.report_folder(day(5)) / "report.html").read_text()
    assert f"<p>{expected}</p>" in page
    assert "A new model passes the promotion check, but own history makes the lists: no model before it: " in page
    assert '<table class="sources">' in page  # of the simple ones, among which the night chose
    assert "the model has more" not in page


def test_describe_site__says_nothing_of_lists_that_were_not_compared(site):
    assert "lists" not in describe_site(site, load_config(site.config_path), day(9))


def test_status__the_lake_is_away(site, tmp_path):
    place = Site(tmp_path / "site")
    place.path.mkdir()
    write_text(place.config_path, write_config(config_of()))
    done = CliRunner().invoke(command, [str(place.path)])
    assert done.exit_code == 0
    assert "nothing yet" in done.output
    assert "there is no folder of events at" in done.output
    assert CliRunner().invoke(command, [str(tmp_path / "nowhere")]).exit_code == 65


SAY = "import json, os, sys; told = json.load(sys.stdin); told['env'] = os.environ['AMMRANK_STATUS'];"
SAY += " open(sys.argv[1], 'w').write(json.dumps(told))"


def notify_config(tmp_path, name, **others):
    script = tmp_path / "say.py"
    script.write_text(SAY)
    line = f"{sys.executable} {script} '{tmp_path / 'told.json'}'"
    config = check_config({**others, "notify": {name: line}}, "test")
    write_text(tmp_path / "ammrank.yaml", write_config(config))


def test_announce__success(tmp_path):
    notify_config(tmp_path, "on_success")
    with announce(tmp_path, day(0)) as told:
        told["users"] = 5
    found = json.loads((tmp_path / "told.json").read_text())
    assert found == {
        "site": str(tmp_path),
        "date": str(day(0)),
        "status": "success",
        "env": "success",
        "exit_code": 0,
        "facts": {"users": 5},
    }


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (BadInput("a sentence"), 65, "a sentence"),
        (SystemExit(143), 143, "SystemExit"),
        (KeyError("user 4711"), 1, "KeyError"),
    ],
)
def test_announce__failure_without_the_text_of_an_unexpected_error(tmp_path, error, code, message):
    notify_config(tmp_path, "on_failure")
    with pytest.raises(type(error)), announce(tmp_path, day(0)):
        raise error
    found = json.loads((tmp_path / "told.json").read_text())
    assert (found["status"], found["exit_code"], found["message"]) == ("failure", code, message)
    assert found["date"] == str(day(0))


@pytest.mark.parametrize("line", ["", "  "])
def test_announce__a_blank_command_is_none(tmp_path, caplog, line):
    write_text(tmp_path / "ammrank.yaml", write_config(check_config({"notify": {"on_success": line}}, "test")))
    with caplog.at_level("WARNING"), announce(tmp_path, day(0)):
        pass
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("line", "said"),
    [("/no/such/command", "did not run: "), ("false", "ended with 1"), ("'unbalanced", "did not run: ")],
)
def test_announce__a_command_that_fails_changes_nothing(tmp_path, caplog, line, said):
    write_text(tmp_path / "ammrank.yaml", write_config(check_config({"notify": {"on_success": line}}, "test")))
    with caplog.at_level("WARNING"), announce(tmp_path, day(0)):
        pass
    assert f"the command of notify.on_success {said}" in caplog.text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--date", "2026-01-05", "--from", "2026-01-04"], "--date for one night, or --from and --to for several"),
        (["--to", "2026-01-05"], "--to needs --from"),
        (["--from", "2026-01-05", "--to", "2026-01-04"], "must not be before the first, got 2026-01-05 to 2026-01-04"),
    ],
)
def test_nights_options__usage(arguments, said):
    import click

    @click.command()
    @nights_options
    def nights(dates):
        click.echo(dates)

    done = CliRunner().invoke(nights, arguments)
    assert done.exit_code == 2
    assert said in done.output


def test_nights_options__a_range():
    import click

    @click.command()
    @nights_options
    def nights(dates):
        click.echo(" ".join(map(str, dates)))

    done = CliRunner().invoke(nights, ["--from", "2026-01-30", "--to", "2026-02-01"])
    assert done.output == "2026-01-30 2026-01-31 2026-02-01\n"


def test_nightly__several_nights_by_the_command_end_as_one_by_one(client, cluster_file, published_world, tmp_path):
    one_by_one = copy_world(published_world, tmp_path)  # it has had night 5
    by_command = Site(tmp_path / "by-command")
    by_command.path.mkdir()
    write_text(by_command.config_path, write_config(config_of()))
    arguments = [str(by_command.path), "--from", str(day(5)), "--to", str(day(6)), "--json", "--quiet"]
    done = CliRunner().invoke(night_command, [*arguments, "--cluster", str(cluster_file)])
    assert done.exit_code == 0, done.output
    facts = json.loads(done.stdout)
    assert (facts["nights"], facts["date"], facts["published"]) == (2, str(day(6)), True)
    nightly(Night(client, one_by_one, load_config(by_command.config_path), day(6)))
    assert by_command.digest() == one_by_one.digest()
    assert [read_attempt(by_command.run_folder(day(number)))["status"] for number in (5, 6)] == ["done", "done"]


def test_nightly__the_night_that_failed_is_announced(site, tmp_path):
    (tmp_path / "lake").symlink_to(site.path.parent / "lake")
    place = Site(tmp_path / "site")
    place.path.mkdir()
    notify_config(place.path, "on_failure", **CONFIG)
    threads = "{processes: false, n_workers: 1, threads_per_worker: 2, dashboard_address: '127.0.0.1:0'}"
    (place.path / "cluster.yaml").write_text(f"version: 1\nclass: distributed.LocalCluster\nkwargs: {threads}\n")
    done = CliRunner().invoke(night_command, [str(place.path), "--from", str(day(7)), "--to", str(day(9)), "--quiet"])
    assert done.exit_code == 65, done.output
    assert read_attempt(place.run_folder(day(7)))["status"] == "done"
    assert json.loads((place.path / "told.json").read_text())["date"] == str(day(8))


def keep_lists(site, number):
    lists = site.lists_in_work(day(number), "abc")
    site.begin([lists])
    finish_run(lists, KIND, "abc", [], config={}, inputs={})
    return site.name_lists(lists, day(number))


def prune_nights(site, config, number):
    prune(site, config, day(number), [], [], old_nights(site, config, day(number)))
    prune_reports(site, config, day(number))


def test_prune__keeps_the_newest_nights_and_what_is_published(tmp_path):
    site = Site(tmp_path)
    retention = {"qualifications": 2, "reports": 3}
    config = check_config({"retention": retention, "train": {"every_nights": 1}}, "test")
    for number in range(5):
        keep_lists(site, number)
        write_verdict(site, day(number), Verdict("new", "old", True, {"accepted": True}), {})
        for folder in ("reports", "runs"):
            (tmp_path / folder / f"date={day(number)}").mkdir(parents=True)
    unfinished = site.lists_in_work(day(4), "def")
    site.begin([unfinished])
    unfinished.mkdir()
    site.publish(day(0), {KIND: site.qualifications_folder(day(0))})
    n_roots = len(os.listdir(tmp_path / "roots"))
    prune_nights(site, config, 4)
    assert len(os.listdir(tmp_path / "roots")) == n_roots + 1  # one write of ROOT for all
    left = {folder: sorted(os.listdir(tmp_path / folder)) for folder in ("qualifications", "reports", "runs")}
    assert left["qualifications"] == ["LATEST", *(f"date={day(number)}" for number in (0, 3, 4)), "runs"]
    assert not os.listdir(tmp_path / "qualifications" / "runs")
    assert left["reports"] == left["runs"] == [f"date={day(number)}" for number in (2, 3, 4)]
    assert verdict_dates(site) == [day(2), day(3), day(4)]
    assert not site.unnamed()


def test_published_nights__are_remembered_as_long_as_their_qualifications(tmp_path):
    site = Site(tmp_path)
    for number in range(5):
        keep_lists(site, number)
    assert site.published_nights() == []
    site.publish(day(0), {"state": site.qualifications_folder(day(0))})
    assert site.published_nights() == []
    for number in (1, 3):
        assert site.publish(day(number), {name: site.qualifications_folder(day(number)) for name in ("state", KIND)})
    assert not site.publish(day(2), {KIND: site.qualifications_folder(day(2))})  # a back-fill
    assert site.published_nights() == [day(1), day(2), day(3)]
    site.publish(day(4), {name: site.qualifications_folder(day(4)) for name in ("state", KIND)})
    assert site.published_nights() == [day(1), day(2), day(3), day(4)]
    prune_nights(site, check_config({"retention": {"qualifications": 2}}, "test"), 4)
    assert site.published_nights() == [day(3), day(4)]


def test_prune__a_back_fill_removes_nothing(tmp_path):
    site = Site(tmp_path)
    for number in range(3):
        keep_lists(site, number)
    site.publish(day(2), {KIND: site.qualifications_folder(day(2))})
    prune_nights(site, check_config({"retention": {"qualifications": 2}}, "test"), 1)
    left = sorted(os.listdir(tmp_path / "qualifications"))
    assert left == ["LATEST", *(f"date={day(number)}" for number in range(3)), "runs"]


def test_announce__what_the_command_prints_is_not_on_stdout(tmp_path, capfd):
    write_text(tmp_path / "ammrank.yaml", write_config(check_config({"notify": {"on_success": "echo ding"}}, "test")))
    with announce(tmp_path, day(0)):
        pass
    assert capfd.readouterr() == ("", "ding\n")
