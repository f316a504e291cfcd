"""The monitor: the state that counts tasks, what is shown of it, and its place in the scheduler's dashboard."""

import asyncio
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
from distributed import Client, LocalCluster
from tornado.httpclient import AsyncHTTPClient

from ammrank_dask.monitor import plugin
from ammrank_dask.monitor.events import LiveExposure, publish, watch_night, watch_stage
from ammrank_dask.monitor.page import failures_html, head_html, night_html, notes_html, stages_html
from ammrank_dask.monitor.performance import PERFORMANCE_PAGE, measure, measure_each, record_performance
from ammrank_dask.monitor.plugin import NightCollector, NightPlugin, page_address, watch_cluster
from ammrank_dask.monitor.state import MAX_BATCHES, MAX_FAILURES, NightState, measure_exposure, take_snapshot
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
    state.start_task(("ingest-read", "t", 0), "tcp://a:1")
    state.finish_task(("ingest-read", "t", 0))
    facts = take_snapshot(state, 104.0)
    ingest, train, _ = facts["stages"]
    assert facts["night"]["stage"] == "ingest"
    assert (ingest["state"], ingest["seconds"], ingest["tasks_done"]) == ("running", 3.0, 1)
    assert ingest["step"] == {"name": "ingest-read", "state": "running", "done": 1, "total": 2}
    assert (ingest["unit"], ingest["rate"]) == ("events", 5.0)
    assert ingest["left"] == 6.0  # 10 of 40 events in 2 s: three times as long for the rest
    assert (train["state"], train["left"]) == ("waiting", None)
    end_tasks(state, 105.0)
    state.apply({"kind": "stage", "name": "ingest", "state": "end"}, 105.5)
    state.apply({"kind": "stage", "name": "score", "state": "begin"}, 106.0)
    state.apply({"kind": "night", "state": "end"}, 110.0)
    facts = take_snapshot(state, 120.0)
    assert [stage["state"] for stage in facts["stages"]] == ["end", "skipped", "end"]
    assert (facts["night"]["state"], facts["night"]["seconds"]) == ("end", 10.0)
    assert [stage["usual_seconds"] for stage in facts["stages"]] == [4.5, None, 4.0]  # of this night, for the next one


def test_apply__earlier_nights_tell_the_time_left():
    state = NightState()
    begin_night(state, 0.0, usual={"ingest": 10.0, "train": 20.0, "score": 5.0})
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
    assert (last["epoch"], last["round"], last["loss"], last["validation_error"]) == (1, 2, 2.5, 0.1)
    state.apply({"kind": "train", "epoch": 2, "round": 1, "rounds": 2, "epochs": 5, "loss": 1.5, "planes": 4}, 5.0)
    last = take_snapshot(state, 5.0)["training"]
    assert (last["epoch"], last["loss"], last["validation_error"]) == (2, 1.5, 0.1)  # that of the last whole epoch


def test_apply__the_last_training_is_shown_until_another_night_trains():
    state = NightState()
    begin_night(state, 0.0)
    state.apply({"kind": "train", "epoch": 1, "round": 1, "validation_error": 0.3}, 1.0)
    state.apply({"kind": "night", "state": "end"}, 2.0)
    begin_night(state, 3.0, date="2026-03-06")
    assert take_snapshot(state, 4.0)["training"]["night"] == "2026-03-05"
    state.apply({"kind": "night", "state": "end"}, 5.0)
    begin_night(state, 7.0, date="2026-03-07")
    state.apply({"kind": "train", "epoch": 1, "round": 1, "loss": 1.0}, 8.0)
    assert take_snapshot(state, 9.0)["training"] == {"epoch": 1, "round": 1, "loss": 1.0, "night": "2026-03-07"}


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
        state.finish_task(("score", "t", 1))
    state.finish_task(("score", "other", 0))
    state.finish_task(("score", "t", 9))
    facts = take_snapshot(state, 107.0)
    assert facts["tasks_done"] == 1
    assert facts["stages"][0]["rate"] == 1.0


