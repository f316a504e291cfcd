"""Feature maps, the sum of several models, and the search of the label-ranking benchmark."""

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.kernel_approximation import RBFSampler

from ammrank_dask import AMMRank, AMMRankPlus
from ammrank_dask.methods.mallows import CentralMallows
from benchmarks.label_ranking import search, table_ranker
from benchmarks.label_ranking.boosted_trees import BoostedTrees
from benchmarks.label_ranking.ensemble import AMMRankEnsemble, center_scores
from benchmarks.label_ranking.feature_maps import RandomBins
from benchmarks.label_ranking.table_ranker import TableRanker
from benchmarks.label_ranking.tree_cells import TreeCells


def draw_steps(seed, n=300):
    """Points of a square; which of three categories is best changes in stripes, which planes say badly."""
    rng = np.random.default_rng([7, seed])
    X = rng.random((n, 2))
    liking = np.stack([np.sin(12 * X[:, 0]), np.cos(12 * X[:, 0]), np.zeros(n)], axis=1)
    return X, 1 + np.argsort(np.argsort(-liking, axis=1), axis=1)


def test_random_bins__one_cell_per_grid_and_none_for_a_new_one():
    X, _ = draw_steps(0, n=40)
    bins = RandomBins(n_grids=16, depth=2, n_bins=8, seed=3).fit(X)
    mapped = bins.transform(X)
    assert mapped.dtype == np.float32
    np.testing.assert_array_equal(mapped.getnnz(axis=1), 16)
    np.testing.assert_array_equal(mapped.data, np.float32(0.25))
    assert (mapped.getnnz(axis=0) > 0).all()
    # Rows are told apart by cells: those in one cell of a grid are close in the quantiles of its features.
    unseen = bins.transform(np.array([[0.9, -5.0], [-5.0, 0.9]]))
    assert unseen.shape[1] == mapped.shape[1]
    assert (unseen.getnnz(axis=1) < 16).any()


def test_random_bins__only_the_order_of_values_counts():
    X, _ = draw_steps(1, n=50)
    plain = RandomBins(n_grids=8).fit(X).transform(X)
    bent = RandomBins(n_grids=8).fit(np.exp(3 * X)).transform(np.exp(3 * X))
    np.testing.assert_array_equal(plain.toarray(), bent.toarray())
    other = RandomBins(n_grids=8, seed=1).fit(X).transform(X)
    assert plain.shape != other.shape or (plain != other).nnz


@pytest.mark.night
def test_ensemble__maps_learn_what_planes_say_badly():
    X, ranks = draw_steps(2)
    unseen, truth = draw_steps(3)
    ranker = AMMRank(epochs=30)
    plain, mapped = (
        AMMRankEnsemble([(feature_map, ranker)] * 3, sample=0.9).fit(X, ranks=ranks)
        for feature_map in (None, RandomBins(depth=1, n_bins=16, n_grids=50))
    )
    taus = [search.kendall_tau(m.decision_function(unseen), truth) for m in (plain, mapped)]
    assert taus[1] > 0.8
    assert taus[1] > taus[0]


def test_ensemble__one_member_ranks_as_that_model():
    X, ranks = draw_steps(4)
    ensemble = AMMRankEnsemble([(None, AMMRank())]).fit(X, ranks=ranks)
    alone = ensemble.members_[0][1]
    np.testing.assert_array_equal(ensemble.predict(X), alone.predict(X))
    scores = ensemble.decision_function(X)
    assert np.std(scores) == pytest.approx(1, rel=1e-4)
    rankings = np.argsort(ranks, axis=1)
    again = AMMRankEnsemble([(None, AMMRank())]).fit(X, rankings)
    np.testing.assert_array_equal(again.decision_function(X), scores)


@pytest.mark.parametrize(
    "feature_map",
    [RandomBins(n_grids=10), RBFSampler(n_components=10), TreeCells(n_trees=10), BoostedTrees(n_trees=5)],
    ids=["bins", "rbf", "trees", "boosted"],
)
def test_ensemble__members_differ_and_are_repeatable(feature_map):
    X, ranks = draw_steps(5)
    members = [(feature_map, AMMRank())] * 2
    scores = [AMMRankEnsemble(members, sample=0.5).fit(X, ranks=ranks).member_scores(X) for _ in range(2)]
    np.testing.assert_array_equal(scores[0], scores[1])
    assert not np.array_equal(scores[0][0], scores[0][1])
    np.testing.assert_allclose(
        AMMRankEnsemble(members, sample=0.5).fit(X, ranks=ranks).decision_function(X), scores[0].sum(axis=0)
    )


