"""The page of a comparison in a real browser: every table stays in its frame, and no slice is without users."""

import copy
import json

import pytest
from browser import Browser
from click.testing import CliRunner
from nights import day

from ammrank_dask.evaluation.page import RESULT, render_evaluation
from ammrank_dask.methods.registry import METHODS
from ammrank_dask.workflows.evaluate import command

pytestmark = pytest.mark.system

LONG = "Donaudampfschifffahrtselektrizitätenhauptbetriebswerkbauunterbeamtengesellschaft"


def with_all_methods(evaluation):
    """Return a comparison of two methods as if it were one of all, with a long name and a group without users."""
    text = json.dumps(evaluation).replace("Finance/Loans", LONG)
    wide = json.loads(text)
    difference = {"disagreement": -0.0123, "interval": [-0.0234, -0.0012]}
    for variant, methods in wide["variants"].items():
        details = wide["details"][variant]
        for method in METHODS:
            methods.setdefault(method, copy.deepcopy(methods["lr"]))
            for table in ("intervals", "ndcg", "slices", "fitted"):
                details[table].setdefault(method, copy.deepcopy(details[table]["lr"]))
            details["differences"].setdefault(method, difference)
            details["slices"][method]["group"][0] |= {"users": 0, "disagreement": None}
    return wide


@pytest.fixture(scope="module")
def evaluation(published_world, cluster_file, tmp_path_factory):
    out = tmp_path_factory.mktemp("evaluation")
    options = ["--methods", "lr,popularity", "--folds", "2", "--out", out, "--cluster", cluster_file, "--quiet"]
    done = CliRunner().invoke(command, list(map(str, [published_world.path, "--date", day(8), *options])))
    assert done.exit_code == 0, done.output
    return with_all_methods(json.loads((out / RESULT).read_text()))


@pytest.fixture(scope="module")
def page_path(evaluation, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "evaluation.html"
    path.write_text(render_evaluation(evaluation), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    browser = Browser(tmp_path_factory.mktemp("chromium"))
    yield browser
    browser.close()


def open_whole(browser, path):
    """Open a page and wait until all of it is there."""
    browser.open(path.as_uri())
    browser.wait_for(f"location.href == '{path.as_uri()}' && document.readyState == 'complete'")


@pytest.mark.parametrize("width", [1300, 1500])
def test_evaluation_page__no_table_runs_out_of_its_frame(browser, page_path, width):
    size = {"width": width, "height": 1200, "deviceScaleFactor": 1, "mobile": False}
    browser.call("Emulation.setDeviceMetricsOverride", **size)
    open_whole(browser, page_path)
    assert browser.errors() == []
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    frames = browser.evaluate(
        """[...document.querySelectorAll('.wide')].filter(e => e.offsetParent)
           .map(e => [e.innerText.slice(0, 40), e.scrollWidth, e.clientWidth])"""
    )
    assert len(frames) > 3
    assert [frame for frame in frames if frame[1] > frame[2]] == []
    cut = browser.evaluate(
        """[...document.querySelectorAll('svg text')].filter(t => t.getBBox().x < 0).map(t => t.textContent)"""
    )
    assert cut == []


def test_evaluation_page__no_slice_is_without_users(browser, page_path, evaluation):
    groups = [part for found in evaluation["details"].values() for part in found["slices"]["amm-rank-plus"]["group"]]
    assert any(part["users"] == 0 for part in groups)
    open_whole(browser, page_path)
    rows = browser.evaluate(
        """[...document.querySelectorAll('.card')]
           .filter(card => card.querySelector('h3')?.textContent.startsWith('By age and gender'))
           .flatMap(card => [...card.querySelectorAll('tbody tr')])
           .map(row => Number(row.cells[1].textContent.replace(',', '')))"""
    )
    assert sorted(rows) == sorted(part["users"] for part in groups if part["users"])
