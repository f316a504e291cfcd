"""Fit methods on the rows of an earlier label window, and describe how sources rank the clicks of the last one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ammrank_dask.features.store import Features, open_features
from ammrank_dask.methods.registry import Setting, build_method
from ammrank_dask.model.estimator import RankingEstimator
from ammrank_dask.training.forward import MEASURES, ForwardResult
from ammrank_dask.training.own_parameters import own_parameters

SIMPLE_METHODS = ("own-logit", "item-knn")
"""Methods that one pass over the rows of a window fits, with nothing to choose."""


class PartitionBlocks:
    """The rows of features as blocks, one for each partition, read whenever it is asked for."""

    def __init__(self, features: Features, variant: str | None, *, normalize: bool | None) -> None:
        self.features, self.variant, self.normalize = features, variant, normalize

    def __len__(self) -> int:
        return self.features.n_partitions

    def __getitem__(self, block: int) -> tuple[Any, np.ndarray]:
        part = self.features.partition(block, variant=self.variant, normalize=self.normalize)
        assert part.rankings is not None  # a window has labels
        return part.X, part.rankings


def fit_on_window(name: str, features_path: Path, variant: str | None, seed: int) -> RankingEstimator | None:
    """Return a method with its defaults, fitted on all rows of a window; None if it cannot be."""
    features = open_features(features_path)
    setting = Setting(features.n_users, features.n_categories, seed=seed, **own_parameters(features, variant))
    method = build_method(name, {}, setting)
    try:
        method.fit_blocks(PartitionBlocks(features, variant, normalize=method.normalize_rows))
    except ValueError:
        return None
    method.variant_ = variant
    return method


def describe_sources(result: ForwardResult) -> dict[str, Any]:
    """Return a result for `evaluation.json`: by source each measure, and what it is above that of the first source."""
    reference = next(iter(result.sums))
    sources: dict[str, dict[str, Any]] = {}
    for name in result.sums:
        sources[name] = {measure: {"mean": result.mean(name, measure)} for measure in MEASURES}
        if name != reference:
            for measure, entry in sources[name].items():
                gain, entry["standard_error"] = result.gain(name, measure)
                entry["difference"] = -gain
    return {"users": result.n_users, "k": result.k, "reference": reference, "sources": sources}
