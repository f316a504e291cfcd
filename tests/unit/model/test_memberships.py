"""Clusterings of rows: what stands in for them when there are too few rows."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp

from ammrank_dask.model.memberships import (
    ClusteringSettings,
    begin_clustering,
    count_clusterings,
    fit_memberships,
    join_memberships,
)


def test_fit_memberships__too_few_rows_with_a_start_of_none_have_none():
    rows = sp.csr_matrix(np.eye(3, dtype=np.float32))
    settings = ClusteringSettings(n_rows=3, n_clusterings=3, n_centers=None, geometry="cosine", seed=0)
    nothing = fit_memberships(rows, settings)
    assert nothing.n_centers == 0
    assert fit_memberships(rows, replace(settings, start=nothing)).n_centers == 0


@pytest.mark.parametrize("halves", [False, True])
@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("n_rows", [8, 300])
@pytest.mark.parametrize(
    ("geometry", "n_clusterings", "n_calls"),
    [("cosine", 3, 3), ("cosine", 0, 1), ("euclidean", 3, 4), ("euclidean", 0, 1)],
)
def test_join_memberships__one_by_one_they_are_the_same(geometry, n_clusterings, n_calls, n_rows, warm, halves):
    X = sp.random(n_rows, 12, 0.4, format="csr", dtype=np.float32, random_state=np.random.default_rng(1))
    settings = ClusteringSettings(n_rows=5_000, n_clusterings=n_clusterings, n_centers=6, geometry=geometry, seed=3)
    if warm:
        settings = replace(settings, start=fit_memberships(X, replace(settings, seed=4)))

    def begun(number):
        return begin_clustering(X, settings, number) if halves else None

    assert count_clusterings(n_clusterings, geometry) == n_calls
    parts = [fit_memberships(X, settings, only=number, begun=begun(number)) for number in range(n_calls)]
    assert all(len(part.n_nearest) <= 1 for part in parts)
    joined, expected = join_memberships(parts), fit_memberships(X, settings)
    assert joined.geometry == expected.geometry
    for name in ("centers", "start", "n_nearest", "temperature"):
        assert getattr(joined, name).dtype == getattr(expected, name).dtype
        np.testing.assert_array_equal(getattr(joined, name), getattr(expected, name))


def test_begin_clustering__an_empty_centre_goes_on_with_the_rows_that_were_drawn():
    # Many rows are the same, so centres that start at them are empty in every pass.
    rows = np.repeat(np.eye(6, dtype=np.float32), [40, 1, 1, 1, 1, 1], axis=0)
    settings = ClusteringSettings(n_rows=5_000, n_clusterings=1, n_centers=12, geometry="cosine", seed=1)
    begun = begin_clustering(sp.csr_matrix(rows), settings, 0)
    assert begun.n_drawn > 12
    expected = fit_memberships(sp.csr_matrix(rows), settings, only=0)
    found = fit_memberships(sp.csr_matrix(rows), settings, only=0, begun=begun)
    np.testing.assert_array_equal(found.centers, expected.centers)


def test_begin_clustering__a_clustering_that_rows_are_not_worth_is_none():
    settings = ClusteringSettings(n_rows=8, n_clusterings=4, n_centers=None, geometry="euclidean", seed=0)
    assert begin_clustering(sp.csr_matrix(np.eye(8, dtype=np.float32)), settings, 3) is None
