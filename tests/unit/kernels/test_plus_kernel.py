"""The kernels of AMM-rank-plus, by hand, against their slow twins, and against finite differences."""

from dataclasses import replace

import numpy as np
import pytest
import reference_plus
import reference_ranking
import scipy.sparse as sp

from ammrank_dask.kernels.ammrank_plus import PlusBlock, PlusRule, PlusSums, train_plus_rows
from ammrank_dask.kernels.memberships import keep_nearest, weigh_centers
from ammrank_dask.kernels.plus_rows import OwnCells, knot_place
from ammrank_dask.model.memberships import CENTER_UNIT, COSINE, EUCLIDEAN, Memberships, cluster_rows
from ammrank_dask.model.own_term import OwnTerm
from ammrank_dask.model.plus_basis import prepare_plus_rows
from ammrank_dask.model.rows import rankings_from_ranks

N_CATEGORIES = 5
OWN_COLUMNS = np.array([[0, 1, 2, -1, 4], [5, 6, -1, 7, 8], [9, -1, -1, -1, 3]])
OWN_GROUPS = np.array([0, 0, 1])


def train(
    Z, rankings, *, prior, limit, regularization=0.1, rate=3.0, own_rate=3.0, bias=0.0, capacity=32, tied=None,
    own=None, trends=None, by_clicks=False,
):  # fmt: skip
    """Train on rows that have no own columns, or on those and the term of `own`: (cells, rows, prior's places)."""
    rows = Z if sp.issparse(Z) else sp.csr_matrix(np.asarray(Z, np.float32))
    rankings = np.asarray(rankings, np.int32)
    tied = np.zeros((len(rankings), 0), bool) if tied is None else tied
    prior, limit = np.asarray(prior, np.float32), np.asarray(limit)
    n_categories, width = len(prior), rows.shape[1]
    if own is None:
        none = np.full(width, -1)
        cells = OwnCells(none, none, np.zeros(0, np.int64), np.zeros((0, 6), np.float32), np.zeros(0, np.int64))
        knot, own_scale = np.full(rows.nnz, -1, np.float32), np.zeros((rows.shape[0], 0), np.float32)
        prior_knot, n_own = np.zeros(0, np.float32), 0
    else:
        cells, (knot, own_scale), prior_knot = own
        n_own = len(cells.group) + 1
    trends = np.zeros((0, n_categories), np.float32) if trends is None else np.asarray(trends, np.float32)
    n_own += len(trends) > 0
    single = np.flatnonzero(limit == 1)
    category, n_planes = np.zeros(capacity, np.int32), np.zeros(n_categories, np.int64)
    category[: len(single)], n_planes[single] = single, 1
    state = PlusSums(
        np.zeros((width + 1, capacity), np.float32), category, n_planes, np.zeros(width + 1),
        np.zeros((n_own, 8)), np.zeros((n_own, 8)),
    )  # fmt: skip
    indptr = rows.indptr.astype(np.int64)  # as stored rows have it: compiled for one type only
    block = PlusBlock(rows.data, rows.indices, indptr, knot, own_scale, rankings, tied)
    rule = PlusRule(
        regularization, rate, own_rate, bias, prior, limit, cells.kind, cells.category, cells.group, prior_knot, trends,
        by_clicks,
    )  # fmt: skip
    position, step, loss = train_plus_rows(block, np.arange(rows.shape[0]), rule, 1, state)
    n_total = state.n_planes.sum()
    return position, step, loss, state.sums[:, :n_total], state.category[:n_total], state


def loss_of_clicks(score, clicked):
    """The loss over clicks, term by term, in float64."""
    others = np.exp(score[~clicked]).sum()
    ranked = -np.log(np.exp(score[clicked]) / (np.exp(score[clicked]) + others))
    chance = 1 / (1 + np.exp(-score))
    return ranked.mean() - 0.1 * np.log(np.where(clicked, chance, 1 - chance)).sum()


