"""Choose on validation users, on the cluster, how closely AMM-rank-plus follows its training rows."""

from __future__ import annotations

import logging
import shutil
import uuid
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from distributed import Client

from ammrank_dask.features.store import Features
from ammrank_dask.model.amm_rank_plus import AMMRankPlus
from ammrank_dask.model.held_out_fit import FITS, MOST_ROWS, USUAL, prefer_usual
from ammrank_dask.storage.errors import TooFewUsers
from ammrank_dask.tasks import Progress, run_tasks, silent
from ammrank_dask.training.tune import SampleSize, measure_setting, plus_parameters, prepare_sample

logger = logging.getLogger(__name__)

FEWEST_USERS = 50
"""With fewer validation users nothing is chosen. Fewer than a grid takes: of two other fits, not of seven other
settings, one may look better by chance."""
_ALL = SampleSize(parts=1, fewest=1, most=MOST_ROWS + 1)
"""All training rows, or one more than there may be."""


@dataclass(frozen=True)
class FitTrial:
    """The fit that was chosen, and the mean error of every fit that was tried on so many validation users.

    Nothing is tried with more than 10,000 training rows.
    """

    fit: str
    errors: dict[str, float]
    users: int

    def to_json(self) -> dict[str, Any]:
        """Return the trial as keywords that make it again."""
        return asdict(self)


def follow_rows(parameters: Mapping[str, Any], fit: str, fixed: Collection[str] = ()) -> dict[str, Any]:
    """Return the keywords of `train` as a fit has them; what is `fixed` stays.

    Examples
    --------
    >>> follow_rows({"epochs": 5}, "closer"), follow_rows({"epochs": 5}, "closer", fixed=["epochs"])
    ({'epochs': 20, 'kappa': 0.001}, {'epochs': 5, 'kappa': 0.001})
    """
    usual = AMMRankPlus()
    changed = {
        name: parameters.get(name, getattr(usual, name)) * factor
        for name, factor in FITS[fit].items()
        if name not in fixed
    }
    return {**parameters, **changed}


def try_fits(
    client: Client,
    features: Features,
    *,
    parameters: Mapping[str, Any],
    fixed: Collection[str] = (),
    block_rows: int = 1024,
    variant: str | None = None,
    scratch: str | Path | None = None,
    progress: Progress = silent,
) -> FitTrial:
    """Return how the training rows are to be followed, and the errors behind it.

    Every fit is one task that trains a plain loop on all training rows, at most 10,000; with more of them the usual fit
    stays. It also stays unless another is clearly better on the validation users, as `AMMRankPlus` has it for rows that
    it holds out.

    Parameters
    ----------
    parameters
        Those of `AMMRankPlus` that differ from its own; the fits change some of them.
    fixed
        Those of κ and `epochs` that no fit may change; with both there is no closer fit.
    block_rows, variant, scratch
        As in `train`, for which the fit is chosen.
    """
    tried = {fit: follow_rows(parameters, fit, fixed) for fit in FITS if fit == USUAL or set(FITS[fit]) - set(fixed)}
    if len(features.categories) < 2:
        raise TooFewUsers("no validation user prefers one category over another")
    folder = (Path(scratch) if scratch is not None else features.path.parent) / f".fits-{uuid.uuid4().hex}"
    rest = {"average": True, "n_categories": len(features.categories), **plus_parameters(features, variant, {})}
    try:
        sample = prepare_sample(client, features, variant, False, _ALL, folder, progress)
        if sample.n_rows > MOST_ROWS:
            return FitTrial(USUAL, {}, 0)
        if sample.n_users < FEWEST_USERS:
            raise TooFewUsers(f"{sample.n_users:,} validation users are fewer than {FEWEST_USERS}")
        tasks = [
            (sample.folders, sample.n_rows, block_rows, AMMRankPlus.method, {**rest, **changed})
            for changed in tried.values()
        ]
        units = [sample.n_rows * changed.get("epochs", 1) for changed in tried.values()]
        measured = run_tasks(client, "tune-fits", measure_setting, tasks, progress=progress, units=units)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    errors = dict(zip(tried, measured, strict=True))
    trial = FitTrial(prefer_usual(errors), {fit: float(error.mean()) for fit, error in errors.items()}, sample.n_users)
    logger.info("tried fits on %d rows: %s of %s", sample.n_rows, trial.fit, trial.errors)
    return trial
