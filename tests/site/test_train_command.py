"""`ammrank train` on a small site: tuning, and the model that a training begins with."""

import json
from pathlib import Path

from click.testing import CliRunner
from nights import config_of, day

from ammrank_dask.storage.store.runs import open_run
from ammrank_dask.workflows.session.config import write_config
from ammrank_dask.workflows.session.night import Night
from ammrank_dask.workflows.stages.features import training_features
from ammrank_dask.workflows.stages.ingest import ingest
from ammrank_dask.workflows.stages.nightly import nightly
from ammrank_dask.workflows.stages.train import train_model
from ammrank_dask.workflows.train import command

TRAIN = {"model": "amm-rank", "epochs": 1, "shards": 2}


def test_train__tunes_prints_the_table_and_trains_with_the_best(cluster_file, empty_site):
    empty_site.config_path.write_text(write_config(config_of(train=TRAIN)), encoding="utf-8")
    arguments = [str(empty_site.path), "--date", str(day(5)), "--tune", "--cluster", str(cluster_file)]
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    header = next(i for i, line in enumerate(lines) if line.split()[:2] == ["max_planes", "regularization"])
    table = [line.split() for line in lines[header + 1 :] if "±" in line]
    assert 25 <= len(table) <= 29  # the grid, and what lies beyond where the best one was at its edge
    best = next(row for row in table if row[-1] == "*")
    facts = dict(line.split(maxsplit=1) for line in lines if line.startswith("train."))
    chosen = {name: float(facts[f"train.{name}"]) for name in ("max_planes", "regularization")}
    assert [float(cell) for cell in best[:2]] == [chosen["max_planes"], chosen["regularization"]]
    config = open_run(empty_site.finished_runs("models")[-1], "model").manifest["config"]
    assert {name: config[name] for name in chosen} == chosen
    again = json.loads(CliRunner().invoke(command, [*arguments, "--json"]).stdout.splitlines()[-1])
    assert len(again["tuning"]) == len(table)


def test_train_model__begins_with_the_model_given_if_told_so(client, empty_site):
    def train_on(date, start=None, **options):
        night = Night(client, empty_site, config_of(train={**TRAIN, **options}), date)
        ingested = ingest(night)
        return train_model(night, ingested, training_features(night, ingested), start=start)

    first = train_on(day(5))
    warm = train_on(day(6), start=first, warm_start=True)
    cold = train_on(day(6), start=first)
    assert first.manifest["inputs"]["start"] is None
    assert warm.manifest["inputs"]["start"] == first.digest
    assert cold.manifest["inputs"]["start"] is None
    assert warm.digest != cold.digest


def test_train__what_was_tuned_counts_once_it_is_in_the_config(client, cluster_file, empty_site):
    config = config_of(train={"epochs": 1, "shards": 2, "kappa": 0.3})
    empty_site.config_path.write_text(write_config(config), encoding="utf-8")
    arguments = [str(empty_site.path), "--date", str(day(4)), "--cluster", str(cluster_file), "--quiet"]
    tuned = CliRunner().invoke(command, [*arguments, "--tune", "--json"])
    assert tuned.exit_code == 0, tuned.output
    facts = json.loads(tuned.stdout.splitlines()[-1])
    assert facts["next"] == (
        f"set train.clickers_per_plane and train.kappa in {empty_site.config_path}: later nights train with what is set"
    )
    assert 0 < facts["popularity error"] < 0.5
    best = {name: facts[f"train.{name}"] for name in ("kappa", "clickers_per_plane")}
    model = open_run(Path(facts["model"]), "model").manifest
    assert {name: model["config"][name] for name in best} == best
    assert best["kappa"] != 0.3

    def parameters_of_night(number, **train):
        night = Night(
            client, empty_site, config_of(train={"epochs": 1, "shards": 2, "every_nights": 1, **train}), day(number)
        )
        assert "parameters" not in nightly(night)
        return open_run(empty_site.finished_runs("models")[-1], "model").manifest["config"]

    assert parameters_of_night(5, kappa=0.3)["kappa"] == 0.3
    assert not set(best) & set(parameters_of_night(6))
    assert not Path(facts["model"]).exists()  # nothing needs it
    assert {name: parameters_of_night(7, **best)[name] for name in best} == best
