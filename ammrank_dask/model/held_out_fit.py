"""Choose on held-out rows how closely AMM-rank-plus follows its training rows.

That depends on how much of the clicks is chance, which no count of rows or clickers tells. Where what a row ranks
follows from its columns, a closer fit has the lower error; where most of it is chance, a looser one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ammrank_dask.model.estimator import RankingEstimator
from ammrank_dask.model.halving import are_clear
from ammrank_dask.model.metrics import disagreement_errors
from ammrank_dask.model.rows import Blocks, as_csr

USUAL = "usual"
FITS: dict[str, dict[str, float]] = {
    USUAL: {},
    "closer": {"kappa": 0.2, "epochs": 4},
    "looser": {"pace": 1 / 3},
}
"""By what the parameters of the model are multiplied."""
CLEAR = {"closer": 1.0, "looser": 2.0}
"""Standard errors by which a fit must be better than the usual one. Fewer rows want a looser fit, and a trial has a
fourth less of them: what looks looser there must be so beyond doubt."""
FEWEST_ROWS, MOST_ROWS = 100, 10_000
"""Training rows from which, and up to which, there is a choice: more of them take longer, and want it less."""
_PARTS, _SPLIT = 4, 2**30
"""One of so many rows is held out."""


def change_parameters(parameters: Mapping[str, Any], fit: str) -> dict[str, Any]:
    """Return parameters of AMM-rank-plus as a fit has them, with nothing left to choose.

    Examples
    --------
    >>> change_parameters({"kappa": 0.005, "epochs": 5, "pace": 1.0, "hold_out": True}, "closer")
    {'kappa': 0.001, 'epochs': 20, 'pace': 1.0, 'hold_out': False}
    """
    changed = {name: parameters[name] * factor for name, factor in FITS[fit].items()}
    return {**parameters, **changed, "hold_out": False}


def split_blocks(blocks: Blocks, seed: int) -> tuple[list[Any], list[Any]] | None:
    """Return the rows with a ranking in two parts, to learn from and held out; None with too few or too many of them.

    A row is dealt by (seed, block) and its place in the block.
    """
    learnt, held_out, n_rows = [], [], 0
    for block in range(len(blocks)):
        X, rankings, *tied = blocks[block]
        rankings = np.asarray(rankings)
        labelled = np.any(rankings >= 0, axis=1)
        n_rows += int(labelled.sum())
        if n_rows > MOST_ROWS:
            return None
        is_held_out = np.random.default_rng([seed, _SPLIT, block]).integers(0, _PARTS, len(rankings)) == 0
        arrays = (as_csr(X), rankings, *tied)
        learnt.append(tuple(array[labelled & ~is_held_out] for array in arrays))
        held_out.append(tuple(array[labelled & is_held_out] for array in arrays))
    return None if n_rows < FEWEST_ROWS else (learnt, held_out)


def choose_fit(models: Mapping[str, RankingEstimator], held_out: Sequence[Any]) -> str:
    """Return the name of the model with the least error of those that are clearly better than the usual one, or that.

    Parameters
    ----------
    models
        Fitted models by name.
    held_out
        Blocks of (X, rankings) or (X, rankings, tied).
    """
    return prefer_usual({name: _errors_of(model, held_out) for name, model in models.items()})


def prefer_usual(errors: Mapping[str, np.ndarray]) -> str:
    """Return the fit with the least error of those that are clearly better than the usual one, or that.

    Parameters
    ----------
    errors
        By fit, the usual one among them, the error of each held-out row, (n,).

    Examples
    --------
    >>> prefer_usual({"usual": np.array([0.4, 0.5, 0.6]), "closer": np.array([0.3, 0.4, 0.4])})
    'closer'
    """
    others = [name for name in errors if name != USUAL]
    clear = [name for name in others if are_clear(errors[USUAL] - errors[name], CLEAR[name])]
    return min(clear, key=lambda name: float(errors[name].mean()), default=USUAL)


def _errors_of(model: RankingEstimator, blocks: Sequence[Any]) -> np.ndarray:
    parts = [disagreement_errors(model.decision_function(X), *labels) for X, *labels in blocks if X.shape[0]]
    errors = np.concatenate([np.zeros(0), *parts])
    return errors[~np.isnan(errors)]
