"""Rows whose rankings follow from their columns, or are partly chance.

X, rankings = draw_rows(600, noise=0.0)      # all follows from the columns
"""

import numpy as np
import scipy.sparse as sp

N_CATEGORIES = 12


def draw_rows(n_rows: int, noise: float, seed: int = 0) -> tuple[sp.csr_matrix, np.ndarray]:
    """Return rows with 6 of 40 columns, and the 3 categories that these, or with noise also chance, put first.

    With noise some categories are liked by most.
    """
    rng = np.random.default_rng(seed)
    X = np.zeros((n_rows, 40), np.float32)
    np.put_along_axis(X, np.argsort(rng.random((n_rows, 40)), axis=1)[:, :6], 1.0, axis=1)
    taste = X @ np.random.default_rng(99).normal(size=(40, N_CATEGORIES))
    taste += noise * (rng.normal(size=(n_rows, N_CATEGORIES)) + np.arange(N_CATEGORIES) / 4)
    return sp.csr_matrix(X), np.argsort(-taste, axis=1)[:, :3].astype(np.int32)
