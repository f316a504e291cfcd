"""`python -m benchmarks scale`: a measured night, and what the model makes of it, by hand."""

from dataclasses import replace

import pytest

from ammrank_dask.storage.errors import BadInput
from benchmarks.scale import (
    CURVE_WORKERS,
    SECONDS_PER_TASK,
    MeasuredNight,
    TaskKind,
    choose_kinds,
    count_merges,
    describe_night,
    draw_scale,
    model_night,
    plan_site,
    workload_of,
)

NIGHT = MeasuredNight(
    kinds=(
        TaskKind("features", 1.0, 2.0), TaskKind("scan", 0.25, 1.0), TaskKind("train-first", 0.25, 3.0),
        TaskKind("select", 5.0, 0.01),
    ),
    rounds=10, round_seconds=0.5, besides=7.0, partition_users=50_000,
)  # fmt: skip


def task(name, number, seconds):
    spans = [
        {"action": "transfer", "start": 0.0, "stop": 0.5},
        {"action": "compute", "start": 1.0, "stop": 1.0 + seconds},
    ]
    return {"key": (name, "token", number), "startstops": spans}


def test_describe_night__has_tasks_of_a_partition_and_the_seconds_that_one_computes():
    stream = [task("features", number, 2.0) for number in range(4)]
    stream += [task("scan", 0, 4.0), {"key": "_peak_memory-1", "startstops": []}, task("train-first", 0, 3.0)]
    stream += [task(f"train-e000-r0{number}", shard, 0.5) for number in range(2) for shard in range(8)]
    stream += [task("train-e000-r01-merge", 0, 1.0)]
    night = describe_night(stream, besides=3.0, partition_users=50_000)
    assert night.kinds == (
        TaskKind("features", 1.0, 2.0), TaskKind("scan", 0.25, 4.0), TaskKind("train-first", 0.25, 3.0),
    )  # fmt: skip
    # 8 shards of half a second are a round of 4 s for 4 partitions.
    assert (night.rounds, night.round_seconds, night.besides) == (2, 1.0, 3.0)


def test_task_kind__what_is_done_once_or_for_a_sample_does_not_grow():
    assert [kind.count(1_000) for kind in NIGHT.kinds] == [1_000, 250, 1, 70]
    assert [kind.count(8) for kind in NIGHT.kinds] == [8, 2, 1, 40]


def test_choose_kinds__are_those_that_were_named():
    assert [kind.name for kind in choose_kinds(NIGHT.kinds, ["scan"])] == ["scan"]
    assert choose_kinds(NIGHT.kinds, None) == NIGHT.kinds
    with pytest.raises(BadInput, match="the night has no stage fold; it has features, scan, train-first, select"):
        choose_kinds(NIGHT.kinds, ["scan", "fold"])


@pytest.mark.parametrize(("shards", "merges"), [(1, 1), (8, 1), (9, 2 + 1), (1_000, 125 + 16 + 2 + 1)])
def test_count_merges__is_a_tree_of_eight_and_its_root(shards, merges):
    assert count_merges(shards) == merges


def test_model_night__shares_what_grows_and_adds_the_rest():
    model = model_night(NIGHT, 100, rounds=2, besides=0.0)
    load = workload_of(50_000_000, 1_000)
    n_tasks = model.tasks(load)
    assert n_tasks == 1_000 + 250 + 1 + 70 + 2 * (100 + count_merges(100))
    # 2,000 s of features and 250 s of scans by 64 workers, two rounds of 500 s, and 3 s and 20 · 0.01 s alone.
    planned = model.seconds(load, 64)
    assert planned == pytest.approx(2_250 / 64 + 1_000 / 64 + 3.2)
    # A thousand workers find the scheduler busy, and shards for a hundred of them.
    assert model.seconds(load, 1_000) == pytest.approx(2.25 + 10.0 + 3.2)
    assert SECONDS_PER_TASK * n_tasks < 12.25
    whole = model_night(NIGHT, 100, rounds=10, besides=7.0)
    assert whole.seconds(load, 64) == pytest.approx(2_250 / 64 + 5_000 / 64 + 3.2 + 7.0)


def test_plan_site__fewer_larger_partitions_leave_the_scheduler_room_for_more_workers():
    model = model_night(NIGHT, 1_000, rounds=10, besides=0.0)
    small, large = (plan_site(model, 10**9, per_partition) for per_partition in (50_000, 500_000))
    assert small["tasks"] == 20_000 * 1.25 + 1 + 70 + 10 * (1_000 + 144)
    assert large["tasks"] == 2_000 * 1.25 + 1 + 70 + 10 * (1_000 + 144)
    # 2.25 s and ten rounds of half a second for 50,000 users each.
    work = 20_000 * 7.25
    assert small["seconds"][64] == large["seconds"][64] == pytest.approx(work / 64 + 3.2)
    assert small["most_workers"] == int(work / (SECONDS_PER_TASK * small["tasks"]))
    assert large["most_workers"] == 2_000  # as many as partitions
    assert large["worker_bytes"] > small["worker_bytes"]


def test_draw_scale__has_the_curves_and_the_night_that_was_slept():
    curve = {count: 1_000.0 / count for count in CURVE_WORKERS}
    results = {
        "curves": [{"users": 10**power, "per_partition": 50_000, "seconds": curve} for power in (6, 7)],
        "partitions": 100, "night": {"partition_users": 50_000},
        "workers": 64, "planned": 30.0, "seconds": 33.0, "machine": "2 cores",
    }  # fmt: skip
    picture = str(draw_scale(results))
    for name in ("1,000,000 in 50,000s", "10,000,000 in 50,000s", "5,000,000, by the model", "5,000,000, asleep"):
        assert name in picture
    assert picture.count("<polyline") == 4


def test_model_night__chances_look_at_no_more_users_than_are_enough():
    night = replace(NIGHT, kinds=(TaskKind("chances", 1.0, 2.0),), rounds=0)
    model = model_night(night, 100, rounds=0, besides=0.0)
    # 4 million cells of a tenth of the users and 50 categories are 800,000 users.
    many, more = (model.seconds(workload_of(users, 1_000), 1) for users in (800_000, 8_000_000))
    assert many == more == pytest.approx(800_000 / 50_000 * 2.0)
