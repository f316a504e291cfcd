"""AMM-rank on Dask: the method, its numba kernels, and for every stage a block function and its driver.

The public names are imported when they are first used, so that `import ammrank_dask` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ammrank_dask.evaluation.cross_validate import cross_validate
    from ammrank_dask.features.from_pandas import click_rankings, interest_features
    from ammrank_dask.features.store import Features, open_features
    from ammrank_dask.features.write import write_features
    from ammrank_dask.model.amm_rank import AMM, AMMRank
    from ammrank_dask.model.amm_rank_plus import AMMRankPlus
    from ammrank_dask.model.metrics import disagreement_error, top_k_metrics
    from ammrank_dask.report.summary import exposure_report
    from ammrank_dask.scoring.learn_chances import learn_chances
    from ammrank_dask.scoring.qualifications import Qualifications, open_qualifications
    from ammrank_dask.scoring.score import score
    from ammrank_dask.scoring.settings import ScoreSettings
    from ammrank_dask.simulation.simulate import simulate
    from ammrank_dask.training.train import TrainSettings, train
    from ammrank_dask.training.tune import tune

_HOMES = {
    "AMM": "model.amm_rank",
    "AMMRank": "model.amm_rank",
    "AMMRankPlus": "model.amm_rank_plus",
    "Features": "features.store",
    "Qualifications": "scoring.qualifications",
    "ScoreSettings": "scoring.settings",
    "TrainSettings": "training.train",
    "click_rankings": "features.from_pandas",
    "cross_validate": "evaluation.cross_validate",
    "disagreement_error": "model.metrics",
    "exposure_report": "report.summary",
    "interest_features": "features.from_pandas",
    "learn_chances": "scoring.learn_chances",
    "open_features": "features.store",
    "open_qualifications": "scoring.qualifications",
    "score": "scoring.score",
    "simulate": "simulation.simulate",
    "top_k_metrics": "model.metrics",
    "train": "training.train",
    "tune": "training.tune",
    "write_features": "features.write",
}

__all__ = [
    "AMM",
    "AMMRank",
    "AMMRankPlus",
    "Features",
    "Qualifications",
    "ScoreSettings",
    "TrainSettings",
    "click_rankings",
    "cross_validate",
    "disagreement_error",
    "exposure_report",
    "interest_features",
    "learn_chances",
    "open_features",
    "open_qualifications",
    "score",
    "simulate",
    "top_k_metrics",
    "train",
    "tune",
    "write_features",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
