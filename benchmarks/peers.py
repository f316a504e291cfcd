"""AMM-rank beside what people would pick instead, a process each: error, users a CPU second, peak of memory."""

from __future__ import annotations

import json
import multiprocessing
import shutil
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from markupsafe import Markup
from sklearn.linear_model import SGDClassifier
from sklearn.neural_network import MLPClassifier
from threadpoolctl import threadpool_limits

from ammrank_dask.evaluation.compare import prepare_features
from ammrank_dask.evaluation.folds import FoldBlocks, Rows
from ammrank_dask.features.store import open_features
from ammrank_dask.methods.registry import build_method
from ammrank_dask.model.metrics import disagreement_error
from ammrank_dask.workflows.session.night import Night
from ammrank_dask.workflows.stages.features import training_features
from ammrank_dask.workflows.stages.ingest import ingest
from benchmarks.command_line import Users, benchmark
from benchmarks.comparison import DAYS, LAST, comparison_site
from benchmarks.drawing import draw_points
from benchmarks.measure import cluster, describe_machine, make_lake, peak_memory, reset_peak_memory

TRAIN_ROWS = 40_000
Scorer = Callable[[Any], np.ndarray]

OURS: dict[str, dict[str, Any]] = {
    "amm-rank": {"regularization": 0.003, "max_planes": 5},
    "amm-rank-plus": {},
    "lr": {"C": 1.0},
}
"""Methods of this package with their parameters: what the tuning of `comparison` chooses on this world."""


