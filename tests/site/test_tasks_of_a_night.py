"""How many tasks a night has: the scheduler does one after the other, so they bound how many workers are of use."""

from nights import config_of, day, simulate_world
from stages import watch_stages

from ammrank_dask.scoring import score_passes
from ammrank_dask.workflows.session.night import Night
from ammrank_dask.workflows.stages.nightly import nightly

N_PARTITIONS, N_USERS = 24, 480
MOST_A_PARTITION = 10


def test_nightly__has_few_tasks_for_each_partition(client, tmp_path, monkeypatch):
    site = simulate_world(client, tmp_path, users=N_USERS)
    train = {"epochs": 1, "every_nights": 1, "shards": 2}
    config = config_of(partitions=N_PARTITIONS, train=train, gate={"forward": False, "min_users": 1})
    # As much work as one of 50,000 users has: where partitions are small more go together.
    monkeypatch.setattr(score_passes, "USERS_OF_TASK", N_USERS / N_PARTITIONS)
    nightly(Night(client, site, config, day(6)))
    counts = watch_stages(monkeypatch)
    nightly(Night(client, site, config, day(7)))
    n_tasks = {stage: sum(runs) for stage, runs in counts.items() if not stage.startswith("train-e")}
    assert {"fold", "features", "train-memberships", "gate", "by-category", "drift"} <= set(n_tasks)
    assert sum(n_tasks.values()) <= MOST_A_PARTITION * N_PARTITIONS, n_tasks
