"""Compare the lists of a past night with the clicks after it, beside lists that are simpler to make."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from distributed import Client

from ammrank_dask.features.eligibility import group_of
from ammrank_dask.features.store import Features, open_features
from ammrank_dask.kernels.topk import top_k_rows
from ammrank_dask.methods.logistic import Logistic
from ammrank_dask.model.metrics import disagreement_errors
from ammrank_dask.model.saved import load_model
from ammrank_dask.model.simple import own_history_model
from ammrank_dask.runtime.tasks import Progress, run_tasks, silent
from ammrank_dask.storage.errors import TooFewUsers
from ammrank_dask.storage.store.qualifications import QualificationPart
from ammrank_dask.storage.store.scratch_arrays import is_saved, load_array, load_facts, save_arrays
from ammrank_dask.training.forward import (
    OWN_HISTORY,
    POPULARITY,
    VALUE,
    hits_of,
    list_given,
    mean_with_error,
    value_of_hits,
)
from ammrank_dask.training.prepared_rows import TRAIN, VALIDATION, PreparedRows, prepare_rows

POLICY, LOGISTIC = "policy", "lr"
METHODS = (POLICY, OWN_HISTORY, POPULARITY, LOGISTIC)
MEASURES = ("disagreement", "hits", "ndcg", "hit_rate", "recall")
GAIN, STANDARD_ERROR = "gain", "standard_error"
"""Of every method but the policy: by how many hits a user the policy is better, and the standard error of that."""
BLOCK_ROWS = 4096
_USERS, _RANKED, _ERROR, _HITS, _ANY_HIT, _RECALL, _NDCG, _SQUARES, _VALUE = range(9)


@dataclass(frozen=True)
class OutcomeSums:
    """Sums over the users who clicked, by method.

    They are users, those with a pair, errors, hits, users with a hit, recall, NDCG, squares of the difference in hits
    from the policy, and, where it is said what a click is worth, the value of the hits.
    """

    values: Mapping[str, np.ndarray]

    def __add__(self, other: OutcomeSums) -> OutcomeSums:
        """Return the sums over both sets of users."""
        return OutcomeSums({name: sums + other.values[name] for name, sums in self.values.items()})

    @property
    def n_users(self) -> int:
        """Users measured."""
        return int(next(iter(self.values.values()))[_USERS])

    def means(self) -> dict[str, dict[str, float | None]]:
        """Return by method ε_dis, clicked categories among the K, their NDCG, share of users with one, and recall.

        Methods but the policy have `gain` and `standard_error`, too: of the hits of the policy minus their own, user by
        user.
        """
        means = {name: _means(sums) for name, sums in self.values.items()}
        for name in means.keys() - {POLICY}:
            gain, error = None, None
            if self.n_users:
                more = self.values[POLICY][_HITS] - self.values[name][_HITS]
                gain, error = mean_with_error(float(more), float(self.values[name][_SQUARES]), self.n_users)
            means[name] |= {GAIN: gain, STANDARD_ERROR: error}
        return means


def _means(sums: np.ndarray) -> dict[str, float | None]:
    users, ranked = sums[_USERS], sums[_RANKED]
    means = {"disagreement": float(sums[_ERROR] / ranked) if ranked else None}
    for name, column in (("hits", _HITS), ("ndcg", _NDCG), ("hit_rate", _ANY_HIT), ("recall", _RECALL)):
        means[name] = float(sums[column] / users) if users else None
    if len(sums) > _VALUE:
        means[VALUE] = float(sums[_VALUE] / users) if users else None
    return means


def measure_users(
    scores: np.ndarray,
    lists: np.ndarray,
    published: np.ndarray,
    rankings: np.ndarray,
    per_click: np.ndarray | None = None,
) -> np.ndarray:
    """Return the sums of one method over some users, (8,), or (9,) with values.

    Parameters
    ----------
    scores
        (n, L) by which categories are ranked.
    lists
        (n, k) the categories that a user was given, best first, -1 for none.
    published
        (n, k) those of the policy, with whose hits the hits of `lists` are compared.
    rankings
        (n, m) the categories that were clicked, best first, -1 after the last.
    per_click
        (n, L) what a click is worth, None where nobody says.
    """
    errors = disagreement_errors(scores, rankings) if len(rankings) else np.empty(0)
    clicked = _mark(rankings, scores.shape[1])
    hits, ndcg = hits_of(clicked, lists)
    squares = (hits_of(clicked, published)[0] - hits) ** 2
    recall = hits / np.maximum(1, clicked.sum(axis=1))
    return np.array(
        [len(rankings), (~np.isnan(errors)).sum(), np.nansum(errors), hits.sum(), (hits > 0).sum(), recall.sum(),
         ndcg.sum(), squares.sum(),
         *([] if per_click is None else [value_of_hits(clicked, lists, per_click).sum()])],
        np.float64,
    )  # fmt: skip


def list_best(scores: np.ndarray, k: int) -> np.ndarray:
    """Return (n, k) codes: the categories of each row with the highest scores; equal scores: the lower code first."""
    n_rows, n_categories = scores.shape
    k = min(k, n_categories)
    codes = np.empty((n_rows, k), np.int32)
    by_code = np.arange(n_categories, dtype=np.int32)
    top_k_rows(np.ascontiguousarray(scores), by_code, codes, np.empty((n_rows, k), scores.dtype))
    return codes


def _mark(codes: np.ndarray, n_categories: int) -> np.ndarray:
    """Return (n, L + 1) booleans; in the last column, that of the code -1, nothing is marked."""
    marked = np.zeros((len(codes), n_categories + 1), bool)
    np.put_along_axis(marked, codes.astype(np.int64) % (n_categories + 1), True, axis=1)
    marked[:, n_categories] = False
    return marked


@dataclass(frozen=True)
class NightToMeasure:
    """Where the lists of a night and the rivals of its date are stored.

    `n_users` are those that the model was trained on. `clicks` are the training users who clicked each category before
    the night, (L,); `logistic` is the folder that `fit_logistic` returned, None without one; `values` (groups, L) is
    what a click was worth, None where nobody says.
    """

    model: Path
    n_users: int
    parts: Sequence[QualificationPart]
    clicks: np.ndarray
    logistic: Path | None
    variant: str | None
    k: int
    values: np.ndarray | None = None


def measure_outcome(
    client: Client, night: NightToMeasure, outcome: Features, *, progress: Progress = silent
) -> OutcomeSums:
    """Compare a night with the clicks after it, one task per partition.

    Parameters
    ----------
    outcome
        Features at the end of the night of the users who clicked after it, with what they clicked as rankings.
    """
    tasks = [(night, part, outcome.path, number) for number, part in enumerate(night.parts)]
    parts = run_tasks(client, "backtest", measure_outcome_part, tasks, progress=progress)
    return functools.reduce(OutcomeSums.__add__, parts)


def measure_outcome_part(
    night: NightToMeasure, given: QualificationPart, outcome_path: Path, partition: int
) -> OutcomeSums:
    """Return the sums over the users of one partition."""
    features, model = open_features(outcome_path), load_model(night.model)
    part = features.partition(partition, variant=model.variant_, normalize=model.normalize_rows)
    rankings = np.empty((0, 1), np.int32) if part.rankings is None else part.rankings
    n_rows, n_categories = len(rankings), features.n_categories
    clicks = np.ascontiguousarray(np.broadcast_to(night.clicks.astype(np.float64), (n_rows, n_categories)))
    scores = {POLICY: model.decision_function(part.X) if n_rows else np.empty((0, n_categories)), POPULARITY: clicks}
    lists = {
        POLICY: list_given(given.read(features.categories), part.user_ids, n_categories, night.k),
        POPULARITY: list_best(clicks, night.k),
    }
    own_history = own_history_model(model, night.n_users)
    if own_history is not None:
        rows = features.partition(partition, variant=own_history.variant_, normalize=own_history.normalize_rows)
        scores[OWN_HISTORY] = own_history.decision_function(rows.X) if n_rows else scores[POLICY]
        lists[OWN_HISTORY] = (
            own_history.predict_top_k(rows.X, min(night.k, n_categories))[0] if n_rows else lists[POLICY]
        )
    if night.logistic is not None:
        rows = features.partition(partition, variant=night.variant)
        scores[LOGISTIC] = score_logistic(load_array(night.logistic, "weights"), rows.X)
        lists[LOGISTIC] = list_best(scores[LOGISTIC], night.k)
    per_click = None if night.values is None else night.values[group_of(part.age_bucket, part.gender)][:n_rows]
    return OutcomeSums(
        {
            name: measure_users(scores[name], lists[name], lists[POLICY], rankings, per_click)
            for name in METHODS
            if name in scores
        }
    )


def score_logistic(weights: np.ndarray, X: sp.csr_matrix) -> np.ndarray:
    """Return the log-odds of rows, (n, L); the intercepts are the last row of the weights."""
    return np.asarray(X @ weights[:-1] + weights[-1], np.float32)


def fit_logistic(
    client: Client, features: Features, folder: Path, *, variant: str | None, progress: Progress = silent
) -> tuple[Path | None, np.ndarray]:
    """Fit `lr` on the training users, its C chosen on the validation users; return its folder, and clicks by category.

    A fit that `folder` holds already is not made again. Without a training user there is none.
    """
    rows = [folder / f"rows-{partition:05d}" for partition in range(features.n_partitions)]
    tasks = [(str(features.path), i, variant, BLOCK_ROWS, place) for i, place in enumerate(rows) if not is_saved(place)]
    run_tasks(client, "backtest-prepare", prepare_rows, tasks, progress=progress)
    clicks = np.sum([load_array(place, "clickers").sum(axis=0) for place in rows], axis=0)
    if not clicks.any():
        return None, clicks
    fits = [(params, folder / f"lr-{number}") for number, params in enumerate(Logistic.grid)]
    jobs = [(rows, params, features.n_categories, place) for params, place in fits if not is_saved(place)]
    run_tasks(client, "backtest-lr", fit_setting, jobs, progress=progress)
    errors = [load_facts(place)["error"] for _, place in fits]
    # Without a validation user all are alike, and the one that scikit-learn takes is taken.
    usual = next(number for number, (params, _) in enumerate(fits) if params == {"C": 1.0})
    known = [(error, number) for number, error in enumerate(errors) if error is not None]
    return fits[min(known)[1] if known else usual][1], clicks


def fit_setting(rows: list[Path], params: dict[str, Any], n_categories: int, output: Path) -> None:
    """Fit `lr` with one setting, and write its weights and its error on the validation users."""
    blocks = _PreparedBlocks([PreparedRows(place, TRAIN) for place in rows])
    model = Logistic(**params, n_categories=n_categories).fit_blocks(blocks)
    found = [PreparedRows(place, VALIDATION).read() for place in rows]
    parts = [disagreement_errors(score_logistic(model.weights_, X), ranked) for X, ranked in found if len(ranked)]
    errors = np.concatenate([*parts, np.empty(0)])
    errors = errors[~np.isnan(errors)]
    error = float(errors.mean()) if len(errors) else None
    save_arrays(output, {"weights": model.weights_}, {"error": error, "params": params})


class _PreparedBlocks:
    """Training rows of all partitions in blocks, read when they are asked for."""

    def __init__(self, parts: Sequence[PreparedRows]) -> None:
        self.stretches = [
            (part, start, min(start + BLOCK_ROWS, len(part)))
            for part in parts
            for start in range(0, len(part), BLOCK_ROWS)
        ]

    def __len__(self) -> int:
        return len(self.stretches)

    def __getitem__(self, block: int) -> tuple[Any, np.ndarray]:
        part, start, stop = self.stretches[block]
        return part.read(start, stop)


def summarise_backtest(nights: Sequence[Mapping[str, Any]], *, k: int, every: int, policy: str) -> dict[str, Any]:
    """Return the content of `backtest.json`: the nights, and means over the users of all of them.

    Standard errors are those of independent users: who clicked after several nights counts as several.

    Parameters
    ----------
    nights
        By night `date`, `until` (the last day of its window), `users`, `methods` as `OutcomeSums.means` gives them (or
        None, and `reason`), `exposure`, `model`, `gate`.
    """
    if not any(night["methods"] for night in nights):
        raise TooFewUsers("no night of the backtest had a model and users who clicked after it; give later nights")
    measured = [night for night in nights if night["methods"]]
    means: dict[str, dict[str, float | None]] = {}
    # In this order also for nights that an earlier run measured, which come from a file.
    for name in METHODS:
        having = [(night["users"], night["methods"][name]) for night in measured if name in night["methods"]]
        if having:
            has_value = all(VALUE in found for _, found in having)
            measures = (*MEASURES, VALUE) if has_value else MEASURES
            means[name] = {measure: _weighted_mean(having, measure) for measure in measures}
            if name != POLICY:
                means[name] |= {GAIN: _weighted_mean(having, GAIN), STANDARD_ERROR: _error_of_mean(having)}
    return {"format": 1, "k": k, "every": every, "policy": policy, "means": means, "nights": list(nights)}


def _weighted_mean(having: Sequence[tuple[int, Mapping[str, float | None]]], measure: str) -> float | None:
    known = [(users, value) for users, found in having if (value := found[measure]) is not None]
    total = sum(users for users, _ in known)
    return sum(users * value for users, value in known) / total if total else None


def _error_of_mean(having: Sequence[tuple[int, Mapping[str, float | None]]]) -> float | None:
    known = [(users, error) for users, found in having if (error := found[STANDARD_ERROR]) is not None]
    total = sum(users for users, _ in known)
    return math.sqrt(sum((users * error) ** 2 for users, error in known)) / total if total else None
