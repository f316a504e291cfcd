"""Reports of nights on a small site: drift and realised clicks against plain twins, and reruns."""

import dataclasses
import json
import re
import shutil
import socket
import subprocess
import sys
import urllib.parse

import nights
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import reference_report
from click.testing import CliRunner
from nights import copy_world, day

from ammrank_dask.monitor.performance import record_performance
from ammrank_dask.storage.lake.taxonomy import read_taxonomy
from ammrank_dask.storage.site.site import Site
from ammrank_dask.storage.site.verdicts import read_verdict
from ammrank_dask.storage.store.qualifications import qualification_parts
from ammrank_dask.storage.store.runs import open_run, remove_run
from ammrank_dask.workflows.report import command as report_command
from ammrank_dask.workflows.session import night as night_session
from ammrank_dask.workflows.session.config import check_config, write_config
from ammrank_dask.workflows.session.night import Night
from ammrank_dask.workflows.stages.ingest import ingest
from ammrank_dask.workflows.stages.nightly import nightly
from ammrank_dask.workflows.stages.nights import write_site_pages
from ammrank_dask.workflows.stages.report import write_night_report

pytestmark = pytest.mark.night

K = 5
CONFIG = {
    **nights.CONFIG,
    "score": {"k": K},
    "partitions": 3,
}


