"""Tasks of workers that only sleep: all of a night is real but its kernels."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import ammrank_dask.runtime.tasks  # noqa: F401  (what every task needs: workers import it once, before they are forked)
from ammrank_dask.training.learners import Learner
from ammrank_dask.training.round_tasks import FIRST_PASS, train_shard
from ammrank_dask.training.shards import RowBlock


def sleep_task(seconds: float, payload: bytes) -> bytes:
    """Sleep, and return as many bytes as came."""
    time.sleep(seconds)
    return payload


def sleep_shard(
    seconds: float, checkpoint: Path, blocks: list[RowBlock], learner: Learner, epoch: int, births: bool, output: Path
) -> None:
    """Read a model, sleep, and write a model, as the training of a shard does; the first pass is a real one."""
    if epoch == FIRST_PASS:
        train_shard(checkpoint, blocks, learner, epoch, births, output)
        return
    state: Any = learner.load(checkpoint)
    time.sleep(seconds)
    mean: Any = learner.empty_mean()
    learner.save(output, state, mean)
