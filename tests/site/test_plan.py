"""`ammrank plan`: what it reads off the recorded nights of a site, how it scales them, and what it refuses."""

import json

import pytest
from click.testing import CliRunner
from nights import LAKE, config_of, copy_world

from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.site.run_log import read_attempt, write_attempt
from ammrank_dask.workflows.cli import ammrank
from ammrank_dask.workflows.operations.plan import (
    Workload,
    choose_load,
    choose_workers,
    describe_plan,
    plan_lines,
    read_load,
    recorded_nights,
    scale_bytes,
    scale_seconds,
    worker_memory,
)
from ammrank_dask.workflows.session.config import Config, write_config

LAKE_LOAD = Workload(100_000, 4, 50, 60, 2.0)


def plan(*args):
    return CliRunner().invoke(ammrank, ["plan", *map(str, args)])


def night_of(seconds=12.0, users=100_000, workers=2, **stages):
    """The record of a night: what is no stage are seconds between them."""
    return {
        "date": "2026-01-05",
        "seconds": seconds,
        "workers": workers,
        "facts": {"users": users},
        "stages": [{"name": name, "seconds": spent} for name, spent in stages.items()],
        "bytes": {"features": 1_000, "model": 500},
        "runs": {"features": "features/date=2026-01-05-abc", "model": "models/date=2026-01-01-abc"},
    }


def load_of(users=100_000, partitions=4, events=2.0):
    return Workload(users, partitions, 50, 60, events)


@pytest.fixture
def planned_site(published_world, tmp_path):
    site = copy_world(published_world, tmp_path)
    site.config_path.write_text(write_config(config_of(score={"k": 3, "min_score": 0.0})), encoding="utf-8")
    return site


def scale(night, load, workers=2, shards=8):
    return scale_seconds(night, LAKE_LOAD, load, workers, shards)


def test_scale_seconds__users_and_workers_change_the_stages_and_nothing_between_them():
    night = night_of(12.0, features=10.0)
    assert scale(night, load_of()) == pytest.approx(12.0)
    assert scale(night, load_of(users=300_000)) == pytest.approx(2.0 + 30.0)
    assert scale(night, load_of(), workers=4) == pytest.approx(2.0 + 5.0)
    # No stage is wider than its partitions, training no wider than its shards, and no worker publishes.
    assert scale(night, load_of(), workers=100) == pytest.approx(2.0 + 5.0)
    assert scale(night_of(10.0, train=10.0), load_of(), workers=4, shards=3) == pytest.approx(10.0 * 2 / 3)
    assert scale(night_of(10.0, publish=10.0), load_of(), workers=4) == pytest.approx(10.0)


def test_scale_seconds__ingest_follows_the_events_and_the_others_only_to_more():
    busy, quiet = load_of(events=4.0), load_of(events=1.0)
    assert [scale(night_of(10.0, ingest=10.0), load) for load in (busy, quiet)] == pytest.approx([20.0, 5.0])
    assert [scale(night_of(10.0, score=10.0), load) for load in (busy, quiet)] == pytest.approx([20.0, 10.0])


def test_scale_seconds__chances_look_at_no_more_users_than_are_enough():
    # 4 million cells of a tenth of the users and 50 categories are 800,000 users.
    assert scale(night_of(10.0, chances=10.0), load_of(users=400_000)) == pytest.approx(40.0)
    assert scale(night_of(10.0, chances=10.0), load_of(users=8_000_000)) == pytest.approx(80.0)


def test_scale_bytes__counts_the_runs_of_the_night_itself():
    assert scale_bytes(night_of(), load_of(users=300_000)) == 3_000


def test_choose_workers__is_the_fewest_and_says_when_none_is_enough():
    def seconds_of(workers):
        return 3.0 + 20.0 / workers

    assert [choose_workers(seconds_of, load_of(partitions=10), limit) for limit in (13.0, 12.9, 5.0)] == [2, 3, 10]
    sentence = "no cluster runs a night of 100,000 users within 5 s: with a worker for each of 10 partitions"
    with pytest.raises(BadInput, match=sentence):
        choose_workers(seconds_of, load_of(partitions=10), 4.9)


def test_read_load__is_the_lake_of_the_site(published_world):
    load = read_load(published_world, config_of(), 0)
    assert (load.users, load.partitions, load.categories, load.days) == (300, 2, 50, 9)
    assert 0.5 < load.events < 5
    assert choose_load(load, None, None) == load
    grown = choose_load(load, 3_000_000, None)
    assert (grown.users, grown.partitions, grown.events) == (3_000_000, 60, load.events)
    assert choose_load(load, 1_000, 5_000.0).events == 5.0


def test_read_load__without_users_table_are_those_who_were_scored(small_world):
    assert read_load(small_world, config_of(lake={**LAKE, "users": None}), 321).users == 321


