"""`ammrank plan`: what it refuses, what it reads off a site, and a calibration for real."""

import contextlib
import json

import pytest
from click.testing import CliRunner
from nights import LAKE, config_of, copy_world

from ammrank_dask import sizing
from ammrank_dask.sizing import Calibration, NightFit, SizeFit, Workload
from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.store.runs import open_run
from ammrank_dask.workflows.cli import ammrank
from ammrank_dask.workflows.session.config import Config, write_config
from ammrank_dask.workflows.stages import plan as stages_plan
from ammrank_dask.workflows.stages.plan import (
    calibrate,
    choose_load,
    choose_workers,
    describe_plan,
    plan_lines,
    worker_memory,
    world_config,
)

NOTHING = SizeFit(0.0, 0.0, 0.0)
SIZE = {"users": 1_000_000, "events": 1_500_000.0, "categories": 50, "days": 60}


def plan(*args):
    return CliRunner().invoke(ammrank, ["plan", *map(str, args)])


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["--users", 0, "--events-per-day", 10], "got 0 users, 10 events a day, 50 categories and 60 days"),
        (
            ["--users", 10, "--events-per-day", 10, "--days", -3],
            "50 categories and -3 days",
        ),
        (["--users", 10, "--events-per-day", -1], "got 10 users, -1 events a day"),
        (["--users", 10], "a plan needs a SITE, or --users and --events-per-day"),
    ],
)
def test_plan__refuses_sizes_that_no_site_has_before_a_cluster_starts(args, sentence):
    result = plan(*args)
    assert result.exit_code == 65
    assert sentence in result.stderr


def test_choose_load__reads_the_lake_of_a_site(published_world):
    load = choose_load(published_world, config_of(), users=None, events=None, categories=None, days=None)
    assert (load.users, load.partitions, load.days) == (300, 2, 9)
    assert load.categories == 50
    assert 0.5 < load.events < 5
    grown = choose_load(published_world, config_of(), users=3_000_000, events=None, categories=None, days=None)
    assert grown.events == pytest.approx(load.events)
    assert grown.partitions == 60


def test_choose_load__a_lake_without_users_table_is_as_large_as_what_is_published(published_world, small_world):
    config = config_of(lake={**LAKE, "users": None})
    load = choose_load(published_world, config, users=None, events=None, categories=None, days=None)
    head = open_run(published_world.path / published_world.current().runs["head"])
    assert load.users == sum(part.rows for part in head.parts) > 200
    with pytest.raises(BadInput, match="no users table, and nothing published yet that says how many; add --users"):
        choose_load(small_world, config, users=None, events=None, categories=None, days=None)
    told = choose_load(small_world, config, users=500, events=None, categories=None, days=None)
    assert told.users * told.events == pytest.approx(load.users * load.events)


def test_choose_workers__says_when_no_cluster_meets_the_deadline():
    night = NightFit({"features": SizeFit(3.0, 0.0, 1e-4)}, NOTHING, NOTHING, NOTHING)
    calibration = Calibration(2, 8, Workload(3_000, 8, 50, 60, 1.5), night, night)
    load = choose_load(None, Config(), **SIZE)
    assert choose_workers(calibration, load, 103.0) == 2
    with pytest.raises(BadInput, match="no cluster runs a further night of 1,000,000 users within 4 s: with"):
        choose_workers(calibration, load, 4.0)


def test_describe_plan__names_what_ends_growth():
    size = SizeFit(0.0, 0.0, 1_000.0)
    night = NightFit({"features": SizeFit(3.0, 0.0, 1e-4)}, size, NOTHING, NOTHING)
    calibration = Calibration(2, 8, Workload(3_000, 8, 50, 60, 1.5), night, night)
    load = choose_load(None, Config(), **SIZE)
    found = describe_plan(calibration, load, Config(), workers=4, memory_limit=100 << 20, free=10**9)
    assert found["first night"] == {"seconds": 53.0, "disk": 10**9, "files": 0, "tasks": 0}
    assert "enough for 1,000,000 users" in found["limits"]["disk"]
    assert "too little" in found["limits"]["memory"]
    assert "3.0 s of the first night" in found["limits"]["one after the other"]
    assert plan_lines(found)["first night"] == "53 s, 0.93 GiB, 0 files, 0 tasks"


def test_worker_memory__falls_with_partitions_and_grows_with_categories():
    load = choose_load(None, Config(), **SIZE)
    more = Workload(load.users, 2 * load.partitions, load.categories, load.days, load.events)
    wider = Workload(load.users, load.partitions, 1_000, load.days, load.events)
    assert worker_memory(more, Config()) < worker_memory(load, Config()) < worker_memory(wider, Config())


def test_plan__measures_small_nights_and_plans_with_them(cluster_file, published_world, monkeypatch, tmp_path):
    """The whole command, with sizes that a test can wait for."""
    for name, size in {
        "SMALL": (100, 2),
        "MORE_PARTITIONS": (100, 4),
        "MORE_USERS": (200, 2),
        "MANY_USERS": (400, 2),
    }.items():
        monkeypatch.setattr(sizing, name, size)
        monkeypatch.setattr(stages_plan, name, size)
    site = copy_world(published_world, tmp_path)
    site.config_path.write_text(write_config(config_of(score={"k": 3, "min_score": 0.0})), encoding="utf-8")
    (tmp_path / "work").mkdir()
    result = plan(
        site.path, "--users", 30_000, "--events-per-day", 50_000, "--days", 5, "--cluster", cluster_file,
        "--work", tmp_path / "work", "--json", "--quiet",
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["first night"]["seconds"] > 0
    assert found["first night"]["disk"] > 10_000
    assert found["first night"]["tasks"] > 20
    assert found["further night"]["files"] > 0
    assert list((tmp_path / "work").iterdir()) == []


def test_calibrate__new_workers_load_their_kernels_first(monkeypatch, tmp_path):
    """What a small night takes longer with a cluster of its own is in every plan, whatever the size."""

    def measure(open_client, folder, lake, partitions, config, days):
        with open_client() as kind:
            seconds = 3.5 if kind == "new" else 1.0
        return [{"seconds": {"features": seconds}, "bytes": 1, "files": 1, "tasks": 1}] * 2

    monkeypatch.setattr(stages_plan, "simulate", lambda *given, **options: None)
    monkeypatch.setattr(stages_plan, "measure_nights", measure)
    monkeypatch.setattr(stages_plan, "workers_of", lambda client: [{"nthreads": 2}])
    load = choose_load(None, Config(), **SIZE)
    for open_client, start in ((lambda: contextlib.nullcontext("new"), 2.5), (None, 0.0)):
        calibration = calibrate("there", tmp_path, load, Config(), None, open_client)
        assert (calibration.first.start, calibration.further.start) == (start, start)
        assert calibration.seconds(calibration.first, load, 2) == pytest.approx(1.0 + start, abs=0.01)


def test_world_config__leaves_out_what_only_the_site_can_mean():
    given = config_of(score={"k": 60, "exclude": ["Retail"], "policy": "balanced"}, alpha=0.9)
    own = world_config(given)
    assert (own.score.k, own.score.policy, own.score.exclude) == (50, "user_top_k", [])
    assert (own.alpha, own.label.days, own.train.epochs) == (0.9, 3, 1)
