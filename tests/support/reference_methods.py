"""Slow, plain twins of the compared methods: loops over users, pairs and orders, nothing shared with the code."""

import itertools

import numpy as np


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
