"""The pages of a site over its nights: what they say, what they carry on, and what they do with bad input."""

import datetime as dt
import json
import random
import re
import shutil
import time
import urllib.parse

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from nights import config_of, copy_world, day

from ammrank_dask.report.site_page import night_figures
from ammrank_dask.storage.site.run_log import read_attempt
from ammrank_dask.storage.site.site import Site
from ammrank_dask.workflows.cli import ammrank
from ammrank_dask.workflows.session.config import load_config, write_config
from ammrank_dask.workflows.session.night import Night
from ammrank_dask.workflows.stages import nights
from ammrank_dask.workflows.stages.nightly import nightly
from ammrank_dask.workflows.stages.nights import read_nights, try_site_pages, write_site_pages

NAME = "<script>alert('x')</script> & Söhne"


def run(site, *arguments):
    return CliRunner().invoke(ammrank, [arguments[0], str(site.path), *map(str, arguments[1:])])


def page_of(site, name="index.html"):
    return " ".join((site.path / name).read_text(encoding="utf-8").split())


def add_nights(site, n_nights, seed=0):
    """Give a site of one night more of them after it: copies of its summary and record with other numbers."""
    rng = random.Random(seed)
    first = day(5)
    summary = json.loads((site.report_folder(first) / "summary.json").read_text())
    record = json.loads((site.run_folder(first) / "run.json").read_text())
    for number in range(1, n_nights):
        date = first + dt.timedelta(number)
        changed = json.loads(json.dumps(summary))
        changed["date"] = str(date)
        changed["input"]["days"][0]["date"] = str(date)
        hits = {"model": {"hits": 3 + rng.random()}, "own-history": {"hits": 2.5}}
        changed["forward"] = {"source": "model", "sources": hits}
        changed["model"]["validation_error"] = 0.1 + 0.05 * rng.random()
        for row in changed["categories"]:
            row["exposure"] = rng.randrange(100)
            row["policies"][changed["policy"]]["starved"] = rng.random() < 0.1
        for check in changed["checks"]:
            check["status"] = "warn" if rng.random() < 0.1 else "ok"
        folder = site.report_folder(date)
        folder.mkdir(parents=True)
        (folder / "summary.json").write_text(json.dumps(changed))
        (folder / "report.html").write_text("a report")
        site.run_folder(date).mkdir(parents=True)
        stages = [{"name": stage["name"], "seconds": stage["seconds"] * rng.random()} for stage in record["stages"]]
        (site.run_folder(date) / "run.json").write_text(json.dumps({**record, "date": str(date), "stages": stages}))
    return first + dt.timedelta(n_nights - 1)


def test_write_site_pages__a_site_without_a_night(empty_site):
    empty_site.config_path.write_text("partitions: 2\n")
    write_site_pages(empty_site)
    page = page_of(empty_site)
    assert "No night has been run yet." in page
    assert "Run the first one with <code>ammrank nightly SITE</code>" in page
    assert "No night has a report yet." in page_of(empty_site, "categories.html")
    assert "<svg" not in page


def test_write_site_pages__one_night(site):
    write_site_pages(site)
    page = page_of(site)
    summary = json.loads((site.report_folder(day(5)) / "summary.json").read_text())
    warned = sum(check["status"] == "warn" for check in summary["checks"])
    assert f"The lists of the night of {day(5)} are served." in page
    assert (f"{warned} of {len(summary['checks'])} checks warn" if warned else "checks are ok") in page
    assert f"<td>{summary['n_users']:,}</td>" in page
    assert f"model {summary['model']['validation_error']:.4g}</text>" in page
    assert 'data-chart="seconds"' in page
    links = re.findall(r'href="([^"#]+)"', page)
    assert {f"reports/date={day(5)}/report.html", f"runs/date={day(5)}/run.json", "categories.html"} <= set(links)
    assert [link for link in links if not (site.path / urllib.parse.unquote(link)).exists()] == []


def test_write_site_pages__same_bytes_for_the_same_nights_wherever_the_site_is(site, tmp_path):
    add_nights(site, 4)
    write_site_pages(site)
    moved = Site(tmp_path / "elsewhere")
    shutil.copytree(site.path, moved.path)
    (moved.path / "history.json").unlink()
    for again in (site, moved, moved):
        write_site_pages(again)
        for name in ("index.html", "categories.html"):
            assert (again.path / name).read_bytes() == (site.path / name).read_bytes()
    assert str(tmp_path) not in page_of(site)


