"""The fused scoring kernel of AMM-rank-plus against the twins and full sorts; also run as plain Python."""

import numpy as np
import pytest
import reference_plus
import reference_ranking
import scipy.sparse as sp

from ammrank_dask.features.eligibility import Eligibility
from ammrank_dask.kernels.memberships import Members
from ammrank_dask.kernels.scoring import LANES
from ammrank_dask.model.amm_rank_plus import AMMRankPlus
from ammrank_dask.model.plane_panels import top_categories
from ammrank_dask.model.plus_basis import prepare_plus_rows

L, D = 5, 12
OWN = np.array([np.arange(L), np.arange(L, 2 * L)])


def draw(rng, n):
    """Return sparse rows and rankings that follow the rows' own columns."""
    X = rng.random((n, D)) * (rng.random((n, D)) < 0.5)
    taste = 2 * X[:, :L] + X[:, L : 2 * L] + 0.3 * rng.normal(size=(n, L))
    return sp.csr_matrix(X, dtype=np.float32), np.argsort(-taste, axis=1)[:, :3].astype(np.int32)


@pytest.fixture(scope="module", params=["own term and memberships", "planes alone"])
def fitted(request):
    X, rankings = draw(np.random.default_rng(0), 90)
    parts = {"n_clusterings": 0}
    if request.param.startswith("own"):
        parts = {"own_columns": OWN, "own_groups": [0, 1], "n_clusterings": 2, "n_centers": 20}
    model = AMMRankPlus(n_categories=L, clickers_per_plane=20, max_planes=3, epochs=2, **parts)
    return model.fit(X, rankings)


def rows_to_score():
    """More rows than the kernel takes at once, and one without a cell."""
    X, _ = draw(np.random.default_rng(1), LANES + 22)
    return sp.vstack([X, sp.csr_matrix((1, D), dtype=np.float32)], format="csr")


def test_score_plus_top_k__equals_the_twin_and_a_full_sort(fitted):
    X = rows_to_score()
    codes, scores, everything = top_categories(X, fitted.panels(), 3, keep_all=True)
    np.testing.assert_allclose(everything.T, reference_plus.score_rows(fitted, X), rtol=1e-4, atol=1e-4)
    expected_codes, expected_scores = reference_ranking.top_k(everything.T, fitted.tie_order_, 3)
    np.testing.assert_array_equal(codes, expected_codes)
    np.testing.assert_array_equal(scores, expected_scores)


def test_score_plus_top_k__what_is_excluded_is_nobodys(fitted):
    X = rows_to_score()
    unknown = np.full(X.shape[0], -1, np.int8)
    kept = Eligibility(exclude=frozenset({2})).filter(L, unknown, unknown)
    codes, scores, everything = top_categories(X, fitted.panels(), L, kept, keep_all=True)
    assert not (codes == 2).any()
    assert (codes[:, -1] == -1).all()
    assert (scores[:, -1] == -np.inf).all()
    assert (everything[2] == -np.inf).all()
    without = np.delete(np.arange(L), 2)
    np.testing.assert_array_equal(everything[without], top_categories(X, fitted.panels(), L, keep_all=True)[2][without])


def scores_with(model, X, members):
    return top_categories(X, model.panels(), 1, keep_all=True, members=members)[2].T


def test_score_plus_top_k__memberships_that_were_found_before_give_the_same_bits(fitted):
    X, basis = rows_to_score(), fitted.basis_
    members = prepare_plus_rows(X, basis.memberships.kernel_form(), basis.own.cells(basis.n_columns)).members(D)
    assert members.indptr[-1] == len(members.center) == (X.shape[0] - 1) * basis.memberships.n_nearest.sum()
    np.testing.assert_array_equal(scores_with(fitted, X, members), fitted.decision_function(X))


@pytest.mark.parametrize("fitted", ["own term and memberships"], indirect=True)
def test_score_plus_top_k__takes_the_memberships_it_is_given(fitted):
    X = rows_to_score()
    nobody = Members(np.zeros(X.shape[0] + 1, np.int64), np.zeros(0, np.int32), np.zeros(0, np.float32))
    differs = (scores_with(fitted, X, nobody) != fitted.decision_function(X)).any(axis=1)
    assert differs[:-1].any()
    assert not differs[-1]  # a row without a cell has no memberships
