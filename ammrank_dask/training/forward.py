"""Compare lists of models that were trained without the last label window with the clicks in it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from distributed import Client

from ammrank_dask.features.eligibility import group_of
from ammrank_dask.features.store import Features, open_features
from ammrank_dask.kernels.topk import top_k_rows
from ammrank_dask.model.estimator import RankingEstimator
from ammrank_dask.model.metrics import disagreement_errors
from ammrank_dask.model.saved import load_model
from ammrank_dask.model.search import Trial, Tuning
from ammrank_dask.runtime.tasks import Call, Progress, run_together, silent
from ammrank_dask.storage.store.ids import UserIds
from ammrank_dask.storage.store.qualifications import QualificationRows

MODEL, CHAMPION, PUBLISHED = "model", "champion", "published"
OWN_HISTORY, OWN_POPULAR, OWN_RECENT, POPULARITY = "own-history", "own-popular", "own-recent", "popularity"
SIMPLE = {
    OWN_HISTORY: "own history",
    OWN_POPULAR: "own history with popularity",
    OWN_RECENT: "own history of late",
    POPULARITY: "popularity",
}
"""Sources of lists, as verdicts name them, and what texts call those that are not trained. `published` are the lists of
the night before the window: they are measured, and make none."""
ROWS_AT_ONCE = 4096
ENOUGH_USERS = 200_000
"""Users who suffice to choose between sources: they know a difference in hits to some thousandths."""
HITS, NDCG, PRECISION_1, DISAGREEMENT = MEASURES = ("hits", "ndcg", "precision_1", "disagreement")
"""Of a user's list: clicked categories in it, its NDCG, whether its first was clicked; and the ε_dis of all scores."""
VALUE = "value"
"""What the clicked categories of a list are worth: after the others, where it is said what a click is worth."""


class GivenLists(Protocol):
    """The lists of a night for the users of a partition, as qualification files have them."""

    def read(self, categories: Sequence[str]) -> QualificationRows:
        """Read the lists; codes number the `categories`."""


@dataclass(frozen=True)
class ForwardResult:
    """Measures of some models over the same users, and how they differ.

    `sums` are those of `MEASURES` over `n_users`, (4,) or with `VALUE` (5,), by name, `squares` those of the squared
    differences of two models, by both names, the earlier one first. `k` is the length of a list.
    """

    k: int
    n_users: int
    sums: Mapping[str, np.ndarray]
    squares: Mapping[tuple[str, str], np.ndarray]

    def __add__(self, other: ForwardResult) -> ForwardResult:
        """Return the result of both sets of users together."""
        return ForwardResult(
            self.k,
            self.n_users + other.n_users,
            {name: self.sums[name] + other.sums[name] for name in self.sums},
            {pair: self.squares[pair] + other.squares[pair] for pair in self.squares},
        )

    @property
    def measures(self) -> tuple[str, ...]:
        """The names of what was measured."""
        return (*MEASURES, VALUE)[: len(next(iter(self.sums.values())))]

    def mean(self, name: str, measure: str = HITS) -> float:
        """Return a measure of a model, the mean over users."""
        return float(self.sums[name][self.measures.index(measure)]) / max(1, self.n_users)

    def gain(self, over: str, measure: str = HITS, *, of: str | None = None) -> tuple[float, float]:
        """Return by how much a measure of a model is above that of another, and the standard error of that.

        Parameters
        ----------
        of
            The model; None for the first one.

        Examples
        --------
        >>> sums = {"model": np.array([8, 3, 2, 0.5]), "own": np.array([4, 2, 2, 1])}
        >>> result = ForwardResult(10, 4, sums, {("model", "own"): np.array([8, 1, 0, 0.25])})
        >>> result.gain("own")
        (1.0, 0.5773502691896257)
        >>> result.gain("model", of="own")
        (-1.0, 0.5773502691896257)
        """
        of = next(iter(self.sums)) if of is None else of
        if of == over:
            return 0.0, 0.0
        column = self.measures.index(measure)
        squares = self.squares[(of, over) if (of, over) in self.squares else (over, of)]
        return mean_with_error(
            float(self.sums[of][column] - self.sums[over][column]), float(squares[column]), self.n_users
        )

    def is_ahead(self, of: str, over: str) -> bool:
        """Return whether the lists of one model have more hits than those of another, by more than a standard error.

        Where every user has as many of both, as in lists of all categories, their order decides, by NDCG.
        """
        gain, error = self.gain(over, HITS if self.differs(of, over) else NDCG, of=of)
        return gain > error

    def differs(self, of: str, over: str) -> bool:
        """Return whether any user has more hits of one model than of another."""
        return self.gain(over, of=of) != (0.0, 0.0)

    def tuning(self, settings: Sequence[dict[str, Any]]) -> Tuning:
        """Return what settings are worth whose models, in their order, were compared."""
        trials = []
        for parameters, source in zip(settings, self.sums, strict=True):
            behind, error = self.gain(source)
            trials.append(Trial(parameters, self.mean(source, DISAGREEMENT), 0.0 - behind, error, self.mean(source)))
        return Tuning(trials, self.n_users, k=self.k)

    def to_json(self) -> dict[str, Any]:
        """Return the result as a verdict keeps it; sources have gains where there is a new model to gain."""
        sources = {}
        for name in self.sums:
            sources[name] = {"hits": self.mean(name), "ndcg": self.mean(name, NDCG)}
            if MODEL in self.sums:
                sources[name] |= dict(zip(("gain", "standard_error"), self.gain(name, of=MODEL), strict=True))
        return {"users": self.n_users, "k": self.k, "sources": sources}


