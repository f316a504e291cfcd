"""Slow plain twins of what a report measures, on dictionaries {user: [(category, score), …] in rank order}."""

import math


def drift(before, now):
    """Return users of both nights, how many changed, first changed, the sum of Jaccards, and the list of shifts."""
    common = sorted(set(before) & set(now))
    changed = first = 0
    jaccard = 0.0
    shifts = []
    for user in common:
        old, new = dict(before[user]), dict(now[user])
        changed += set(old) != set(new)
        first += before[user][0][0] != now[user][0][0]
        jaccard += len(set(old) & set(new)) / len(set(old) | set(new))
        shifts += [new[c] - old[c] for c in set(old) & set(new)]
    return len(common), changed, first, jaccard, [shift for shift in shifts if math.isfinite(shift)]


def realised(held, clicks, popular, k):
    """Return clickers with a category, those without, and for both choices the sums (any hit, precision, recall)."""
    sums = [[0, 0.0, 0.0], [0, 0.0, 0.0]]
    users = others = 0
    for user, clicked in clicks.items():
        if user not in held:
            others += 1
            continue
        users += 1
        for place, chosen in enumerate(([c for c, _ in held[user]][:k], popular)):
            hits = len(set(chosen) & set(clicked))
            sums[place][0] += hits > 0
            sums[place][1] += hits / k
            sums[place][2] += hits / len(clicked)
    return users, others, sums
