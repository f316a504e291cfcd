"""The monitor: the state that counts tasks, what is shown of it, and its place in the scheduler's dashboard."""

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import prometheus_client
import pytest
import yaml
from bokeh.core.serialization import Serializer
from bokeh.document import Document
from bokeh.models.widgets import Div
from distributed import Client, LocalCluster

from ammrank_dask.monitor import dashboard
from ammrank_dask.monitor.charts import (
    BLUE,
    MAX_CATEGORIES,
    ORANGE,
    choose_categories,
    make_panels,
)
from ammrank_dask.monitor.events import LiveExposure, publish, watch_night, watch_stage
from ammrank_dask.monitor.page import build_page, head_html, history_html, notes_html, troubles_html
from ammrank_dask.monitor.performance import PERFORMANCE_PAGE, measure, measure_each, record_performance
from ammrank_dask.monitor.plugin import NightPlugin, page_address, watch_cluster
from ammrank_dask.monitor.prometheus import NightCollector
from ammrank_dask.monitor.snapshot import take_snapshot
from ammrank_dask.monitor.state import MAX_BATCHES, MAX_FAILURES, NightState, exposure_facts
from ammrank_dask.monitor.texts import label_of, number_text, seconds_text, table
from ammrank_dask.runtime.tasks import run_tasks

HOSTILE = "<script>alert(1)</script>$$\\href{x}$$\u202e"
ROOT = Path(__file__).parents[3]
STAGES = ["ingest", "train", "score"]


def begin_night(state, now=100.0, **facts):
    night = {"kind": "night", "state": "begin", "date": "2026-03-05", "stages": STAGES, "client": "c"}
    state.apply({**night, **facts}, now)


def begin_tasks(state, name, total, now=100.0, token="t", **facts):
    state.apply({"kind": "tasks", "state": "begin", "name": name, "token": token, "total": total, **facts}, now)


def end_tasks(state, now, token="t", how="end"):
    state.apply({"kind": "tasks", "state": how, "name": "x", "token": token}, now)


# The state


def test_apply__a_night_goes_through_its_stages():
    state = NightState()
    begin_night(state, 100.0)
    state.apply({"kind": "stage", "name": "ingest", "state": "begin"}, 101.0)
    begin_tasks(state, "ingest-read", 2, 102.0, unit="events", units=[10, 30])
    state.start_task(("ingest-read", "t", 0), "tcp://a:1", 102.0)
    state.finish_task(("ingest-read", "t", 0), "tcp://a:1", 2.0)
    facts = take_snapshot(state, 104.0)
    ingest, train, _ = facts["stages"]
    assert facts["night"]["stage"] == "ingest"
    assert (ingest["state"], ingest["seconds"], ingest["tasks_done"]) == ("running", 3.0, 1)
    assert ingest["step"] == {"name": "ingest-read", "state": "running", "done": 1, "total": 2}
    assert (ingest["unit"], ingest["rate"]) == ("events", 5.0)
    assert ingest["left"] == 6.0  # 10 of 40 events in 2 s: three times as long for the rest
    assert (train["state"], train["left"]) == ("waiting", None)
    assert facts["workers"] == [{"worker": "a:1", "stage": "ingest", "tasks": 1, "unit": "events", "rate": 5.0}]
    end_tasks(state, 105.0)
    state.apply({"kind": "stage", "name": "ingest", "state": "end"}, 105.5)
    state.apply({"kind": "stage", "name": "score", "state": "begin"}, 106.0)
    state.apply({"kind": "night", "state": "end"}, 110.0)
    facts = take_snapshot(state, 120.0)
    assert [stage["state"] for stage in facts["stages"]] == ["end", "skipped", "end"]
    assert (facts["night"]["state"], facts["night"]["seconds"]) == ("end", 10.0)
    assert facts["history"] == [{"date": "2026-03-05", "seconds": 10.0, "stages": {"ingest": 4.5, "score": 4.0}}]


def test_apply__earlier_nights_tell_the_time_left():
    state = NightState()
    begin_night(state, 0.0, history=[{"date": "2026-03-04", "stages": {"ingest": 10.0, "train": 20.0, "score": 5.0}}])
    state.apply({"kind": "stage", "name": "ingest", "state": "begin"}, 0.0)
    facts = take_snapshot(state, 4.0)
    assert [stage["left"] for stage in facts["stages"]] == [6.0, 20.0, 5.0]
    assert facts["night"]["left"] == 31.0


def test_apply__training_tells_the_time_left_from_its_epochs():
    state = NightState()
    begin_night(state, 0.0)
    state.apply({"kind": "stage", "name": "train", "state": "begin"}, 0.0)
    state.apply({"kind": "train", "epoch": 1, "round": 2, "rounds": 2, "epochs": 5, "loss": 9.0, "planes": 4}, 1.5)
    # Another training of the night begins: only the last one is shown.
    state.apply({"kind": "train", "epoch": 1, "round": 1, "rounds": 2, "epochs": 5, "loss": 3.0, "planes": 4}, 2.0)
    facts = take_snapshot(state, 2.0)
    assert facts["stages"][1]["left"] == pytest.approx(18.0)
    state.apply({"kind": "train", "epoch": 1, "round": 2, "rounds": 2, "epochs": 5, "loss": 2.0, "planes": 4}, 4.0)
    closed = {"epoch": 1, "round": 2, "rounds": 2, "epochs": 5, "loss": 2.5, "validation_error": 0.1}
    state.apply({"kind": "train", **closed}, 4.0)
    last = take_snapshot(state, 4.0)["training"]
    assert [(fact["loss"], fact.get("validation_error")) for fact in last] == [(3.0, None), (2.0, 0.1)]