def describe_forward(forward: Mapping[str, Any]) -> str:
    """Return as a sentence which source makes the lists, and how it compared.

    Parameters
    ----------
    forward
        What a verdict keeps: `source`, `reason`, and where something was measured `users`, `k`, `sources` and `beside`,
        the simple source that a model must be ahead of; and the `date` of the verdict. A champion makes the lists where
        it is ahead of the new model by more than the error.

    Examples
    --------
    >>> own = {"hits": 5.75, "ndcg": 0.6, "gain": 0.17, "standard_error": 0.02}
    >>> sources = {"model": {"hits": 5.92, "ndcg": 0.7}, "own-history": own}
    >>> trial = {"source": "model", "reason": "", "users": 2051, "k": 10, "sources": sources}
    >>> describe_forward({**trial, "date": "2026-01-31"})  # doctest: +NORMALIZE_WHITESPACE
    'Lists come from the model: in the label window to 2026-01-31 lists of a model that had not seen it had 5.92 of 10
    clicked, own history 5.75 (+0.17 ± 0.02, 2,051 users).'
    """
    source, sources = forward["source"], forward.get("sources", {})
    beside = forward.get("beside", OWN_HISTORY)
    names = {MODEL: "the model", CHAMPION: "the model in use before", **SIMPLE}
    start = f"Lists come from {names[source]}"
    simple = sources.get(beside, {})
    has_gain = "gain" in simple
    if not has_gain or (source != CHAMPION and (simple["gain"] > simple["standard_error"]) != (source == MODEL)):
        # Other than by hits: there was nothing to compare, or too few users.
        why = forward["reason"].partition(": ")[2]
        return f"{start}: {why} (training of {forward['date']})."
    versus = simple if source != CHAMPION else sources[CHAMPION]
    gain, error = versus["gain"], versus["standard_error"]
    digits = 2 if error >= 0.01 else 3
    need = "; it must be ahead by more than that error" if source == beside and gain > 0 else ""
    rival = names[beside if source != CHAMPION else CHAMPION]
    if PUBLISHED in sources:
        need += f"; the lists that were published before it had {sources[PUBLISHED]['hits']:.{digits}f}"
    return (
        f"{start}: in the label window to {forward['date']} lists of a model that had not seen it had"
        f" {sources[MODEL]['hits']:.{digits}f} of {forward['k']} clicked, {rival} {versus['hits']:.{digits}f}"
        f" ({gain:+.{digits}f} ± {error:.{digits}f}, {forward['users']:,} users{need})."
    )


def mean_with_error(total: float, squares: float, n_users: int) -> tuple[float, float]:
    """Return the mean over users and its standard error, from a sum and the sum of squares.

    Examples
    --------
    >>> mean_with_error(4, 8, 4)
    (1.0, 0.5773502691896257)
    """
    n = max(1, n_users)
    mean = total / n
    variance = max(0.0, squares / n - mean * mean)
    return mean, math.sqrt(variance / max(1, n - 1))


