"""The report in a real browser: nothing to complain about, every chart has its data, phone, dark and print."""

import base64

import pytest
from browser import Browser
from page_summary import N_CATEGORIES, K, make_summary

from ammrank_dask.report.page import report_files
from ammrank_dask.report.summary import exposure_of
from ammrank_dask.storage.site.reports import write_report

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def page_path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    summary = make_summary()
    about = {"links": {"exposure.csv": "exposure.csv"}, "facts": {}}
    write_report(folder, report_files(summary, exposure_of(summary), about))
    return folder / "report.html"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    browser = Browser(tmp_path_factory.mktemp("chromium"))
    yield browser
    browser.close()


@pytest.fixture
def open_page(browser, page_path):
    """Show the page in a window of some width; what it asks for and complains about is counted from here."""

    def open_page(width=1280, dark=False):
        browser.show(page_path.as_uri(), width, dark=dark)
        return browser

    return open_page


@pytest.mark.parametrize("dark", [False, True])
def test_report_page__no_complaint_and_nothing_from_the_network(open_page, page_path, dark):
    page = open_page(dark=dark)
    assert page.messages == []
    assert page.requests == [page_path.as_uri()]
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert colour == ("rgb(18, 22, 26)" if dark else "rgb(246, 247, 249)")


def test_report_page__names_are_text(open_page):
    page = open_page()
    assert page.evaluate("document.title") == "Exposure on 2026-03-08"
    assert page.evaluate("document.scripts.length") == 0
    assert page.evaluate("document.images.length") == 0
    names = page.evaluate("[...document.querySelectorAll('.bars .name')].map(e => e.textContent)")
    assert "<script>document.title = 'taken'; console.error('taken')</script>" in names
    assert "<img src=x onerror=\"document.title='taken'\">" in names


def test_report_page__every_chart_has_its_data(open_page):
    page = open_page()
    found = page.evaluate(
        """Object.fromEntries([...document.querySelectorAll('[data-chart]')].map(chart => {
            const marks = [...chart.querySelectorAll('rect, polyline, circle, li')];
            const drawn = marks.filter(m => m.getBoundingClientRect().width > 0);
            return [chart.dataset.chart, [Number(chart.dataset.points), drawn.length,
                    chart.getBoundingClientRect().height, chart.outerHTML.includes('NaN')]];
        }))"""
    )
    assert set(found) == {"exposure", "categories-per-user", "lorenz", "score-shift", "clicks", "groups"}
    points = {name: values[0] for name, values in found.items()}
    assert points == {
        "exposure": N_CATEGORIES,
        "categories-per-user": points["categories-per-user"],
        "lorenz": 2 * (N_CATEGORIES + 1),
        "score-shift": 6,
        "clicks": N_CATEGORIES,
        "groups": 18,
    }
    drawn = {name: values[1] for name, values in found.items()}
    assert drawn["exposure"] == N_CATEGORIES * (K + 1) - 2 * K  # two categories have no user: only the mark of clicks
    assert drawn["lorenz"] == 2
    assert drawn["score-shift"] == 2
    assert drawn["clicks"] == N_CATEGORIES + 1
    assert drawn["groups"] == 180
    assert drawn["categories-per-user"] > 15
    assert all(height > 50 and not is_broken for _, _, height, is_broken in found.values())


@pytest.mark.parametrize("width", [320, 390, 768, 1280])
def test_report_page__nothing_overflows(open_page, width):
    page = open_page(width)
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    outside = page.evaluate(
        """[...document.querySelectorAll('body *')].filter(e => !e.closest('.wide, svg'))
           .filter(e => e.getBoundingClientRect().right > innerWidth + 0.5)
           .map(e => e.tagName + ' ' + e.className + ' ' + e.textContent.slice(0, 40))"""
    )
    assert outside == []
    smallest = page.evaluate(
        """Math.min(...[...document.querySelectorAll('svg text')].map(t => t.getBoundingClientRect().height))"""
    )
    assert smallest >= 8


def test_report_page__prints(open_page):
    page = open_page()
    printed = base64.b64decode(page.call("Page.printToPDF", printBackground=True)["data"])
    assert printed.startswith(b"%PDF")
    assert len(printed) > 20_000
    assert page.messages == []