def test_write_site_pages__no_script_no_network_no_user(site):
    add_nights(site, 3)
    path = site.report_folder(day(6)) / "summary.json"
    summary = json.loads(path.read_text())
    summary["categories"][0]["category"] = NAME
    path.write_text(json.dumps(summary))
    write_site_pages(site)
    users = pq.read_table(site.path.parent / "lake" / "users.parquet")["user_id"].to_pylist()
    for name in ("index.html", "categories.html"):
        page = page_of(site, name)
        assert "<script" not in page
        assert "http" not in page
        assert "prefers-color-scheme: dark" in page
        assert not any(str(user) in page for user in users if user > 10**9)
    assert "&lt;script&gt;alert(&#39;x&#39;)&lt;/<wbr>script&gt; &amp; Söhne" in page


def test_write_site_pages__a_broken_summary_in_the_middle(site):
    add_nights(site, 4)
    broken = site.report_folder(day(6)) / "summary.json"
    broken.write_text('{"date": "2026-01-1')
    strange = site.report_folder(day(7)) / "summary.json"
    strange.write_text('{"policies": []}')
    write_site_pages(site)
    page = page_of(site)
    for number in (6, 7):
        command = f"ammrank report SITE --date {day(number)} --rebuild"
        assert f"{day(number)}: its summary.json cannot be read; write it again with `{command}`" in page
    assert [night.figures is None for night in read_nights(site)] == [False, True, True, False]
    assert 'data-chart="gini"' in page


def test_write_site_pages__carries_on_nights_whose_reports_are_removed(site):
    last = add_nights(site, 5)
    write_site_pages(site)
    before = read_nights(site)
    for night in before[:3]:
        shutil.rmtree(site.report_folder(night.date))
        shutil.rmtree(site.run_folder(night.date))
    write_site_pages(site)
    after = read_nights(site)
    assert [(night.date, night.figures, night.cells) for night in after] == [
        (night.date, night.figures, night.cells) for night in before
    ]
    page = page_of(site)
    assert f"{day(6)}: its report is no longer kept (retention.reports)" in page
    assert f'href="reports/date={day(6)}/report.html"' not in page
    assert f'href="reports/date={last}/report.html"' in page


@pytest.mark.parametrize("content", ["", "[]", '{"format": 1, "nights": 3}', '{"format": 99}'])
def test_write_site_pages__a_damaged_history_is_made_again(site, content):
    add_nights(site, 2)
    write_site_pages(site)
    before = (site.path / "history.json").read_text()
    (site.path / "history.json").write_text(content)
    write_site_pages(site)
    assert (site.path / "history.json").read_text() == before


def test_keep_history__is_bounded(site, monkeypatch):
    last = add_nights(site, 5)
    n_categories = len(read_nights(site)[0].cells)
    monkeypatch.setattr(nights, "MAX_CELLS", 3 * n_categories)
    write_site_pages(site)
    kept = json.loads((site.path / "history.json").read_text())["nights"]
    assert [len(kept[str(day(number))]["cells"]) > 0 for number in range(5, 10)] == [False, False, True, True, True]
    assert [night.figures is None for night in read_nights(site)] == [False] * 5
    monkeypatch.setattr(nights, "MAX_NIGHTS", 2)
    assert [night.date for night in read_nights(site)] == [last - dt.timedelta(1), last]


def test_read_nights__history_has_exposure_click_share_and_ratio(site):
    write_site_pages(site)
    summary = json.loads((site.report_folder(day(5)) / "summary.json").read_text())
    content = json.loads((site.path / "history.json").read_text())
    rows = {content["categories"][cell[0]]: cell[1:] for cell in content["nights"][str(day(5))]["cells"]}
    for row in summary["categories"]:
        exposure, share, ratio, starved = rows[row["category"]]
        assert (exposure, bool(starved)) == (row["exposure"], row["policies"][summary["policy"]]["starved"])
        assert share == pytest.approx(row["click_share"], rel=1e-5)
        assert ratio == (None if row["ratio"] is None else pytest.approx(row["ratio"], rel=1e-5))


def test_night_figures__of_a_summary_with_everything_left_out_that_may_be(site):
    summary = json.loads((site.report_folder(day(5)) / "summary.json").read_text())
    bare = {**summary, "input": None, "model": None, "gate": None, "chances": None, "outcome": None, "realised": []}
    figures = night_figures(bare)
    assert figures["error"] is figures["model_age"] is figures["quarantined"] is figures["calibration"]["lists"] is None
    assert figures["events"] == figures["hits"] == {}


def test_write_site_pages__nights_that_were_not_run_are_missing(site):
    add_nights(site, 6)
    for number in (7, 8):
        shutil.rmtree(site.report_folder(day(number)))
        shutil.rmtree(site.run_folder(day(number)))
    write_site_pages(site)
    page = page_of(site)
    assert f"<td>{day(7)} to {day(8)}</td>" in page
    assert "2 nights were not run" in page