def test_units__counts_that_come_later_are_the_rate():
    state = NightState()
    begin_tasks(state, "features", 2, unit="users", counted=True)
    state.finish_task(("features", "t", 0))
    state.finish_task(("features", "t", 1))
    state.apply({"kind": "units", "token": "t", "counts": [[1, 50], [0, 50]]}, 102.0)
    (stage,) = take_snapshot(state, 102.0)["stages"]
    assert (stage["rate"], stage["unit"]) == (50.0, "users")


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
        state.start_task(("score", "t", index), f"tcp://{index}:1")
    state.drop_task(("score", "t", 0), {"tcp://0:1"})
    state.drop_task(("score", "t", 1), {"tcp://0:1"})
    state.lose_worker()
    facts = take_snapshot(state, 101.0)
    assert [(failure["part"], failure["error"]) for failure in facts["failures"]] == [(1, "worker lost")]
    assert facts["workers_lost"] == 1


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
            state.start_task(key, "tcp://a:1")
            if index % 10 == 0:
                state.fail_task(key, "tcp://a:1", "OSError")
            state.finish_task(key)
        if number % 2:
            end_tasks(state, 101.0, token=str(number))
    assert state.tasks_done == 200_000
    assert len(state.batches) <= MAX_BATCHES
    assert len(state.failures) == MAX_FAILURES
    assert not state.in_hand
    assert len(json.dumps(take_snapshot(state, 102.0))) < 20_000


def test_measure_exposure__an_excluded_category_is_not_starved():
    event = {"categories": ["a", "b", "c"], "counts": [90, 0, 0], "clicks": [40, 30, 30], "excluded": ["b"]}
    assert measure_exposure(event)["starved_categories"] == 1


def test_measure_exposure__by_hand():
    found = measure_exposure({"categories": ["a", "b", "c"], "counts": [90, 10, 0], "clicks": [40, 60, 0], "users": 50})
    # b has a sixth of its share of clicks, c has no user.
    assert found == {"users": 50, "users_total": None, "categories": 3, "starved_categories": 2, "coverage": 2 / 3}
    without = measure_exposure({"categories": ["a", "b"], "counts": [1, 0]})
    assert (without["starved_categories"], without["coverage"]) == (1, 0.5)


# What is shown


def test_take_snapshot__is_json_also_with_numbers_that_are_none():
    state = NightState()
    state.apply({"kind": "train", "epoch": 1, "round": 1, "loss": math.inf, "validation_error": math.nan}, 1.0)
    facts = json.loads(json.dumps(take_snapshot(state, 2.0), allow_nan=False))
    assert facts["training"] == {"epoch": 1, "round": 1, "loss": None, "validation_error": None, "night": None}


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


def test_label_of__is_short_and_has_no_control_characters():
    assert "\u202e" not in label_of(HOSTILE, 60)
    assert label_of("x" * 50) == "x" * 21 + "…"


def test_table__escapes_every_cell():
    assert table(("a",), [("<b>",)], empty="").count("&lt;b&gt;") == 1
    assert table(("a",), [], empty="none & nothing") == '<p class="none">none &amp; nothing</p>'


def hostile_state():
    state = NightState()
    begin_night(state, stages=[HOSTILE, *STAGES])
    state.name_worker("tcp://a:1", HOSTILE)
    begin_tasks(state, HOSTILE, 2, units=[1, 1], unit=HOSTILE)
    state.finish_task((HOSTILE, "t", 0))
    state.fail_task((HOSTILE, "t", 1), "tcp://a:1", HOSTILE)
    facts = {"epoch": 1, "round": 1, "loss": 1.0, "planes_per_category": [1, 2], "categories": [HOSTILE, HOSTILE]}
    state.apply({"kind": "train", "validation_error": 0.2, "popularity_error": 0.3, **facts}, 101.0)
    state.apply(
        {"kind": "exposure", "users": 3, "categories": [HOSTILE] * 2, "counts": [3, 0], "clicks": [1, 1]}, 101.0
    )
    state.apply({"kind": "note", "name": HOSTILE, "text": HOSTILE}, 101.0)
    state.apply({"kind": "note", "name": "report", "text": f"/{HOSTILE}"}, 101.0)
    return state


