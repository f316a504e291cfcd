"""Slow plain-numpy twins of the ranking kernels and metrics, written from METHOD.md, not from the kernels."""

import numpy as np


def train_as_printed(X, rankings, order, rank_weights, regularization, bias, max_planes, n_categories):
    """Train in the paper's form, with a decay of all planes at each step; return [(category, w), …]."""
    X = np.hstack([X, np.full((len(X), 1), bias)])
    planes = []
    t = 1
    for row in order:
        groups = [[c] for c in rankings[row] if c >= 0]
        if not groups:
            continue
        x = X[row]
        best, winner = _winners(planes, x, max_planes, n_categories)
        push = pair_pushes(groups, best, 1.0, rank_weights)
        for _, w in planes:
            w *= t / (t + 1)
        for category in range(n_categories):
            change = push[category] / (regularization * (t + 1)) * x
            if winner[category] is not None:
                planes[winner[category]][1][:] += change
            elif push[category] > 0 and _count(planes, category) < max_planes:
                planes.append((category, change))
        t += 1
    return planes


def train_in_sums(
    X, rankings, order, rank_weights, regularization, bias, max_planes, n_categories, tied=None, top_only=False,
    prune_every=None, prune_c=0.0, clone_draws=None, clone_probability=0.0, clone_decay=1.0,
):  # fmt: skip
    """Train in the closed form, in float64; return ([(category, S), …] by birth, next step, sum of losses)."""
    X = np.hstack([X, np.full((len(X), 1), bias)]).astype(np.float64)
    planes = []
    t = 1
    loss = 0.0
    for position, row in enumerate(order):
        groups = tie_groups(rankings[row], None if tied is None else tied[row])
        if not groups:
            continue
        x = X[row]
        best, winner = _winners(planes, x, max_planes, n_categories)
        pushes = top_pushes if top_only else pair_pushes
        push = pushes(groups, best, regularization * t, rank_weights)
        losses = top_hinge if top_only else pair_hinge
        loss += losses(groups, best / (regularization * t), rank_weights)
        for category in range(n_categories):
            count = _count(planes, category)
            if winner[category] is not None:
                if push[category] > 0 and clone_draws is not None and count < max_planes:
                    chance = clone_probability * clone_decay**count
                    if clone_draws[position, category] < chance:
                        planes.append((category, planes[winner[category]][1].copy()))
                planes[winner[category]][1][:] += push[category] * x
            elif push[category] > 0 and count < max_planes:
                planes.append((category, push[category] * x))
        if prune_every is not None and t % prune_every == 0:
            planes = prune(planes, prune_c)
        t += 1
    return planes, t, loss


def prune(planes, c):
    """Return the planes without those of smallest norm whose squares sum up to at most c²."""
    planes = list(planes)
    removed = 0.0
    while True:
        free = [(total @ total, j) for j, (category, total) in enumerate(planes) if _count(planes, category) > 1]
        if not free or removed + min(free)[0] > c**2:
            return planes
        square, j = min(free)
        removed += square
        del planes[j]


def tie_groups(ranking, tied):
    """Return the categories of one row as lists of tied ones, best first."""
    groups = []
    for place, category in enumerate(ranking):
        if category < 0:
            break
        if tied is not None and len(tied) and tied[place]:
            groups[-1].append(category)
        else:
            groups.append([category])
    return groups


def groups_of_ranks(ranks):
    """Return the categories of a row of ranks as lists of tied ones, best first."""
    return [[c for c, rank in enumerate(ranks) if rank == wanted] for wanted in sorted(set(ranks) - {0})]


def pairs_of(groups, n_categories):
    """Return (i, k, rank of i) for every i ≻ k; tied categories have the rank of the first of them."""
    pairs, before = [], []
    for group in groups:
        rank = len(before) + 1
        before = before + group
        pairs += [(i, k, rank) for i in group for k in range(n_categories) if k not in before]
    return pairs


def pair_pushes(groups, best, margin, rank_weights):
    """Return the push of each category from all pairs inside the margin."""
    push = np.zeros(len(best))
    for i, k, rank in pairs_of(groups, len(best)):
        if margin + best[k] > best[i]:
            push[i] += rank_weights[rank - 1]
            push[k] -= rank_weights[rank - 1]
    return push


def top_pushes(groups, best, margin, rank_weights):
    """Return the pushes of multi-class AMM: the top category against the strongest of those not tied with it."""
    push = np.zeros(len(best))
    others = [k for k in range(len(best)) if k not in groups[0]]
    if others:
        strongest = max(others, key=lambda k: (best[k], -k))
        if margin + best[strongest] > best[groups[0][0]]:
            push[groups[0][0]] += rank_weights[0]
            push[strongest] -= rank_weights[0]
    return push