def test_apply__the_last_training_is_shown_until_another_night_trains():
    state = NightState()
    begin_night(state, 0.0)
    state.apply({"kind": "train", "epoch": 1, "round": 1, "validation_error": 0.3}, 1.0)
    state.apply({"kind": "night", "state": "end"}, 2.0)
    begin_night(state, 3.0, date="2026-03-06")
    facts = take_snapshot(state, 4.0)
    assert [fact["night"] for fact in facts["training"]] == ["2026-03-05"]
    state.apply({"kind": "night", "state": "end"}, 5.0)
    assert [night.get("validation_error") for night in take_snapshot(state, 6.0)["history"]] == [0.3, None]
    begin_night(state, 7.0, date="2026-03-07")
    state.apply({"kind": "train", "epoch": 1, "round": 1, "loss": 1.0}, 8.0)
    assert [fact["night"] for fact in take_snapshot(state, 9.0)["training"]] == ["2026-03-07"]


def test_apply__without_a_night_tasks_make_their_stage():
    state = NightState()
    begin_tasks(state, "train-e000-r00", 1, 5.0)
    facts = take_snapshot(state, 6.0)
    assert (facts["night"]["state"], facts["night"]["stage"]) == ("none", "train")
    end_tasks(state, 7.0)
    assert take_snapshot(state, 8.0)["stages"][0]["state"] == "end"


def test_apply__unknown_kinds_are_left_alone():
    state = NightState()
    state.apply({"kind": "weather"}, 1.0)
    assert take_snapshot(state, 2.0)["stages"] == []


def test_finish_task__twice_counts_once_and_strangers_not_at_all():
    state = NightState()
    begin_tasks(state, "score", 2, units=[5, 7])
    for _ in range(2):
        state.finish_task(("score", "t", 1), "tcp://a:1", 1.0)
    state.finish_task(("score", "other", 0), "tcp://a:1", 1.0)
    state.finish_task(("score", "t", 9), "tcp://a:1", 1.0)
    facts = take_snapshot(state, 107.0)
    assert facts["tasks_done"] == 1
    assert facts["stages"][0]["rate"] == 1.0


def test_finish_task__what_is_done_beside_users_does_not_slow_a_worker_down():
    state = NightState()
    begin_tasks(state, "train-e001-r00", 2, unit="users", units=[50, 0])
    state.finish_task(("train-e001-r00", "t", 0), "tcp://a:1", 2.0)
    state.finish_task(("train-e001-r00", "t", 1), "tcp://a:1", 3.0)
    assert [cell["rate"] for cell in take_snapshot(state, 107.0)["workers"]] == [25.0]


def test_units__counts_that_come_later_go_to_the_worker_that_did_the_task():
    state = NightState()
    begin_tasks(state, "features", 2, unit="users", counted=True)
    state.finish_task(("features", "t", 0), "tcp://a:1", 2.0)
    state.finish_task(("features", "t", 1), "tcp://b:1", 1.0)
    assert take_snapshot(state, 101.0)["workers"] == []
    state.apply({"kind": "units", "token": "t", "counts": [[1, 50], [0, 50]]}, 102.0)
    rates = {cell["worker"]: cell["rate"] for cell in take_snapshot(state, 102.0)["workers"]}
    assert rates == {"b:1": 50.0, "a:1": 25.0}


def test_fail_task__is_told_with_its_partition_and_class():
    state = NightState()
    state.name_worker("tcp://a:1", "3")
    begin_tasks(state, "score", 4)
    state.fail_task(("score", "t", 2), "tcp://a:1", "ValueError")
    facts = take_snapshot(state, 101.0)
    assert facts["failures"] == [{"stage": "score", "part": 2, "worker": "worker 3", "error": "ValueError"}]
    assert (facts["tasks_failed"], facts["stages"][0]["tasks_failed"]) == (1, 1)


def test_drop_task__of_a_lost_worker_is_a_failure_and_a_cancelled_one_is_not():
    state = NightState()
    begin_tasks(state, "score", 2)
    for index in range(2):
        state.start_task(("score", "t", index), f"tcp://{index}:1", 100.0)
    state.drop_task(("score", "t", 0), {"tcp://0:1"})
    state.drop_task(("score", "t", 1), {"tcp://0:1"})
    state.lose_worker()
    facts = take_snapshot(state, 101.0)
    assert [(failure["part"], failure["error"]) for failure in facts["failures"]] == [(1, "worker lost")]
    assert facts["workers_lost"] == 1


