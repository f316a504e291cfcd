"""`ammrank train` on a small site: tuning, and the model that a training begins with."""

import datetime as dt
import json

import pytest
from click.testing import CliRunner
from distributed import Client, LocalCluster

from ammrank_dask.simulation.simulate import simulate
from ammrank_dask.storage.site.site import Site
from ammrank_dask.storage.store.runs import open_run
from ammrank_dask.workflows.session.config import check_config
from ammrank_dask.workflows.session.night import Night
from ammrank_dask.workflows.stages.features import training_features
from ammrank_dask.workflows.stages.ingest import ingest
from ammrank_dask.workflows.stages.train import train_model
from ammrank_dask.workflows.train import command

FIRST = dt.date(2026, 1, 5)
CONFIG = {
    "label": {"days": 3, "min_categories": 1},
    "features": {"min_days": 1},
    "train": {"epochs": 1, "shards": 2},
    "partitions": 2,
}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("train")
    with (
        LocalCluster(n_workers=1, threads_per_worker=2, processes=False, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        simulate(client, folder / "lake", truth=folder / "truth", users=400, days=7, seed=3, start=FIRST)
    (folder / "site").mkdir()
    (folder / "site" / "ammrank.yaml").write_text(json.dumps(content_of(folder)), encoding="utf-8")
    return Site(folder / "site")


def content_of(folder, **training):
    lake = {"events": "events", "users": "users.parquet", "taxonomy": "taxonomy.csv"}
    places = {name: str(folder / "lake" / file) for name, file in lake.items()}
    return {**CONFIG, "lake": places, "train": {**CONFIG["train"], **training}}


def test_train__tunes_prints_the_table_and_trains_with_the_best(site):
    arguments = [str(site.path), "--date", str(FIRST + dt.timedelta(5)), "--tune"]
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    header = next(i for i, line in enumerate(lines) if line.split()[:2] == ["rung", "rows"])
    table = [line.split() for line in lines[header + 1 :] if line.split()[0] in {"1", "2", "3"}]
    assert len(table) == 25 + 9 + 3
    best = next(row for row in table if row[0] == "3" and row[-1] == "*")
    facts = dict(line.split(maxsplit=1) for line in lines if line.startswith("train."))
    chosen = {name: float(facts[f"train.{name}"]) for name in ("max_planes", "regularization")}
    assert [float(cell) for cell in best[2:4]] == [chosen["max_planes"], chosen["regularization"]]
    config = open_run(site.finished_runs("models")[-1], "model").manifest["config"]
    assert {name: config[name] for name in chosen} == chosen
    again = json.loads(CliRunner().invoke(command, [*arguments, "--json"]).stdout.splitlines()[-1])
    assert len(again["tuning"]) == len(table)


def test_train_model__begins_with_the_model_given_unless_told_otherwise(site):
    before, date = FIRST + dt.timedelta(5), FIRST + dt.timedelta(6)
    with (
        LocalCluster(n_workers=1, threads_per_worker=2, processes=False, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        warm_config = check_config(content_of(site.path.parent), "test")
        cold_config = check_config(content_of(site.path.parent, warm_start=False), "test")
        known = ingest(Night(client, site, warm_config, before))
        first = train_model(
            Night(client, site, warm_config, known.date),
            known,
            training_features(Night(client, site, warm_config, known.date), known),
        )
        known = ingest(Night(client, site, warm_config, date))
        warm = train_model(
            Night(client, site, warm_config, known.date),
            known,
            training_features(Night(client, site, warm_config, known.date), known),
            start=first,
        )
        cold = train_model(
            Night(client, site, cold_config, known.date),
            known,
            training_features(Night(client, site, cold_config, known.date), known),
            start=first,
        )
    assert first.manifest["inputs"]["start"] is None
    assert warm.manifest["inputs"]["start"] == first.digest
    assert cold.manifest["inputs"]["start"] is None
    assert warm.digest != cold.digest
