"""Chances of the lag date on tonight's features: by hand, and for simulated users whose features grow with history."""

import numpy as np
import pytest
from chance_world import CATEGORIES, make_features, make_model

from ammrank_dask.features.write import write_features
from ammrank_dask.kernels.chances import Curves
from ammrank_dask.runtime.tasks import run_together
from ammrank_dask.scoring.chances import Chances, fit_chances
from ammrank_dask.scoring.learn_chances import learn_chances
from ammrank_dask.scoring.recalibrate import (
    UsersAgain,
    chance_table,
    level_step,
    move_activity,
    move_classes,
    read_again,
    recalibrate,
    users_again,
)


def flat_chances(**changes):
    """Two categories whose chance rises with the score alone, and two classes of activity."""
    curves = Curves(
        center=0.0, scale=1.0, width=1.0, intercept=np.array([-1.0, -2.0]), slope=np.ones(2), knot=np.zeros(0),
        bend=np.zeros((2, 0)), level=np.array([0.0, 1.0]),
    )  # fmt: skip
    return Chances(curves._replace(**changes), np.array([5.0]), np.log1p([2.0, 8.0]))


def simulate(n, window, seen):
    """Users of whose doings features have `seen` a share: scores, clicked, activity; clicks do not depend on it."""
    rng = np.random.default_rng(0)
    vigour = rng.exponential(1.0, n)
    taste = rng.normal(0, 1, (n, 20))
    rng = np.random.default_rng([1, window])
    clicked = rng.random(taste.shape) < 1 / (1 + np.exp(3.5 - taste - np.log(vigour + 0.05)[:, None]))
    events = rng.poisson(30 * seen * vigour)
    scores = (taste + 1.5 * seen + rng.normal(0, 0.3, taste.shape)).astype(np.float32)
    return scores, clicked, events


def test_carry_to__chances_of_a_short_history_come_true_with_a_longer_one():
    then = simulate(1500, 0, 0.4)
    now_scores, clicked_next, now_events = simulate(1500, 1, 1.0)
    learnt = fit_chances(*then)
    users = UsersAgain(then[2], now_events, now_scores, then[1].sum(axis=1))
    carried = recalibrate(learnt, [users])
    assert carried.n_users == 1500
    assert carried.clicked == then[1].sum()
    assert carried.expected == pytest.approx(chance_table(learnt, users).sum())
    assert carried.expected > 1.5 * clicked_next.sum()  # as learnt they promise far too much
    table = chance_table(carried.chances, users)
    assert table.sum() == pytest.approx(then[1].sum(), rel=1e-4)
    best = np.argsort(-now_scores, axis=1)[:, :5]
    rows = np.arange(1500)[:, None]
    assert table[rows, best].sum() == pytest.approx(clicked_next[rows, best].sum(), rel=0.08)
    for some in (now_events < np.median(now_events), now_events > np.quantile(now_events, 0.75)):
        assert table[some].sum() == pytest.approx(clicked_next[some].sum(), rel=0.2)


def test_carry_to__changes_nothing_where_nothing_changed():
    scores, clicked, events = simulate(1500, 1, 1.0)
    learnt = fit_chances(scores, clicked, events)
    users = UsersAgain(events, events, scores, clicked.sum(axis=1))
    carried = recalibrate(learnt, [users])
    assert carried.expected == pytest.approx(carried.clicked, rel=0.01)
    np.testing.assert_allclose(chance_table(carried.chances, users), chance_table(learnt, users), rtol=0.03)
    silent = recalibrate(learnt, [UsersAgain(events, events, scores, np.zeros(1500, int))])
    assert (silent.clicked, silent.chances) == (0, learnt)


def test_move_classes__users_keep_their_places():
    chances = flat_chances()
    then, now = np.array([1, 2, 3, 5, 8, 9]), np.array([10, 20, 30, 50, 80, 90])
    moved = move_classes(chances, then, now)
    assert moved.edges.tolist() == [50.0]
    assert moved.classes_of(now).tolist() == chances.classes_of(then).tolist() == [0, 0, 0, 1, 1, 1]
    np.testing.assert_allclose(moved.positions_of(now)[[1, 4]], [0, 1], atol=1e-9)
    assert moved.positions_of(now)[2] == pytest.approx(np.log(31 / 21) / np.log(81 / 21))
    whole = move_classes(Chances(chances.curves, chances.edges), then, now)
    assert whole.centers is None


def test_move_activity__equal_values_stand_in_their_middle():
    then, now = np.array([0.0, 0, 0, 4, 6]), np.array([0.0, 0, 3, 8, 16])
    assert move_activity(np.array([0.0, 4, 5, 6, 99]), then, now).tolist() == [0, 8, 12, 16, 16]


@pytest.mark.parametrize("wanted", [0.01, 300.0, 2400.0])
def test_level_step__chances_sum_to_what_is_wanted(wanted):
    table = np.random.default_rng(3).beta(0.3, 3, (500, 5))
    step = level_step(table, wanted)
    odds = np.exp(np.log(table / (1 - table)) + step)
    assert (odds / (1 + odds)).sum() == pytest.approx(wanted, rel=1e-4)


def test_carry_chances__of_users_who_are_there_both_nights(client, tmp_path):
    model = make_model()
    then = make_features(tmp_path / "then", model, 400)
    chances = learn_chances(model, then, client=client)
    # Tonight every third user is gone, some are new, and all have one value more.
    ids = np.concatenate([part.user_ids.to_arrow().to_numpy() for part in map(then.partition, range(4))])
    kept = np.sort(np.concatenate([ids[ids % 9 > 0], [7, 11]]))
    X = np.random.default_rng(5).random((len(kept), 4))
    now = write_features(
        tmp_path / "now", X, kept, ["pv:a", "pv:b", "pv:c", "pv:d"], categories=CATEGORIES, n_partitions=4
    )
    carried = recalibrate(chances, run_together(client, "again", users_again(model, then, now)))
    assert carried.n_users == (ids % 9 > 0).sum()
    again = recalibrate(chances, run_together(client, "again", users_again(model, then, now, scratch=tmp_path)))
    assert again.chances.digest() == carried.chances.digest()
    users = read_again(then.path, now.path, 2, model.panels(), None, 1.0)
    before, after = then.partition(2), now.partition(2)
    rows = {user: row for row, user in enumerate(after.user_ids.to_arrow().to_pylist())}
    both = [row for row, user in enumerate(before.user_ids.to_arrow().to_pylist()) if user in rows]
    at = [rows[before.user_ids.to_arrow()[row].as_py()] for row in both]
    assert users.activity_then.tolist() == before.n_event_features[both].tolist()
    assert users.activity_now.tolist() == after.n_event_features[at].tolist()
    assert users.n_clicked.tolist() == (before.rankings[both] >= 0).sum(axis=1).tolist()
    np.testing.assert_array_equal(users.scores_now, model.decision_function(after.X[at]))
