"""The lists of users in Dask blocks, without a place on a disk: one task a block, when they are computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dask
import numpy as np
import pandas as pd

from ammrank_dask.model.kept_model import KeptModel
from ammrank_dask.runtime.collections import blocks_of, check_blocks
from ammrank_dask.storage.in_memory import is_collection
from ammrank_dask.storage.store.ids import ids_from_values
from ammrank_dask.storage.vocabulary import CATEGORY, RANK, SCORE, USER_ID


def rank_lazily(model: KeptModel, X: Any, user_ids: Any, k: int, categories: Sequence[str]) -> Any:
    """Return user_id, rank, category and score of each user's k best as a lazy Dask DataFrame with the blocks of X."""
    import dask.dataframe as dd

    check_blocks(X)
    once = dask.delayed(model, traverse=False, pure=False)
    names = dask.delayed(list(categories), traverse=False, pure=False)
    rank = dask.delayed(rank_block_of_users, pure=False)
    ids = blocks_of("user_ids", user_ids, X)
    blocks = [rank(rows, own, once, k, names) for rows, own in zip(np.ravel(X.to_delayed()), ids, strict=True)]
    known = user_ids._meta if is_collection(user_ids) else ids_from_values(user_ids)
    empty = ids_from_values(known).take(np.empty(0, np.int64))
    nothing = np.empty((0, k))
    meta = _frame(empty, nothing.astype(np.int32), nothing.astype(np.float32), list(categories))
    return dd.from_delayed(blocks, meta=meta, verify_meta=False)


def rank_block_of_users(X: Any, user_ids: Any, model: KeptModel, k: int, categories: list[str]) -> pd.DataFrame:
    """Return the lists of one block of users."""
    return _frame(user_ids, *model.predict_top_k(X, k), categories)


def _frame(user_ids: Any, codes: np.ndarray, scores: np.ndarray, categories: list[str]) -> pd.DataFrame:
    n, k = codes.shape
    ids = ids_from_values(user_ids).to_pandas()
    frame = pd.DataFrame(
        {
            USER_ID: ids.repeat(k).reset_index(drop=True),
            RANK: np.tile(np.arange(1, k + 1, dtype=np.int16), n),
            CATEGORY: pd.Categorical.from_codes(codes.ravel().tolist(), pd.Index(categories)),
            SCORE: scores.ravel(),
        }
    )
    return frame[np.isfinite(frame[SCORE])].reset_index(drop=True)