def test_take_snapshot__a_task_in_hand_too_long_is_slow():
    state = NightState()
    begin_tasks(state, "score", 4, 0.0)
    for index in range(3):
        state.finish_task(("score", "t", index), "tcp://a:1", 2.0)
    state.start_task(("score", "t", 3), "tcp://b:1", 0.0)
    assert [row["state"] for row in take_snapshot(state, 5.9)["slow"]] == ["done"]
    slow = take_snapshot(state, 6.1)["slow"]
    assert (slow[0]["state"], slow[0]["part"], slow[0]["worker"], slow[0]["mean_seconds"]) == ("running", 3, "b:1", 2.0)


def test_lose_client__ends_the_night_of_that_client_only():
    state = NightState()
    begin_night(state)
    state.lose_client("another", 101.0)
    assert take_snapshot(state, 102.0)["night"]["state"] == "begin"
    state.lose_client("c", 103.0)
    night = take_snapshot(state, 104.0)["night"]
    assert (night["state"], night["error"], night["seconds"]) == ("failed", "the driver went away", 3.0)


def test_state__memory_does_not_grow_with_tasks():
    state = NightState()
    for number in range(200):
        begin_tasks(state, f"train-r{number}", 1_000, token=str(number))
        for index in range(1_000):
            key = (f"train-r{number}", str(number), index)
            state.start_task(key, "tcp://a:1", 100.0)
            if index % 10 == 0:
                state.fail_task(key, "tcp://a:1", "OSError")
            state.finish_task(key, "tcp://a:1", 0.1)
        if number % 2:
            end_tasks(state, 101.0, token=str(number))
    assert state.tasks_done == 200_000
    assert len(state.batches) <= MAX_BATCHES
    assert len(state.failures) == MAX_FAILURES
    assert not state.in_hand
    assert len(json.dumps(take_snapshot(state, 102.0))) < 20_000


def test_exposure_facts__an_excluded_category_is_not_starved():
    event = {"categories": ["a", "b", "c"], "counts": [90, 0, 0], "clicks": [40, 30, 30], "excluded": ["b"]}
    assert exposure_facts(event)["starved"] == [False, False, True]


def test_prices__are_on_the_page_while_categories_are_shared_out():
    state = NightState()
    state.apply({"kind": "night", "state": "begin", "date": "2026-03-05", "stages": STAGES, "client": "c"}, 0.0)
    event = {"kind": "prices", "categories": ["<a>", "b", "c"], "prices": [0.25, -0.5, 0.0], "gap": None, "passes": 2}
    state.apply(event, 1.0)
    assert "<b>–</b><span>duality gap</span>" in head_html(take_snapshot(state, 1.0))
    state.apply({**event, "gap": 0.00042, "passes": 7}, 2.0)
    facts = take_snapshot(state, 2.0)
    assert facts["prices"]["prices"] == {"<a>": 0.25, "b": -0.5, "c": 0.0}
    assert facts["prices"]["passes"] == 7
    page = head_html(facts)
    assert "<b>0.042%</b><span>duality gap</span>" in page
    assert "<b>-0.5000</b><span>cheapest: b</span>" in page
    assert "<a>" not in page


def test_exposure_facts__by_hand():
    found = exposure_facts({"categories": ["a", "b", "c"], "counts": [90, 10, 0], "clicks": [40, 60, 0], "users": 50})
    assert found["share"] == [0.9, 0.1, 0.0]
    assert found["click_share"] == [0.4, 0.6, 0.0]
    assert found["starved"] == [False, True, True]  # b has a sixth of its share of clicks, c has no user
    assert (found["starved_categories"], found["coverage"]) == (2, 2 / 3)
    without = exposure_facts({"categories": ["a", "b"], "counts": [1, 0]})
    assert (without["starved"], without["click_share"]) == ([False, True], None)


# What is shown


def test_take_snapshot__is_json_also_with_numbers_that_are_none():
    state = NightState()
    state.apply({"kind": "train", "epoch": 1, "round": 1, "loss": math.inf, "validation_error": math.nan}, 1.0)
    facts = json.loads(json.dumps(take_snapshot(state, 2.0), allow_nan=False))
    assert facts["training"] == [{"epoch": 1, "round": 1, "loss": None, "validation_error": None, "night": None}]


def test_choose_categories__keeps_the_starved_ones():
    counts = [1_000 - code for code in range(200)]
    starved = [code in (150, 199) for code in range(200)]
    chosen = choose_categories(counts, starved)
    assert len(chosen) == MAX_CATEGORIES
    assert chosen[-2:] == [150, 199]
    assert chosen[:3] == [0, 1, 2]
    assert choose_categories([1, 3, 2], [False] * 3) == [1, 2, 0]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "–"), (0.04, "0.0 s"), (9.9, "9.9 s"), (59, "59 s"), (61, "1 min 01 s"), (3_599.7, "1 h 00 min"),
     (7_260, "2 h 01 min")],
)  # fmt: skip
def test_seconds_text__as_a_person_says_it(seconds, text):
    assert seconds_text(seconds) == text


@pytest.mark.parametrize(
    ("number", "text"), [(None, "–"), (0, "0"), (12.345, "12.3"), (999, "999"), (15_000, "15k"), (2.5e6, "2.5M")]
)
def test_number_text__three_digits(number, text):
    assert number_text(number) == text


def test_label_of__draws_no_formula_and_no_control_characters():
    label = label_of(HOSTILE, 60)
    assert "$$" not in label
    assert "\u202e" not in label
    assert label_of("x" * 50) == "x" * 21 + "…"


