"""Kendall τ on public label-ranking tables, all parameters chosen inside the training folds."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NamedTuple, TypeAlias

import click
import numpy as np
import pandas as pd
from sklearn.kernel_approximation import RBFSampler

from ammrank_dask import AMMRank, AMMRankPlus
from ammrank_dask.model.rows import Rows, rankings_from_ranks
from benchmarks.command_line import Data, Folds, Methods, Option, Sets, benchmark
from benchmarks.label_ranking.boosted_trees import BoostedTrees
from benchmarks.label_ranking.ensemble import AMMRankEnsemble
from benchmarks.label_ranking.feature_maps import FeatureMap, RandomBins, likings_of
from benchmarks.label_ranking.tree_cells import TreeCells
from benchmarks.measure import describe_machine

# The best published forest of METHOD.md's 13 sets; the other sets have none there.
FORESTS = {
    "authorship": 0.936, "calhousing": 0.491, "elevators": 0.803, "fried": 0.991, "glass": 0.906, "housing": 0.833,
    "iris": 0.968, "pendigits": 0.976, "segment": 0.977, "stock": 0.924, "vehicle": 0.886, "vowel": 0.908,
    "wine": 0.956,
}  # fmt: skip
OTHERS = ("bodyfat", "cpu", "wisconsin")
METHODS = ("plain", "maps", "plus", "plus-sum")
"""Sums of AMM-rank models on the table's own features, and over maps too; one AMM-rank-plus model, and sums of them."""

# Stages of the search: settings of each kind of map that go on, steps and least epochs of a fit.
STAGES = ((4, 8_000, 8), (2, 30_000, 15))
MIX_STEPS = 80_000
FINAL_STEPS = 300_000
SEARCH_ROWS = 3_000
N_MEMBERS = 8