def test_night_html__shows_hostile_names_as_text():
    page = night_html(take_snapshot(hostile_state(), 102.0))
    assert "<script" not in page
    assert page.count("&lt;script&gt;alert(1)") >= 4  # a stage, its step, a note, a failed task
    assert "\u202e" not in page


def test_stages_html__has_state_tasks_throughput_and_training():
    state = NightState()
    assert "Waits for a night to begin." in stages_html(take_snapshot(state, 0.0))
    begin_night(state, 0.0, usual={"ingest": 10.0, "score": 5.0})
    state.apply({"kind": "stage", "name": "train", "state": "skipped"}, 0.0)
    state.apply({"kind": "stage", "name": "ingest", "state": "begin"}, 0.0)
    begin_tasks(state, "ingest-read", 4, 0.0, unit="events", units=[100, 100, 100, 100])
    state.finish_task(("ingest-read", "t", 2))
    rows = re.findall(r"<tr class=.*?</tr>", stages_html(take_snapshot(state, 2.0)))
    texts = [re.findall(r"<td>(?:<div.*</div>)?(.*?)</td>", row) for row in rows]
    assert texts == [
        ["ingest", "running", "", "1", "50 events/s", "2.0 s", "8.0 s", "ingest-read 1 of 4"],
        ["train", "not due", "", "", "", "", "", ""],
        ["score", "waits", "", "", "", "", "5.0 s", ""],
    ]
    assert "width: 20.0%" in rows[0]  # 2 of the 10 seconds that it took last time
    begin_night(state, 10.0)
    state.apply({"kind": "stage", "name": "train", "state": "begin"}, 10.0)
    closed = {"epoch": 1, "epochs": 5, "round": 2, "rounds": 2, "loss": 2.5, "planes": 1_200}
    state.apply({"kind": "train", **closed, "validation_error": 0.25, "popularity_error": 0.3}, 11.0)
    page = stages_html(take_snapshot(state, 12.0))
    assert "epoch 1 of 5, 1,200 planes, loss 2.5, validation ε_dis 0.25, popularity 0.3" in page


def test_apply__a_skipped_stage_is_not_counted_in_the_time_left():
    state = NightState()
    begin_night(state, 0.0, usual={"ingest": 10.0, "train": 20.0, "score": 5.0})
    state.apply({"kind": "stage", "name": "ingest", "state": "begin"}, 0.0)
    state.apply({"kind": "stage", "name": "train", "state": "skipped"}, 1.0)
    facts = take_snapshot(state, 4.0)
    assert [stage["state"] for stage in facts["stages"]] == ["running", "skipped", "waiting"]
    assert facts["night"]["left"] == 11.0


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
    state.finish_task(("score", "t", 0))
    state.fail_task(("score", "t", 1), "tcp://a:1", "OSError")
    text = head_html(take_snapshot(state, 102.0))
    for word in ("2026-03-05", "running", ">score<", ">500<", "users a second", '<div class="bad"><b>1</b>'):
        assert word in text
    assert "OSError" in failures_html(take_snapshot(state, 102.0))
    assert "No failed partition." in failures_html(take_snapshot(NightState(), 1.0))


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
        assert watch_cluster(client)
        assert watch_cluster(client)  # again: the first stays
        assert template_variables(scheduler)["pages"].count("ammrank") == 1
        assert env.from_string("{{ 'ammrank'|title }} {{ 'status'|title }}").render() == "AMM-rank Status"
        assert '<a href="ammrank">AMM-rank</a>' in get(client, "/status")
        assert "Waits for a night to begin." in get(client, "/ammrank")
        assert json.loads(get(client, "/ammrank.json"))["night"]["state"] == "none"
        metrics = get(client, "/metrics")
        assert "ammrank_tasks_done_total 0.0" in metrics
        assert "dask_scheduler_workers" in metrics
        (collector,) = plugin._collectors
    assert plugin._collectors == []
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
        assert {row["worker"] for row in running["memory"]} == {"worker 0", "worker 1"}
        assert (running["exposure"]["users"], running["exposure"]["starved_categories"]) == (40, 1)
        done = fetch(client)
        assert done["tasks_done"] == 8
        assert [stage["state"] for stage in done["stages"]] == ["end", "skipped"]
        assert done["stages"][0]["usual_seconds"] > 0


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
        assert fetch(client)["exposure"]["starved_categories"] == 0
        live.add(10, [8, 1])
        live.flush()
        # 4 of 19 are less than half of a half, and more than a quarter of it.
        assert fetch(client)["exposure"]["starved_categories"] == 1


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