@pytest.mark.parametrize("ranking", [[1, -1, -1], [3, 0, -1], [2, 4, 1]])
def test_train_plus_rows__pushes_of_clicks_are_the_slope_of_their_loss(ranking):
    prior = np.array([0.5, -2.0, 1.5, 0.0, -0.25])
    clicked = np.isin(np.arange(5), ranking)
    trends = [[0.3, -0.1, 0.2, -0.4, 0.0], [0.0, 0.5, -0.5, 0.25, -0.25]]
    _, _, loss, sums, category, state = train(
        [[1.0]], [ranking], prior=prior, limit=[1] * 5, trends=trends, by_clicks=True
    )
    assert loss == pytest.approx(loss_of_clicks(prior, clicked), rel=1e-5)
    step = 1e-5
    slope = [
        (loss_of_clicks(prior + step * unit, clicked) - loss_of_clicks(prior - step * unit, clicked)) / (2 * step)
        for unit in np.eye(5)
    ]
    np.testing.assert_array_equal(category, np.arange(5))
    np.testing.assert_allclose(sums[0], np.negative(slope), rtol=1e-4, atol=1e-6)
    # The weights of popularity climb the same slope, and their squares are kept for the steps to come.
    np.testing.assert_allclose(state.own_sums[-1, :2], -np.array(trends) @ slope, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(state.own_squares[-1, :2], (np.array(trends) @ slope) ** 2, rtol=1e-4, atol=1e-9)


def test_train_plus_rows__scores_count_the_weights_of_popularity():
    trends = [[1.0, -1.0]]
    _, _, once, *_ = train([[1.0]], [[0]], prior=[0, 0], limit=[1, 1], trends=trends, by_clicks=True)
    _, _, twice, *_ = train([[0.0], [0.0]], [[0], [0]], prior=[0, 0], limit=[1, 1], trends=trends, by_clicks=True)
    # After one step the weight is η = 3 by AdaGrad's first step, and the second row begins with ±3.
    assert twice - once == pytest.approx(loss_of_clicks(np.array([3.0, -3.0]), np.array([True, False])), rel=1e-5)


def test_train_plus_rows__first_step_by_hand():
    _, step, loss, sums, category, state = train([[2.0]], [[1]], prior=[0, 0], limit=[5, 5], bias=4.0)
    # One pair at equal scores: ln 2, push ½. The zero plane of category 0 loses its push; H gets z² (½)².
    assert step == 2
    assert loss == pytest.approx(np.log(2))
    np.testing.assert_array_equal(category, [1])
    np.testing.assert_array_equal(sums, [[1.0], [2.0]])
    np.testing.assert_array_equal(state.squares, [1.0, 4.0])


def test_train_plus_rows__second_step_by_hand():
    _, _, loss, sums, _, state = train(
        [[2.0], [2.0]], [[1], [1]], prior=[0, 0], limit=[5, 5], regularization=0.5, rate=1.0
    )
    # Before the second step w = S / (λ·2 + √H/η) = 1 / (1 + 1), so the score of category 1 is 1.
    push = 1 / (1 + np.e)
    assert loss == pytest.approx(np.log(2) + np.log1p(np.exp(-1)))
    np.testing.assert_allclose(sums[0], [1 + 2 * push], rtol=1e-6)
    np.testing.assert_allclose(state.squares[0], 1 + 4 * push**2, rtol=1e-6)


def test_train_plus_rows__limit_of_one_has_its_plane_from_the_start():
    _, _, _, sums, category, state = train([[2.0]], [[1]], prior=[0, 0], limit=[1, 1])
    np.testing.assert_array_equal(category, [0, 1])
    np.testing.assert_array_equal(sums[0], [-1.0, 1.0])
    assert state.squares[0] == 2.0  # both pushes reached a plane


def test_train_plus_rows__prior_counts_in_the_push():
    _, _, loss, sums, *_ = train([[1.0]], [[0]], prior=[np.log(3), 0], limit=[1, 1])
    np.testing.assert_allclose(sums[0], [0.25, -0.25], rtol=1e-6)
    assert loss == pytest.approx(np.log(4 / 3))


@pytest.mark.parametrize("rankings", [[[-1, -1]], [[0, -1]]])
def test_train_plus_rows__row_without_a_pair_is_no_step(rankings):
    assert train([[1.0]], rankings, prior=[0], limit=[1])[1:3] == (1, 0.0)


def test_train_plus_rows__all_tied_is_no_step():
    rankings, tied = rankings_from_ranks(np.array([[1, 1]]))
    assert train([[1.0]], rankings, prior=[0, 0], limit=[1, 1], tied=tied)[1] == 1


def test_train_plus_rows__stops_before_a_row_whose_births_may_not_fit():
    position, step, *_ = train([[1.0], [1.0]], [[0, 1], [1, 0]], prior=[0, 0, 0], limit=[9, 9, 9], capacity=2)
    assert (position, step) == (1, 2)


def test_train_plus_rows__loss_of_scores_far_apart():
    rng = np.random.default_rng(1)
    prior = rng.uniform(-35, 35, 45)
    rankings = rng.permutation(45)[None, :30].astype(np.int32)
    loss = train([[1.0]], rankings, prior=prior, limit=np.ones(45, int), capacity=80)[2]
    expected = reference_plus.pair_loss(prior.astype(np.float32).astype(float), [[c] for c in rankings[0]])
    assert loss == pytest.approx(expected, rel=1e-5)


def draw_rows(rng, n, share=0.6):
    X = rng.random((n, 12)) * (rng.random((n, 12)) < share)
    X[0] = 0
    return X.astype(np.float32)


def draw_basis(rng):
    centers = rng.random((7, 12)).astype(np.float32)
    centers /= np.sqrt((centers**2).sum(axis=1))[:, None]
    members = Memberships(centers, np.array([0, 4, 7]), np.array([3, 2]), np.full(2, 0.05, np.float32), COSINE)
    prior = np.linspace(-2, 1, N_CATEGORIES, dtype=np.float32)
    own = OwnTerm.of_columns(OWN_COLUMNS, OWN_GROUPS).with_knots(sp.csr_matrix(draw_rows(rng, 30)), prior)
    return members, own, prior


def twin_rows(X, members, own, prior):
    """Return Z with memberships, and own features, of the twins."""
    X = X.astype(float)
    parts = np.split(members.centers.astype(float), members.start[1:-1])
    Z = []
    for x in X:
        belongs = [
            reference_plus.memberships_of(x, [part], 0.05, n) for part, n in zip(parts, members.n_nearest, strict=True)
        ]
        Z.append(np.concatenate([reference_plus.unit_row(x), *belongs]))
    knots = [row[:n].astype(float) for row, n in zip(own.knots, own.n_knots, strict=True)]
    features = [reference_plus.own_features(x, OWN_COLUMNS, OWN_GROUPS, knots, prior.astype(float)) for x in X]
    return np.array(Z), np.array(features)


def test_write_rows__whole_numbers_of_16_bits_change_no_bit():
    rng = np.random.default_rng(2)
    members, own, _ = draw_basis(rng)
    X = sp.csr_matrix(draw_rows(rng, 40))
    whole = np.rint(members.centers / CENTER_UNIT)
    whole[0, :2] = 2**14, -(2**14)  # a cosine of 1
    rounded = replace(members, centers=(whole * CENTER_UNIT).astype(np.float32))
    forms = [rounded.kernel_form()]
    forms.append(forms[0]._replace(weights=forms[0].weights * np.float32(CENTER_UNIT), unit=1.0))
    assert [str(form.weights.dtype) for form in forms] == ["int16", "float32"]
    read, plain = (prepare_plus_rows(X, form, own.cells(19)) for form in forms)
    assert read.data.tobytes() == plain.data.tobytes()
    assert read.indices.tobytes() == plain.indices.tobytes()


@pytest.mark.parametrize(("n_columns", "kind"), [(2**16 - 7, np.uint16), (2**16 - 6, np.int32)])
def test_prepare_plus_rows__columns_have_16_bits_where_they_are_enough(n_columns, kind):
    members = draw_basis(np.random.default_rng(4))[0]
    wide = np.zeros((7, n_columns), np.float32)
    wide[:, -12:] = members.centers
    X = draw_rows(np.random.default_rng(5), 9)
    shifted = sp.hstack([sp.csr_matrix((9, n_columns - 12), dtype=np.float32), sp.csr_matrix(X)], format="csr")
    nothing = OwnTerm.nothing(N_CATEGORIES)
    rows = prepare_plus_rows(shifted, replace(members, centers=wide).kernel_form(), nothing.cells(n_columns + 7))
    narrow = prepare_plus_rows(sp.csr_matrix(X), members.kernel_form(), nothing.cells(19))
    assert (rows.indices.dtype, narrow.indices.dtype) == (kind, np.uint16)
    assert rows.indices.max() == n_columns + 6
    np.testing.assert_array_equal(rows.indices.astype(int) - (n_columns - 12), narrow.indices)
    assert rows.data.tobytes() == narrow.data.tobytes()


def test_prepare_plus_rows__without_own_columns_there_are_no_knots():
    rng = np.random.default_rng(6)
    members, own, _ = draw_basis(rng)
    X = sp.csr_matrix(draw_rows(rng, 5))
    bare = prepare_plus_rows(X, members.kernel_form(), OwnTerm.nothing(N_CATEGORIES).cells(19))
    rows = prepare_plus_rows(X, members.kernel_form(), own.cells(19))
    assert (len(bare.knot), len(rows.knot)) == (0, len(rows.data))
    assert bare.data.tobytes() == rows.data.tobytes()


def test_kernel_form__centres_that_are_no_whole_numbers_are_read_as_they_are():
    members = draw_basis(np.random.default_rng(3))[0]
    whole = replace(members, centers=(np.rint(members.centers / CENTER_UNIT) * CENTER_UNIT).astype(np.float32))
    large = replace(whole, centers=whole.centers * np.float32(8))
    euclidean = replace(whole, geometry=EUCLIDEAN)
    kinds = [str(form.kernel_form().weights.dtype) for form in (whole, members, large, euclidean)]
    assert kinds == ["int16", "float32", "float32", "float32"]


def draw_rankings(rng, n, m=4):
    rankings = np.argsort(rng.random((n, N_CATEGORIES)), axis=1)[:, :m].astype(np.int32)
    rankings[np.arange(m)[None, :] >= rng.integers(0, m + 1, n)[:, None]] = -1
    return rankings


@pytest.mark.parametrize("seed", range(3))
def test_write_rows__equals_twin(seed):
    rng = np.random.default_rng(seed)
    members, own, prior = draw_basis(rng)
    X = draw_rows(rng, 40)
    rows = prepare_plus_rows(sp.csr_matrix(X), members.kernel_form(), own.cells(19))
    Z, features = twin_rows(X, members, own, prior)
    dense = sp.csr_matrix((rows.data, rows.indices, rows.indptr), shape=(40, 19)).toarray()
    np.testing.assert_allclose(dense, Z, rtol=2e-5, atol=1e-6)
    cells = own.cells(19)
    for row in range(40):
        for cell in range(rows.indptr[row], rows.indptr[row + 1]):
            kind, category = cells.kind[rows.indices[cell]], cells.category[rows.indices[cell]]
            if kind >= 0:
                linear = rows.data[cell] * rows.own_scale[row, own.group[kind]]
                assert linear == pytest.approx(features[row, category, kind, 0], rel=1e-5)
                place = int(rows.knot[cell])
                hats = np.zeros(8)
                hats[place] += 0.1 * (1 - rows.knot[cell] + place)
                hats[place + 1] += 0.1 * (rows.knot[cell] - place)
                np.testing.assert_allclose(hats[:6], features[row, category, kind, 1:], atol=1e-5)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("ties", [False, True])
def test_train_plus_rows__equals_twin(seed, ties):
    rng = np.random.default_rng(seed)
    members, own, prior = draw_basis(rng)
    X = draw_rows(rng, 60)
    rankings, tied = draw_rankings(rng, 60), None
    if ties:
        rankings, tied = rankings_from_ranks(rng.integers(0, 4, (60, N_CATEGORIES)))
    limit = np.array([1, 2, 3, 1, 5])
    rows = prepare_plus_rows(sp.csr_matrix(X), members.kernel_form(), own.cells(19))
    Z = sp.csr_matrix((rows.data, rows.indices, rows.indptr), shape=(60, 19))
    # The kernel reads the CSR arrays as they are: with the order of the memberships, which a dense matrix would lose.
    _, step, loss, sums, category, state = train_prepared(Z, rows, rankings, prior, limit, own, tied)
    twin_Z, features = twin_rows(X, members, own, prior)
    expected = reference_plus.train_plus(
        np.hstack([twin_Z, np.ones((60, 1))]),
        features,
        rankings,
        range(60),
        prior.astype(float),
        limit,
        0.05,
        1.0,
        3.0,
        tied,
    )
    planes, squares, own_sums, own_squares, twin_step, twin_loss = expected
    assert step == twin_step
    assert loss == pytest.approx(twin_loss, rel=1e-4)
    np.testing.assert_array_equal(category, [c for c, _ in planes])
    np.testing.assert_allclose(sums.T, [total for _, total in planes], rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(state.squares, squares, rtol=1e-3, atol=1e-7)
    np.testing.assert_allclose(state.own_sums[:, :7], own_sums, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(state.own_squares[:, :7], own_squares, rtol=1e-3, atol=1e-7)


def train_prepared(Z, rows, rankings, prior, limit, own, tied):
    cells = own.cells(19)
    return train(Z, rankings, prior=prior, limit=limit, regularization=0.05, rate=1.0, bias=1.0, tied=tied,
                 own=(cells, (rows.knot, rows.own_scale), own.prior_knot(prior)))  # fmt: skip


def test_train_plus_rows__step_is_the_gradient():
    rng = np.random.default_rng(7)
    members, own, prior = draw_basis(rng)
    X = draw_rows(rng, 2, share=0.9)[1:]
    rows = prepare_plus_rows(sp.csr_matrix(X), members.kernel_form(), own.cells(19))
    Z = sp.csr_matrix((rows.data, rows.indices, rows.indptr), shape=(1, 19))
    ranking = np.array([[3, 1, -1]], np.int32)
    _, _, _, sums, _, state = train_prepared(Z, rows, ranking, prior, np.ones(N_CATEGORIES, int), own, None)
    twin_Z, features = twin_rows(X, members, own, prior)
    z = np.append(twin_Z[0], 1.0)

    def loss(weights, own_weights):
        return reference_plus.pair_loss(
            prior + z @ weights + np.sum(features[0] * own_weights, axis=(1, 2)), [[3], [1]]
        )

    weights, own_weights = np.zeros((20, N_CATEGORIES)), np.zeros((4, 7))
    for table, found in ((weights, sums), (own_weights, state.own_sums[:, :7])):
        numeric = np.zeros(table.shape)
        for place in np.ndindex(table.shape):
            table[place] = 1e-5
            numeric[place] = loss(weights, own_weights)
            table[place] = -1e-5
            numeric[place] = (numeric[place] - loss(weights, own_weights)) / 2e-5
            table[place] = 0
        np.testing.assert_allclose(found, -numeric, atol=2e-6)


@pytest.mark.parametrize(("value", "place"), [(0.5, 0.0), (1.0, 0.0), (1.5, 0.5), (2.0, 1.0), (5.0, 1.75), (9.0, 2.0)])
def test_knot_place__between_and_beyond_the_knots(value, place):
    assert knot_place(np.float32(value), 0, np.array([[1.0, 2.0, 6.0]], np.float32), np.array([3])) == place


@pytest.mark.parametrize(("n_knots", "value", "place"), [(0, 1.0, -1.0), (1, 0.5, 0.0), (1, 7.0, 0.0), (3, 0.0, -1.0)])
def test_knot_place__few_knots_and_absent_cells(n_knots, value, place):
    assert knot_place(np.float32(value), 0, np.array([[1.0, 2.0, 6.0]], np.float32), np.array([n_knots])) == place


def nearest_of(affinity, n_nearest):
    """Return what `keep_nearest` keeps of one row of affinities."""
    room = len(affinity) + 64
    center, kept = np.zeros(room, np.int32), np.zeros(room, np.float32)
    table = np.zeros((2, len(affinity) + 3), np.float32)
    table[1, 3:] = affinity
    bounds = (np.uintp(3), np.uintp(3 + len(affinity)), np.uintp(n_nearest))
    keep_nearest(table, np.uintp(1), *bounds, center, kept, np.zeros(room, np.int32))
    return center[:n_nearest] - 3, kept[:n_nearest]


def test_keep_nearest__equal_centres_by_lower_index():
    center, affinity = nearest_of(np.array([2.0, 0.5, 1.0, 1.0, 1.0]), 3)
    np.testing.assert_array_equal(center, [0, 2, 3])
    np.testing.assert_array_equal(affinity, [2.0, 1.0, 1.0])


@pytest.mark.parametrize("n_centers", [1, 2, 16, 33, 63, 64, 65, 200, 331])
@pytest.mark.parametrize("whole", [False, True])
def test_keep_nearest__equals_a_sort(n_centers, whole):
    rng = np.random.default_rng(n_centers)
    for n_nearest in {1, min(8, n_centers), min(16, n_centers), min(40, n_centers)}:
        values = (rng.integers(-3, 3, n_centers) if whole else rng.normal(size=n_centers)).astype(np.float32)
        expected = np.sort(np.lexsort((np.arange(n_centers), -values))[:n_nearest])
        center, affinity = nearest_of(values, n_nearest)
        np.testing.assert_array_equal(center, expected)
        np.testing.assert_array_equal(affinity, values[expected])


def test_weigh_centers__by_hand():
    affinity = np.array([1.0, 3.0, 2.0, 9.0], np.float32)
    weigh_centers(affinity, np.uintp(3), np.float32(np.log(2)), True)
    np.testing.assert_allclose(affinity, [1 / 7, 4 / 7, 2 / 7, 9.0], rtol=1e-6)


def test_euclidean_memberships__equal_twin():
    rng = np.random.default_rng(0)
    centers, X = rng.normal(size=(6, 3)).astype(np.float32), rng.normal(size=(20, 3)).astype(np.float32)
    members = Memberships(centers, np.array([0, 6]), np.array([4]), np.full(1, 0.7, np.float32), EUCLIDEAN)
    rows = prepare_plus_rows(sp.csr_matrix(X), members.kernel_form(), OwnTerm.nothing(2).cells(9))
    dense = sp.csr_matrix((rows.data, rows.indices, rows.indptr), shape=(20, 9)).toarray()
    expected = [reference_plus.euclidean_memberships(x.astype(float), centers.astype(float), 0.7, 4) for x in X]
    np.testing.assert_allclose(dense, np.hstack([X, expected]), rtol=1e-4, atol=1e-6)


def test_cluster_rows__equals_twin():
    rng = np.random.default_rng(3)
    X = sp.csr_matrix(rng.random((50, 6)) * (rng.random((50, 6)) < 0.7), dtype=np.float32)
    X = X[np.flatnonzero(np.diff(X.indptr))]
    norms = np.sqrt(np.asarray(X.multiply(X).sum(axis=1))).ravel().astype(np.float32)
    drawn = np.random.default_rng([5, 0, 2**29]).permutation(X.shape[0])
    expected = reference_plus.spherical_k_means(X.toarray().astype(float), drawn[:6], drawn[6:], 4)
    np.testing.assert_allclose(cluster_rows(X, norms, 6, COSINE, [5, 0]).centers, expected, atol=1e-5)


def test_cluster_rows__empty_centre_takes_another_row():
    X = sp.csr_matrix(np.array([[1.0, 0], [1, 0], [1, 0], [0, 1]], np.float32))
    centers = cluster_rows(X, np.ones(4, np.float32), 3, COSINE, [0, 0]).centers
    # Equal rows leave all but one of their centres empty; those that follow are rows again.
    assert {tuple(center) for center in centers} <= {(1.0, 0.0), (0.0, 1.0)}


def test_reference_pushes__are_the_gradient_of_the_loss():
    rng = np.random.default_rng(2)
    scores = rng.normal(size=6)
    groups = reference_ranking.groups_of_ranks([2, 1, 2, 0, 3, 0])
    numeric = [
        (reference_plus.pair_loss(scores + e, groups) - reference_plus.pair_loss(scores - e, groups)) / 2e-6
        for e in 1e-6 * np.eye(6)
    ]
    np.testing.assert_allclose(reference_plus.pair_pushes(scores, groups), -np.array(numeric), atol=1e-8)
