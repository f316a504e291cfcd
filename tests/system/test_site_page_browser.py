"""The pages of a site in a real browser: nothing to complain about, every chart has its data, phone and dark."""

import datetime as dt

import pytest
from browser import Browser
from page_summary import N_CATEGORIES, make_summary

from ammrank_dask.report.figures import FAILED, ON_HOLD, PUBLISHED, SERVED, SiteNight, category_cells, night_figures
from ammrank_dask.report.site_page import render_categories_page, render_site_page

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
