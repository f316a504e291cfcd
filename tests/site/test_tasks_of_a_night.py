"""How many tasks a night has: the scheduler does one after the other, so they bound how many workers are of use."""

import pytest
from nights import config_of, day, simulate_world
from stages import watch_stages

from ammrank_dask.scoring import score_passes
from ammrank_dask.workflows.session.night import Night
from ammrank_dask.workflows.stages.nightly import nightly

N_PARTITIONS, N_USERS = 12, 240
OF_ONE_SIZE = ("train-sample", "train-centres", "train-e", "select", "balance")
"""Stages whose tasks do not grow with the partitions."""


@pytest.mark.night
def test_nightly__partitions_share_tasks_in_every_stage(client, tmp_path, monkeypatch):
    site = simulate_world(client, tmp_path, users=N_USERS)
    train = {"epochs": 1, "every_nights": 1, "shards": 2}
    config = config_of(partitions=N_PARTITIONS, train=train, gate={"forward": False, "min_users": 1})
    # As much work as one of 50,000 users has: where partitions are small more go together.
    monkeypatch.setattr(score_passes, "USERS_OF_TASK", N_USERS / N_PARTITIONS)
    nightly(Night(client, site, config, day(6)))
    counts = watch_stages(monkeypatch)
    nightly(Night(client, site, config, day(7)))
    grows = {stage: runs for stage, runs in counts.items() if not stage.startswith(OF_ONE_SIZE)}
    assert {"fold", "features", "train-memberships", "gate", "chances", "score", "past-nights"} <= set(grows)
    assert {stage: max(runs) for stage, runs in grows.items() if max(runs) >= N_PARTITIONS} == {}
