"""The pages of a site in a real browser: nothing to complain about, every chart has its data, phone and dark."""

import datetime as dt

import pytest
from browser import Browser
from page_summary import N_CATEGORIES, make_summary

from ammrank_dask.report.site_page import (
    FAILED,
    ON_HOLD,
    PUBLISHED,
    SERVED,
    SiteNight,
    category_cells,
    night_figures,
    render_categories_page,
    render_site_page,
)

pytestmark = pytest.mark.system

N_NIGHTS = 45


def make_nights():
    """Return nights of which one failed, the newest is on hold, and two are missing."""
    summary = make_summary()
    nights = []
    for number in (*range(30), *range(32, N_NIGHTS + 2)):
        status = {20: FAILED, N_NIGHTS: SERVED, N_NIGHTS + 1: ON_HOLD}.get(number, PUBLISHED)
        stages = [{"name": name, "seconds": 1.5 + number % 7, "cpu": 2.0} for name in ("ingest", "train", "score")]
        record = {"seconds": 12.0, "stages": stages, "finished": "2026-04-20T03:00:00.000+00:00"}
        record |= {"error": {"message": "<b>no</b> disk " + "x" * 200}, "exit_code": 1} if status == FAILED else {}
        record |= {"facts": {"held_by": ["heaviest_ids"]}} if status == ON_HOLD else {}
        figures = None if status == FAILED else {**night_figures(summary), "error": 0.1 + number % 5 / 100}
        links = {"report": f"reports/date={number}/report.html", "run record": "run.json"}
        date = dt.date(2026, 3, 1) + dt.timedelta(number)
        cells = {} if figures is None else category_cells(summary)
        nights.append(SiteNight(date, status, figures, cells, record, None, links))
    return nights


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    (folder / "index.html").write_text(render_site_page(make_nights()), encoding="utf-8")
    (folder / "categories.html").write_text(render_categories_page(make_nights()), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    browser = Browser(tmp_path_factory.mktemp("chromium"))
    yield browser
    browser.close()


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("name", ["index.html", "categories.html"])
def test_site_page__no_complaint_no_script_and_nothing_from_the_network(browser, pages, name, dark):
    address = (pages / name).as_uri()
    browser.show(address, 1280, dark=dark)
    assert browser.messages == []
    assert browser.requests == [address]
    assert browser.evaluate("document.scripts.length + document.images.length") == 0
    colour = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert colour == ("rgb(18, 22, 26)" if dark else "rgb(246, 247, 249)")


@pytest.mark.parametrize("width", [320, 420, 768, 1280])
@pytest.mark.parametrize("name", ["index.html", "categories.html"])
def test_site_page__nothing_overflows(browser, pages, name, width):
    browser.show((pages / name).as_uri(), width)
    browser.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    clipped = browser.evaluate(
        """[...document.querySelectorAll('svg text')].filter(t => {
             const own = t.getBoundingClientRect(), all = t.closest('svg').getBoundingClientRect();
             return own.left < all.left - 1 || own.right > all.right + 1 || own.bottom > all.bottom + 1;
           }).map(t => t.textContent)"""
    )
    assert clipped == []


def test_site_page__every_chart_has_its_data(browser, pages):
    browser.show((pages / "index.html").as_uri(), 1280)
    charts = browser.evaluate(
        """Object.fromEntries([...document.querySelectorAll('[data-chart]')].map(chart => [chart.dataset.chart,
             [chart.querySelectorAll('polyline, circle, path, rect').length, chart.outerHTML.includes('NaN')]]))"""
    )
    assert {"error", "hit-rate", "starved-categories", "users", "gini", "seconds", "cpu", "checks"} <= set(charts)
    assert all(marks and not is_broken for marks, is_broken in charts.values())
    # The failed night is a gap: the line of the error has two stretches.
    assert charts["error"][0] == 2
    said = browser.evaluate("document.querySelector('.verdict').textContent")
    assert said.startswith(
        "The night of 2026-04-16 is on hold, recorded at 2026-04-20 03:00 UTC. Reason: events of the"
    )
    assert (
        browser.evaluate("[...document.querySelectorAll('.pill')].filter(e => e.textContent == 'missing').length") == 1
    )
    browser.show((pages / "categories.html").as_uri(), 1280)
    assert browser.evaluate("document.querySelectorAll('svg.spark').length") == N_CATEGORIES


def test_site_page__contents_lead_somewhere_and_an_earlier_night_opens_from_its_report(browser, pages):
    address = (pages / "index.html").as_uri()
    browser.show(address, 1280)
    targets = browser.evaluate("[...document.querySelectorAll('nav a[href^=\"#\"]')].map(a => a.getAttribute('href'))")
    assert targets == ["#nights", "#trends", "#checks"]
    assert browser.evaluate(f"{targets}.every(target => document.querySelector(target) !== null)")
    # The link `later nights` of a report names the night; this one is below those that are shown at first.
    earliest = "2026-03-02"
    assert browser.evaluate(f"document.getElementById('{earliest}').closest('details').open") is False
    browser.show(f"{address}#{earliest}", 1280)
    browser.wait_for(f"document.getElementById('{earliest}').closest('details').open")
    assert browser.evaluate(
        f"document.getElementById('{earliest}').getBoundingClientRect().top < document.documentElement.clientHeight"
    )


def test_site_page__says_what_to_do_about_the_night_on_hold(browser, pages):
    browser.show((pages / "index.html").as_uri(), 1280)
    commands = browser.evaluate("[...document.querySelectorAll('p code')].map(code => code.textContent)")
    assert "ammrank publish SITE --date 2026-04-16 --anyway" in commands


def test_site_page__every_check_has_a_cell_for_every_night(browser, pages):
    browser.show((pages / "index.html").as_uri(), 1280)
    rows = browser.evaluate(
        """[...document.querySelectorAll('[data-chart=checks] .row')].map(row => [
             row.querySelector('.name').textContent, row.querySelector('.value').textContent.trim(),
             (row.querySelector('path')?.getAttribute('d').match(/M/g) ?? []).length,
             row.querySelectorAll('rect').length])"""
    )
    assert len(rows) > 8
    for name, said, n_ok, n_warned in rows:
        assert said == f"{n_warned} of {n_ok + n_warned} warn", name
        assert n_ok + n_warned == N_NIGHTS - 1  # 45 nights have a record, one of them failed, and one is on hold


def test_site_page__a_phone_shows_every_figure_of_a_night_with_its_name(browser, pages):
    browser.show((pages / "index.html").as_uri(), 420)
    boxes = browser.evaluate(
        """[...document.getElementById('2026-04-15').children].map(cell => [
             getComputedStyle(cell, '::before').content, cell.textContent.trim(),
             cell.getBoundingClientRect().right])"""
    )
    names = [before.strip('"').strip() for before, _, _ in boxes]
    assert names[2:8] == ["users", "lists", "hits", "ε_dis", "starved", "took"]
    assert all(right <= 420 for _, _, right in boxes)
    assert all(text for _, text, _ in boxes)