def test_ensemble__has_the_calls_of_a_single_model():
    X, ranks = draw_steps(8, n=60)
    rankings = np.argsort(ranks, axis=1)[:, :2]
    ensemble = AMMRankEnsemble([(None, AMMRank()), (RandomBins(n_grids=10), AMMRank())]).fit(X, rankings)
    np.testing.assert_array_equal(ensemble.popularity_, np.bincount(rankings.ravel(), minlength=3))
    codes, scores = ensemble.predict_top_k(X, k=2)
    np.testing.assert_array_equal(codes, ensemble.predict(X)[:, :2])
    np.testing.assert_array_equal(scores, np.sort(ensemble.decision_function(X), axis=1)[:, :0:-1])
    with pytest.raises(ValueError, match=r"k must be between 1 and n_categories \(3\), got 4"):
        ensemble.predict_top_k(X, k=4)
    with pytest.raises(ValueError, match="X must have 2 features, got 3"):
        ensemble.predict(np.ones((1, 3)))
    with pytest.raises(ValueError, match="fit must be given rankings or ranks, got neither"):
        ensemble.fit(X)


def test_ensemble__samples_every_block():
    X, ranks = draw_steps(9, n=80)
    rankings = np.argsort(ranks, axis=1)
    blocks = [(X[:30], rankings[:30]), (X[30:], rankings[30:])]
    ensemble = AMMRankEnsemble([(RandomBins(n_grids=10), AMMRank(epochs=1))], sample=0.5).fit_blocks(blocks)
    assert ensemble.members_[0][1].n_steps_ == 40
    np.testing.assert_array_equal(ensemble.popularity_, [80, 80, 80])


def test_center_scores__category_without_planes_stands_last():
    np.testing.assert_allclose(center_scores(np.array([[3.0, -np.inf, 1.0]])), [[5 / 3, -4 / 3, -1 / 3]])


def test_ensemble__works_with_sklearn_clone_and_refuses_bad_parameters():
    X, ranks = draw_steps(6, n=10)
    ensemble = AMMRankEnsemble([(None, AMMRank())], sample=0.9)
    assert clone(ensemble).set_params(seed=4).get_params()["seed"] == 4
    with pytest.raises(ValueError, match=r"Invalid parameter 'depth' .*'members', 'sample', 'seed'"):
        ensemble.set_params(depth=1)
    with pytest.raises(NotFittedError, match="this AMMRankEnsemble is not fitted yet; call fit first"):
        ensemble.predict(X)
    with pytest.raises(ValueError, match="members must hold at least one pair of feature map and ranker, got none"):
        AMMRankEnsemble([]).fit(X, ranks=ranks)
    with pytest.raises(ValueError, match="sample must be above 0 and at most 1, got 0"):
        AMMRankEnsemble([(None, AMMRank())], sample=0).fit(X, ranks=ranks)


@pytest.mark.parametrize(
    ("feature_map", "message"),
    [
        (RandomBins(n_grids=0), "n_grids must be at least 1, got 0"),
        (RandomBins(depth=0), "depth must be at least 1, got 0"),
        (RandomBins(n_bins=0), "n_bins must be at least 1, got 0"),
        (TreeCells(n_trees=0), "n_trees must be at least 1, got 0"),
        (TreeCells(min_rows=0), "min_rows must be at least 1, got 0"),
        (BoostedTrees(n_trees=0), "n_trees must be at least 1, got 0"),
        (BoostedTrees(max_leaves=1), "max_leaves must be at least 2, got 1"),
        (BoostedTrees(min_rows=0), "min_rows must be at least 1, got 0"),
        (BoostedTrees(n_pairs=-1), "n_pairs must be at least 0, got -1"),
        (BoostedTrees(rate=0.0), "rate must be above 0 and at most 1, got 0.0"),
    ],
)
def test_feature_maps__refuse_bad_parameters(feature_map, message):
    with pytest.raises(ValueError, match=message):
        feature_map.fit(np.ones((2, 2)), np.ones((2, 3)))


def test_tree_cells__one_leaf_per_tree_behind_the_row():
    X, ranks = draw_steps(0, n=60)
    cells = TreeCells(n_trees=16, min_rows=5).fit(X, -ranks)
    mapped = cells.transform(X)
    np.testing.assert_array_equal(mapped[:, :2].toarray(), X.astype(np.float32))
    leaves = mapped[:, 2:]
    np.testing.assert_array_equal(leaves.getnnz(axis=1), 16)
    np.testing.assert_array_equal(leaves.data, np.float32(0.25))
    assert leaves.getnnz(axis=0).min() >= 5
    # A leaf is one box: on a line that meets it, its rows follow each other.
    line = np.stack([np.linspace(0, 1, 200), np.full(200, 0.5)], axis=1)
    met = cells.transform(line)[:, 2:].toarray() > 0
    assert (np.abs(np.diff(met.astype(int), axis=0)).sum(axis=0) <= 2).all()