def test_plan__scales_the_recorded_nights_of_the_site(planned_site):
    recorded = {kind: len(nights) for kind, nights in recorded_nights(planned_site).items()}
    result = plan(planned_site.path, "--json")
    assert result.exit_code == 0, result.stderr
    same = json.loads(result.stdout)
    assert {kind: night["records"] for kind, night in same["nights"].items()} == recorded
    oldest = recorded_nights(planned_site)["oldest night"][0]
    assert same["nights"]["oldest night"]["seconds"] == pytest.approx(oldest["seconds"], abs=0.06)
    assert same["workers"] == oldest["workers"] > 0
    grown = json.loads(plan(planned_site.path, "--users", 30_000, "--workers", 1, "--json").stdout)
    assert grown["nights"]["oldest night"]["bytes"] == pytest.approx(
        100 * same["nights"]["oldest night"]["bytes"], abs=100
    )
    assert grown["nights"]["oldest night"]["seconds"] > 10 * same["nights"]["oldest night"]["seconds"]
    lines = plan(planned_site.path, "--users", 30_000).stdout
    assert "oldest night" in lines
    assert "memory of a worker" in lines


def test_recorded_nights__are_told_apart_by_training_and_unfinished_ones_left_out(planned_site):
    template = recorded_nights(planned_site)["oldest night"][0]
    kinds = {
        "2030-01-01": ("done", ["ingest", "score"]),
        "2030-01-02": ("done", ["ingest", "train", "score"]),
        "2030-01-03": ("failed", ["ingest"]),
        "2030-01-04": ("done", ["ingest", "score"]),
    }
    for date, (status, stages) in kinds.items():
        named = [{"name": name, "seconds": 1.0} for name in stages]
        record = {**template, "date": date, "status": status, "stages": named, "seconds": 5.0}
        write_attempt(planned_site.path / "runs" / f"date={date}", record)
    found = {kind: [night["date"] for night in nights] for kind, nights in recorded_nights(planned_site).items()}
    assert found["oldest night"] == [template["date"]]
    assert found["night that trains"][-1:] == ["2030-01-02"]
    assert found["other night"][-2:] == ["2030-01-01", "2030-01-04"]


def test_plan__a_deadline_is_met_by_the_workers_it_names(planned_site):
    recorded = describe_plan(planned_site, config_of(), users=1_000_000)
    kinds = [kind for kind in recorded["nights"] if kind != "oldest night"] or ["oldest night"]
    wide = describe_plan(planned_site, config_of(), users=1_000_000, workers=recorded["partitions"])
    limit = 1.5 * max(wide["nights"][kind]["seconds"] for kind in kinds)
    workers = describe_plan(planned_site, config_of(), users=1_000_000, deadline=limit)["workers"]
    for count, is_enough in ((workers, True), (workers - 1, False)):
        found = describe_plan(planned_site, config_of(), users=1_000_000, workers=count)
        assert all(found["nights"][kind]["seconds"] <= limit for kind in kinds) is is_enough
    assert plan_lines(found)["workers"] == f"{workers - 1:,}"


def test_plan__a_site_without_nights_is_told_where_figures_are(small_world, tmp_path):
    site = copy_world(small_world, tmp_path)
    site.config_path.write_text(write_config(config_of()), encoding="utf-8")
    result = plan(site.path)
    assert result.exit_code == 65
    assert "a plan scales the recorded nights of a site" in result.stderr
    assert "or see the table under `Time, disk and memory` in docs/sizing.md" in result.stderr


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["--users", 0], "a plan needs at least 1 user and 1 event per day, got 0 and 0"),
        (["--users", 10, "--events-per-day", -5], "got 10 and -5"),
        (["--users", 1_000_000, "--deadline", 0], "no cluster runs a night of 1,000,000 users within 0 s"),
    ],
)
def test_plan__refuses_sizes_that_no_site_has(planned_site, args, sentence):
    result = plan(planned_site.path, *args)
    assert result.exit_code == 65
    assert sentence in result.stderr


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        ([], "Missing argument 'SITE'"),
        (["site", "--workers", 2, "--deadline", 60], "give --workers, or --deadline to learn how many, not both"),
        (["site", "--categories", 300], "No such option '--categories'"),
        (["site", "--days", 60], "No such option '--days'"),
        (["site", "--cluster", "cluster.yaml"], "No such option '--cluster'"),
    ],
)
def test_plan__usage_errors(args, sentence):
    result = plan(*args)
    assert result.exit_code == 2
    assert sentence in result.stderr


def test_worker_memory__falls_with_partitions_and_grows_with_categories():
    load = Workload(1_000_000, 20, 50, 60, 1.5)
    more = Workload(1_000_000, 40, 50, 60, 1.5)
    wider = Workload(1_000_000, 20, 1_000, 60, 1.5)
    assert worker_memory(more, Config()) < worker_memory(load, Config()) < worker_memory(wider, Config())


def test_record__has_the_workers_of_a_night(published_world):
    current = published_world.current()
    assert read_attempt(published_world.run_folder(current.date))["workers"] >= 1
