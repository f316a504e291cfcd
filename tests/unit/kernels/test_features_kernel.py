"""The kernels that read feature rows against plain loops; also run as plain Python."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ammrank_dask.kernels.features import count_below, normalize_rows

ROWS = st.lists(st.lists(st.floats(-1e3, 1e3, width=32), max_size=9), max_size=11)


@given(rows=ROWS)
def test_normalize_rows__has_the_bits_of_a_plain_loop(rows):
    indptr = np.cumsum([0, *map(len, rows)])
    data = np.array([value for row in rows for value in row], np.float32)
    normalize_rows(indptr, data)
    expected = []
    for row in rows:
        total = 0.0
        for value in row:  # in this order: another one has other bits
            total += float(np.float32(value) * np.float32(value))
        scale = 1.0 / math.sqrt(total) if total > 0 else 1.0
        expected += [np.float32(value * scale) for value in row]
    assert data.view(np.uint32).tolist() == np.array(expected, np.float32).view(np.uint32).tolist()


@given(rows=st.lists(st.sets(st.integers(0, 9)), max_size=9), column=st.integers(0, 10))
def test_count_below__counts_the_columns_before_one(rows, column):
    indptr = np.cumsum([0, *map(len, rows)])
    indices = np.array([index for row in rows for index in sorted(row)], np.uint16)
    counts = np.empty(len(rows), np.int32)
    count_below(indptr, indices, column, counts)
    assert counts.tolist() == [sum(index < column for index in row) for row in rows]
