"""Slow plain-numpy twins of the ranking kernels and metrics, written from METHOD.md, not from the kernels."""

import numpy as np


def train_as_printed(X, rankings, order, rank_weights, regularization, bias, max_planes, n_categories):
    """Train in the paper's form, with a decay of all planes at each step; return [(category, w), …]."""
    X = np.hstack([X, np.full((len(X), 1), bias)])
    planes = []
    t = 1
    for row in order:
        ranking = [c for c in rankings[row] if c >= 0]
        if not ranking:
            continue
        x = X[row]
        best, winner = np.zeros(n_categories), [None] * n_categories
        for j, (category, w) in enumerate(planes):
            if w @ x > best[category]:
                best[category], winner[category] = w @ x, j
        push = _pushes(ranking, best, 1.0, rank_weights, n_categories)
        for _, w in planes:
            w *= t / (t + 1)
        for category in range(n_categories):
            change = push[category] / (regularization * (t + 1)) * x
            if winner[category] is not None:
                planes[winner[category]][1][:] += change
            elif push[category] > 0 and sum(c == category for c, _ in planes) < max_planes:
                planes.append((category, change))
        t += 1
    return planes


def train_in_sums(X, rankings, order, rank_weights, regularization, bias, max_planes, n_categories):
    """Train in the closed form, in float64; return ([(category, S), …] by birth, next step)."""
    X = np.hstack([X, np.full((len(X), 1), bias)]).astype(np.float64)
    planes = []
    t = 1
    for row in order:
        ranking = [c for c in rankings[row] if c >= 0]
        if not ranking:
            continue
        x = X[row]
        best, winner = np.zeros(n_categories), [None] * n_categories
        for j, (category, total) in enumerate(planes):
            if total @ x > best[category]:
                best[category], winner[category] = total @ x, j
        push = _pushes(ranking, best, regularization * t, rank_weights, n_categories)
        for category in range(n_categories):
            if winner[category] is not None:
                planes[winner[category]][1][:] += push[category] * x
            elif push[category] > 0 and sum(c == category for c, _ in planes) < max_planes:
                planes.append((category, push[category] * x))
        t += 1
    return planes, t


def _pushes(ranking, best, margin, rank_weights, n_categories):
    push = np.zeros(n_categories)
    for place, i in enumerate(ranking):
        for k in range(n_categories):
            if k not in ranking[: place + 1] and margin + best[k] > best[i]:
                push[i] += rank_weights[place]
                push[k] -= rank_weights[place]
    return push


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
