"""Commands that look at nights without a cluster: nights, category, compare, config, --dry-run, pages, completion."""

import json
import os
import re
import shutil
import stat
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from nights import config_of, copy_world, day

from ammrank_dask.report.explain_page import split_score
from ammrank_dask.scoring.qualifications import open_qualifications
from ammrank_dask.storage.store.qualification_files import category_folder
from ammrank_dask.workflows.cli import COMMANDS, ammrank
from ammrank_dask.workflows.operations.explain import explain_user
from ammrank_dask.workflows.session.config import Config, changed_keys, load_config, write_config
from ammrank_dask.workflows.session.night import Night
from ammrank_dask.workflows.stages.nightly import nightly
from ammrank_dask.workflows.stages.nights import write_site_pages


def run(*arguments, exit_code=0):
    result = CliRunner().invoke(ammrank, [str(argument) for argument in arguments])
    assert result.exit_code == exit_code, result.output
    return result.output


def files_below(folder):
    return {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.night
def test_nightly__a_first_night_prints_at_most_25_lines_and_no_warning_twice(empty_site, tmp_path):
    config = config_of(label={"days": 2, "min_categories": 1}, gate={"forward": True, "min_users": 10})
    empty_site.config_path.write_text(write_config(config))
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(
        "version: 1\nclass: distributed.LocalCluster\n"
        'kwargs: {n_workers: 1, threads_per_worker: 1, processes: false, dashboard_address: "127.0.0.1:0"}\n'
    )
    command = [sys.executable, "-m", "ammrank_dask", "nightly", empty_site.path, "--date", day(7), "--cluster", cluster]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = [*done.stderr.splitlines(), *done.stdout.splitlines()]
    assert len(lines) <= 25, "\n".join(lines)
    warnings = [line for line in lines if line.startswith("WARNING ")]
    assert len(warnings) == len(set(warnings))
    assert "in the lists of a model that ends before, and" in done.stdout  # two models were trained
    stages = [line.split("  ")[0] for line in lines[: -len(done.stdout.splitlines())] if line not in warnings]
    assert stages[-1] == "total"
    assert {"ingest", "features", "train", "gate", "score", "report", "publish"} <= set(stages)


def test_nightly__of_several_nights_shows_the_last_one_and_no_warnings(site, cluster_file):
    # Night 7 trains, night 8 does not.
    dates = ["--from", str(day(7)), "--to", str(day(8)), "--cluster", str(cluster_file)]
    done = CliRunner().invoke(ammrank, ["nightly", str(site.path), *dates])
    assert done.exit_code == 0, done.output
    assert [line.split()[0] for line in done.stderr.splitlines()].count("train") == 1
    assert "WARNING" not in done.stderr  # that there are no click probabilities is what its stage says
    facts = dict(re.split("  +", line, maxsplit=1) for line in done.stdout.splitlines())
    assert facts["date"] == str(day(8))
    assert facts["model"] == f"of {day(7)}"
    assert {"training", "gate"} & set(facts) == set()
    assert facts["start page"] == str(site.path / "index.html")
    assert f"The lists of the night of {day(8)} are served." in (site.path / "index.html").read_text()


def test_ingest__of_several_days_counts_no_user_twice(empty_site, cluster_file):
    empty_site.config_path.write_text(write_config(config_of()))
    arguments = ["ingest", str(empty_site.path), "--date", str(day(5)), "--cluster", str(cluster_file)]
    done = CliRunner().invoke(ammrank, arguments)
    assert done.exit_code == 0, done.output
    n_users = len(pq.read_table(empty_site.path.parent / "lake" / "users.parquet"))
    assert all(int(said.replace(",", "")) <= n_users for said in re.findall(r"([\d,]+) users", done.stderr))
    assert re.search(r"events, [\d,]+ user-days", done.stderr)


@pytest.fixture(scope="module")
def two_nights(client, published_world, tmp_path_factory):
    """A site after nights 5 and 6; nobody changes it."""
    site = copy_world(published_world, tmp_path_factory.mktemp("two"))
    nightly(Night(client, site, load_config(site.config_path), day(6)))
    return site


def test_nights__table_and_json(two_nights):
    lines = run("nights", two_nights.path).splitlines()
    assert lines[0].split() == ["night", "status", "users", "lists", "hits", "ε_dis", "starved", "seconds"]
    assert [line.split()[:2] for line in lines[1:]] == [[str(day(5)), "published"], [str(day(6)), "served"]]
    listed = json.loads(run("nights", two_nights.path, "--last", 1, "--json"))["nights"]
    summary = json.loads((two_nights.report_folder(day(6)) / "summary.json").read_text())
    assert [night["date"] for night in listed] == [str(day(6))]
    assert listed[0]["users"] == summary["n_users"]
    assert listed[0]["error"] == pytest.approx(summary["model"]["validation_error"], rel=1e-5)


def test_nights__writes_nothing_and_needs_a_site(two_nights, tmp_path):
    before = files_below(two_nights.path)
    run("nights", two_nights.path)
    assert files_below(two_nights.path) == before
    assert "there is no site at" in run("nights", tmp_path / "typo", exit_code=65)
    (tmp_path / "ammrank.yaml").write_text("")
    assert run("nights", tmp_path) == "no night has been run yet\n"


def test_category__has_the_figures_of_every_night(two_nights):
    summary = json.loads((two_nights.report_folder(day(6)) / "summary.json").read_text())
    row = max(summary["categories"], key=lambda each: each["exposure"])
    history = json.loads(run("category", two_nights.path, row["category"], "--json"))["nights"]
    assert [night["date"] for night in history] == [str(day(5)), str(day(6))]
    assert history[1]["exposure"] == row["exposure"]
    assert history[1]["exposure_share"] == pytest.approx(row["exposure_share"], rel=1e-5)
    assert history[1]["ranks"] == row["ranks"]
    text = run("category", two_nights.path, row["category"])
    assert f"{day(6)}" in text
    assert f"users by rank  1: {row['ranks'][0]:,}, 2: " in text
    mean = sum(rank * users for rank, users in enumerate(row["ranks"], 1)) / sum(row["ranks"])
    assert f"{mean:.1f}" in text


def test_category__has_groups_and_mean_click_probabilities_by_hand(two_nights, tmp_path):
    site = copy_world(two_nights, tmp_path)
    path = site.report_folder(day(6)) / "summary.json"
    summary = json.loads(path.read_text())
    names = [row["category"] for row in summary["categories"]]
    group = {"users": 30, "top": [{"category": names[1], "share": 0.5}]}
    summary["groups"] = [
        {**group, "age": "65+", "gender": "male", "top": [{"category": names[0], "share": 0.25}]},
        {**group, "age": "21-24", "gender": "female", "top": [{"category": names[0], "share": 0.75}, *group["top"]]},
        {**group, "age": "65+", "gender": "female"},
    ]
    path.write_text(json.dumps(summary))
    for place in (site.qualifications_folder(day(6)) / "by_category" / category_folder(names[0])).glob("*.parquet"):
        table = pq.read_table(place)
        chances = pa.array(np.linspace(0.25, 0.75, len(table)), pa.float32())
        pq.write_table(table.append_column("chance", chances), place, write_page_checksum=True)
    before, night = json.loads(run("category", site.path, names[0], "--json"))["nights"]
    assert before["chance"] is None
    assert night["chance"] == pytest.approx(0.5, abs=1e-6)
    assert [(each["gender"], each["age"], each["share"]) for each in night["groups"]] == [
        ("female", "21-24", 0.75), ("male", "65+", 0.25),
    ]  # fmt: skip
    text = run("category", site.path, names[0])
    assert "groups         female 21-24 75%, male 65+ 25%; share of the group's users" in text
    assert text.splitlines()[0].split()[-1] == "chance"
    assert [line.split()[-1] for line in text.splitlines()[1:3]] == ["–", "50.00%"]
    page = tmp_path / "category.html"
    assert run("category", site.path, names[0], "--html", page) == f"page  {page}\n"
    drawn = page.read_text()
    assert "<td>Female, 21-24</td><td>30</td><td>75.0\u00a0%</td>" in drawn
    assert {'data-chart="shares"', 'data-chart="ranks"', 'data-chart="chance"'} <= set(
        re.findall('data-chart="[a-z]+"', drawn)
    )
    assert 'data-chart="price"' not in drawn
    assert "<script" not in drawn
    assert "give --html or --json" in run("category", site.path, names[0], "--html", page, "--json", exit_code=2)


def test_category__unknown_ones_are_refused_with_a_hint(two_nights):
    name = json.loads((two_nights.report_folder(day(6)) / "summary.json").read_text())["categories"][0]["category"]
    said = run("category", two_nights.path, name[:-1], exit_code=65)
    assert f"no kept night has a category {name[:-1]!r}; did you mean {name}?" in said


def test_category__goes_on_without_the_reports(two_nights, tmp_path):
    site = copy_world(two_nights, tmp_path)
    write_site_pages(site)
    name = json.loads((site.report_folder(day(6)) / "summary.json").read_text())["categories"][0]["category"]
    shutil.rmtree(site.report_folder(day(5)))
    history = json.loads(run("category", site.path, name, "--json"))["nights"]
    assert [night["ranks"] is None for night in history] == [True, False]


def test_compare__equals_plain_counts(two_nights):
    frames = [open_qualifications(two_nights.qualifications_folder(day(number))).to_pandas() for number in (5, 6)]
    lists = [frame.groupby("user_id")["category"].apply(set) for frame in frames]
    both = sorted(set(lists[0].index) & set(lists[1].index))
    overlap = np.mean([len(lists[0][user] & lists[1][user]) for user in both])
    changed = sum(lists[0][user] != lists[1][user] for user in both)
    compared = json.loads(run("compare", two_nights.path, day(5), day(6), "--json"))
    assert (compared["users"], compared["changed_users"]) == (len(both), changed)
    assert compared["mean_overlap"] == pytest.approx(overlap)
    counts = [frame["category"].astype(str).value_counts() for frame in frames]
    for row in compared["categories"]:
        assert (row["first"], row["second"]) == tuple(int(count.get(row["category"], 0)) for count in counts)
    text = run("compare", two_nights.path, day(5), day(6))
    assert f"mean overlap        {overlap:.2f} of {compared['k']} categories" in text
    assert f"{changed:,} ({changed / len(both):.1%})" in text
    summaries = [json.loads((two_nights.report_folder(day(number)) / "summary.json").read_text()) for number in (5, 6)]
    for name, key in (("model of", "date"), ("ε_dis", "validation_error")):
        values = [summary["model"][key] for summary in summaries]
        shown = [value if isinstance(value, str) else f"{value:.4g}" for value in values]
        assert re.search(rf"^{name} +{shown[0]} +{shown[1]}$", text, re.MULTILINE)


def test_compare__the_same_night_and_one_that_is_not_there(two_nights):
    assert "every category has as many users as before" in run("compare", two_nights.path, day(5), day(5))
    said = run("compare", two_nights.path, day(5), day(20), exit_code=65)
    assert f"the lists of {day(20)} are not there; lists are kept of {day(5)} to {day(6)}" in said


def test_config__validate_show_and_diff(site):
    config = load_config(site.config_path)
    assert json.loads(run("config", "validate", site.path, "--json"))["valid"] is True
    assert "days of the lake" in run("config", "validate", site.path)
    shown = json.loads(run("config", "show", site.path, "--json"))
    assert Config.model_validate(shown) == config
    assert "every_nights: 2" in run("config", "show", site.path)
    listed = json.loads(run("config", "diff", site.path, "--json"))
    assert listed["train.every_nights"] == {"value": 2, "default": 7}
    assert set(listed) == set(changed_keys(config))
    assert re.search(r"^train.every_nights +2 +7$", run("config", "diff", site.path), re.MULTILINE)


def test_config__bad_ones(site):
    text = site.config_path.read_text()
    site.config_path.write_text(text.replace("every_nights: 2", "every_night: 2"))
    said = run("config", "validate", site.path, exit_code=65)
    assert "there is no key train.every_night; did you mean train.every_nights?" in said
    site.config_path.write_text(text.replace("../lake/taxonomy.csv", "../lake/nothing.csv"))
    assert "nothing.csv" in run("config", "validate", site.path, exit_code=65)
    site.config_path.write_text("{}")
    assert run("config", "diff", site.path) == "every key has its default\n"


def plan(site, number, **options):
    return json.loads(run("nightly", site.path, "--date", day(number), "--dry-run", "--json", **options))


def test_dry_run__says_what_the_night_would_do_and_writes_nothing(site):
    before = files_below(site.path)
    planned = plan(site, 7)
    assert planned["days to ingest"] == f"2, from {day(6)} to {day(7)}"
    assert planned["training"] == f"due: the last was 2 nights ago, on {day(5)} (train.every_nights 2)"
    assert planned["policy"].startswith("user_top_k, 10 categories")
    assert plan(site, 6)["training"].startswith(f"not due before {day(7)}: the last was on {day(5)}")
    assert plan(site, 5)["to do"] == "nothing: the night is published, and no input changed since"
    assert files_below(site.path) == before


def test_dry_run__does_what_the_night_does(site, cluster_file):
    planned = plan(site, 7)
    facts = json.loads(run("nightly", site.path, "--date", day(7), "--cluster", cluster_file, "--quiet", "--json"))
    assert planned["training"].startswith("due")
    assert "gate" in facts


def test_dry_run__a_first_night(empty_site):
    empty_site.config_path.write_text(write_config(config_of()))
    assert plan(empty_site, 5)["training"] == "due: there is no model yet"
    assert plan(empty_site, 2)["training"].startswith("none: 3 days of events are too few to train")


def test_dry_run__is_refused_as_the_night_would_be(site):
    shutil.rmtree(site.path.parent / "lake" / "events" / f"date={day(6)}")
    said = run("nightly", site.path, "--date", day(7), "--dry-run", exit_code=65)
    assert f"the lake has no events for {day(6)}" in said
    said = run("nightly", site.path, "--from", day(5), "--to", day(6), "--dry-run", exit_code=2)
    assert "--dry-run is of one night" in said


def test_report__index_is_written_without_a_cluster_and_opened(two_nights, tmp_path, monkeypatch):
    site = copy_world(two_nights, tmp_path)
    opened = []
    monkeypatch.setattr("webbrowser.open", lambda address: opened.append(address) or False)
    said = run("report", site.path, "--index", "--open")
    assert f"page  {site.path / 'index.html'}" in said
    assert "no browser was found; open" in said
    assert opened == [(site.path / "index.html").as_uri()]
    assert f"The lists of the night of {day(6)} are served." in (site.path / "index.html").read_text()


@pytest.fixture(scope="module")
def user(two_nights):
    return str(open_qualifications(two_nights.qualifications_folder(day(6))).to_pandas()["user_id"].iloc[0])


def test_explain__a_page_for_the_owner_only_without_the_id(two_nights, user, tmp_path):
    page = tmp_path / "why.html"
    said = run("explain", two_nights.path, "--user", user, "--html", page)
    text = page.read_text()
    assert said == f"page  {page}\n"
    assert stat.S_IMODE(page.stat().st_mode) == 0o600
    assert user not in text
    assert "<script" not in text
    categories = explain_user(two_nights, None, user)["categories"]
    assert text.count("<details>") == len(categories)
    for entry in categories:
        assert sum(split_score(entry)) == pytest.approx(entry["score"], abs=1e-4)
        assert f"score {entry['score']:+.2f}" in text
    run("explain", two_nights.path, "--user", user, "--html", page, "--show-id")
    assert f"User {user} ·" in page.read_text()


@pytest.mark.parametrize("options", [["--show-id"], ["--html", "x.html", "--json"]])
def test_explain__options_that_do_not_go_together(two_nights, options):
    said = run("explain", two_nights.path, "--user", 1, *options, exit_code=2)
    assert "--html is without --json, and --show-id is for --html only" in said


def test_explain__the_page_is_a_file_of_this_machine(two_nights, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = run("explain", two_nights.path, "--user", 1, "--html", "s3://bucket/why.html", exit_code=65)
    assert "--html must be" in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion__prints_the_script_of_a_shell(shell):
    text = run("completion", shell)
    assert "_AMMRANK_COMPLETE" in text
    assert f"{shell}_complete" in text


def test_completion__lists_commands_and_options():
    def complete(*words):
        line = {"COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
        environment = {**os.environ, "_AMMRANK_COMPLETE": "bash_complete", **line}
        command = [sys.executable, "-c", "from ammrank_dask.workflows.cli import main; main()"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        return [line.partition(",")[2] for line in done.stdout.splitlines()]

    assert complete("ammrank", "ni") == ["nightly", "nights"]
    assert complete("ammrank", "nightly", "--dr") == ["--dry-run"]


def test_main__runs_as_a_module():
    done = subprocess.run([sys.executable, "-m", "ammrank_dask", "--help"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("Usage: ammrank")
    assert all(name in done.stdout for name in COMMANDS)
