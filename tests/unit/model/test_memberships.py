"""Clusterings of rows: what stands in for them when there are too few rows."""

import numpy as np
import scipy.sparse as sp

from ammrank_dask.model.memberships import fit_memberships


def test_fit_memberships__too_few_rows_with_a_start_of_none_have_none():
    rows = sp.csr_matrix(np.eye(3, dtype=np.float32))
    options = {"n_rows": 3, "n_clusterings": 3, "n_centers": None, "geometry": "cosine", "seed": 0}
    nothing = fit_memberships(rows, **options)
    assert nothing.n_centers == 0
    assert fit_memberships(rows, **options, start=nothing).n_centers == 0
