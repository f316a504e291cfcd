"""The same task with this package, XGBoost, LightGBM and dask-ml on Dask: what is lazy, what memory, which bits."""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import inspect
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import dask.array as da
import numpy as np
from distributed import Client

from ammrank_dask import AMMRankPlus, disagreement_error
from benchmarks.command_line import Memory, Option, benchmark
from benchmarks.measure import cluster, describe_machine, peak_memory, reset_peak_memory

N_COLUMNS, N_CATEGORIES, N_RANKED, BLOCK_ROWS = 100, 10, 3, 20_000
WORKERS = (1, 2, 4)


def with_ammrank(client: Client, X: Any, rankings: Any) -> Any:
    model = AMMRankPlus(n_categories=N_CATEGORIES).fit(X, rankings)
    return model.decision_function(X)


def with_xgboost(client: Client, X: Any, rankings: Any) -> Any:
    xgb = importlib.import_module("xgboost.dask")
    data = xgb.DaskDMatrix(client, X, rankings[:, 0])
    output = xgb.train(client, {"objective": "multi:softprob", "num_class": N_CATEGORIES}, data, num_boost_round=10)
    return xgb.predict(client, output, X)


def with_lightgbm(client: Client, X: Any, rankings: Any) -> Any:
    lgb = importlib.import_module("lightgbm")
    model = lgb.DaskLGBMClassifier(n_estimators=10, verbose=-1).fit(X, rankings[:, 0])
    return model.predict_proba(X)


def with_dask_ml(client: Client, X: Any, rankings: Any) -> Any:
    Incremental = importlib.import_module("dask_ml.wrappers").Incremental
    SGDClassifier = importlib.import_module("sklearn.linear_model").SGDClassifier
    model = Incremental(SGDClassifier(loss="log_loss", random_state=0), shuffle_blocks=False)
    model.fit(X, rankings[:, 0], classes=list(range(N_CATEGORIES)))
    return model.predict_proba(X)


LIBRARIES: dict[str, tuple[str, Callable[[Client, Any, Any], Any]]] = {
    "ammrank-dask": ("ammrank_dask", with_ammrank),
    "xgboost.dask": ("xgboost", with_xgboost),
    "LightGBM": ("lightgbm", with_lightgbm),
    "dask-ml": ("dask_ml", with_dask_ml),
}


@benchmark("beside")
def compare_libraries(
    work: Path,
    *,
    blocks: Annotated[int, Option("Blocks of 20,000 rows and 8 MB.")] = 25,
    memory: Memory = "3GiB",
) -> None:
    """Print for each library lines of code, what is lazy, memory of workers, error, and whether bits are the same.

    What is not installed is left out and named: pip install xgboost lightgbm dask-ml.
    """
    print(f"\n{blocks * BLOCK_ROWS:,} rows, {blocks * BLOCK_ROWS * N_COLUMNS * 4 / 1e6:,.0f} MB; {describe_machine()}")
    print(
        f"  {'':14} {'version':>10} {'lines':>5} {'lazy':>5} {'MB of workers above start':>26} {'ε_dis':>7}  same bits"
    )
    for name, (package, function) in LIBRARIES.items():
        if not find_spec(package):
            print(f"  {name:14} not installed")
            continue
        version = importlib.metadata.version(package)
        found = [_run(function, n, blocks, memory) for n in (*WORKERS, WORKERS[1])]
        peaks = " / ".join(f"{each['peak_mb']:.0f}" for each in found[: len(WORKERS)])
        digests = [each["digest"] for each in found]
        same = (
            f"{'yes' if len(set(digests[:-1])) == 1 else 'no'}, again: {'yes' if digests[1] == digests[-1] else 'no'}"
        )
        is_lazy = "yes" if found[0]["is_lazy"] else "no"
        lines = sum("import_module" not in line for line in inspect.getsource(function).splitlines()[1:])
        print(
            f"  {name:14} {version:>10} {lines:5} {is_lazy:>5} {peaks:>26} {found[0]['error']:7.4f}  {same}", flush=True
        )


def _run(function: Callable[[Client, Any, Any], Any], n_workers: int, blocks: int, memory: str) -> dict[str, Any]:
    """Fit and predict on a new cluster; return what was found, memory as the sum over workers."""
    with cluster(n_workers, memory) as client, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        numbers = da.arange(blocks, chunks=1)
        rows = (BLOCK_ROWS,) * blocks
        X = numbers.map_blocks(make_rows, new_axis=1, chunks=(rows, (N_COLUMNS,)), meta=np.empty((0, 0), np.float32))
        rankings = X.map_blocks(rank_rows, chunks=(rows, (N_RANKED,)), meta=np.empty((0, 0), np.int32))
        client.run(_import_all)
        client.run(reset_peak_memory)
        start = sum(peak for _, peak in client.run(peak_memory).values())
        scores = function(client, X, rankings)
        peak = sum(peak for _, peak in client.run(peak_memory).values())
        is_lazy = isinstance(scores, da.Array)
        values = np.ascontiguousarray(scores.compute(), np.float32)
        error = disagreement_error(values[:BLOCK_ROWS], rankings[:BLOCK_ROWS].compute())
    digest = hashlib.sha256(values.tobytes()).hexdigest()
    return {"is_lazy": is_lazy, "peak_mb": (peak - start) / 1e6, "error": error, "digest": digest}


def _import_all() -> None:
    """Import on a worker what any of the libraries imports there: modules are no rows."""
    for package, _ in LIBRARIES.values():
        if find_spec(package):
            importlib.import_module(package)


def make_rows(numbers: np.ndarray) -> np.ndarray:
    """Return one block of rows."""
    return np.random.default_rng([5, int(numbers[0])]).normal(size=(BLOCK_ROWS, N_COLUMNS)).astype(np.float32)


def rank_rows(X: np.ndarray) -> np.ndarray:
    """Return the best categories of rows: by a linear taste, and noise."""
    rng = np.random.default_rng(3)
    tastes = rng.normal(size=(N_COLUMNS, N_CATEGORIES)).astype(np.float32)
    noise = 3 * np.sin(1_000 * X[:, :N_CATEGORIES])  # the same wherever the block is made
    return np.argsort(-(X @ tastes + noise), axis=1)[:, :N_RANKED].astype(np.int32)
