"""AMM-rank beside what people would pick instead: boosted trees, a neural net, one-vs-rest, Vowpal Wabbit."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from threadpoolctl import threadpool_limits

from ammrank_dask.evaluation.compare import prepare_features
from ammrank_dask.evaluation.folds import FoldBlocks
from ammrank_dask.features.store import open_features
from ammrank_dask.methods.registry import Setting, build_method
from ammrank_dask.model.metrics import disagreement_error
from ammrank_dask.workflows.session.night import Night
from ammrank_dask.workflows.stages.features import training_features
from ammrank_dask.workflows.stages.ingest import ingest
from benchmarks.comparison import DAYS, LAST, comparison_site
from benchmarks.measure import cluster, describe_machine, make_lake

TRAIN_ROWS = 40_000
Scorer = Callable[[Any], np.ndarray]


def compare_peers(work: Path, *, users: int = 266_000) -> None:
    """Print error and training time of each on the same rows, one core, one after the other.

    λ, planes and C of ours are what the tuning of `comparison` chooses on this world. LightGBM and Vowpal Wabbit come
    with the extra `peers`; what is not installed is left out and named.
    """
    scratch = work / "comparison-peers"
    shutil.rmtree(scratch, ignore_errors=True)
    with cluster(2) as client:
        site, config = comparison_site(work, users)
        make_lake(client, work / f"comparison-lake-{users}", users=users, days=DAYS)
        known = ingest(Night(client, site, config, LAST))
        features = open_features(training_features(Night(client, site, config, known.date), known).path)
        rows = prepare_features(client, features, "adv", scratch)
    X, rankings = _stack(rows.training(0), TRAIN_ROWS)
    X_test, truth = _stack(rows.test(0), TRAIN_ROWS)
    tuned_rows = rows.tuning(0)[0].n_rows
    shutil.rmtree(scratch, ignore_errors=True)
    n_categories = rows.n_categories
    setting = Setting(X.shape[0], n_categories, rows.group_columns, tuned_rows=tuned_rows)

    def ours(name: str, params: dict[str, Any]) -> Callable[[], Scorer]:
        def fit() -> Scorer:
            model = build_method(name, params, setting)
            model.fit_blocks([(X, rankings)])
            return model.decision_function

        build_method(name, params, setting).fit_blocks([(X[:64], rankings[:64])])  # compiles

        return fit

    clicked = clicks_of(rankings, n_categories)
    trials: dict[str, Callable[[], Scorer]] = {
        "amm-rank": ours("amm-rank", {"regularization": 0.003, "max_planes": 5}),
        "lr": ours("lr", {"C": 1.0}),
        "pw-lr": ours("pw-lr", {"C": 3.0}),
        "scikit-learn one-vs-rest": lambda: fit_one_vs_rest(X, clicked),
        "neural net, 256 units": lambda: fit_net(X, clicked),
    }
    if find_spec("lightgbm"):
        trials["LightGBM per category"] = lambda: fit_boosted(X, clicked)
    if find_spec("vowpalwabbit"):
        trials["Vowpal Wabbit per category"] = lambda: fit_vowpal_wabbit(X, clicked)
    print(f"\npeers, {X.shape[0]:,} training and {X_test.shape[0]:,} test users, one core; {describe_machine()}")
    with threadpool_limits(1):
        for name, fit in trials.items():
            started = time.perf_counter()
            scorer = fit()
            seconds = time.perf_counter() - started
            error = disagreement_error(scorer(X_test), truth)
            print(f"  {name:28} ε_dis {error:.4f}   {seconds:8.1f} s", flush=True)
    missing = [name for name in ("lightgbm", "vowpalwabbit") if not find_spec(name)]
    if missing:
        print(f"  not installed: {', '.join(missing)} (pip install 'ammrank-dask[peers]')")


def clicks_of(rankings: np.ndarray, n_categories: int) -> np.ndarray:
    """Return (n, L) booleans: the category is in the ranking."""
    inside = np.zeros((len(rankings), n_categories + 1), bool)
    np.put_along_axis(inside, rankings.astype(np.int64) % (n_categories + 1), True, axis=1)
    return inside[:, :n_categories]


def fit_one_vs_rest(X: sp.csr_matrix, clicked: np.ndarray) -> Scorer:
    """Fit scikit-learn's logistic regression to each category."""
    models = [LogisticRegression(C=1.0, max_iter=500).fit(X, column) for column in clicked.T]
    return lambda rows: np.stack([model.decision_function(rows) for model in models], axis=1)


def fit_net(X: sp.csr_matrix, clicked: np.ndarray) -> Scorer:
    """Fit a net with one hidden layer to all categories at once."""
    net = MLPClassifier((256,), alpha=1e-4, batch_size=256, early_stopping=True, max_iter=30, random_state=0)
    net.fit(X, clicked)
    return lambda rows: np.asarray(net.predict_proba(rows))


def fit_boosted(X: sp.csr_matrix, clicked: np.ndarray) -> Scorer:
    """Fit boosted trees to each category."""
    import lightgbm

    models = []
    for column in clicked.T:
        booster = lightgbm.LGBMClassifier(n_estimators=100, num_leaves=15, n_jobs=1, verbose=-1, random_state=0)
        models.append(booster.fit(X, column))
    return lambda rows: np.stack([model.predict_proba(rows)[:, 1] for model in models], axis=1)


def fit_vowpal_wabbit(X: sp.csr_matrix, clicked: np.ndarray) -> Scorer:
    """Fit Vowpal Wabbit's logistic loss to each category, in one pass as it is meant to be used."""
    import vowpalwabbit

    texts = [_vowpal_text(X, row) for row in range(X.shape[0])]
    models = []
    for column in clicked.T:
        model = vowpalwabbit.Workspace("--loss_function logistic --quiet -b 18")
        for text, yes in zip(texts, column, strict=True):
            model.learn(f"{1 if yes else -1} {text}")
        models.append(model)

    def score(rows: Any) -> np.ndarray:
        lines = [_vowpal_text(rows, row) for row in range(rows.shape[0])]
        return np.array([[model.predict(line) for model in models] for line in lines])

    return score


def _vowpal_text(X: sp.csr_matrix, row: int) -> str:
    cells = slice(X.indptr[row], X.indptr[row + 1])
    return "| " + " ".join(f"{i}:{v:.5g}" for i, v in zip(X.indices[cells], X.data[cells], strict=True))


def _stack(blocks: FoldBlocks, n_rows: int) -> tuple[sp.csr_matrix, np.ndarray]:
    """Return the first rows of some blocks in one matrix."""
    parts, found = [], 0
    for block in range(len(blocks)):
        parts.append(blocks[block])
        found += len(parts[-1][1])
        if found >= n_rows:
            break
    width = max(part[1].shape[1] for part in parts)
    rankings = [np.pad(part[1], ((0, 0), (0, width - part[1].shape[1])), constant_values=-1) for part in parts]
    return sp.vstack([part[0] for part in parts], format="csr")[:n_rows], np.concatenate(rankings)[:n_rows]