class Candidate(NamedTuple):
    """One setting of the search: a feature map and the parameters of the ranker."""

    name: str
    feature_map: FeatureMap | None
    regularization: float
    max_planes: int
    clone_probability: float = 0.0
    average: bool = True

    def member(self, n_steps: int, n_rows: int, least_epochs: int = 15) -> tuple[FeatureMap | None, AMMRank]:
        """Return what the ensemble takes, with as many epochs as make `n_steps` steps, at most 100."""
        epochs = int(np.clip(n_steps // n_rows, least_epochs, 100))
        ranker = AMMRank(
            regularization=self.regularization, max_planes=self.max_planes, epochs=epochs,
            clone_probability=self.clone_probability, average=self.average,
        )  # fmt: skip
        return self.feature_map, ranker

    def with_more_rows(self) -> Candidate:
        """Return the setting to try beside this one with more rows than the search had: less regularization."""
        return self._replace(regularization=self.regularization / 10)

    def describe(self) -> str:
        """Return the setting in a few words."""
        cloning = f", cloning {self.clone_probability:g}" if self.clone_probability else ""
        last = "" if self.average else ", last model"
        return f"{self.name}, λ {self.regularization:g}, {self.max_planes} planes{cloning}{last}"


class PlusCandidate(NamedTuple):
    """One setting of AMM-rank-plus: grids or trees beside the row, or none, and the parameters of the model."""

    name: str
    feature_map: FeatureMap | None
    kappa: float
    max_planes: int

    def member(self, n_steps: int, n_rows: int, least_epochs: int = 15) -> tuple[FeatureMap | None, AMMRankPlus]:
        """Return what the ensemble takes; half of the steps of an AMM-rank setting are enough, in 60 epochs at most."""
        epochs = int(np.clip(n_steps // 2 // n_rows, min(8, least_epochs), 60))
        return self.feature_map, AMMRankPlus(
            kappa=self.kappa, max_planes=self.max_planes, clickers_per_plane=1, epochs=epochs, **self.options
        )

    @property
    def options(self) -> dict[str, int]:
        """Rows are not clustered by what trees say: they are near in it where trees put them together."""
        return {"n_clusterings": 0} if isinstance(self.feature_map, TreeCells | BoostedTrees) else {}

    def with_more_rows(self) -> PlusCandidate:
        """Return this setting, as κ weighs against the sum over all rows; with trees, whose leaves are more, ten κ."""
        return self._replace(kappa=10 * self.kappa) if isinstance(self.feature_map, TreeCells) else self

    def describe(self) -> str:
        """Return the setting in a few words."""
        return f"plus {self.name}, κ {self.kappa:g}, {self.max_planes} planes"


AnyCandidate: TypeAlias = Candidate | PlusCandidate


class Search(NamedTuple):
    """Settings, the scores each gives to held-out rows, and the ranks of those."""

    settings: list[AnyCandidate]
    scores: list[np.ndarray]
    truth: np.ndarray


@benchmark("label-ranking")
def run_label_ranking(
    data: Data,
    *,
    sets: Sets | None = None,
    folds: Folds = 5,
    fold_seed: Annotated[int, Option("How rows are dealt to folds.", click.IntRange(min=0))] = 0,
    methods: Methods = METHODS,
) -> None:
    """Print the mean Kendall τ of each set over its folds, and what was chosen.

    `plain` plants planes in the table's own features, standardised and divided by √d; `maps` may also choose
    random maps of them; `plus` is one AMM-rank-plus model, `plus-sum` a mix of them. The search
    was designed on the folds of seed 0: another `fold_seed` deals the rows anew.
    """
    logging.getLogger("ammrank_dask").setLevel(logging.WARNING)
    print(f"\nKendall τ, {folds} folds (seed {fold_seed}), parameters chosen in training folds; {describe_machine()}")
    print(
        f"  {'set':11} {'rows':>6} {'forest':>7} " + " ".join(f"{m:>8}" for m in methods) + "  seconds  chosen, fold 1"
    )
    found: dict[str, list[float]] = {}
    for name in sets or (*FORESTS, *OTHERS):
        X, ranks = read_table(data / f"{name}.csv")
        started = time.perf_counter()
        taus, chosen = cross_validate(X, ranks, folds, fold_seed, methods)
        found[name] = [float(np.mean(taus[method])) for method in methods]
        forest = f"{FORESTS[name]:7.3f}" if name in FORESTS else " " * 7
        columns = " ".join(f"{tau:8.3f}" for tau in found[name])
        seconds = time.perf_counter() - started
        print(f"  {name:11} {len(X):6} {forest} {columns} {seconds:8.1f}  {chosen}", flush=True)
    known = [name for name in found if name in FORESTS]
    if known:
        forest_mean = np.mean([FORESTS[name] for name in known])
        columns = " ".join(f"{tau:8.3f}" for tau in np.mean([found[name] for name in known], axis=0))
        print(f"  mean of {len(known):3}        {forest_mean:7.3f} {columns}")


def read_table(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return features (n, d) and ranks (n, L) of a table whose label columns are L1, L2, …"""
    frame = pd.read_csv(path)
    labels = sorted((c for c in frame if c[0] == "L" and c[1:].isdigit()), key=lambda c: int(c[1:]))
    return frame.drop(columns=labels).to_numpy(float), frame[labels].to_numpy(np.int64)


def cross_validate(
    X: np.ndarray, ranks: np.ndarray, n_folds: int, fold_seed: int, methods: Sequence[str]
) -> tuple[dict[str, list[float]], str]:
    """Return τ of each method in each fold, and what the last method chose in the first."""
    taus: dict[str, list[float]] = {method: [] for method in methods}
    chosen = ""
    for fold, test in enumerate(split_rows(len(X), n_folds, seed=fold_seed)):
        train = np.setdiff1d(np.arange(len(X)), test)
        X_train, X_test = standardize(X[train], X[test])
        searches: dict[str, Search] = {}
        for method in methods:
            pool = "plus" if method == "plus-sum" else method
            if pool not in searches:
                searches[pool] = search(X_train, ranks[train], candidates(pool))
            counts = mix(searches[pool], 1 if method == "plus" else N_MEMBERS)
            members = [c.member(FINAL_STEPS, len(train)) for c, n in counts.items() for _ in range(n)]
            ensemble = AMMRankEnsemble(members, seed=fold).fit(X_train, ranks=ranks[train])
            taus[method].append(kendall_tau(ensemble.decision_function(X_test), ranks[test]))
        # A large table takes an hour: a fold that is done is told at once.
        columns = " ".join(f"{method} {taus[method][-1]:.3f}" for method in methods)
        print(f"    fold {fold + 1} of {n_folds}: {columns}", file=sys.stderr, flush=True)
        if not fold:
            chosen = "; ".join(f"{n}× {c.describe()}" for c, n in counts.items())
    return taus, chosen


def candidates(method: str) -> list[AnyCandidate]:
    """Return the settings to search: planes over the table's own features, or over random maps of them too."""
    plain = [
        Candidate("plain", None, regularization, max_planes, cloning, average)
        for regularization in (1e-5, 1e-4, 1e-3, 1e-2)
        for max_planes, cloning in ((1, 0.0), (5, 0.0), (50, 0.0), (50, 0.02))
        for average in (True, False)
        if average or max_planes == 50
    ]
    if method == "plain":
        return [*plain]
    if method == "plus":
        return plus_candidates()
    maps: list[tuple[str, FeatureMap]] = [
        (f"bins {depth}×{n_bins}", RandomBins(depth=depth, n_bins=n_bins))
        for depth, n_bins in ((1, 4), (1, 16), (1, 32), (2, 4), (2, 16), (3, 4))
    ]
    # Directions of spread `scale`: a Gaussian kernel with gamma = scale² / 2.
    maps += [
        (f"fourier {scale:g}", RBFSampler(gamma=scale**2 / 2, n_components=200, random_state=0)) for scale in (1.0, 2.0)
    ]
    mapped = [
        Candidate(name, feature_map, regularization, max_planes)
        for name, feature_map in maps
        for regularization in (1e-4, 1e-3)
        for max_planes in (1, 5)
    ]
    return [c for c in plain if c.average] + mapped


def plus_candidates() -> list[AnyCandidate]:
    """Return the settings of AMM-rank-plus: strong κ for noise, grids and trees for what planes say badly."""
    plain: list[AnyCandidate] = [
        PlusCandidate("plain", None, kappa, 5) for kappa in (4e-4, 4e-3, 4e-2, 4e-1, 4.0, 40.0)
    ]
    binned: list[AnyCandidate] = [
        PlusCandidate(f"bins {depth}×{n_bins}", RandomBins(depth=depth, n_bins=n_bins, keep_rows=True), kappa, planes)
        for depth, n_bins in ((1, 16), (2, 4), (3, 4))
        for kappa, planes in ((4e-4, 1), (4e-3, 1), (4e-3, 5), (4e-2, 1))
    ]
    grown: list[AnyCandidate] = [
        PlusCandidate(f"trees {min_rows}", TreeCells(min_rows=min_rows), kappa, 1)
        for min_rows in (2, 5, 20)
        for kappa in (4e-3, 4e-2, 4e-1)
    ]
    boosted: list[AnyCandidate] = [
        PlusCandidate(f"boosted {name}", feature_map, kappa, 1)
        for name, feature_map in (
            ("best", BoostedTrees()),
            ("random", BoostedTrees(random_cuts=True)),
            ("pairs", BoostedTrees(random_cuts=True, n_pairs=36)),
        )
        for kappa in (4e-4, 4e-3, 4e-2)
    ]
    return plain + binned + grown + boosted


def search(X: np.ndarray, ranks: np.ndarray, settings: list[AnyCandidate]) -> Search:
    """Return a few settings and their scores of held-out training rows.

    Successive halving on at most SEARCH_ROWS rows finds the settings. With more rows than the search had, less
    regularization may be right: those settings join, and all are fitted to all rows.
    """
    rows = np.random.default_rng(1).permutation(len(X))[:SEARCH_ROWS]
    splits = Splits(X[rows], ranks[rows])
    # A split of a small table says little, and costs little.
    n_splits = int(np.clip(1000 // len(rows), 1, 4))
    for n_of_kind, n_steps, least_epochs in STAGES:
        taus = {c: kendall_tau(*splits.score(c, n_steps, n_splits, least_epochs)) for c in settings}
        ordered = sorted(settings, key=lambda c: -taus[c])
        # All kinds go on: planes over few features need more steps than a first stage has to show what they can, and
        # trees more rows.
        kinds = dict.fromkeys(kind_of(c) for c in settings)
        settings = [c for kind in kinds for c in [c for c in ordered if kind_of(c) == kind][:n_of_kind]]
    if len(rows) < len(X):
        splits = Splits(X, ranks)
        settings = list(dict.fromkeys(settings + [c.with_more_rows() for c in settings]))
        outcome = [splits.score(c, FINAL_STEPS, 1) for c in settings]
    else:
        outcome = [splits.score(c, MIX_STEPS, 5 if len(rows) <= 1000 else 2) for c in settings]
    return Search(settings, [scores for scores, _ in outcome], outcome[0][1])


def kind_of(setting: AnyCandidate) -> str:
    """Return the kind of a setting's map; boosted trees that cut in other ways are kinds of their own."""
    kind = type(setting.feature_map).__name__
    return setting.name if kind == BoostedTrees.__name__ else kind


def mix(found: Search, n_members: int) -> dict[AnyCandidate, int]:
    """Return how many members of each setting to take: one by one, each time the one that raises τ of the sum most."""
    total, counts = np.zeros(found.truth.shape), dict.fromkeys(found.settings, 0)
    for _ in range(n_members):
        taus = [kendall_tau(total + scores, found.truth) for scores in found.scores]
        best = int(np.argmax(taus))
        total += found.scores[best]
        counts[found.settings[best]] += 1
    return {c: n for c, n in counts.items() if n}


class Splits:
    """Five inner splits of training rows, with the maps of each made once."""

    def __init__(self, X: np.ndarray, ranks: np.ndarray) -> None:
        self.X, self.ranks = X, ranks
        self.likings = likings_of(rankings_from_ranks(ranks)[0], ranks.shape[1])
        self.held_out = split_rows(len(X), 5, seed=2)
        self.mapped: dict[tuple[str, int], tuple[Rows, Rows]] = {}

    def score(
        self, candidate: AnyCandidate, n_steps: int, n_splits: int, least_epochs: int = 15
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return scaled scores and ranks of the rows held out in the first `n_splits` splits."""
        scores, truth = [], []
        for i, held_out in enumerate(self.held_out[:n_splits]):
            train = np.setdiff1d(np.arange(len(self.X)), held_out)
            X_train, X_test = self._map(candidate, i, train, held_out)
            member = (None, candidate.member(n_steps, len(train), least_epochs)[1])
            ensemble = AMMRankEnsemble([member], seed=100 + i).fit(X_train, ranks=self.ranks[train])
            scores.append(ensemble.decision_function(X_test))
            truth.append(self.ranks[held_out])
        return np.concatenate(scores), np.concatenate(truth)

    def _map(self, candidate: AnyCandidate, split: int, train: np.ndarray, held_out: np.ndarray) -> tuple[Rows, Rows]:
        if candidate.feature_map is None:
            return self.X[train], self.X[held_out]
        key = (candidate.name, split)
        if key not in self.mapped:
            fitted = candidate.feature_map.fit(self.X[train], self.likings[train])
            self.mapped[key] = fitted.transform(self.X[train]), fitted.transform(self.X[held_out])
        return self.mapped[key]


def standardize(train: np.ndarray, test: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return both with mean 0 and deviation 1 on the training rows, divided by √d."""
    mean, deviation = train.mean(axis=0), train.std(axis=0)
    scale = np.where(deviation > 0, deviation, 1.0) * np.sqrt(train.shape[1])
    return (train - mean) / scale, (test - mean) / scale


def split_rows(n_rows: int, n_folds: int, *, seed: int) -> list[np.ndarray]:
    """Return the rows of each fold, ascending."""
    order = np.random.default_rng(seed).permutation(n_rows)
    return [np.sort(order[fold::n_folds]) for fold in range(n_folds)]


def kendall_tau(scores: np.ndarray, ranks: np.ndarray) -> float:
    """Return the mean Kendall τ of complete rankings without ties; equal scores count 0."""
    first, second = np.triu_indices(ranks.shape[1], 1)
    predicted = np.sign(scores[:, first] - scores[:, second])
    return float(np.mean(predicted * np.sign(ranks[:, second] - ranks[:, first])))