def test_page_address__without_a_dashboard_the_page_is_there():
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, protocol="tcp", host="127.0.0.1",
            dashboard_address="127.0.0.1:0", scheduler_kwargs={"dashboard": False},
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):  # fmt: skip
        assert watch_cluster(client)
        assert "Waits for a night to begin." in get(client, "/ammrank")
        assert json.loads(get(client, "/ammrank.json"))["format"] == 2


def test_updates__an_open_page_is_told_the_end_of_a_night_at_once():
    """A scheduler of one night is gone before the page would ask again."""

    async def watch(address, seen):
        def take(chunk):
            seen.append(chunk.decode())

        await AsyncHTTPClient().fetch(f"{address}.events", streaming_callback=take, request_timeout=60)

    with small_cluster() as client:
        watch_cluster(client)
        seen = []
        done = asyncio.run_coroutine_threadsafe(watch(page_address(client), seen), client.loop.asyncio_loop)
        with watch_night(client, "2026-03-05", ["score"]):
            pass
        deadline = time.monotonic() + 60
        while "is over" not in "".join(seen) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert "The night of 2026-03-05 is over" in "".join(seen)
        assert seen[0].startswith("data: <section>")
    assert done.exception(timeout=60) is None  # a plugin that is closed ends the streams


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
    begin_night(state, usual={"ingest": 1.0})
    registry = prometheus_client.CollectorRegistry()
    registry.register(NightCollector(lambda: take_snapshot(state, 104.0)))
    known = {sample.name for metric in registry.collect() for sample in metric.samples}
    exposure = {"ammrank_starved_categories", "ammrank_exposure_users", "ammrank_exposure_coverage"}
    for rule in rules:
        assert set(re.findall(r"ammrank_\w+", rule["expr"])) <= known | exposure, rule["alert"]
        assert rule["annotations"]["summary"]
    of_site = (ROOT / "workflows" / "stages" / "nights.py").read_text(encoding="utf-8")
    for rule in groups[0]["rules"]:
        assert set(re.findall(r"ammrank_\w+", rule["expr"])) <= set(re.findall(r'"(ammrank_\w+)"', of_site))
        assert rule["annotations"]["summary"]
    assert {"AmmrankPublishedNightIsOld", "AmmrankLastNightFailed"} <= {rule["alert"] for rule in groups[0]["rules"]}


def test_docs__name_every_metric_and_the_examples_of_monitoring_run():
    text = (ROOT / "docs" / "monitoring.md").read_text(encoding="utf-8")
    metrics = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(ammrank_[a-z_]+)`", metrics))
    source = (ROOT / "ammrank_dask" / "monitor" / "plugin.py").read_text(encoding="utf-8")
    written = set(re.findall(r'"(ammrank_[a-z_]+)"', source))
    of_site = (ROOT / "workflows" / "stages" / "nights.py").read_text(encoding="utf-8")
    written |= set(re.findall(r'"(ammrank_[a-z_]+)"', of_site))
    written |= {f"ammrank_published_{users}_error" for users in ("validation", "gate")}
    assert {name.removesuffix("_total") for name in named} == written
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        done = subprocess.run([sys.executable, "-c", block], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
