"""A bad day is caught by the checks, put on hold where the config says so, and released by a person."""

import json
import sys

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from nights import CONFIG, copy_world, day

from ammrank_dask.storage.lake.taxonomy import read_taxonomy
from ammrank_dask.storage.site.reports import check_report
from ammrank_dask.storage.store.manifests import DayManifest
from ammrank_dask.storage.store.runs import open_run
from ammrank_dask.workflows.cli import ammrank
from ammrank_dask.workflows.session.config import check_config, load_config, write_config
from ammrank_dask.workflows.stages.publishing import describe_outcome

BAD = 6
NOTE = "import os, sys; open(sys.argv[1], 'w').write(os.environ['AMMRANK_STATUS'] + sys.stdin.read())"


def set_config(site, **changes):
    site.config_path.write_text(write_config(check_config({**CONFIG, **changes}, "test")), encoding="utf-8")


def add_bot(site):
    """Give one id 96 % of the events of the bad day: clicks on one category, a second apart."""
    path = sorted((site.path.parent / "lake" / "events" / f"date={day(BAD)}").glob("*.parquet"))[0]
    table = pq.read_table(path)
    first = table.slice(0, 1).to_pylist()[0]
    total = sum(pq.read_metadata(file).num_rows for file in path.parent.glob("*.parquet"))
    rows = [{**first, "group": "adc"}] * (24 * total)
    pq.write_table(pa.concat_tables([table, pa.Table.from_pylist(rows, table.schema)]), path)


def run(site, cluster_file, *arguments):
    computes = () if arguments[0] in ("publish", "status") else ("--cluster", str(cluster_file))
    return CliRunner().invoke(ammrank, [arguments[0], str(site.path), *arguments[1:], *computes])


def day_counts(site):
    (run,) = [path for path in site.finished_runs("days") if path.parent.name == f"date={day(BAD)}"]
    return DayManifest.of(open_run(run))


@pytest.fixture(scope="module")
def held_world(published_world, cluster_file, tmp_path_factory):
    """A site whose bad night was held back, and the result of the command; nobody changes it."""
    site = copy_world(published_world, tmp_path_factory.mktemp("held"))
    add_bot(site)
    note = [sys.executable, "-c", f'"{NOTE}"', str(site.path / "note.json")]
    set_config(site, publish={"hold": ["heaviest_ids", "starved_users"]}, notify={"on_failure": " ".join(note)})
    return site, run(site, cluster_file, "nightly", "--date", str(day(BAD)), "--json")


@pytest.fixture
def held(held_world, tmp_path):
    """A copy of that site."""
    return copy_world(held_world[0], tmp_path)


def test_nightly__one_id_with_most_events_is_held_back(held_world, cluster_file):
    site, result = held_world
    assert result.exit_code == 66
    command = f"ammrank publish {site.path} --date {day(BAD)} --anyway"
    assert f"the night of {day(BAD)} is on hold for heaviest_ids (events of the heaviest id" in result.stderr
    assert f"the night of {day(5)} stays active" in result.stderr
    assert command in result.stderr
    assert site.current().date == day(5)
    assert not site.is_published(day(BAD))
    outcome = json.loads(result.stdout)
    warned = {check["name"] for check in outcome["checks"] if check["status"] == "warn"}
    assert {"heaviest_ids", "events_by_group"} <= warned
    assert outcome["held_by"] == ["heaviest_ids"]
    note = (site.path / "note.json").read_text()
    assert note.startswith("held")
    told = json.loads(note.removeprefix("held"))
    assert (told["exit_code"], told["facts"]["held_by"]) == (66, ["heaviest_ids"])
    page = (site.report_folder(day(BAD)) / "report.html").read_text()
    assert "On hold: these lists are not served, because a check warns: events of the heaviest ids." in page
    assert f"ammrank publish SITE --date {day(BAD)} --anyway releases them." in page
    assert "Published:" not in page
    start = (site.path / "index.html").read_text()
    assert f"The night of {day(BAD)} is on hold, recorded at" in start
    assert f"or release the lists: <code>ammrank publish SITE --date {day(BAD)} --anyway</code>" in start
    assert f'<a href="reports/date={day(BAD)}/report.html">report of {day(BAD)}</a>' in start
    assert f"The lists of the night of {day(5)} are served: 1 night behind, since {day(BAD)}." in start
    status = json.loads(run(site, cluster_file, "status", "--json").stdout)
    assert (status["published"], status["last_run"]["status"]) == (str(day(5)), "held")
    assert status["held"] == [{"date": str(day(BAD)), "held_by": ["heaviest_ids"]}]


