"""Slow, plain twins of the interest and feature kernels: loops over events and cells, nothing shared with the code."""

import datetime as dt
import math

DAY = 86_400_000_000


def end_of(date: dt.date) -> int:
    """End of a date in microseconds since 1970."""
    return int(dt.datetime(date.year, date.month, date.day, tzinfo=dt.UTC).timestamp()) * 1_000_000 + DAY


def ancestor_at(category, parent_of, level):
    """The ancestor (or self) at a level, None when the category is above it."""
    path = [category]
    while parent_of[path[-1]]:
        path.append(parent_of[path[-1]])
    path.reverse()
    return path[level - 1] if len(path) >= level else None


def interest(events, at, alpha, parent_of, level):
    """By (user, group, ranked category): intensity Σ α^(at−tᵢ) and recency min(at−tᵢ), both in days.

    `events` are (user, group, category, time) with time in microseconds.
    """
    found = {}
    for user, group, category, time in events:
        ranked = ancestor_at(category, parent_of, level)
        if ranked is None:
            continue
        days = (at - time) / DAY
        total, recency = found.get((user, group, ranked), (0.0, math.inf))
        found[(user, group, ranked)] = (total + alpha**days, min(recency, days))
    return found


def ranking(cells, user):
    """Clicked categories of a user, best first: by intensity, the more recent first, then by name order."""
    clicked = [(-total, recency, category) for (who, group, category), (total, recency) in cells.items()
               if who == user and group == "adc"]  # fmt: skip
    return [category for _, _, category in sorted(clicked)]


def feature_row(cells, user, groups, categories, alpha, age_bucket, gender):
    """The dense feature row of a user: log1p intensity and α^recency by group, then age and gender bits."""
    row = []
    for group in groups:
        row += [math.log1p(cells.get((user, group, c), (0.0, 0.0))[0]) for c in categories]
        row += [alpha ** cells[(user, group, c)][1] if (user, group, c) in cells else 0.0 for c in categories]
    row += [1.0 if bucket == age_bucket else 0.0 for bucket in range(9)]
    row += [1.0 if code == gender else 0.0 for code in range(2)]
    return row


def splitmix64(x):
    """The finaliser of splitmix64 on Python integers."""
    mask = (1 << 64) - 1
    x = (x + 0x9E3779B97F4A7C15) & mask
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
    return x ^ (x >> 31)


def hash_id(value, salt):
    """Salted hash of an integer or string id."""
    mask = (1 << 64) - 1
    if isinstance(value, int):
        return splitmix64((value & mask) ^ salt)
    state = 0xCBF29CE484222325 ^ salt
    for byte in value.encode():
        state = ((state ^ byte) * 0x100000001B3) & mask
    return splitmix64(state)


def event_digest(events, event_salt, bucket_salt, n_buckets):
    """The digest of (user, cell, time) events: by bucket of users the sum of the events' hashes."""
    sums = [0] * n_buckets
    for who, cell, time in events:
        hashed = splitmix64(splitmix64(hash_id(who, event_salt) ^ cell) ^ time)
        sums[hash_id(who, bucket_salt) % n_buckets] += hashed
    return [total % 2**64 for total in sums]