@pytest.fixture(scope="module")
def three_nights(client, small_world, tmp_path_factory):
    """A site after nights 5, 6 and 8."""
    site = copy_world(small_world, tmp_path_factory.mktemp("world"))
    config = check_config(CONFIG, "test")
    site.config_path.write_text(write_config(config))
    for number in (5, 6):
        nightly(Night(client, site, config, day(number)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(night_session, "record_performance", record_performance)  # the report links to its page
        nightly(Night(client, site, config, day(8)))
    return site


@pytest.fixture
def site(three_nights, tmp_path):
    shutil.copytree(three_nights.path.parent, tmp_path / "world")
    return Site(tmp_path / "world" / "site")


def summary_of(site, number):
    return json.loads((site.report_folder(day(number)) / "summary.json").read_text())


def test_report__has_the_error_of_the_model_beside_that_of_popularity(three_nights):
    model = summary_of(three_nights, 5)["model"]
    assert (model["date"], model["kind"]) == (str(day(5)), "amm-rank-plus")
    assert 0 < model["validation_error"] < model["popularity_error"]
    page = (three_nights.report_folder(day(5)) / "report.html").read_text()
    errors = f"{model['validation_error']:.4f}; popularity has {model['popularity_error']:.4f}."
    assert errors in page
    settings = ", ".join(f"{name} {value:g}" for name, value in model["parameters"].items())
    assert f"Hyperparameters: {settings}. From <code>model</code>" in page
    assert page.index("Hyperparameters") > page.index("Clicks per category")


def held_by_user(site, number):
    """Return {user: [(category, score), …]} of a night."""
    held = {}
    for row in pq.read_table(site.qualifications_folder(day(number)) / "by_user").to_pylist():
        held.setdefault(row["user_id"], []).append((row["rank"], row["category"], row["score"]))
    return {user: [(name, score) for _, name, score in sorted(rows)] for user, rows in held.items()}


def clicks_by_user(site, numbers):
    """Return {user: ranked categories clicked on these days} from the lake."""
    lake = site.path.parent / "lake"
    taxonomy = read_taxonomy(lake / "taxonomy.csv", 2)
    clicks = {}
    for number in numbers:
        for row in pq.read_table(lake / "events" / f"date={day(number)}").to_pylist():
            code = taxonomy.code_of.get(row["category"], -1)
            if row["group"] == "adc" and code >= 0:
                clicks.setdefault(row["user_id"], set()).add(taxonomy.categories[code])
    return clicks


@pytest.mark.parametrize(("number", "before"), [(6, 5), (8, 6)])
def test_write_night_report__drift_equals_the_plain_twin(three_nights, number, before):
    found = summary_of(three_nights, number)["drift"]
    users, changed, first, jaccard, shifts = reference_report.drift(
        held_by_user(three_nights, before), held_by_user(three_nights, number)
    )
    assert found["date"] == str(day(before))
    assert (found["users"], found["new_users"], found["gone_users"]) == (users, 0, 0)
    assert found["changed_users"] == pytest.approx(changed / users)
    assert found["first_changed"] == pytest.approx(first / users)
    assert found["jaccard"] == pytest.approx(jaccard / users)
    assert found["score_shift"]["pairs"] == len(shifts)
    assert found["score_shift"]["mean"] == pytest.approx(sum(shifts) / len(shifts), abs=1e-6)
    models = [
        open_run(three_nights.qualifications_folder(day(n))).manifest["inputs"]["model"] for n in (before, number)
    ]
    assert found["model_changed"] == (models[0] != models[1])


def test_write_night_report__realised_equals_the_plain_twin(three_nights):
    assert summary_of(three_nights, 5)["drift"] is None
    assert [night["measures"] for night in summary_of(three_nights, 5)["realised"]] == [None, None, None]
    realised = summary_of(three_nights, 6)["realised"]
    assert [(night["nights"], night["date"]) for night in realised] == [
        (1, str(day(5))),
        (7, str(day(-1))),
        (30, str(day(-24))),
    ]
    assert [night["measures"] is None for night in realised] == [False, True, True]
    manifest = open_run(three_nights.qualifications_folder(day(5))).manifest
    clicks = dict(zip(manifest["config"]["categories"], manifest["facts"]["clicks"], strict=True))
    popular = sorted(clicks, key=lambda name: -clicks[name])[:K]
    held = held_by_user(three_nights, 5)
    users, others, sums = reference_report.realised(held, clicks_by_user(three_nights, [6]), popular, K)
    found = realised[0]["measures"]
    assert users > 20
    assert (found["users"], found["users_without_qualification"]) == (users, others)
    for measures, expected in zip((found, found["popularity"]), sums, strict=True):
        means = [measures[name] for name in ("hit_rate", "precision", "recall")]
        assert means == pytest.approx([total / users for total in expected])


def test_write_night_report__groups_equal_plain_counts(three_nights):
    people = pq.read_table(three_nights.path.parent / "lake" / "users.parquet").to_pylist()
    held = held_by_user(three_nights, 6)
    members = [p["user_id"] for p in people if p["gender"] == "female" and p["age"] and 35 <= p["age"] <= 44]
    points = {}
    for user in members:
        for place, (name, _) in enumerate(held[user]):
            points[name] = points.get(name, 0) + K - place
    best = sorted(points, key=lambda name: (-points[name], name))[:10]
    group = next(g for g in summary_of(three_nights, 6)["groups"] if (g["gender"], g["age"]) == ("female", "35-44"))
    assert group["users"] == len(members) > 20
    assert [entry["category"] for entry in group["top"]] == best
    assert group["top"][0]["share"] == pytest.approx(
        sum(best[0] in {name for name, _ in held[user]} for user in members) / len(members)
    )


def test_write_night_report__leaves_out_groups_of_fewer_than_20_users(three_nights, client, site):
    groups = summary_of(three_nights, 6)["groups"]
    assert groups
    assert all(group["users"] >= 20 for group in groups)
    path = site.path.parent / "lake" / "users.parquet"
    people = pq.read_table(path)
    pq.write_table(people.set_column(people.column_names.index("age"), "age", pa.nulls(len(people), pa.int64())), path)
    assert summary_of(site, 8)["groups"]
    nightly(Night(client, site, check_config(CONFIG, "test"), day(8)), rebuild=True)
    assert summary_of(site, 8)["groups"] == []
    assert 'data-chart="groups"' not in (site.report_folder(day(8)) / "report.html").read_text()


def test_write_night_report__a_rerun_gives_the_same_bytes_without_the_nights_before(client, site):
    before = {path.name: path.read_bytes() for path in site.report_folder(day(8)).iterdir()}
    config = check_config(CONFIG, "test")
    known = ingest(Night(client, site, config, day(8)))
    scored = open_run(site.qualifications_folder(day(8)))
    remove_run(site.qualifications_folder(day(6)))
    write_night_report(Night(client, site, config, known.date), known, scored)
    assert {path.name: path.read_bytes() for path in site.report_folder(day(8)).iterdir()} == before
    write_night_report(Night(client, site, config, known.date), known, scored, rebuild=True)
    assert summary_of(site, 8)["drift"]["date"] == str(day(5))


def test_write_night_report__is_measured_again_when_lost_or_with_other_thresholds(client, site):
    path = site.report_folder(day(8)) / "summary.json"
    before = path.read_bytes()
    config = check_config(CONFIG, "test")
    known = ingest(Night(client, site, config, day(8)))
    scored = open_run(site.qualifications_folder(day(8)))
    flipped = before.replace(b'"n_users": ', b'"n_users": 1')
    assert flipped != before
    for content in (before[:100], b"[]", b'{"source": "other"}', flipped):
        path.write_bytes(content)
        write_night_report(Night(client, site, config, known.date), known, scored)
        assert path.read_bytes() == before
    strict = check_config({**CONFIG, "report": {"thresholds": {"changed_users": 0.0}}}, "test")
    write_night_report(Night(client, site, strict, known.date), known, scored)
    changed = next(check for check in summary_of(site, 8)["checks"] if check["name"] == "changed_users")
    assert (changed["limit"], changed["status"]) == (0.0, "warn")


def test_write_night_report__a_damaged_past_night_is_left_out(client, site, caplog):
    path = site.qualifications_folder(day(5)) / "by_user" / "part-00001.parquet"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    config = check_config(CONFIG, "test")
    known = ingest(Night(client, site, config, day(6)), with_lag=False)
    scored = open_run(site.qualifications_folder(day(6)))
    with caplog.at_level("WARNING", "ammrank_dask.workflows.stages.report"):
        write_night_report(Night(client, site, config, known.date), known, scored, rebuild=True)
    summary = summary_of(site, 6)
    assert summary["drift"] is None
    assert summary["realised"][0]["measures"] is None
    said = [record.getMessage() for record in caplog.records if record.name == "ammrank_dask.workflows.stages.report"]
    assert [line.partition(":")[0] for line in said] == [
        "the drift since the night before is not measured",
        f"what became of the night of {day(5)} is not measured",
    ]
    assert all("is not what was written (checksum differs)" in line for line in said)


def test_write_night_report__a_past_night_that_was_never_published_is_not_looked_at(client, site):
    root = site.root()
    left = tuple(night for night in root.nights if night != day(5))
    (site.path / "ROOT").write_bytes(dataclasses.replace(root, nights=left).encode())
    config = check_config(CONFIG, "test")
    known = ingest(Night(client, site, config, day(6)), with_lag=False)
    write_night_report(
        Night(client, site, config, known.date), known, open_run(site.qualifications_folder(day(6))), rebuild=True
    )
    assert summary_of(site, 6)["drift"] is None
    assert summary_of(site, 6)["realised"][0]["measures"] is None


def test_write_night_report__has_no_user_clock_or_place(three_nights):
    users = pq.read_table(three_nights.path.parent / "lake" / "users.parquet")["user_id"].to_pylist()
    long_ids = [str(user) for user in users if user > 10**9]
    assert len(long_ids) > 250
    for name in ("summary.json", "exposure.csv", "report.html"):
        text = (three_nights.report_folder(day(8)) / name).read_text()
        assert not any(user in text for user in long_ids)
        assert str(three_nights.path) not in text
        assert socket.gethostname() not in text


@pytest.mark.usefixtures("drawn_performance")
def test_write_night_report__tells_which_source_makes_the_lists(compared_world, three_nights):
    forward = read_verdict(compared_world, day(7)).facts["forward"]
    trained, later = summary_of(compared_world, 7), summary_of(compared_world, 8)
    assert trained["gate"]["forward"] == forward
    assert later["gate"] is None
    assert trained["forward"] == later["forward"] == {"date": str(day(7)), **forward}
    for number in (7, 8):
        page = (compared_world.report_folder(day(number)) / "report.html").read_text()
        assert f"<p>Lists come from the model: in the label window to {day(7)} lists of a model" in page
        assert page.count(f"{forward['users']} users)") == 1  # the sentence of the gate does not say it again
        assert f"Measured at the last training, {day(7)}" in page
        for name, label in (("own-history", "own history"), ("popularity", "popularity")):
            source = forward["sources"][name]
            assert (
                f"<tr><td>{label}</td><td>{source['hits']:.3f}</td><td>{source['ndcg']:.3f}</td>"
                f"<td>{source['gain']:+.3f} ± {source['standard_error']:.3f}</td></tr>"
            ) in page
    # Nights that compared no sources are as they were.
    assert "forward" not in summary_of(three_nights, 8)
    assert "Lists come from" not in (three_nights.report_folder(day(8)) / "report.html").read_text()


def test_draw_report__links_lead_to_files(client, site):
    nightly(Night(client, site, check_config(CONFIG, "test"), day(8)))
    folder = site.report_folder(day(8))
    write_site_pages(site)
    page = (folder / "report.html").read_text()
    links = re.findall(r'href="([^"#]+)"', page)
    assert len(links) == 9
    assert links[:2] == ["../../index.html", f"../date={day(6)}/report.html"]
    anchors = re.findall(r'href="#([^"]+)"', page)
    assert [anchor for anchor in anchors if f'id="{anchor}"' not in page] == []
    assert {"checks", "exposure", "drift", "model", "numbers"} <= set(anchors)
    assert "Published: these lists are served until a later night is." in page
    assert [link for link in links if not (folder / urllib.parse.unquote(link)).exists()] == []


def test_write_night_report__other_partitions_and_no_users_table(client, site):
    config = check_config({**CONFIG, "lake": {**CONFIG["lake"], "users": None}, "partitions": 2}, "test")
    nightly(Night(client, site, config, day(7)), rebuild=True)
    summary = summary_of(site, 7)
    before, now = held_by_user(site, 6), held_by_user(site, 7)
    users, changed, first, jaccard, _ = reference_report.drift(before, now)
    drift = summary["drift"]
    assert (drift["date"], drift["users"], drift["gone_users"]) == (str(day(6)), users, len(set(before) - set(now)))
    assert users < len(before)  # those that only the users table had are gone
    assert drift["changed_users"] == pytest.approx(changed / users)
    assert drift["first_changed"] == pytest.approx(first / users)
    assert drift["jaccard"] == pytest.approx(jaccard / users)
    assert summary["realised"][0]["measures"]["users"] > 0
    assert summary["groups"] == []


def test_write_night_report__users_in_other_partitions_than_the_night_are_ranked_alike(client, site):
    scored, groups = open_run(site.qualifications_folder(day(8))), summary_of(site, 8)["groups"]
    assert any(group["top"] for group in groups)
    config = check_config({**CONFIG, "partitions": 4}, "test")
    ingested = ingest(Night(client, site, config, day(8)), rebuild=True, with_lag=False)
    assert (ingested.users.n_parts, len(qualification_parts(scored))) == (4, 3)
    write_night_report(Night(client, site, config, ingested.date), ingested, scored, rebuild=True)
    assert summary_of(site, 8)["groups"] == groups


def test_write_night_report__category_top_n_in_force(client, three_nights, tmp_path):
    site = Site(tmp_path / "site")
    site.path.mkdir()
    lake = {name: str((three_nights.path / place).resolve()) for name, place in CONFIG["lake"].items()}
    config = check_config({**CONFIG, "lake": lake, "score": {"k": K, "policy": "category_top_n", "n": 30}}, "test")
    for number in (5, 6):
        nightly(Night(client, site, config, day(number)))
    summary = summary_of(site, 6)
    held, before = held_by_user(site, 6), held_by_user(site, 5)
    measured = summary["policies"]["category_top_n"]
    assert summary["policy"] == "category_top_n"
    assert (measured["n"], measured["slots"]) == (30, sum(len(rows) for rows in held.values()))
    assert measured["starved_users"] == 300 - len(held)
    assert measured["overexposed_users"] == sum(len(rows) > 2 * K for rows in held.values())
    assert summary["policies"]["user_top_k"]["slots"] == 300 * K
    users, changed, _, jaccard, _ = reference_report.drift(before, held)
    drift = summary["drift"]
    assert (drift["users"], drift["new_users"], drift["gone_users"]) == (users, len(held) - users, len(before) - users)
    assert (drift["changed_users"], drift["jaccard"]) == pytest.approx((changed / users, jaccard / users))
    assert all(row["ranks"] is None for row in summary["categories"])
    header = (site.report_folder(day(6)) / "exposure.csv").read_text().splitlines()[0]
    assert "rank_1" not in header
    assert drift["psi"] == 0.0  # every category has its 30 users in both nights
    # Back to the other policy: its exposure is not compared with that of this one.
    nightly(Night(client, site, check_config({**CONFIG, "lake": lake}, "test"), day(7)))
    summary = summary_of(site, 7)
    assert summary["drift"]["date"] == str(day(6))
    assert summary["drift"]["psi"] is None
    assert {row["psi"] for row in summary["categories"]} == {None}


def test_report_command__draws_again_and_says_what_warns(site):
    path = site.report_folder(day(8)) / "report.html"
    before = path.read_bytes()
    path.unlink()
    (site.path / "cluster.yaml").write_text(
        "version: 1\nclass: distributed.LocalCluster\n"
        'kwargs: {processes: false, n_workers: 1, threads_per_worker: 1, dashboard_address: "127.0.0.1:0"}\n'
    )
    arguments = [str(site.path), "--json", "--quiet", "--date"]
    command = [sys.executable, "-m", "ammrank_dask.workflows.report", *arguments, str(day(8))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    warned = [check["what"] for check in summary_of(site, 8)["checks"] if check["status"] == "warn"]
    assert shown == {"date": str(day(8)), "warnings": "; ".join(warned) or "none", "report": str(path)}
    assert path.read_bytes() == before
    failed = CliRunner().invoke(report_command, [*arguments, str(day(7))])
    assert failed.exit_code == 65
    assert f"{day(7)} was not scored; run `ammrank score" in failed.stderr
