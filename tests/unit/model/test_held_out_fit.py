"""How closely AMM-rank-plus follows its rows, chosen on rows that are held out."""

import numpy as np
import pytest
import scipy.sparse as sp
from noisy_rows import N_CATEGORIES as L
from noisy_rows import draw_rows

from ammrank_dask.methods.popularity import Popularity
from ammrank_dask.model.amm_rank_plus import AMMRankPlus
from ammrank_dask.model.held_out_fit import FEWEST_ROWS, MOST_ROWS, USUAL, choose_fit, split_blocks

LEARNED = ("weights_", "plane_category_", "squares_", "own_squares_", "n_steps_")


class Fixed(Popularity):
    """Everybody gets the same scores."""

    def __init__(self, scores):
        self.scores = np.asarray(scores, np.float32)

    def decision_function(self, X):
        return np.tile(self.scores, (X.shape[0], 1))


@pytest.mark.parametrize(("noise", "fit"), [(0.0, "closer"), (2.0, "usual"), (8.0, "looser")])
def test_fit__follows_rows_by_how_much_of_them_is_chance(noise, fit):
    X, rankings = draw_rows(600, noise)
    model = AMMRankPlus(n_categories=L).fit(X, rankings)
    assert model.fit_ == fit
    parameters = {"closer": {"kappa": 0.001, "epochs": 20}, "usual": {}, "looser": {"pace": 1 / 3}}[fit]
    alone = AMMRankPlus(n_categories=L, hold_out=False, **parameters).fit(X, rankings)
    assert alone.fit_ == USUAL
    for name in LEARNED:
        np.testing.assert_array_equal(getattr(model, name), getattr(alone, name))
    np.testing.assert_array_equal(model.decision_function(X), alone.decision_function(X))


def test_fit__nothing_is_held_out_of_few_rows_or_of_a_table():
    X, rankings = draw_rows(FEWEST_ROWS - 1, 0.0)
    assert AMMRankPlus(n_categories=L).fit(X, rankings).fit_ == USUAL
    X, _ = draw_rows(FEWEST_ROWS, 0.0)
    taste = X.toarray() @ np.random.default_rng(99).normal(size=(40, 3))
    complete = np.argsort(-taste, axis=1).astype(np.int32)
    assert AMMRankPlus(n_categories=3, geometry="cosine").fit(X, complete).fit_ == USUAL


def test_split_blocks__deals_every_row_with_a_ranking_once():
    X, rankings = draw_rows(400, 1.0)
    rankings[::10] = -1
    X = sp.csr_matrix(np.column_stack([X.toarray(), np.arange(400)]))
    tied = np.zeros(rankings.shape, bool)
    blocks = [(X[:150], rankings[:150], tied[:150]), (X[150:], rankings[150:], tied[150:])]
    learnt, held_out = split_blocks(blocks, 3)
    assert [len(part) for part in (*learnt, *held_out)] == [3, 3, 3, 3]
    dealt = [part[0].toarray()[:, -1] for part in (*learnt, *held_out)]
    np.testing.assert_array_equal(np.sort(np.concatenate(dealt)), np.flatnonzero(np.arange(400) % 10))
    assert 60 < len(dealt[2]) + len(dealt[3]) < 120
    for part in (*learnt, *held_out):
        np.testing.assert_array_equal(part[1], rankings[part[0].toarray()[:, -1].astype(int)])
    again = split_blocks(blocks, 3)[1]
    assert [part[0].shape for part in again] == [part[0].shape for part in held_out]


def test_split_blocks__not_with_too_few_or_too_many_rows():
    X, rankings = sp.csr_matrix((MOST_ROWS, 1)), np.zeros((MOST_ROWS, 1), np.int32)
    assert split_blocks([(X, rankings)], 0) is not None
    assert split_blocks([(X, rankings), (X[:1], rankings[:1])], 0) is None
    rankings[FEWEST_ROWS - 1 :] = -1
    assert split_blocks([(X, rankings)], 0) is None


def test_choose_fit__takes_another_only_when_it_is_clearly_better():
    first, last, middle = Fixed([3, 2, 1]), Fixed([1, 2, 3]), Fixed([1, 3, 2])

    def choose(closer, looser, wanted):
        X = sp.csr_matrix((len(wanted), 1))
        held_out = [(X, np.array(wanted)[:, None]), (X[:0], np.zeros((0, 1), np.int32))]
        return choose_fit({USUAL: first, "closer": closer, "looser": looser}, held_out)

    # By hand: who wants the last category gains 1, who wants the first loses 1.
    # Gains of 1, 1, 1, 1, −1 have the mean .6 and a standard error of .4; of 1, 1, 1, −1 it is ½ and ½.
    assert choose(last, first, [2, 2, 2, 2, 0]) == "closer"
    assert choose(last, first, [2, 2, 2, 0]) == USUAL
    # 1.5 standard errors are not enough to be looser; with nine of ten the mean .8 is 4 of them.
    assert choose(first, last, [2, 2, 2, 2, 0]) == USUAL
    assert choose(first, last, [2] * 9 + [0]) == "looser"
    # Both are better: the one with the lower error.
    assert choose(middle, last, [2] * 10) == "looser"
    assert choose(last, middle, [2] * 10) == "closer"
    assert choose_fit({USUAL: first, "closer": last, "looser": last}, []) == USUAL