def test_publish__a_held_night_anyway(held, cluster_file):
    site = held
    refused = run(site, cluster_file, "publish", "--date", str(day(BAD)))
    assert refused.exit_code == 66
    assert f"the night of {day(BAD)} is on hold for heaviest_ids (events of" in refused.stderr
    assert describe_outcome({"held_by": ["heaviest_ids"]}) == {"on hold for": "heaviest_ids"}
    assert describe_outcome({"let_through": ["late"], "users": 3}) == {"released despite": "late", "users": 3}
    assert site.current().date == day(5)
    done = run(site, cluster_file, "publish", "--date", str(day(BAD)), "--anyway", "--json")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["let_through"] == ["heaviest_ids"]
    assert site.current().date == day(BAD)
    page = (site.report_folder(day(BAD)) / "report.html").read_text()
    assert "Published: a person released these lists, although a check warns: events of the heaviest ids." in page
    check_report(site.report_folder(day(BAD)))
    assert f"The lists of the night of {day(BAD)} are served." in (site.path / "index.html").read_text()
    again = run(site, cluster_file, "publish", "--date", str(day(BAD)), "--anyway", "--json")
    assert json.loads(again.stdout) == {"date": str(day(BAD)), "published": True, "unchanged": True}
    rerun = run(site, cluster_file, "nightly", "--date", str(day(BAD)), "--json")
    assert rerun.exit_code == 0, rerun.stderr  # what is published is not held back any more


def test_publish__a_report_that_cannot_be_drawn_again_changes_nothing(held, cluster_file):
    (held.report_folder(day(BAD)) / "summary.json").write_text("{}")
    done = run(held, cluster_file, "publish", "--date", str(day(BAD)), "--anyway")
    assert done.exit_code == 0, done.stderr
    assert held.current().date == day(BAD)


def test_nightly__the_night_after_a_held_one_looks_at_both_days(held, cluster_file):
    site = held
    result = run(site, cluster_file, "nightly", "--date", str(day(BAD + 1)), "--json")
    assert result.exit_code == 66
    assert f"heaviest id, {day(BAD)}" in result.stderr
    assert site.current().date == day(5)
    assert run(site, cluster_file, "publish", "--date", str(day(BAD)), "--anyway").exit_code == 0
    after = run(site, cluster_file, "nightly", "--date", str(day(BAD + 1)), "--json")
    assert after.exit_code == 0, after.stderr
    assert site.current().date == day(BAD + 1)


def test_nightly__a_cap_lets_a_held_night_through(held, cluster_file):
    site = held
    set_config(site, publish={"hold": ["heaviest_ids"]}, ingest={"max_events_per_user": 5})
    result = run(site, cluster_file, "nightly", "--date", str(day(BAD)), "--json")
    assert result.exit_code == 0, result.stderr
    assert site.current().date == day(BAD)
    summary = json.loads((site.report_folder(day(BAD)) / "summary.json").read_text())
    (came_in,) = summary["input"]["days"]
    assert came_in["capped"] > 0.9 * came_in["events"]
    assert came_in["heaviest_id_share"] < 0.05
    # The days before stay as they were folded: no new cap corrects what is published.
    assert summary["special_days"]["corrected days"] == []
    next_night = run(site, cluster_file, "nightly", "--date", str(day(BAD + 1)), "--json")
    assert next_night.exit_code == 0, next_night.stderr


