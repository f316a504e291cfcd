"""The report in a real browser: nothing to complain about, every chart has its data, phone, dark and print."""

import base64

import numpy as np
import pytest
from browser import Browser

from ammrank_dask.report.page import report_files
from ammrank_dask.report.summary import exposure_of, summarise
from ammrank_dask.scoring.policies import PolicyCounts
from ammrank_dask.storage.site.reports import write_report

pytestmark = pytest.mark.system

N_CATEGORIES, K = 50, 10


def make_summary():
    """Return a night of 5,000 users with everything in it, and names that would do harm."""
    rng = np.random.default_rng(4)
    names = [f"Consumer Goods/Category number {code} with a rather long name" for code in range(N_CATEGORIES)]
    names[3] = "<script>document.title = 'taken'; console.error('taken')</script>"
    names[4] = "<img src=x onerror=\"document.title='taken'\">"
    names[5] = "Donaudampfschifffahrtselektrizitätenhauptbetriebswerkbauunterbeamtengesellschaft"
    weights = np.arange(1, N_CATEGORIES + 1) ** -0.5
    ranks = np.stack([rng.multinomial(5_000, weights / weights.sum()) for _ in range(K)], axis=1)
    ranks[7:9] = 0
    per_user = np.bincount(rng.binomial(25, 0.4, 5_000), minlength=N_CATEGORIES + 1)
    policies = {
        "user_top_k": PolicyCounts(ranks, np.bincount([K] * 5_000, minlength=N_CATEGORIES + 1)),
        "category_top_n": PolicyCounts(np.full((N_CATEGORIES, 1), 1_000), per_user),
    }
    quantiles = {"0.05": -0.6, "0.25": -0.1, "0.5": 0.01, "0.75": 0.2, "0.95": 0.8}
    means = {"hit_rate": 0.61, "precision": 0.08, "recall": 0.5}
    return summarise(
        policies,
        "user_top_k",
        (10_000 * weights).astype(np.int64),
        names,
        date="2026-03-08",
        cold_users=120,
        k=K,
        n_of={"category_top_n": 1_000},
        before=("2026-03-07", PolicyCounts(ranks[::-1], policies["user_top_k"].categories_per_user)),
        drift={
            "users": 4_990,
            "new_users": 10,
            "gone_users": 3,
            "changed_users": 0.31,
            "first_changed": 0.1,
            "jaccard": 0.87,
            "score_shift": {"pairs": 44_000, "mean": 0.02, "quantiles": quantiles},
            "model_changed": False,
        },
        realised=[
            {
                "nights": nights,
                "date": "2026-02-06",
                "measures": {"users": 700, "users_without_qualification": 2, **means, "popularity": means},
            }
            for nights in (1, 7, 30)
        ],
        groups=[
            {
                "gender": gender,
                "age": age,
                "users": 250,
                "top": [{"category": name, "share": 0.5} for name in names[start : start + 10]],
            }
            for gender in ("female", "male")
            for start, age in enumerate(("13-17", "18-20", "21-24", "25-29", "30-34", "35-44", "45-54", "55-64", "65+"))
        ],
    )


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
        size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 600}
        browser.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        browser.call("Emulation.setEmulatedMedia", features=[scheme])
        browser.open("about:blank")
        browser.wait_for("location.href == 'about:blank'")
        browser.messages.clear()
        browser.requests.clear()
        browser.open(page_path.as_uri())
        browser.wait_for(f"location.href == '{page_path.as_uri()}' && document.readyState == 'complete'")
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
