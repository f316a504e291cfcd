"""Slow plain-numpy twins of AMM-rank-plus, in float64, written from METHOD.md and not from the kernels."""

import numpy as np
from reference_ranking import pairs_of, tie_groups


def unit_row(x):
    """Return x at norm 1, or x where it is 0."""
    norm = np.sqrt(np.sum(x**2))
    return x / norm if norm > 0 else x


def memberships_of(x, clusterings, temperature=0.05, n_nearest=16):
    """Return the membership columns of one row: exp(cos / temperature) over the nearest centres, summing to 1."""
    parts = []
    for centers in clusterings:
        part = np.zeros(len(centers))
        if np.any(x):
            cosine = centers @ unit_row(x)
            nearest = sorted(range(len(centers)), key=lambda c, cosine=cosine: (-cosine[c], c))[:n_nearest]
            weights = np.exp(cosine[nearest] / temperature)
            part[nearest] = weights / weights.sum()
        parts.append(part)
    return np.concatenate(parts) if parts else np.zeros(0)


def euclidean_memberships(x, centers, squared_width, n_nearest):
    """Return exp(−d²/2w²) over the nearest centres, at norm 1."""
    squares = np.sum((centers - x) ** 2, axis=1)
    nearest = sorted(range(len(centers)), key=lambda c: (squares[c], c))[:n_nearest]
    part = np.zeros(len(centers))
    part[nearest] = np.exp(-squares[nearest] / (2 * squared_width))
    return part / np.sqrt(np.sum(part**2))


def spherical_k_means(X, start, spare, n_passes):
    """Return the centres after passes of Lloyd's on rows at norm 1; an empty centre takes the next of `spare`."""
    rows = np.array([unit_row(x) for x in X])
    centers, spare = rows[start].copy(), list(spare)
    for _ in range(n_passes):
        nearest = [min(range(len(centers)), key=lambda c, x=x: (-(centers[c] @ x), c)) for x in rows]
        for c in range(len(centers)):
            members = [rows[i] for i, owner in enumerate(nearest) if owner == c]
            centers[c] = unit_row(np.sum(members, axis=0)) if members else rows[spare.pop(0)]
    return centers


def hats_of(value, knots):
    """Return the value of each piecewise linear hat; all 0 for an absent value."""
    if value == 0 or not len(knots):
        return np.zeros(len(knots))
    return np.array([np.interp(value, knots, np.arange(len(knots)) == m) for m in range(len(knots))])


def own_features(x, own_columns, groups, knots, prior):
    """Return (categories, kinds + 1, 1 + knots): what β and γ of each kind are multiplied by, and at last δ.

    `knots` are those of each kind, then those of the prior. Without these last there is nothing for δ.
    """
    n_categories, n_kinds = len(prior), len(own_columns)
    width = 1 + max((len(k) for k in knots), default=0)
    features = np.zeros((n_categories, len(knots), width))
    for category in range(n_categories if len(knots) > n_kinds else 0):
        n = len(knots[-1])
        if own_columns[0][category] >= 0 and x[own_columns[0][category]] != 0:
            hats = [np.interp(prior[category], knots[-1], np.arange(n) == m) for m in range(n)]
            features[category, -1, 1 : 1 + n] = 0.1 * np.array(hats)
    for kind in range(n_kinds):
        same = [q for q in range(n_kinds) if groups[q] == groups[kind]]
        mine = [c for q in same for c in own_columns[q] if c >= 0]
        norm = np.sqrt(np.sum(x[mine] ** 2)) * np.sqrt(len(set(groups)))
        for category, column in enumerate(own_columns[kind]):
            if column >= 0 and x[column] != 0:
                features[category, kind, 0] = x[column] / norm
                features[category, kind, 1 : 1 + len(knots[kind])] = 0.1 * hats_of(x[column], knots[kind])
    return features


