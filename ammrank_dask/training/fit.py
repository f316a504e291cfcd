"""Fit an estimator to Dask arrays: their blocks become a features store in scratch, and training makes its rounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from distributed import Client

from ammrank_dask.features.write import write_blocks
from ammrank_dask.model.rows import NO_CATEGORY
from ammrank_dask.model.saved import RankModel
from ammrank_dask.runtime.client import current_client
from ammrank_dask.runtime.collections import blocks_of, check_blocks, run_blocks, temporary_scratch
from ammrank_dask.runtime.tasks import silent
from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.objects.atomic import digest_of
from ammrank_dask.training.driver import Training, TrainingPlan, Windows


def fit_collections(
    model: RankModel,
    X: Any,
    rankings: Any,
    *,
    client: Client | None = None,
    shards: int = 8,
    scratch: str | Path | None = None,
) -> None:
    """Fit a model to the rows of all blocks, in rounds of `shards`; no row is left out, and nothing is measured.

    One shard walks through pieces of 1,024 rows of each block, as `fit_blocks` does of blocks in memory.
    """
    client = current_client(client)
    check_blocks(X)
    model.check_parameters()
    ranked = blocks_of("rankings", rankings, X)
    n_categories = model.n_categories or 1 + max(run_blocks(client, highest_code, [(one,) for one in ranked]))
    if n_categories < 1:
        raise BadInput(NO_CATEGORY)
    names = [str(code) for code in range(n_categories)]
    columns = [str(column) for column in range(int(X.shape[1]))]
    learner = type(model)(**{**model.get_params(), "n_categories": n_categories})
    plan = TrainingPlan(shards)
    blocks = list(zip(np.ravel(X.to_delayed()), [None] * len(ranked), ranked, strict=True))
    with temporary_scratch(client, scratch) as folder:
        features = write_blocks(folder / "features", client, blocks, columns, names, normalize=False)
        digest = digest_of([features.run.checksums, learner.get_params(), shards])
        windows = Windows(holds_out=False)
        training = Training(client, features, learner, plan, None, folder / "training", silent, windows)
        fitted = training.run(model.average, None, digest)
    for name, value in vars(fitted).items():
        if name.endswith("_"):
            setattr(model, name, value)
    model.categories_, model.columns_ = None, None


def highest_code(rankings: Any, _number: int) -> int:
    """Return the highest code in the rankings of one block, -1 of none."""
    return int(np.max(np.asarray(rankings), initial=-1))
