"""Load a saved model whatever its kind, and keep models in the form of the scoring kernels between tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeAlias

from ammrank_dask.model.amm_rank import AMMRank
from ammrank_dask.model.amm_rank_plus import AMMRankPlus
from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.store.models import read_model

RankModel: TypeAlias = AMMRank | AMMRankPlus
"""A model that nights train and score with."""

MODELS: dict[str, type[RankModel]] = {AMMRank.method: AMMRank, AMMRankPlus.method: AMMRankPlus}


def make_model(kind: str, **parameters: Any) -> RankModel:
    """Return an unfitted model of a kind."""
    if kind not in MODELS:
        raise BadInput(f"model must be one of {', '.join(MODELS)}, got {kind}")
    return MODELS[kind](**parameters)


def load_model(path: str | Path) -> RankModel:
    """Read a model that `save` wrote; the folder names its kind."""
    method = read_model(path)[1].get("model")
    if method not in MODELS:
        raise BadInput(f"model at {path} must be of {' or '.join(MODELS)}, got {method}")
    return MODELS[method].load(path)