def test_table__escapes_every_cell():
    assert table(("a",), [("<b>",)], empty="").count("&lt;b&gt;") == 1
    assert table(("a",), [], empty="none & nothing") == '<p class="none">none &amp; nothing</p>'


def hostile_state():
    state = NightState()
    begin_night(state, history=[{"date": HOSTILE, "seconds": 3.0, "users": 5}])
    state.name_worker("tcp://a:1", HOSTILE)
    begin_tasks(state, HOSTILE, 2, units=[1, 1], unit=HOSTILE)
    state.finish_task((HOSTILE, "t", 0), "tcp://a:1", 1.0)
    state.fail_task((HOSTILE, "t", 1), "tcp://a:1", HOSTILE)
    facts = {"epoch": 1, "round": 1, "loss": 1.0, "planes_per_category": [1, 2], "categories": [HOSTILE, HOSTILE]}
    state.apply({"kind": "train", "validation_error": 0.2, "popularity_error": 0.3, **facts}, 101.0)
    state.apply(
        {"kind": "exposure", "users": 3, "categories": [HOSTILE] * 2, "counts": [3, 0], "clicks": [1, 1]}, 101.0
    )
    state.apply({"kind": "note", "name": HOSTILE, "text": HOSTILE}, 101.0)
    state.apply({"kind": "note", "name": "report", "text": f"/{HOSTILE}"}, 101.0)
    return state


def test_build_page__shows_hostile_names_as_text():
    document = Document()
    state = hostile_state()
    build_page(document, lambda: take_snapshot(state, 102.0))
    assert {root.name for root in document.roots} == {
        "head", "notes", "timeline", "workers", "error", "loss", "planes", "exposure",
        "troubles", "history",
    }  # fmt: skip
    for root in document.roots:
        if isinstance(root, Div):
            assert "<script" not in root.text
            assert "alert" not in root.text or "&lt;script&gt;" in root.text
    drawn = Serializer().encode(document.to_json())
    assert "script" in str(drawn)
    assert "$$" not in str(drawn)
    assert len(document.session_callbacks) == 1


def test_build_page__an_unchanged_night_sends_nothing():
    document = Document()
    state = hostile_state()
    build_page(document, lambda: take_snapshot(state, 102.0))
    changes = []
    document.on_change(changes.append)
    document.session_callbacks[0].callback()
    assert changes == []
    state.apply({"kind": "exposure", "users": 9, "categories": ["a", "b"], "counts": [3, 6]}, 103.0)
    document.session_callbacks[0].callback()
    assert changes


def test_exposure__its_legend_has_only_what_is_drawn():
    chart = next(panel for panel in make_panels() if panel.figure.name == "exposure")
    snapshot = take_snapshot(NightState(), 1.0)
    found = {"categories": ["Hats", "Shoes"], "counts": [8, 2], "share": [0.8, 0.2], "users": 10}
    for starved, clicks, shown in (([False, True], [0.5, 0.5], [True, True]), ([False, False], None, [False, False])):
        chart.update(
            {
                **snapshot,
                "exposure": {**found, "starved": starved, "starved_categories": sum(starved), "click_share": clicks},
            }
        )
        assert [entry.visible for entry in chart.figure.legend[0].items] == shown


def test_curve__draws_popularity_as_a_level_beside_the_error():
    state = NightState()
    chart = next(panel for panel in make_panels() if panel.figure.name == "error")
    chart.update(take_snapshot(state, 1.0))
    assert chart.figure.title.text == "Validation ε_dis: waits for the first epoch"
    closed = {"kind": "train", "round": 2, "rounds": 2, "epochs": 5}
    state.apply({**closed, "epoch": 1, "validation_error": 0.25}, 1.0)
    chart.update(take_snapshot(state, 1.0))
    assert chart.figure.title.text == "Validation ε_dis: 0.25"
    assert chart.level.data == {"x": [], "y": []}
    state.apply({**closed, "epoch": 2, "validation_error": 0.2, "popularity_error": 0.3}, 2.0)
    chart.update(take_snapshot(state, 2.0))
    assert chart.figure.title.text == "Validation ε_dis: 0.2, popularity 0.3 dashed"
    assert chart.points.data == {"x": [1.0, 2.0], "y": [0.25, 0.2]}
    assert chart.level.data == {"x": [0.0, 2.0], "y": [0.3, 0.3]}


def test_page__tells_which_checks_warn():
    state = NightState()
    begin_night(state, 100.0)
    check = {"name": "late", "what": "share of late events", "value": 0.4, "limit": 0.1, "status": "warn"}
    state.apply({"kind": "checks", "checks": [check, {**check, "name": "psi", "status": "ok"}]}, 101.0)
    snapshot = take_snapshot(state, 102.0)
    assert [found["name"] for found in snapshot["checks"]] == ["late", "psi"]
    assert '<div class="bad"><b>1 of 2</b><span>checks that warn</span></div>' in head_html(snapshot)
    troubles = troubles_html(snapshot)
    assert "late" in troubles
    assert "0.4, limit 0.1" in troubles
    assert "psi" not in troubles
    state.apply({"kind": "night", "state": "failed", "error": "HeldBack"}, 103.0)
    assert '<b class="state">on hold</b>' in head_html(take_snapshot(state, 104.0))
    begin_night(state, 200.0)
    assert take_snapshot(state, 201.0)["checks"] == []


