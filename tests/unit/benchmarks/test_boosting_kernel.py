"""The pushes that boosted trees are grown on, against the loss itself."""

import numpy as np
import pytest

from benchmarks.label_ranking.boosting import push_scores


def push(scores, likings):
    """Return pushes and curvatures; what was in the arrays before does not count."""
    written = np.full((2, *scores.shape), np.nan)
    push_scores(scores, likings, *written)
    return written


def test_push_scores__two_categories_by_hand():
    pushes, curvatures = push(np.array([[0.0, 0.0], [np.log(3), 0.0]]), np.array([[2.0, 1.0], [1.0, 2.0]]))
    np.testing.assert_allclose(pushes, [[0.5, -0.5], [-0.75, 0.75]])
    np.testing.assert_allclose(curvatures, [[0.25, 0.25], [0.1875, 0.1875]])


def test_push_scores__is_the_gradient_of_the_loss():
    # Category 1 is liked most, 0 and 2 alike, 3 least: five of six pairs count.
    scores, likings = np.array([[0.3, -0.2, 1.0, 0.5]]), np.array([[2.0, 3.0, 2.0, 1.0]])
    preferred = [(1, 0), (1, 2), (1, 3), (0, 3), (2, 3)]

    def loss(s):
        return sum(np.log1p(np.exp(s[k] - s[i])) for i, k in preferred)

    pushes, curvatures = push(scores, likings)
    for category, step in enumerate(1e-4 * np.eye(4)):
        up, here, down = (loss(scores[0] + sign * step) for sign in (1, 0, -1))
        assert pushes[0, category] == pytest.approx((down - up) / 2e-4, rel=1e-6)
        assert curvatures[0, category] == pytest.approx((up - 2 * here + down) / 1e-8, rel=1e-4)


def test_push_scores__scores_far_apart_are_finite():
    pushes, curvatures = push(np.array([[5000.0, -5000.0]] * 2), np.array([[1.0, 0.0], [0.0, 1.0]]))
    np.testing.assert_allclose(pushes, [[0.0, 0.0], [-1.0, 1.0]], atol=1e-12)
    np.testing.assert_allclose(curvatures, 0.0, atol=1e-12)


def test_push_scores__a_row_that_likes_all_alike_pushes_nothing():
    np.testing.assert_array_equal(push(np.array([[1.0, 2.0, 3.0]]), np.zeros((1, 3))), 0.0)