def test_tree_cells__cut_where_rankings_change():
    # Only the second feature tells rankings apart, at 0.3: all but the first cuts are free, and none is needed.
    X = np.random.default_rng(1).random((400, 2))
    likings = np.where(X[:, 1:] < 0.3, [[1.0, 0.0]], [[0.0, 1.0]])
    leaves = TreeCells(n_trees=20, min_rows=1).fit(X, likings).transform(X)[:, 2:].toarray() > 0
    for low in (True, False):
        of_leaf = leaves[(X[:, 1] < 0.3) == low].any(axis=0)
        assert not (of_leaf & leaves[(X[:, 1] < 0.3) != low].any(axis=0)).any()


def test_boosted_trees__one_tree_makes_a_newton_step_in_each_leaf():
    # One feature in two steps, the sampled half has rows of both: a leaf is a step, and p is ½ before the first tree.
    X = np.repeat([[0.0], [1.0]], 20, axis=0)
    likings = np.where(X > 0, [[1.0, 0.0]], [[0.0, 1.0]])
    trees = BoostedTrees(n_trees=1, max_leaves=2, rate=0.1).fit(X, likings)
    tree, steps = trees.trees_[0]
    counts = tree.n_node_samples[1:]
    assert counts.sum() == 20
    low = 0.1 * 0.5 * counts / (0.25 * counts + 1)
    np.testing.assert_allclose(steps[1:], [[-low[0], low[0]], [low[1], -low[1]]])
    mapped = trees.transform(np.array([[0.2], [0.7]]))
    np.testing.assert_array_equal(mapped[:, 0], [0.2, 0.7])
    np.testing.assert_allclose(mapped[:, 1:] * trees.scale_, steps[1:])


def test_boosted_trees__cut_sums_and_differences_of_pairs():
    # Which of two is liked turns at x0 = x1, which two leaves say only if they may cut the difference.
    X = np.random.default_rng(1).random((400, 2))
    likings = np.where(X[:, :1] < X[:, 1:], [[1.0, 0.0]], [[0.0, 1.0]])
    right = []
    for n_pairs in (0, 1):
        scores = BoostedTrees(n_trees=5, max_leaves=2, n_pairs=n_pairs).fit(X, likings).transform(X)[:, 2:]
        right.append(np.mean(scores.argmax(axis=1) == likings.argmax(axis=1)))
    assert right[0] < 0.9
    assert right[1] > 0.99


def test_boosted_trees__nothing_to_tell_apart():
    mapped = BoostedTrees(n_trees=3).fit(np.ones((4, 2)), np.zeros((4, 3))).transform(np.ones((2, 2)))
    np.testing.assert_array_equal(mapped, [[1, 1, 0, 0, 0]] * 2)
    alone = BoostedTrees(n_trees=3, n_pairs=9).fit(np.ones((1, 2)), np.array([[2.0, 1.0]])).transform(np.ones((1, 2)))
    assert alone[0, 2] > alone[0, 3]


@pytest.mark.night
@pytest.mark.parametrize("feature_map", [TreeCells(n_trees=30), BoostedTrees(n_trees=60)], ids=["cells", "boosted"])
def test_ensemble__trees_learn_what_planes_say_badly(feature_map):
    X, ranks = draw_steps(2)
    unseen, truth = draw_steps(3)
    ranker = AMMRankPlus(n_clusterings=0, kappa=4e-3, max_planes=1, clickers_per_plane=1, epochs=20)
    plain, grown = (AMMRankEnsemble([(map_, ranker)]).fit(X, ranks=ranks) for map_ in (None, feature_map))
    taus = [search.kendall_tau(m.decision_function(unseen), truth) for m in (plain, grown)]
    assert taus[1] > 0.85
    assert taus[1] > taus[0] + 0.2


def test_kendall_tau__by_hand():
    ranks = np.array([[1, 2, 3]])
    assert search.kendall_tau(np.array([[3.0, 2.0, 1.0]]), ranks) == 1
    assert search.kendall_tau(np.array([[1.0, 2.0, 3.0]]), ranks) == -1
    assert search.kendall_tau(np.array([[2.0, 2.0, 1.0]]), ranks) == pytest.approx(2 / 3)
    assert search.kendall_tau(np.array([[2.0, 3.0, 1.0]]), ranks) == pytest.approx(1 / 3)