def plane_parts(planes, z, limit, n_categories):
    """Return the best plane score of each category and its index, None where the zero plane wins."""
    best, winner = np.zeros(n_categories), [None] * n_categories
    for category in range(n_categories):
        scores = {j: w @ z for j, (owner, w) in enumerate(planes) if owner == category}
        if scores:
            top = max(scores, key=lambda j: (scores[j], -j))
            if scores[top] > 0 or len(scores) >= limit[category]:
                best[category], winner[category] = scores[top], top
    return best, winner


def score_rows(model, X):
    """Return the scores of rows as they are stored, from the arrays of a model: prior, own term and best planes."""
    basis = model.basis_
    own, n_categories = basis.own, len(basis.prior)
    prior = basis.prior.astype(float)
    clusterings = np.split(basis.memberships.centers.astype(float), basis.memberships.start[1:-1])
    knots = [row[:n].astype(float) for row, n in zip(own.knots, own.n_knots, strict=True)]
    planes = [(c, w.astype(float)) for c, w in zip(model.plane_category_, model.weights_.T, strict=True)]
    scores = []
    for x in X.toarray().astype(float):
        z = np.concatenate([unit_row(x), memberships_of(x, clusterings), [model.bias]])
        best, _ = plane_parts(planes, z, basis.limit, n_categories)
        features = own_features(x, own.columns, list(own.group), knots, prior)
        scores.append(prior + np.sum(features * own.weights[:, : features.shape[2]], axis=(1, 2)) + best)
    return np.array(scores)


def pair_loss(scores, groups):
    """Return the mean of ln(1 + e^(s_k − s_i)) over the pairs i ≻ k."""
    pairs = pairs_of(groups, len(scores))
    return np.mean([np.log1p(np.exp(scores[k] - scores[i])) for i, k, _ in pairs])


def pair_pushes(scores, groups):
    """Return minus the gradient of `pair_loss`."""
    pairs = pairs_of(groups, len(scores))
    push = np.zeros(len(scores))
    for i, k, _ in pairs:
        share = 1 / (1 + np.exp(scores[i] - scores[k])) / len(pairs)
        push[i] += share
        push[k] -= share
    return push


def train_plus(Z, own, rankings, order, prior, limit, regularization, rate, own_rate, tied=None):
    """Train on rows with memberships and constant; return (planes [(category, S)], H, own sums, own squares, t, loss).

    `own` is (rows, categories, kinds, 1 + knots) as `own_features` returns it. A limit of 1 has its plane at once.
    """
    n_categories = len(prior)
    planes = [(c, np.zeros(Z.shape[1])) for c in range(n_categories) if limit[c] == 1]
    squares, own_sums, own_squares = np.zeros(Z.shape[1]), np.zeros(own.shape[2:]), np.zeros(own.shape[2:])
    t, loss = 1, 0.0
    for row in order:
        groups = tie_groups(rankings[row], None if tied is None else tied[row])
        if not groups or not pairs_of(groups, n_categories):
            continue
        z = Z[row]
        scale = regularization * t + np.sqrt(squares) / rate
        own_weights = own_weights_of(own_sums, own_squares, own_rate)
        best, winner = plane_parts([(c, total / scale) for c, total in planes], z, limit, n_categories)
        scores = prior + np.sum(own[row] * own_weights, axis=(1, 2)) + best
        loss += pair_loss(scores, groups)
        push = pair_pushes(scores, groups)
        reached = 0.0
        for category in range(n_categories):
            if winner[category] is not None:
                planes[winner[category]][1][:] += push[category] * z
            elif push[category] > 0 and sum(c == category for c, _ in planes) < limit[category]:
                planes.append((category, push[category] * z))
            else:
                continue
            reached += push[category] ** 2
        squares += z**2 * reached
        gradient = np.einsum("c,cqm->qm", push, own[row])
        own_sums += gradient
        own_squares += gradient**2
        t += 1
    return planes, squares, own_sums, own_squares, t, loss


def own_weights_of(sums, squares, rate):
    """Return the own weights, 0 where there was no gradient."""
    return np.where(squares > 0, rate * sums / np.sqrt(np.where(squares > 0, squares, 1)), 0.0)
