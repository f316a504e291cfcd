"""`ammrank backtest` on a small published site."""

import json

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from lakes import date_of, write_lake, write_site
from nights import day

from ammrank_dask.model.saved import load_model
from ammrank_dask.storage.site.site import Site
from ammrank_dask.workflows.backtest import command
from ammrank_dask.workflows.stages.work_area import remove_work

pytestmark = pytest.mark.night


def run(site, cluster_file, first, last, *options):
    arguments = [str(site.path), "--from", str(day(first)), "--to", str(day(last)), "--every", "1", "--json", "--quiet"]
    done = CliRunner().invoke(command, [*arguments, "--cluster", str(cluster_file), *options])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout.splitlines()[-1])


def files_of(site):
    left_out = {"backtests", ".lock"}
    paths = [path for path in site.path.rglob("*") if path.relative_to(site.path).parts[0] not in left_out]
    return {str(path): path.read_bytes() for path in paths if path.is_file()}


def test_backtest__nights_of_the_past_leave_the_site_as_it_is(site, cluster_file, monkeypatch):
    before = files_of(site)
    found = run(site, cluster_file, 4, 5)
    assert files_of(site) == before
    assert [night["date"] for night in found["nights"]] == [str(day(4)), str(day(5))]
    assert [night["until"] for night in found["nights"]] == [str(day(7)), str(day(8))]
    for night in found["nights"]:
        assert set(night["methods"]) == {"policy", "own-history", "popularity", "lr"}
        assert 0 < night["methods"]["policy"]["disagreement"] < night["methods"]["popularity"]["disagreement"]
        published, own = night["methods"]["policy"], night["methods"]["own-history"]
        assert own["gain"] == pytest.approx(published["hits"] - own["hits"])
        assert 0 < own["standard_error"] < 1
        assert night["methods"]["popularity"]["ndcg"] < own["ndcg"] < 1
        assert night["exposure"]["starved_users"] == 0
        assert night["users"] > 50
    # Every second night trains: the second one is scored by the model of the first.
    assert [night["model"]["date"] for night in found["nights"]] == [str(day(4))] * 2
    page = site.path / "backtests" / f"from={day(4)}-to={day(5)}-every=1" / "backtest.html"
    assert found["page"] == str(page)
    assert page.read_text().count("<circle") > 10
    assert "<td>own history</td>" in page.read_text()

    # Hits, counted from the files: what the users of the outcome clicked of what they were given.
    [work] = [path for path in (site.path / "backtests" / ".work").iterdir() if path.is_dir()]
    given = pq.read_table(work / "qualifications" / f"date={day(5)}" / "by_user").to_pandas()
    lake = site.path.parent / "lake" / "events"
    days = [pq.read_table(lake / f"date={day(n)}").to_pandas() for n in (6, 7, 8)]
    taxonomy = dict(line.split(",") for line in (lake.parent / "taxonomy.csv").read_text().splitlines()[1:])
    pairs = set()
    for events in days:
        clicks = events[events["group"] == "adc"]
        for user, category in zip(clicks["user_id"], clicks["category"], strict=True):
            name = category
            while taxonomy[name] and taxonomy[taxonomy[name]]:
                name = taxonomy[name]
            pairs.add((user, name))
    users = {user for user, _ in pairs}
    hits = sum((user, category) in pairs for user, category in zip(given["user_id"], given["category"], strict=True))
    assert found["nights"][1]["users"] == len(users)
    assert found["nights"][1]["methods"]["policy"]["hits"] == pytest.approx(hits / len(users))

    # A run that died after the night was published, before it was measured, ends alike.
    assert "popularity" in found["nights"][0]["gate"] or "nothing was decided" in found["nights"][0]["gate"]
    for outcome in (work / "outcomes").iterdir():
        outcome.unlink()
    assert run(site, cluster_file, 4, 5) == found

    # Again, and with one night less: nothing is computed, no cluster is started.
    def refuse(*_):
        raise AssertionError("a cluster was opened")

    monkeypatch.setattr("ammrank_dask.workflows.cluster.open.open_cluster", refuse)
    written = {path.name: path.read_bytes() for path in page.parent.iterdir()}
    assert run(site, cluster_file, 4, 5) == found
    assert {path.name: path.read_bytes() for path in page.parent.iterdir()} == written
    assert run(site, cluster_file, 4, 4)["nights"] == found["nights"][:1]
    remove_work(site)
    assert not work.parent.exists()


def test_backtest__a_changed_day_is_measured_again(site, cluster_file):
    first = run(site, cluster_file, 4, 4)
    path = sorted((site.path.parent / "lake" / "events" / f"date={day(6)}").glob("*.parquet"))[0]
    table = pq.read_table(path)
    pq.write_table(table.slice(0, table.num_rows // 2), path)
    second = run(site, cluster_file, 4, 4)
    assert second["nights"][0]["users"] < first["nights"][0]["users"]
    [model] = (site.path / "backtests" / ".work").glob("*/models/*")
    assert load_model(model).training_["popularity_error"] > 0


@pytest.mark.parametrize(
    ("first", "last", "code", "message"),
    [
        (0, 5, 65, f"a night of {day(0)} has too little history"),
        (0, 1, 65, f"give dates from {day(3)} to {day(5)}"),
        (4, 6, 65, f"give dates from {day(3)} to {day(5)}"),
        (8, 9, 65, f"give dates from {day(3)} to {day(5)}"),
        (5, 4, 2, f"the last night must not be before the first, got {day(5)} to {day(4)}"),
    ],
)
def test_backtest__refuses_nights_that_cannot_be_measured(published_world, first, last, code, message):
    arguments = [str(published_world.path), "--from", str(day(first)), "--to", str(day(last)), "--every", "1"]
    done = CliRunner().invoke(command, arguments)
    assert done.exit_code == code
    assert message in done.output
    assert not (published_world.path / "backtests").exists()


def test_backtest__says_when_no_night_can_be_measured(tmp_path):
    site = write_site(tmp_path / "site", write_lake(tmp_path / "lake", n_days=6), features={"min_days": 3})
    arguments = [str(site.path), "--from", str(date_of(3)), "--to", str(date_of(3))]
    done = CliRunner().invoke(command, arguments)
    assert done.exit_code == 65
    assert "no night of this lake can be backtested: that needs 7 days of log" in done.output


def test_backtest__refuses_a_folder_that_is_no_site(tmp_path):
    done = CliRunner().invoke(command, [str(tmp_path), "--from", "2026-01-01", "--to", "2026-01-02"])
    assert done.exit_code == 65
    assert "there is no config at" in done.output


def test_backtest__one_at_a_time(site, cluster_file):
    with Site(site.path / "backtests" / ".work").exclusive():
        done = CliRunner().invoke(
            command, [str(site.path), "--from", str(day(5)), "--to", str(day(5)), "--cluster", str(cluster_file)]
        )
    assert done.exit_code == 75