def test_apply__a_skipped_stage_is_not_counted_in_the_time_left():
    state = NightState()
    begin_night(state, 0.0, history=[{"date": "2026-03-04", "stages": {"ingest": 10.0, "train": 20.0, "score": 5.0}}])
    state.apply({"kind": "stage", "name": "ingest", "state": "begin"}, 0.0)
    state.apply({"kind": "stage", "name": "train", "state": "skipped"}, 1.0)
    facts = take_snapshot(state, 4.0)
    assert [stage["state"] for stage in facts["stages"]] == ["running", "skipped", "waiting"]
    assert facts["night"]["left"] == 11.0


def test_panels__say_what_they_wait_for():
    state = NightState()
    panels = {panel.figure.name: panel for panel in make_panels()}

    def titles():
        for panel in panels.values():
            panel.update(take_snapshot(state, 1.0))
        return {name: panel.figure.title.text for name, panel in panels.items()}

    assert titles() == {
        "timeline": "Stages: waits for a night to begin",
        "workers": "Speed of workers: waits for the first task",
        "error": "Validation ε_dis: waits for the first epoch",
        "loss": "Training loss: waits for the first round",
        "planes": "Planes per category: waits for the first round",
        "exposure": "Exposure per category: waits for the first scored users",
    }
    begin_night(state, 0.0)
    for name in ("train", "score"):
        state.apply({"kind": "stage", "name": name, "state": "skipped"}, 0.5)
    begin_tasks(state, "ingest-read", 1, 0.5, units=[10])
    state.finish_task(("ingest-read", "t", 0), "tcp://a:1", 1.0)
    assert titles() == {
        "timeline": "Stages",
        "workers": "Speed of 1 worker; orange: below half the best",
        "error": "Validation ε_dis: no training tonight",
        "loss": "Training loss: no training tonight",
        "planes": "Planes per category: no training tonight",
        "exposure": "Exposure per category: nobody is scored tonight, for there is no model",
    }


def test_workers__rates_of_different_units_are_not_compared():
    """Two workers of one speed, of whom one went on to merge qualifications: neither is slow."""
    state = NightState()
    begin_night(state, 0.0)
    state.apply({"kind": "stage", "name": "score", "state": "begin"}, 0.0)
    begin_tasks(state, "score", 3, 0.0, units=[100, 100, 40])
    state.finish_task(("score", "t", 0), "tcp://a:1", 1.0)
    state.finish_task(("score", "t", 1), "tcp://b:1", 1.0)
    state.finish_task(("score", "t", 2), "tcp://c:1", 1.0)
    begin_tasks(state, "score-select", 1, 2.0, token="u", units=[5_000], unit="qualifications")
    state.finish_task(("score-select", "u", 0), "tcp://b:1", 1.0)
    chart = next(panel for panel in make_panels() if panel.figure.name == "workers")
    chart.update(take_snapshot(state, 3.0))
    cells = dict(zip(chart.cells.data["text"], chart.cells.data["colour"], strict=True))
    assert list(chart.figure.xaxis[0].major_label_overrides.values()) == ["score\nusers/s"]
    assert cells == {"100": BLUE, "5k qualifications/s": BLUE, "40": ORANGE}


def test_head_html__says_that_a_night_is_over_and_how_it_ended():
    state = NightState()
    begin_night(state, 100.0)
    assert "banner" not in head_html(take_snapshot(state, 101.0))
    state.apply({"kind": "night", "state": "end"}, 112.0)
    assert "The night of 2026-03-05 is over: it took 12 s." in head_html(take_snapshot(state, 500.0))
    begin_night(state, 600.0, date="2026-03-06")
    state.apply({"kind": "night", "state": "failed", "error": "BadInput"}, 601.0)
    page = head_html(take_snapshot(state, 602.0))
    assert "The night of 2026-03-06 failed (BadInput); the lists of the night before stay active." in page
    begin_night(state, 700.0, date="2026-03-07")
    state.apply({"kind": "night", "state": "failed", "error": "HeldBack"}, 701.0)
    assert "The night of 2026-03-07 is on hold for a check; the lists of" in head_html(take_snapshot(state, 702.0))


def test_head_html__shows_the_memory_of_the_fullest_worker():
    state = NightState()
    state.name_worker("tcp://a:1", "0")
    one = {"worker": "tcp://a:1", "used": 512 * 2**20, "limit": 2 * 2**30}
    page = head_html(take_snapshot(state, 1.0, [one]))
    assert "<div><b>512 MiB of 2 GiB</b><span>memory of 1 worker</span></div>" in page
    full = {"worker": "tcp://b:1", "used": 2**30, "limit": 1.2 * 2**30}
    silent = {"worker": "tcp://c:1", "used": None, "limit": None}
    page = head_html(take_snapshot(state, 1.0, [one, full, silent]))
    assert '<div class="bad"><b>1 GiB of 1.2 GiB</b><span>memory, fullest of 2 workers</span></div>' in page
    assert take_snapshot(state, 1.0, [one])["memory"] == [one | {"worker": "worker 0"}]


