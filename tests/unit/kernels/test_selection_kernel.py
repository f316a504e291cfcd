"""The kernels that group, count and take rows against slow twins; also run as plain Python."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ammrank_dask.kernels.selection import count_exposure, count_held, group_rows, take_rows


def starts(counts):
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def rows_of(counts):
    """Return (user, rank) of every row; rank from 1."""
    return [(user, rank) for user, count in enumerate(counts) for rank in range(1, count + 1)]


@given(counts=st.lists(st.integers(0, 4), max_size=9), data=st.data())
def test_group_rows__equals_a_stable_sort(counts, data):
    n = sum(counts)
    codes = data.draw(st.lists(st.integers(0, 3), min_size=n, max_size=n))
    has_chance, has_propensity = data.draw(st.booleans()), data.draw(st.booleans())
    score = np.arange(n, dtype=np.float32)
    values = (score, score[: n * has_chance] / 2, score[: n * has_propensity] / 4)
    start, user, rank = np.empty(5, np.int64), np.empty(n, np.int32), np.empty(n, np.int16)
    grouped = tuple(np.empty_like(column) for column in values)
    group_rows(starts(counts), np.array(codes, np.int32), values, start, user, rank, grouped)
    order = sorted(range(n), key=lambda row: codes[row])
    assert start.tolist() == [sum(code < c for code in codes) for c in range(5)]
    rows = rows_of(counts)
    assert list(zip(user.tolist(), rank.tolist(), strict=True)) == [rows[row] for row in order]
    for before, after in zip(values, grouped, strict=True):
        assert after.tolist() == [before[row] for row in order if len(before)]


@given(counts=st.lists(st.integers(0, 4), max_size=9), n_ranks=st.sampled_from([1, 4]), data=st.data())
def test_count_exposure__counts_every_row_once(counts, n_ranks, data):
    n = sum(counts)
    codes = data.draw(st.lists(st.integers(0, 3), min_size=n, max_size=n))
    counted = np.zeros((4, n_ranks), np.int64)
    count_exposure(starts(counts), np.array(codes, np.int32), counted)
    cells = [(code, 0 if n_ranks == 1 else rank - 1) for code, (_, rank) in zip(codes, rows_of(counts), strict=True)]
    assert counted.tolist() == [[cells.count((code, rank)) for rank in range(n_ranks)] for code in range(4)]


@given(n_held=st.lists(st.integers(0, 3), max_size=9))
def test_count_held__ends_each_row_behind_its_last_code(n_held):
    codes = np.array([[7] * n + [-1] * (3 - n) for n in n_held], np.int32).reshape(-1, 3)
    indptr = np.empty(len(n_held) + 1, np.int64)
    count_held(codes, indptr)
    assert indptr.tolist() == starts(n_held).tolist()


@given(values=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=9), data=st.data())
def test_take_rows__takes_what_is_there(values, data):
    positions = data.draw(st.lists(st.integers(0, len(values) - 1), max_size=9))
    taken = np.empty(len(positions), np.int64)
    take_rows(np.array(values, np.int64), np.array(positions, np.uint32), taken)
    assert taken.tolist() == [values[position] for position in positions]
