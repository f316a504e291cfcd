"""Compare methods on stored features of one's own: the comparison of `ammrank evaluate` as one call."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from distributed import Client

from ammrank_dask.evaluation.compare import compare_methods, prepare_features
from ammrank_dask.features.store import Features, check_features
from ammrank_dask.methods.registry import PLUS, POPULARITY, MethodName, resolve_methods
from ammrank_dask.runtime.client import client_by_name, current_client
from ammrank_dask.runtime.collections import temporary_scratch
from ammrank_dask.runtime.tasks import Progress, silent
from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.numbers import whole_number

USUAL = (POPULARITY, "own-history", "own-logit", "item-knn", PLUS)


@client_by_name
def cross_validate(
    features: Features,
    methods: Sequence[MethodName] = USUAL,
    *,
    folds: int = 5,
    seed: int = 0,
    variant: str | None = None,
    client: Client | None = None,
    scratch: str | Path | None = None,
    progress: Progress = silent,
) -> pd.DataFrame:
    """Compare methods on the users with rankings, each fitted without the users that it is measured on.

    Methods with a grid choose from it on users who are in no fold.

    Parameters
    ----------
    features
        Features with rankings, in a folder that all workers see.
    methods
        Names (popularity, own-history, own-logit, item-knn, amm, central-mal, ag-mal, ib-mal, lr, pw-lr, amm-rank,
        amm-rank-plus), and classes of your own: subclasses of `ammrank_dask.methods.base.Method`, or FILE.py.
    folds
        Parts into which a hash deals the users, 2 or more.
    variant
        The columns to learn from; all when None.
    client
        The cluster; None for the current client.
    scratch
        A folder that all workers see, for decoded rows; beside the features when None.

    Returns
    -------
    pandas.DataFrame
        One row per method, the least error first: `error` (ε_dis of all users) and its 95 % interval (`low`, `high`);
        `minus_best_other`, paired by user, and its `standard_error`; `precision_1` and `ndcg` (of the first 10 ranks);
        `fit_seconds` of a fold; and the `params` that were chosen.

    Examples
    --------
    >>> from distributed import Client
    >>> client = Client(n_workers=2, threads_per_worker=1)  # doctest: +SKIP
    >>> cross_validate(features, ["popularity", "amm-rank-plus"], folds=3)[["error", "low", "high"]]  # doctest: +SKIP
    """
    client = current_client(client)
    check_features(features)
    if isinstance(methods, str) or not isinstance(methods, Sequence):
        raise BadInput(f"methods must be a list, got {methods!r}; pass methods=[…]")
    chosen = resolve_methods(methods)
    n_folds = whole_number("folds", folds, least=2)
    with temporary_scratch(client, features.path.parent if scratch is None else scratch) as folder:
        rows = prepare_features(client, features, variant, folder, n_folds=n_folds, progress=progress)
        results = compare_methods(
            client, rows, chosen, stage="cross-validate", seed=seed, count_exposure=False, progress=progress
        )
    measures = {name: result.measures for name, result in results.items()}
    table = {}
    for name, own in measures.items():
        others = [measures[other] for other in measures if other != name]
        best = min(others, key=lambda each: each.disagreement, default=None)
        low, high = own.interval("disagreement").tolist()
        row: dict[str, Any] = {"error": own.disagreement, "low": low, "high": high}
        if best is not None:
            row |= {
                "minus_best_other": own.disagreement - best.disagreement,
                "standard_error": own.standard_error(best),
            }
        row |= {"precision_1": own.precision[0], "ndcg": own.ndcg[-1]}
        row["fit_seconds"] = sum(fold.fit_seconds for fold in results[name].folds) / n_folds
        table[name] = {**row, "params": results[name].params}
    return pd.DataFrame.from_dict(table, orient="index").rename_axis("method").sort_values("error", kind="stable")