def test_notes_html__has_the_last_sentence_of_each_name_and_the_path_of_the_report():
    state = NightState()
    assert "Waits for what ingest" in notes_html(take_snapshot(state, 1.0))
    begin_night(state, 0.0)
    for text in ("passed: .1", "turned down: <.2>"):
        state.apply({"kind": "note", "name": "gate", "text": text}, 1.0)
    state.apply({"kind": "note", "name": "report", "text": "/sites/a b/report.html"}, 1.0)
    facts = take_snapshot(state, 2.0)
    assert [note["name"] for note in facts["notes"]] == ["gate", "report"]
    page = notes_html(facts)
    assert "turned down: &lt;.2&gt;" in page
    assert "<td>/sites/a b/report.html</td>" in page
    assert "href" not in page  # a browser follows no link from a page of a server to a file
    for number in range(50):
        state.apply({"kind": "note", "name": str(number), "text": "x" * 9_000}, 1.0)
    assert len(notes_html(take_snapshot(state, 4.0))) < 10_000


def test_head_html__tells_night_stage_rate_and_failures():
    state = NightState()
    begin_night(state, 100.0)
    state.apply({"kind": "stage", "name": "score", "state": "begin"}, 100.0)
    begin_tasks(state, "score", 2, 100.0, units=[1_000, 1_000])
    state.finish_task(("score", "t", 0), "tcp://a:1", 2.0)
    state.fail_task(("score", "t", 1), "tcp://a:1", "OSError")
    text = head_html(take_snapshot(state, 102.0))
    for word in ("2026-03-05", "running", ">score<", ">500<", "users a second", '<div class="bad"><b>1</b>'):
        assert word in text
    assert "no slow" in troubles_html(take_snapshot(NightState(), 1.0))
    assert "first night" in history_html(take_snapshot(NightState(), 1.0))


def test_night_collector__metrics_by_name():
    state = hostile_state()
    registry = prometheus_client.CollectorRegistry()
    registry.register(NightCollector(lambda: take_snapshot(state, 102.0)))
    value = registry.get_sample_value
    assert value("ammrank_night_state", {"date": "2026-03-05", "state": "begin"}) == 1.0
    assert value("ammrank_night_state", {"date": "2026-03-05", "state": "failed"}) == 0.0
    assert value("ammrank_night_seconds") == 2.0
    assert value("ammrank_stage_state", {"stage": "ingest", "state": "waiting"}) == 1.0
    assert value("ammrank_tasks_done_total") == 1.0
    assert value("ammrank_tasks_failed_total") == 1.0
    assert value("ammrank_training_loss") == 1.0
    assert value("ammrank_validation_error") == 0.2
    assert value("ammrank_popularity_error") == 0.3
    assert value("ammrank_starved_categories") == 1.0
    assert prometheus_client.generate_latest(registry)


# In a scheduler