def pair_hinge(groups, scores, rank_weights):
    """Return Σ ν(rank of i) max(0, 1 + g(k) − g(i)) over pairs i ≻ k."""
    pairs = pairs_of(groups, len(scores))
    return sum(rank_weights[rank - 1] * max(0.0, 1 + scores[k] - scores[i]) for i, k, rank in pairs)


def top_hinge(groups, scores, rank_weights):
    """Return the loss of multi-class AMM, max(0, 1 + max_k g(k) − g(top))."""
    others = [scores[k] for k in range(len(scores)) if k not in groups[0]]
    return rank_weights[0] * max(0.0, 1 + max(others) - scores[groups[0][0]]) if others else 0.0


def rank_loss(weights, plane_category, x, groups, rank_weights, n_categories):
    """Return the paper's instantaneous loss of one row."""
    scores = score_rows(x[None, :-1], weights, plane_category, x[-1], n_categories)[0]
    return pair_hinge(groups, scores, rank_weights)


def top_loss(weights, plane_category, x, groups, rank_weights, n_categories):
    """Return the loss of multi-class AMM of one row."""
    scores = score_rows(x[None, :-1], weights, plane_category, x[-1], n_categories)[0]
    return top_hinge(groups, scores, rank_weights)


def _winners(planes, x, max_planes, n_categories):
    """Return the score and the index of the winning plane of each category, None for its zero plane."""
    best, winner = np.zeros(n_categories), [None] * n_categories
    for category in range(n_categories):
        scores = {j: total @ x for j, (owner, total) in enumerate(planes) if owner == category}
        if scores:
            top = max(scores, key=lambda j: (scores[j], -j))
            # A category at its limit has no zero plane left.
            if scores[top] > 0 or len(scores) >= max_planes:
                best[category], winner[category] = scores[top], top
    return best, winner


def _count(planes, category):
    return sum(owner == category for owner, _ in planes)


def score_rows(X, weights, plane_category, bias, n_categories):
    """Return the maximum over the planes of each category, -inf without planes."""
    X = np.hstack([X, np.full((len(X), 1), bias)])
    scores = np.full((len(X), n_categories), -np.inf)
    for row in range(len(X)):
        for plane, category in enumerate(plane_category):
            scores[row, category] = max(scores[row, category], X[row] @ weights[:, plane])
    return scores


def top_k(scores, tie_order, k):
    """Return (codes, scores) of the k best per row."""
    place = {int(category): i for i, category in enumerate(tie_order)}
    codes = [sorted(range(scores.shape[1]), key=lambda c, row=row: (-row[c], place[c]))[:k] for row in scores]
    return np.array(codes), np.take_along_axis(scores, np.array(codes), axis=1)


def disagreement(scores, rankings):
    """Return ε_dis pair by pair."""
    shares = []
    for row, padded in zip(scores, rankings, strict=True):
        ranking = [c for c in padded if c >= 0]
        pairs = [(i, j) for place, i in enumerate(ranking) for j in range(len(row)) if j not in ranking[: place + 1]]
        if pairs:
            shares.append(sum(1.0 if row[j] > row[i] else 0.5 * (row[j] == row[i]) for i, j in pairs) / len(pairs))
    return np.mean(shares)


def top_k_measures(scores, rankings, k):
    """Return precision, recall, f1 and ndcg at 1 … k, user by user."""
    measures = {"precision": [], "recall": [], "f1": [], "ndcg": []}
    codes, _ = top_k(scores, range(scores.shape[1]), k)
    truths = [({c for c in padded if c >= 0}, best) for padded, best in zip(rankings, codes, strict=True)]
    truths = [(truth, best) for truth, best in truths if truth]
    for depth in range(1, k + 1):
        hits = np.array([len(truth & set(best[:depth])) for truth, best in truths])
        sizes = np.array([len(truth) for truth, _ in truths])
        precision, recall = np.mean(hits / depth), np.mean(hits / sizes)
        gains = [sum(1 / np.log2(i + 2) for i in range(depth) if best[i] in truth) for truth, best in truths]
        ideals = [sum(1 / np.log2(i + 2) for i in range(min(depth, n))) for n in sizes]
        measures["precision"].append(precision)
        measures["recall"].append(recall)
        measures["f1"].append(2 * precision * recall / (precision + recall) if precision + recall else 0.0)
        measures["ndcg"].append(np.mean(np.array(gains) / np.array(ideals)))
    return {name: np.array(values) for name, values in measures.items()}
