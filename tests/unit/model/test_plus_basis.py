"""What AMM-rank-plus makes from a sample of rows: which rows, how many, and how much memory that takes."""

import tracemalloc

import numpy as np
import pytest
import scipy.sparse as sp

from ammrank_dask.model import plus_basis
from ammrank_dask.model.memberships import ClusteringSettings, fit_memberships
from ammrank_dask.model.own_term import OwnTerm, quantile_knots
from ammrank_dask.model.plus_basis import count_rankings, make_basis, sample_rows, sample_size
from ammrank_dask.model.rows import RowStack


def draw_blocks(rng, sizes, n_columns=12):
    blocks = [sp.random(n, n_columns, 0.4, format="csr", dtype=np.float32, random_state=rng) for n in sizes]
    return blocks, [rng.random(n) < 0.7 for n in sizes]


def lowest_draws(blocks, labelled, n_wanted, seed):
    """Return the labelled rows with the lowest draws of all blocks, by the definition."""
    draws = [np.random.default_rng([seed, 2**28, block]).random(X.shape[0]) for block, X in enumerate(blocks)]
    last = np.sort(np.concatenate([draw[marks] for draw, marks in zip(draws, labelled, strict=True)]))[n_wanted - 1]
    chosen = [X[marks & (draw <= last)] for X, draw, marks in zip(blocks, draws, labelled, strict=True)]
    return sp.vstack(chosen, format="csr")


@pytest.mark.parametrize("n_wanted", [1, 7, 60])
@pytest.mark.parametrize("n_values", [1, 10_000])
def test_sample_rows__takes_the_lowest_draws_whatever_room_was_expected(monkeypatch, n_wanted, n_values):
    blocks, labelled = draw_blocks(np.random.default_rng(0), [40, 0, 3, 64, 1, 30])
    monkeypatch.setattr(plus_basis, "sample_size", lambda *of: n_wanted)
    n_rows = int(sum(marks.sum() for marks in labelled))
    found = sample_rows(labelled, blocks.__getitem__, n_rows=n_rows, n_values=n_values, n_centers=None, seed=5)
    expected = lowest_draws(blocks, labelled, n_wanted, 5)
    assert found.shape == expected.shape == (n_wanted, 12)
    for name in ("data", "indices", "indptr"):
        assert getattr(found, name).dtype == getattr(expected, name).dtype
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))


def test_sample_rows__reads_only_blocks_with_a_drawn_row():
    blocks, labelled = draw_blocks(np.random.default_rng(0), [5] * 40)
    read = []

    def read_block(block):
        read.append(block)
        return blocks[block]

    n_rows = int(sum(marks.sum() for marks in labelled))
    sample_rows(labelled, read_block, n_rows=n_rows, n_values=10**9 * n_rows, n_centers=None, seed=1)
    assert len(read) == 1


def test_sample_size__is_bounded_by_rows_and_by_values():
    assert sample_size(500, None, 500 * 90) == 500
    assert sample_size(30_000, None, 30_000 * 90) == 12_500  # 25 rows for each of 500 centres
    assert sample_size(2_000_000, None, 2_000_000 * 419) == 20_000
    assert sample_size(2_000_000, None, 2_000_000 * 838) == (1 << 23) // 838
    assert sample_size(10, None, 10 * 2**24) == 1
    assert sample_size(10, None, 0) == 10


def test_row_stack__grows_where_more_comes_than_was_expected():
    blocks, _ = draw_blocks(np.random.default_rng(2), [3, 50, 0, 20])
    stack = RowStack(4)
    for X in blocks:
        stack.add(X)
    expected = sp.vstack(blocks, format="csr")
    assert (stack.rows() != expected).nnz == 0
    np.testing.assert_array_equal(stack.rows().indptr, expected.indptr)


def test_make_basis__needs_little_beside_the_sample():
    """What numpy has at most in memory, from the first block to the basis, is half a sample beside the sample."""
    rng = np.random.default_rng(4)
    columns = np.tile(np.arange(0, 800, 2, dtype=np.int32), 250)
    ends = np.append(0, np.arange(251)) * 400  # one row is empty
    blocks = [sp.csr_matrix((rng.random(100_000, np.float32), columns, ends), shape=(251, 800)) for _ in range(20)]
    rankings = rng.integers(0, 40, (5_020, 1))
    own = OwnTerm.of_columns(np.arange(800).reshape(20, 40), np.arange(20))
    counts = count_rankings(rankings, 40)
    options = {"max_planes": 5, "clickers_per_plane": 300, "n_clusterings": 2, "n_centers": 20, "geometry": None}

    def make():
        labelled = [np.ones(251, bool)] * 20
        sample = sample_rows(labelled, blocks.__getitem__, n_rows=5_020, n_values=2_000_000, n_centers=20, seed=0)
        make_basis(counts, sample, own, **options, seed=0)
        return sample.data.nbytes + sample.indices.nbytes

    make()  # kernels are compiled
    tracemalloc.start()
    try:
        n_bytes = make()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert n_bytes == 16_000_000
    assert peak < 1.6 * n_bytes


@pytest.mark.parametrize("stored", [False, True])
def test_fit_memberships__rows_of_nothing_do_not_count(stored):
    rng = np.random.default_rng(6)
    X = sp.random(80, 9, 0.5, format="csr", dtype=np.float32, random_state=rng)
    for row in (0, 17, 18, 79):
        X.data[X.indptr[row] : X.indptr[row + 1]] = 0
    if not stored:
        X.eliminate_zeros()
    full = X[np.flatnonzero(np.asarray((X != 0).sum(axis=1)).ravel())]
    assert full.shape[0] < 80
    settings = ClusteringSettings(n_rows=80, n_clusterings=2, n_centers=6, geometry="cosine", seed=3)
    found, expected = fit_memberships(X, settings), fit_memberships(full, settings)
    np.testing.assert_array_equal(found.centers, expected.centers)


def test_with_knots__are_quantiles_of_the_columns_of_a_kind():
    rng = np.random.default_rng(8)
    X = sp.random(60, 11, 0.5, format="csr", dtype=np.float32, random_state=rng)
    X.data[::7] = 0
    columns, prior = np.array([[3, -1, 0], [5, 6, 10]]), np.array([-1.0, 2.0, 0.5], np.float32)
    own = OwnTerm.of_columns(columns, np.array([0, 0])).with_knots(X, prior)
    dense = X.toarray()
    n_views = [np.count_nonzero(dense[:, column]) for column in (3, 0)]
    views = np.repeat(prior[[0, 2]], n_views)
    values = [dense[:, kind[kind >= 0]] for kind in columns]
    for row, expected in enumerate([*(kind[kind != 0] for kind in values), views]):
        knots = quantile_knots(expected)
        np.testing.assert_array_equal(own.knots[row, : own.n_knots[row]], knots)