@contextmanager
def small_cluster():
    with (
        LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            processes=False,
            protocol="tcp",
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


def get(client, path):
    with urllib.request.urlopen(page_address(client).replace("/ammrank", path), timeout=120) as answer:
        return answer.read().decode()


def fetch(client):
    time.sleep(0.6)  # readers share a snapshot for half a second
    return json.loads(get(client, "/ammrank.json"))


def double(number):
    return 2 * number


def fail_on(number):
    if number == 3:
        raise ValueError("a message with user-4711 in it")
    return number


def test_dashboard__the_internals_of_distributed_are_what_we_hook_into():
    from distributed.dashboard.components.scheduler import env
    from distributed.dashboard.scheduler import template_variables

    with small_cluster() as client:
        scheduler = client.cluster.scheduler
        assert dashboard.find_dashboard(scheduler).prefix == ""
        assert watch_cluster(client)
        assert watch_cluster(client)  # again: the first stays
        assert template_variables(scheduler)["pages"].count("ammrank") == 1
        assert env.from_string("{{ 'ammrank'|title }} {{ 'status'|title }}").render() == "AMM-rank Status"
        assert (
            len([app for app in scheduler.http_application.applications if "/ammrank" in getattr(app, "app_paths", ())])
            == 1
        )
        for page in ("/status", "/ammrank"):
            assert '<a href="ammrank">AMM-rank</a>' in get(client, page)
        assert 'id="ammrank-timeline"' in get(client, "/ammrank")
        assert json.loads(get(client, "/ammrank.json"))["night"]["state"] == "none"
        metrics = get(client, "/metrics")
        assert "ammrank_tasks_done_total 0.0" in metrics
        assert "dask_scheduler_workers" in metrics
        (collector,) = dashboard._collectors
    assert dashboard._collectors == []
    assert not any(name.startswith("ammrank") for name in prometheus_client.REGISTRY._names_to_collectors)
    assert collector.read()["tasks_done"] == 0


def test_dashboard__two_schedulers_in_one_process_do_not_collide():
    with small_cluster() as first, small_cluster() as second:
        assert watch_cluster(first)
        assert watch_cluster(second)
        with watch_night(second, "2026-03-05", ["score"]):
            pass
        assert fetch(second)["night"]["state"] == "end"
        assert 'ammrank_night_state{date="2026-03-05",state="end"} 1.0' in get(second, "/metrics")
        assert fetch(first)["night"]["state"] == "none"


def test_plugin__counts_a_night_on_a_cluster():
    with small_cluster() as client:
        watch_cluster(client)
        client.submit(double, 1, key="a-stranger").result()
        with watch_night(client, "2026-03-05", ["score", "report"]), watch_stage(client, "score"):
            live = LiveExposure(client, ["Hats", "Shoes"], users_total=40, clicks=[1, 1])
            seen = []
            found = run_tasks(
                client, "score", double, [(i,) for i in range(8)], units=lambda result: result,
                on_result=lambda index, result: (seen.append(index), live.add(5, [result, 0])),
            )  # fmt: skip
            live.flush()
            running = fetch(client)
        assert found == [0, 2, 4, 6, 8, 10, 12, 14]
        assert sorted(seen) == list(range(8))
        assert running["night"]["stage"] == "score"
        assert running["stages"][0]["step"] == {"name": "score", "state": "end", "done": 8, "total": 8}
        assert running["stages"][0]["unit"] == "users"
        assert {cell["worker"] for cell in running["workers"]} <= {"worker 0", "worker 1"}
        assert sum(cell["tasks"] for cell in running["workers"]) == 8
        assert running["exposure"]["counts"] == [56, 0]
        assert running["exposure"]["starved"] == [False, True]
        done = fetch(client)
        assert done["tasks_done"] == 8
        assert [stage["state"] for stage in done["stages"]] == ["end", "skipped"]
        assert done["history"][0]["date"] == "2026-03-05"


def test_plugin__a_task_that_went_to_another_worker_counts_as_itself():
    with small_cluster() as client:
        watch_cluster(client)
        publish(client, "tasks", name="score", token="t", state="begin", total=2, unit="tasks")
        assert client.submit(double, 1, key=("score", "t", 1, 1)).result() == 2
        facts = fetch(client)
        assert (facts["tasks_done"], facts["stages"][0]["step"]["done"]) == (1, 1)


def test_live_exposure__nothing_is_told_of_nobody():
    with small_cluster() as client:
        watch_cluster(client)
        LiveExposure(client, ["Hats", "Shoes"], users_total=40, clicks=[1, 1]).flush()
        assert fetch(client)["exposure"] is None
        assert "ammrank_starved_categories" not in get(client, "/metrics")
        live = LiveExposure(client, ["Hats", "Shoes"], clicks=[1, 1], starved_below=0.5)
        live.add(10, [7, 3])
        assert fetch(client)["exposure"]["starved"] == [False, False]
        live.add(10, [8, 1])
        live.flush()
        # 4 of 19 are less than half of a half, and more than a quarter of it.
        assert fetch(client)["exposure"]["starved"] == [False, True]


def test_plugin__a_failed_task_is_told_without_its_message():
    with small_cluster() as client:
        watch_cluster(client)
        with (
            pytest.raises(ValueError, match="user-4711"),
            watch_night(client, "2026-03-05", ["score"]),
            watch_stage(client, "score"),
        ):
            run_tasks(client, "score", fail_on, [(i,) for i in range(5)])
        facts = fetch(client)
        text = get(client, "/ammrank.json")
        assert [(row["part"], row["error"]) for row in facts["failures"]] == [(3, "ValueError")]
        assert (facts["night"]["state"], facts["night"]["error"]) == ("failed", "ValueError")
        assert facts["stages"][0]["state"] == "failed"
        assert "4711" not in text + get(client, "/metrics")


def exit_once(marker):
    if not os.path.exists(marker):
        open(marker, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return 1


def test_plugin__a_lost_worker_is_told(tmp_path):
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, host="127.0.0.1", dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        watch_cluster(client)
        assert run_tasks(client, "score", exit_once, [(str(tmp_path / "marker"),)]) == [1]
        facts = fetch(client)
        # A slow machine may lose another worker while the nanny starts it; the scheduler's own log has the number.
        n_lost = sum(event.get("action") == "remove-worker" for _, event in client.get_events("all"))
        assert n_lost >= 1
        assert facts["workers_lost"] == n_lost
        assert {(row["part"], row["error"]) for row in facts["failures"]} == {(0, "worker lost")}
        assert facts["tasks_done"] == 1


def test_watch_cluster__a_scheduler_that_refuses_is_left_alone(monkeypatch, caplog):
    class Refusing:
        def register_plugin(self, plugin):
            raise ModuleNotFoundError("No module named 'ammrank_dask'")

    assert not watch_cluster(Refusing())


def test_page_address__without_a_dashboard_is_that_of_the_facts():
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, protocol="tcp", host="127.0.0.1",
            dashboard_address="127.0.0.1:0", scheduler_kwargs={"dashboard": False},
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):  # fmt: skip
        assert watch_cluster(client)
        with urllib.request.urlopen(page_address(client), timeout=120) as answer:
            assert json.loads(answer.read())["format"] == 1


def test_watch_cluster__without_a_dashboard_there_is_nothing_to_see_and_nothing_breaks():
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        assert watch_cluster(client)
        assert run_tasks(client, "score", double, [(4,)]) == [8]


def test_publish__numpy_values_arrive_as_plain_ones():
    import numpy as np

    with small_cluster() as client:
        publish(client, "train", epoch=np.int64(1), round=1, planes_per_category=np.array([1, 2]), loss=np.float32(0.5))
        ((_, event),) = client.get_events("ammrank")
    assert list(event["planes_per_category"]) == [1, 2]
    assert (event["epoch"], event["loss"], event["kind"]) == (1, 0.5, "train")


def spend(seconds):
    with measure("kernel"):
        time.sleep(seconds)
    return sum(measure_each("read", iter([1, 2, 3])))


def test_measure__spans_tell_what_a_stage_spends_its_time_on():
    assert spend(0.0) == 6  # outside a task nothing happens
    with small_cluster() as client:
        with watch_stage(client, "train"):
            assert run_tasks(client, "train", spend, [(0.2,)]) == [6]
        deadline = time.monotonic() + 120
        found = {}
        while ("train", "kernel") not in found and time.monotonic() < deadline:  # workers tell with their heartbeat
            time.sleep(0.1)
            found = client.run_on_scheduler(seconds_by_span)
    assert 0.19 < found["train", "kernel"] < 20  # a busy machine sleeps longer
    assert ("train", "read") in found


def seconds_by_span(dask_scheduler):
    found = {}
    for span in dask_scheduler.extensions["spans"].spans.values():
        for (_, _, part, unit), seconds in span.cumulative_worker_metrics.items():
            if unit == "seconds" and len(span.name) == 2:
                found[span.name[1], part] = seconds
    return found


def test_preload__gives_a_scheduler_the_page_from_its_start(tmp_path):
    place = tmp_path / "scheduler.json"
    command = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0"]
    command += ["--dashboard-address", "127.0.0.1:0", "--scheduler-file", str(place)]
    command += ["--preload", "ammrank_dask.monitor.preload"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 300
        while not place.is_file() or not place.read_text():
            assert time.monotonic() < deadline, "the scheduler did not start"
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.1)
        with Client(scheduler_file=str(place), timeout=120, set_as_default=False) as client:
            assert "AMM-rank" in get(client, "/status")
            assert watch_cluster(client)  # what the client brings too stays away
            with watch_night(client, "2026-03-05", ["score"]):
                assert fetch(client)["night"]["state"] == "begin"
            assert (
                client.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler.plugins)).count(NightPlugin.name)
                == 1
            )
    finally:
        process.terminate()
        process.communicate(timeout=120)