def hits_of(clicked: np.ndarray, lists: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return for each user how many of a list were clicked, and the NDCG of the list.

    Parameters
    ----------
    clicked
        (n, L) booleans.
    lists
        (n, k) category codes, best first.

    Examples
    --------
    >>> hits, ndcg = hits_of(np.array([[True, False, True]]), np.array([[0, 1]]))
    >>> hits.tolist(), ndcg.round(3).tolist()
    ([1], [0.613])
    """
    in_list = np.take_along_axis(clicked, lists.astype(np.int64), axis=1)
    discount = 1 / np.log2(np.arange(2, lists.shape[1] + 2))
    best = np.concatenate([[0.0], np.cumsum(discount)])[np.minimum(clicked.sum(axis=1), lists.shape[1])]
    return in_list.sum(axis=1), (in_list @ discount) / np.maximum(best, 1e-12)


def measure_scores(
    scores: np.ndarray, rankings: np.ndarray, tie_order: np.ndarray, k: int, per_click: np.ndarray | None = None
) -> np.ndarray:
    """Return `MEASURES` of each user, (4, n), where the k best scores are the list; with `per_click` also `VALUE`.

    Parameters
    ----------
    scores
        (n, L) float32, larger is better.
    rankings
        (n, m) codes of clicked categories, best first, -1 after the last.
    tie_order
        (L,) codes; of equal scores the earlier one is better in the list. ε_dis counts them half.
    per_click
        (n, L) what a click is worth.

    Examples
    --------
    >>> scores, rankings = np.array([[3, 2, 1]], np.float32), np.array([[0, 2]], np.int32)
    >>> measure_scores(scores, rankings, np.arange(3, dtype=np.int32), 2).round(3).tolist()
    [[1.0], [0.613], [1.0], [0.333]]
    """
    n_rows, n_categories = scores.shape
    lists = np.empty((n_rows, k), np.int32)
    top_k_rows(scores, tie_order, lists, np.empty((n_rows, k), np.float32))
    errors = np.nan_to_num(disagreement_errors(scores, rankings))  # only with one category is there no pair
    hits, ndcg, first, *value = measure_lists(lists, rankings, n_categories, per_click)
    return np.stack([hits, ndcg, first, errors, *value])


def measure_lists(
    lists: np.ndarray, rankings: np.ndarray, n_categories: int, per_click: np.ndarray | None = None
) -> np.ndarray:
    """Return hits, NDCG and precision at 1 of each user's list, (3, n); nobody clicks a code of -1.

    With `per_click` (n, L) also what the clicked categories of the list are worth.

    Examples
    --------
    >>> measure_lists(np.array([[0, -1], [-1, -1]]), np.array([[0, 2], [0, -1]]), 3).round(3).tolist()
    [[1.0, 0.0], [0.613, 0.0], [1.0, 0.0]]
    """
    clicked = np.zeros((len(lists), n_categories + 1), bool)
    np.put_along_axis(clicked, np.where(rankings >= 0, rankings, n_categories).astype(np.int64), True, axis=1)
    clicked[:, n_categories] = False
    hits, ndcg = hits_of(clicked, lists)
    first = np.take_along_axis(clicked, lists[:, :1].astype(np.int64), axis=1)[:, 0]
    return np.stack([hits, ndcg, first, *([] if per_click is None else [value_of_hits(clicked, lists, per_click)])])


def value_of_hits(clicked: np.ndarray, lists: np.ndarray, per_click: np.ndarray) -> np.ndarray:
    """Return for each user what the clicked categories of a list are worth, (n,).

    Parameters
    ----------
    clicked
        (n, L + 1) booleans; the last column, that of the code -1, has none.
    lists
        (n, k) category codes.
    per_click
        (n, L) what a click is worth.
    """
    in_list = np.take_along_axis(clicked, lists.astype(np.int64), axis=1)
    worth = np.take_along_axis(per_click, np.maximum(lists, 0).astype(np.int64), axis=1)
    return np.asarray((in_list * worth).sum(axis=1))


def list_given(rows: QualificationRows, users: UserIds, n_categories: int, k: int) -> np.ndarray:
    """Return (n, k) codes: what the users were given at the first k ranks, -1 for nothing."""
    given = np.full((len(users), k), -1, np.int32)
    place = users.positions_of(rows.user_ids)[rows.user]
    chosen = (place >= 0) & (rows.rank <= k) & (rows.category < n_categories)
    given[place[chosen], rows.rank[chosen] - 1] = rows.category[chosen]
    return given


def measure_forward(
    features_path: Path,
    partition: int,
    models: Mapping[str, Path | RankingEstimator],
    k: int,
    published: GivenLists | None = None,
    names: Sequence[str] = (),
    values: np.ndarray | None = None,
) -> ForwardResult:
    """Return how the lists of each model for the users of a partition with a history compare with their clicks."""
    features = open_features(features_path)
    k = min(k, features.n_categories)
    all_columns = features.partition(partition, normalize=False)
    assert all_columns.rankings is not None  # the caller's features have labels
    # All models are asked for the same users, also one that leaves out the columns of what some of them did.
    users = np.flatnonzero((all_columns.n_event_features > 0) & (all_columns.rankings >= 0).any(axis=1))
    rankings = all_columns.rankings[users]
    per_click = None
    if values is not None:
        per_click = values[group_of(all_columns.age_bucket[users], all_columns.gender[users])]
    n_measures = len(MEASURES) + (per_click is not None)
    by_user: dict[str, np.ndarray] = {}
    sums: dict[str, np.ndarray] = {}
    for name, given in models.items():
        model = given if isinstance(given, RankingEstimator) else load_model(given)
        part = features.partition(partition, variant=model.variant_, normalize=model.normalize_rows)
        blocks, sums[name] = [np.zeros((n_measures, 0))], np.zeros(n_measures)
        for start in range(0, len(users), ROWS_AT_ONCE):
            rows = slice(start, start + ROWS_AT_ONCE)
            scores = model.decision_function(part.X[users[rows]])
            own = None if per_click is None else per_click[rows]
            blocks.append(measure_scores(scores, rankings[rows], model.tie_order_, k, own))
            sums[name] += blocks[-1].sum(axis=1)
        by_user[name] = np.concatenate(blocks, axis=1)
    if published is not None:
        lists = list_given(published.read(names), all_columns.user_ids.take(users), features.n_categories, k)
        without_error = np.full(len(users), np.nan)
        hits, ndcg, top, *value = measure_lists(lists, rankings, features.n_categories, per_click)
        by_user[PUBLISHED] = np.stack([hits, ndcg, top, without_error, *value])
        sums[PUBLISHED] = by_user[PUBLISHED].sum(axis=1)
    pairs = itertools.combinations(by_user, 2)
    squares = {pair: ((by_user[pair[0]] - by_user[pair[1]]) ** 2).sum(axis=1) for pair in pairs}
    return ForwardResult(k, len(users), sums, squares)


def compare_forward(
    client: Client,
    features: Features,
    models: Mapping[str, Path | RankingEstimator],
    *,
    k: int,
    published: tuple[Sequence[GivenLists], Sequence[str]] | None = None,
    values: np.ndarray | None = None,
    enough_users: int | None = None,
    progress: Progress = silent,
) -> ForwardResult:
    """Return how the lists of models compare with the rankings of later clicks, for all users with a history.

    Parameters
    ----------
    features
        Features with rankings; no model has seen these.
    models
        By name, folders of saved models, or fitted ones, which go to every task; all are compared with the first.
    published
        The lists of a night as one more source, `PUBLISHED`: by partition of the features, and the names that it has
        for their categories. A user without a list has no hits, and there is no ε_dis.
    values
        (groups, L) what a click is worth, by `group_of` the user: adds `VALUE`.
    enough_users
        Only the first partitions, which have so many users with rankings; a partition is a random sample of them.
    """
    nothing: tuple[Sequence[GivenLists | None], Sequence[str]] = ([None] * features.n_partitions, ())
    parts, names = nothing if published is None else published
    calls: list[Call] = [
        (measure_forward, (features.path, number, dict(models), k, part, names, values))
        for number, part in enumerate(parts[: _enough_parts(features, enough_users)])
    ]
    first, *others = run_together(client, "forward", calls, progress=progress)
    return sum(others, start=first)


def _enough_parts(features: Features, n_users: int | None) -> int | None:
    """Return the number of the first partitions that have so many users together; None for all."""
    if n_users is None:
        return None
    return 1 + int(np.searchsorted(np.cumsum([part.rows for part in features.run.parts]), n_users))