@benchmark("peers")
def compare_peers(work: Path, *, users: Users = 266_000) -> None:
    """Print error, users a second of CPU and memory of each on the same rows, one core, one after the other.

    LightGBM and Vowpal Wabbit come with the extra `peers`; what is not installed is left out and named. Writes
    `peers.json` and `peers.svg`.
    """
    folder = work / "comparison-peers"
    rows = _prepare(work, folder, users)
    n_train, n_test = (min(TRAIN_ROWS, blocks.n_rows) for blocks in (rows.training(0), rows.test(0)))
    print(f"\npeers, {n_train:,} training and {n_test:,} test users, one core; {describe_machine()}")
    print(f"  {'':30} {'ε_dis':>6} {'train s':>9} {'users/s':>9} {'score s':>8} {'users/s':>9} {'peak MiB':>9}")
    found = []
    for name in [*OURS, *PEERS]:
        if name in NEEDS and not find_spec(NEEDS[name]):
            print(f"  {name:30} not installed: {NEEDS[name]} (pip install 'ammrank-dask[peers]')")
            continue
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            row = {"name": name, **pool.apply(measure_peer, (name, rows))}
        found.append(row)
        rates = (n_train / row["train_seconds"], n_test / row["score_seconds"])
        print(
            f"  {name:30} {row['error']:6.4f} {row['train_seconds']:9.2f} {rates[0]:9,.0f}"
            f" {row['score_seconds']:8.2f} {rates[1]:9,.0f} {row['peak'] / 2**20:9,.0f}",
            flush=True,
        )
    shutil.rmtree(folder)
    results = {"machine": describe_machine(), "train": n_train, "test": n_test, "peers": found}
    (work / "peers.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    (work / "peers.svg").write_text(str(draw_peers(results)) + "\n", encoding="utf-8")


def _prepare(work: Path, folder: Path, users: int) -> Rows:
    """Return the rows of a simulated lake, prepared in a folder."""
    shutil.rmtree(folder, ignore_errors=True)
    with cluster(2) as client:
        site, config = comparison_site(work, users)
        make_lake(client, work / f"comparison-lake-{users}", users=users, days=DAYS)
        known = ingest(Night(client, site, config, LAST))
        features = open_features(training_features(Night(client, site, config, known.date), known).path)
        return prepare_features(client, features, "adv", folder)


def measure_peer(name: str, rows: Rows) -> dict[str, float]:
    """Train and score with one method in this process, on one core; return error, seconds, and the peak of memory."""
    own = rows.for_method(name) if name in OURS else rows
    X, rankings = _stack(own.training(0), TRAIN_ROWS)
    X_test, truth = _stack(own.test(0), TRAIN_ROWS)
    setting = rows.setting(X.shape[0], 0, rows.tuning(0)[0].n_rows)

    def fit(X: sp.csr_matrix, rankings: np.ndarray) -> Scorer:
        if name in PEERS:
            return PEERS[name](X, clicks_of(rankings, rows.n_categories))
        model = build_method(name, OURS[name], setting)
        model.fit_blocks([(X, rankings)])
        return model.decision_function

    with threadpool_limits(1):
        if name in OURS:
            fit(X, rankings)(X_test)  # compiles
        reset_peak_memory()
        started = time.perf_counter(), time.process_time()
        score = fit(X, rankings)
        trained = time.perf_counter(), time.process_time()
        scores = score(X_test)
        ended = time.perf_counter(), time.process_time()
    return {
        "error": float(disagreement_error(scores, truth)),
        "train_seconds": trained[1] - started[1],
        "score_seconds": ended[1] - trained[1],
        "wall_seconds": ended[0] - started[0],
        "peak": peak_memory()[1],
    }


def draw_peers(results: dict[str, Any]) -> Markup:
    """Return error against seconds of training and scoring as SVG that stands alone."""
    points = [
        (row["name"], row["train_seconds"] + row["score_seconds"], row["error"], row["name"] in OURS)
        for row in results["peers"]
    ]
    title = f"Error against seconds: {results['train']:,} training and {results['test']:,} test users, one core"
    return draw_points(points, title=title, x="seconds of training and scoring", y="ε_dis", note=results["machine"])


def clicks_of(rankings: np.ndarray, n_categories: int) -> np.ndarray:
    """Return (n, L) booleans: the category is in the ranking."""
    inside = np.zeros((len(rankings), n_categories + 1), bool)
    np.put_along_axis(inside, rankings.astype(np.int64) % (n_categories + 1), True, axis=1)
    return inside[:, :n_categories]


def fit_sgd(X: sp.csr_matrix, clicked: np.ndarray) -> Scorer:
    """Fit scikit-learn's stochastic gradient descent on the logistic loss to each category."""
    models = [SGDClassifier("log_loss", alpha=1e-5, random_state=0).fit(X, column) for column in clicked.T]
    return lambda rows: np.stack([model.decision_function(rows) for model in models], axis=1)


def fit_net(X: sp.csr_matrix, clicked: np.ndarray) -> Scorer:
    """Fit a net with one hidden layer to all categories at once."""
    net = MLPClassifier((256,), alpha=1e-4, batch_size=256, early_stopping=True, max_iter=30, random_state=0)
    net.fit(X, clicked)
    return lambda rows: np.asarray(net.predict_proba(rows))


def fit_boosted(X: sp.csr_matrix, clicked: np.ndarray) -> Scorer:
    """Fit boosted trees to each category."""
    import lightgbm

    options = {"objective": "binary", "num_leaves": 15, "num_threads": 1, "verbose": -1, "seed": 0}
    # One data set for all categories: finding its bins takes longer than a tree.
    data = lightgbm.Dataset(X, label=clicked[:, 0].astype(np.float32), params=options, free_raw_data=False)
    models = []
    for column in clicked.T:
        data.set_label(column.astype(np.float32))
        models.append(lightgbm.train(options, data, num_boost_round=100))
    return lambda rows: np.stack([model.predict(rows, num_threads=1) for model in models], axis=1)


def fit_vowpal_wabbit(X: sp.csr_matrix, clicked: np.ndarray) -> Scorer:
    """Fit Vowpal Wabbit's one-against-all for users with several categories, in one pass as it is meant to be used."""
    import vowpalwabbit

    n_categories = clicked.shape[1]
    arguments = f"--multilabel_oaa {n_categories} --probabilities --loss_function logistic -b 20 --quiet"
    model = vowpalwabbit.Workspace(arguments)
    for row in range(X.shape[0]):
        labels = ",".join(map(str, np.flatnonzero(clicked[row])))
        model.learn(f"{labels} {_vowpal_text(X, row)}")

    def score(rows: Any) -> np.ndarray:
        # It returns two lists one after the other; the second are the probabilities.
        return np.array([model.predict(_vowpal_text(rows, row))[-n_categories:] for row in range(rows.shape[0])])

    return score


PEERS: dict[str, Callable[[sp.csr_matrix, np.ndarray], Scorer]] = {
    "scikit-learn SGD per category": fit_sgd,
    "neural net, 256 units": fit_net,
    "LightGBM per category": fit_boosted,
    "Vowpal Wabbit one-against-all": fit_vowpal_wabbit,
}
NEEDS = {"LightGBM per category": "lightgbm", "Vowpal Wabbit one-against-all": "vowpalwabbit"}
"""Packages that may not be installed."""


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