def test_record_performance__writes_a_page_that_needs_no_network(tmp_path):
    folder = tmp_path / "reports"
    with small_cluster() as client:
        with record_performance(client, folder):
            run_tasks(client, "score", double, [(4,)])
        assert not folder.exists()
        folder.mkdir()
        with record_performance(client, folder):
            run_tasks(client, "score", double, [(4,)])
    page = (folder / PERFORMANCE_PAGE).read_text()
    assert [path.name for path in folder.iterdir()] == [PERFORMANCE_PAGE]
    assert '<script type="text/javascript" src=' not in page
    assert "Dask Performance Report" in page


# The docs


def test_alerts__use_only_metrics_that_there_are():
    groups = yaml.safe_load((ROOT / "docs" / "alerts.yml").read_text(encoding="utf-8"))["groups"]
    rules = groups[1]["rules"]
    state = hostile_state()
    state.apply({"kind": "night", "state": "end"}, 103.0)
    begin_night(state, history=[{"date": "2026-03-04", "stages": {"ingest": 1.0}}])
    registry = prometheus_client.CollectorRegistry()
    registry.register(NightCollector(lambda: take_snapshot(state, 104.0)))
    known = {sample.name for metric in registry.collect() for sample in metric.samples}
    exposure = {"ammrank_starved_categories", "ammrank_exposure_users", "ammrank_exposure_coverage"}
    for rule in rules:
        assert set(re.findall(r"ammrank_\w+", rule["expr"])) <= known | exposure, rule["alert"]
        assert rule["annotations"]["summary"]
    of_site = (ROOT / "workflows" / "stages" / "metrics.py").read_text(encoding="utf-8")
    for rule in groups[0]["rules"]:
        assert set(re.findall(r"ammrank_\w+", rule["expr"])) <= set(re.findall(r'"(ammrank_\w+)"', of_site))
        assert rule["annotations"]["summary"]
    assert {"AmmrankPublishedNightIsOld", "AmmrankLastNightFailed"} <= {rule["alert"] for rule in groups[0]["rules"]}


def test_docs__name_every_metric_and_the_examples_of_monitoring_run():
    text = (ROOT / "docs" / "monitoring.md").read_text(encoding="utf-8")
    metrics = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(ammrank_[a-z_]+)`", metrics))
    source = (ROOT / "ammrank_dask" / "monitor" / "prometheus.py").read_text(encoding="utf-8")
    written = set(re.findall(r'"(ammrank_[a-z_]+)"', source))
    of_site = (ROOT / "workflows" / "stages" / "metrics.py").read_text(encoding="utf-8")
    written |= set(re.findall(r'"(ammrank_[a-z_]+)"', of_site))
    written |= {f"ammrank_published_{users}_error" for users in ("validation", "gate")}
    assert {name.removesuffix("_total") for name in named} == written
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        done = subprocess.run([sys.executable, "-c", block], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