@pytest.mark.night
def test_label_ranking__prints_a_table(tmp_path, monkeypatch, capsys):
    X, ranks = draw_steps(7, n=60)
    lines = ["L2,A1,L10,A2,L1"]
    lines += [f"{r[1]},{x[0]},{r[2]},{x[1]},{r[0]}" for x, r in zip(X, ranks, strict=True)]
    (tmp_path / "iris.csv").write_text("\n".join(lines))
    read_X, read_ranks = search.read_table(tmp_path / "iris.csv")
    np.testing.assert_allclose(read_X, X)
    np.testing.assert_array_equal(read_ranks, ranks)
    monkeypatch.setattr(search, "STAGES", ((1, 100, 2),))
    monkeypatch.setattr(search, "MIX_STEPS", 100)
    monkeypatch.setattr(search, "FINAL_STEPS", 100)
    monkeypatch.setattr(search, "N_MEMBERS", 2)
    search.run_label_ranking(tmp_path, sets=["iris"], folds=2)
    out = capsys.readouterr().out
    assert "iris            60   0.968" in out
    assert "mean of   1" in out


def test_random_bins__keep_rows_before_their_cells():
    X, _ = draw_steps(2)
    cells = RandomBins(n_grids=8).fit(X).transform(X)
    kept = RandomBins(n_grids=8, keep_rows=True).fit(X).transform(X)
    np.testing.assert_array_equal(kept[:, : X.shape[1]].toarray(), X.astype(np.float32))
    np.testing.assert_array_equal(kept[:, X.shape[1] :].toarray(), cells.toarray())


@pytest.mark.night
def test_table_ranker__cells_learn_what_planes_say_badly():
    X, ranks = draw_steps(2)
    unseen, truth = draw_steps(3)
    maps = ({}, {"bin_depth": 1}, {"leaf_rows": 5}, {"boosted_trees": 30, "random_cuts": True, "n_pairs": 1})
    plain, *mapped = (TableRanker(n_bins=16, **cells).fit(X, ranks=ranks) for cells in maps)
    taus = [search.kendall_tau(m.decision_function(unseen), truth) for m in (plain, *mapped)]
    assert min(taus[1:]) > 0.8
    assert min(taus[1:]) > taus[0]
    for ranker in mapped:
        np.testing.assert_array_equal(ranker.decision_function(sp.csr_matrix(unseen)), ranker.decision_function(unseen))
        assert ranker.n_features_in_ == X.shape[1]
        assert ranker.n_planes_.sum() >= ranks.shape[1]


def test_table_ranker__without_grids_is_amm_rank_plus():
    X, ranks = draw_steps(4)
    table = TableRanker(epochs=5, kappa=0.1, max_planes=2, seed=3).fit(X, ranks=ranks)
    plus = AMMRankPlus(epochs=5, kappa=0.1, max_planes=2, clickers_per_plane=1, seed=3).fit(X, ranks=ranks)
    np.testing.assert_array_equal(table.decision_function(X), plus.decision_function(X))


def test_table_ranker__a_table_with_nothing_to_learn_gets_one_ranking_for_all():
    X, ranks = draw_steps(5)
    assert TableRanker(epochs=10).fit(X, ranks=ranks).model_.kappa in table_ranker.KAPPAS
    dealt = np.random.default_rng(1).permutation(ranks)
    noise = TableRanker(epochs=10).fit(X, ranks=dealt)
    center = CentralMallows().fit(X, ranks=dealt)
    np.testing.assert_array_equal(noise.predict(X), center.predict(X))
    np.testing.assert_array_equal(noise.n_planes_, [0, 0, 0])


def test_table_ranker__a_single_row_has_none_to_choose_with():
    ranker = TableRanker(epochs=2).fit(np.ones((1, 2)), ranks=np.array([[2, 1, 3]]))
    np.testing.assert_array_equal(ranker.predict(np.ones((1, 2))), [[1, 0, 2]])


def test_table_ranker__refuses_bad_parameters():
    X, ranks = draw_steps(4)
    with pytest.raises(ValueError, match="bin_depth must be 0 or above, got -1"):
        TableRanker(bin_depth=-1).fit(X, ranks=ranks)
    with pytest.raises(ValueError, match="leaf_rows must be 0 or above, got -2"):
        TableRanker(leaf_rows=-2).fit(X, ranks=ranks)
    with pytest.raises(ValueError, match="boosted_trees must be 0 or above, got -3"):
        TableRanker(boosted_trees=-3).fit(X, ranks=ranks)
    message = "only one of bin_depth, leaf_rows, boosted_trees must be given, got bin_depth and leaf_rows"
    with pytest.raises(ValueError, match=message):
        TableRanker(bin_depth=1, leaf_rows=5).fit(X, ranks=ranks)