def test_nightly__a_night_before_the_first_model_has_no_lists(empty_site, cluster_file):
    empty_site.config_path.write_text(write_config(config_of()))
    done = run(empty_site, "nightly", "--date", day(2), "--cluster", cluster_file, "--quiet")
    assert done.exit_code == 0, done.output
    page = page_of(empty_site)
    assert f"The night of {day(2)} is not served: no lists, recorded at 20" in page
    assert "Reason: training: none: 3 days of events are too few to train" in page
    assert "Nothing is served yet." in page


def test_read_nights__scored_by_hand(site):
    shutil.copytree(site.qualifications_folder(day(5)), site.qualifications_folder(day(6)))
    shutil.copytree(site.report_folder(day(5)), site.report_folder(day(6)))
    assert [night.status for night in read_nights(site)] == ["served", "not published"]


def test_nightly__a_failed_night_is_on_the_page(site, cluster_file):
    shutil.rmtree(site.path.parent / "lake" / "events" / f"date={day(6)}")
    done = run(site, "nightly", "--date", day(6), "--cluster", cluster_file, "--quiet")
    assert done.exit_code == 65
    page = page_of(site)
    assert f"The night of {day(6)} is not served: it failed, recorded at 20" in page
    assert f"Reason: the lake has no events for {day(6)}" in page
    assert (
        f"run the night again; it continues where it stopped: <code>ammrank nightly SITE --date {day(6)}</code>" in page
    )
    assert f"The lists of the night of {day(5)} are served: 1 night behind, since {day(6)}." in page


def test_nightly__a_night_that_fails_before_its_record_is_on_the_page(site, cluster_file):
    config = site.config_path.read_text()
    site.config_path.write_text(config + "nonsense: 1\n")
    done = run(site, "nightly", "--date", day(6), "--cluster", cluster_file, "--quiet")
    assert done.exit_code == 65
    assert "Reason: no record was written (exit code 65)." in page_of(site)


def test_nightly__the_page_changes_neither_exit_code_nor_publication(site, cluster_file, monkeypatch, caplog):
    def fail(nights):
        raise RuntimeError("nobody may see this")

    monkeypatch.setattr(nights, "render_site_page", fail)
    done = run(site, "nightly", "--date", day(6), "--cluster", cluster_file, "--quiet")
    assert done.exit_code == 0, done.output
    assert site.current().date == day(6)
    with caplog.at_level("WARNING"):
        try_site_pages(site)
    assert "index.html was not written: RuntimeError" in caplog.text
    assert "nobody may see this" not in caplog.text


def test_nightly__writes_the_page_of_the_night(site, cluster_file):
    done = run(site, "nightly", "--date", day(6), "--cluster", cluster_file, "--quiet")
    assert done.exit_code == 0, done.output
    page = page_of(site)
    assert f"The lists of the night of {day(6)} are served." in page
    assert f'{day(5)}</a></td><td><b class="pill off">published</b>' in page
    report = (site.report_folder(day(6)) / "report.html").read_text()
    assert f'<a href="../date={day(5)}/report.html">night before, {day(5)}</a>' in report
    assert f'<a href="../../index.html#{day(6)}">later nights</a>' in report
    assert f'<tr id="{day(6)}">' in page


def test_nightly__records_cpu_by_stage_and_the_page_draws_it(site, client):
    before = time.process_time()
    nightly(Night(client, site, load_config(site.config_path), day(6)))
    spent = time.process_time() - before
    stages = read_attempt(site.run_folder(day(6)))["stages"]
    assert 0 < sum(stage["cpu"] for stage in stages) <= spent * 1.05 + 0.1
    write_site_pages(site)
    assert 'data-chart="cpu"' in page_of(site)


def test_write_site_pages__400_nights_are_small_and_quick(published_world, tmp_path):
    site = copy_world(published_world, tmp_path)
    add_nights(site, 400)
    seconds = []
    for _ in range(2):
        began = time.process_time()
        write_site_pages(site)
        seconds.append(time.process_time() - began)
    size = (site.path / "index.html").stat().st_size
    n_categories = len(read_nights(site)[-1].cells)
    print(
        f"400 nights of {n_categories} categories: {size / 1e6:.2f} MB; {seconds[0]:.2f} CPU s, then {seconds[1]:.2f}"
    )
    assert page_of(site).count('class="pill off">published') == 399
    assert size < 1_500_000
    assert max(seconds) < 2