def test_nightly__a_held_night_passes_when_its_heaviest_id_is_forgotten_and_gone(held, cluster_file, tmp_path):
    site, folder = held, held.path.parent / "lake" / "events" / f"date={day(BAD)}"
    tables = {path: pq.read_table(path, partitioning=None) for path in folder.glob("*.parquet")}
    ids = pa.concat_tables(tables.values())["user_id"].to_pylist()
    bot = max(set(ids), key=ids.count)
    (tmp_path / "bot.txt").write_text(str(bot))
    assert run(site, cluster_file, "forget", "--users", str(tmp_path / "bot.txt")).exit_code == 0
    for path, table in tables.items():
        pq.write_table(table.filter(pc.not_equal(table["user_id"], bot)), path)
    result = run(site, cluster_file, "nightly", "--date", str(day(BAD)), "--json")
    assert result.exit_code == 0, result.stderr
    (came_in,) = json.loads((site.report_folder(day(BAD)) / "summary.json").read_text())["input"]["days"]
    assert (came_in["events"], came_in["heaviest_id_share"] < 0.05) == (len(ids) - ids.count(bot), True)


def test_nightly__clicks_count_once_a_user_and_day(held_world):
    site, _ = held_world
    events = sorted((site.path.parent / "lake" / "events" / f"date={day(BAD)}").glob("*.parquet"))
    table = pa.concat_tables([pq.read_table(path) for path in events]).to_pandas()
    taxonomy = read_taxonomy(site.path.parent / "lake" / "taxonomy.csv", level=2)
    clicked = table[table["group"] == "adc"]
    clicked = clicked.assign(category=clicked["category"].map(taxonomy.code_of))
    users = {"events": len(clicked), "users": len(clicked[["user_id", "category"]].drop_duplicates())}
    manifest = day_counts(site)
    assert sum(count for _, count in manifest.clicks) == users["events"]
    assert sum(count for _, count in manifest.clickers) == users["users"]


def blank_categories(site, *, of_clicks_only=False):
    """Take the categories of the events of the bad day away."""
    for path in (site.path.parent / "lake" / "events" / f"date={day(BAD)}").glob("*.parquet"):
        table = pq.read_table(path, partitioning=None)
        is_blank = pc.equal(table["group"], "adc") if of_clicks_only else pa.array([True] * len(table))
        category = pc.if_else(is_blank, pa.scalar(None, pa.string()), table["category"])
        pq.write_table(table.set_column(table.column_names.index("category"), "category", category), path)


def test_nightly__a_day_of_null_categories_is_held_back_by_default(site, cluster_file):
    blank_categories(site)
    result = run(site, cluster_file, "nightly", "--date", str(day(BAD)), "--json")
    assert result.exit_code == 66
    assert f"on hold for used_share (rows of {day(BAD)} that are used: 0, limit 1)" in result.stderr
    assert f"the night of {day(5)} stays active" in result.stderr
    assert site.current().date == day(5)
    counts = day_counts(site).events_by_outcome
    assert list(counts) == ["null_category"]


def test_nightly__a_first_night_without_a_click_is_held_back(empty_site, cluster_file):
    blank_categories(empty_site, of_clicks_only=True)
    set_config(empty_site)
    result = run(empty_site, cluster_file, "nightly", "--date", str(day(BAD)), "--json")
    assert result.exit_code == 66
    assert f"on hold for used_share (clicks of {day(BAD)} that are used: 0, limit 1)" in result.stderr
    assert "nothing is published yet" in result.stderr


def test_publish__a_night_that_is_not_held(site, cluster_file):
    result = run(site, cluster_file, "publish", "--date", str(day(BAD)), "--anyway")
    assert result.exit_code == 65
    assert f"the night of {day(BAD)} is not on hold; run `ammrank nightly" in result.stderr


def test_load_config__a_hold_on_an_unknown_check(site, cluster_file):
    text = write_config(load_config(site.config_path)).replace("hold: [used_share]", "hold: [heavyest_ids]")
    site.config_path.write_text(text)
    result = run(site, cluster_file, "nightly", "--date", str(day(BAD)))
    assert result.exit_code == 65
    assert "publish.hold: there is no check 'heavyest_ids'; did you mean heaviest_ids?" in result.stderr
