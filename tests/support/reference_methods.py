"""Slow, plain twins of the compared methods: loops over users, pairs and orders, nothing shared with the code."""

import itertools
import math

import numpy as np
from scipy.optimize import minimize


def preferred_pairs(ranks):
    """All (i, j) with i preferred over j; `ranks` is one row, 1 best, 0 unranked, equal is a tie."""
    pairs = []
    for i, j in itertools.permutations(range(len(ranks)), 2):
        if ranks[i] > 0 and (ranks[j] == 0 or ranks[i] < ranks[j]):
            pairs.append((i, j))
    return pairs


def pair_counts(all_ranks):
    """How many rows prefer i over j, (L, L)."""
    n_categories = all_ranks.shape[1]
    counts = np.zeros((n_categories, n_categories), np.int64)
    for ranks in all_ranks:
        for i, j in preferred_pairs(ranks):
            counts[i, j] += 1
    return counts


def contradictions(counts, order):
    """Preferred pairs that an order turns round: its Kemeny score."""
    return sum(int(counts[b, a]) for a, b in itertools.combinations(order, 2))


def best_contradictions(counts):
    """The lowest Kemeny score of all orders."""
    return min(contradictions(counts, order) for order in itertools.permutations(range(len(counts))))


def borda(counts):
    """Categories by wins minus losses, then by code."""
    balance = counts.sum(axis=1) - counts.sum(axis=0)
    return sorted(range(len(counts)), key=lambda category: (-balance[category], category))


def nearest(rows, queries, k):
    """The k nearest rows of each query by Euclidean distance, equal ones by number."""
    found = []
    for query in queries:
        distances = [float(((row - query) ** 2).sum()) for row in rows]
        found.append(sorted(range(len(rows)), key=lambda i: (distances[i], i))[:k])
    return found


def disagreement_of(scores, ranks):
    """The disagreement error of one row, None without a pair: a wrong pair counts 1, one of equal scores ½."""
    pairs = preferred_pairs(ranks)
    if not pairs:
        return None
    wrong = sum(1.0 if scores[j] > scores[i] else 0.5 if scores[j] == scores[i] else 0.0 for i, j in pairs)
    return wrong / len(pairs)


def top_k_of(scores, ranks, k):
    """Hits, recall and NDCG at 1 … k of one row; equal scores by code; k may be above the number of categories."""
    order = sorted(range(len(scores)), key=lambda category: (-scores[category], category))
    n_relevant = sum(rank > 0 for rank in ranks)
    hits, recall, ndcg = [], [], []
    for n in range(1, k + 1):
        top = order[:n]
        hit = sum(ranks[category] > 0 for category in top)
        gain = sum((ranks[category] > 0) / np.log2(place + 2) for place, category in enumerate(top))
        ideal = sum(1 / np.log2(place + 2) for place in range(min(n, n_relevant)))
        hits.append(hit)
        recall.append(hit / n_relevant)
        ndcg.append(gain / ideal)
    return hits, recall, ndcg


def own_history_order(own, popularity):
    """Categories by own value, equal ones by popularity, then by code; both are lists over categories."""
    return sorted(range(len(own)), key=lambda category: (-own[category], -popularity[category], category))


def own_logit_scores(X, own_columns, clicked, rows):
    """Log-odds of `rows` by one logistic regression over all pairs of X, with scikit-learn's penalty of C = 1."""
    n, n_categories = clicked.shape
    counts = clicked.sum(axis=0)
    odds = [math.log((count + 0.5) / (n - count + 0.5)) for count in counts]

    def describe(row, category):
        features = []
        for columns in own_columns:
            value = float(row[columns[category]]) if columns[category] >= 0 else 0.0
            features += [value, math.sqrt(value), float(value > 0)]
        return [*features, odds[category], 1.0]

    pairs = np.array([describe(X[row], category) for row in range(n) for category in range(n_categories)])
    signs = np.array([1.0 if clicked[row, category] else -1.0 for row in range(n) for category in range(n_categories)])

    def objective(weights):
        margins = signs * (pairs @ weights)
        gradient = -(pairs.T @ (signs / (1 + np.exp(margins))))
        gradient[:-1] += weights[:-1]
        return np.log1p(np.exp(-margins)).sum() + 0.5 * (weights[:-1] ** 2).sum(), gradient

    weights = minimize(objective, np.zeros(pairs.shape[1]), jac=True, method="BFGS", options={"gtol": 1e-7}).x
    return np.array([[describe(row, category) @ weights for category in range(n_categories)] for row in rows])


def item_knn_scores(X, clicked, rows):
    """Scores of `rows` by the similarities of columns and clicked categories, loop by loop."""
    (n, d), n_categories = X.shape, clicked.shape[1]

    def unit(row):
        norm = math.sqrt(sum(float(value) ** 2 for value in row))
        return [float(value) / norm if norm else 0.0 for value in row]

    units = [unit(row) for row in X]
    counts = [sum(int(clicked[row, i]) for row in range(n)) for i in range(n_categories)]
    mean = sum(counts) / sum(count > 0 for count in counts)
    scores = np.zeros((len(rows), n_categories))
    for f in range(d):
        total = sum(row[f] for row in units)
        norm = math.sqrt(sum(row[f] ** 2 for row in units))
        for i in range(n_categories):
            covariance = sum(units[row][f] * clicked[row, i] for row in range(n)) - total * counts[i] / n
            similarity = covariance / (norm * counts[i] ** 0.75 * mean**-0.25 + 0.3)
            for number, row in enumerate(rows):
                scores[number, i] += unit(row)[f] * similarity
    return scores
