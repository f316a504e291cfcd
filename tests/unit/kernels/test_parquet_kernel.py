"""The kernels that encode and group columns against slow twins; also run as plain Python."""

import numpy as np
import reference_parquet as reference
from hypothesis import given
from hypothesis import strategies as st

from ammrank_dask.kernels.parquet import pack_codes, pack_ranks, set_bits, write_runs, write_texts
from ammrank_dask.kernels.selection import count_exposure, count_held, group_rows, take_rows

counts_of_users = st.lists(st.integers(0, 5) | st.sampled_from([63, 64, 70]), max_size=9)


def starts(counts):
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def words(n, width):
    return np.zeros(-(-n * width // 32), np.uint32)


@given(width=st.integers(1, 32), data=st.data())
def test_pack_codes__equals_bits_one_behind_the_other(width, data):
    codes = data.draw(st.lists(st.integers(0, min(2**31, 2**width) - 1), max_size=40))
    packed = words(len(codes), width)
    pack_codes(np.array(codes, np.int32), width, packed)
    expected = reference.packed_bits(codes, width)
    assert packed.tobytes()[: len(expected)] == expected
    assert not any(packed.tobytes()[len(expected) :])


@given(counts=counts_of_users, width=st.integers(7, 16))
def test_pack_ranks__equals_packed_ranks(counts, width):
    ranks = [rank - 1 for _, rank in reference.rows_of(counts)]
    packed = words(len(ranks), width)
    pack_ranks(starts(counts), width, packed)
    assert packed.tobytes().startswith(reference.packed_bits(ranks, width))


@given(counts=counts_of_users, n_bytes=st.integers(1, 4))
def test_write_runs__one_for_every_user_with_rows(counts, n_bytes):
    written = np.zeros(len(counts) * (n_bytes + 5), np.uint8)
    n = write_runs(starts(counts), n_bytes, written)
    assert written[:n].tobytes() == reference.runs(counts, n_bytes)


@given(counts=counts_of_users, data=st.data())
def test_set_bits__of_all_rows_of_a_user(counts, data):
    flags = data.draw(st.lists(st.booleans(), min_size=len(counts), max_size=len(counts)))
    bits = np.zeros(-(-sum(counts) // 8), np.uint8)
    set_bits(starts(counts), np.array(flags, bool), bits)
    assert bits.tobytes() == reference.packed_bits([int(flags[user]) for user, _ in reference.rows_of(counts)], 1)


@given(texts=st.lists(st.text(max_size=5), max_size=9))
def test_write_texts__leads_each_by_its_length(texts):
    encoded = [text.encode() for text in texts]
    offsets, data = starts([len(text) for text in encoded]), np.frombuffer(b"".join(encoded), np.uint8)
    written = np.empty(4 * len(texts) + len(data), np.uint8)
    write_texts(offsets, data, written)
    assert written.tobytes() == reference.plain_texts(texts)


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
    rows = reference.rows_of(counts)
    assert list(zip(user.tolist(), rank.tolist(), strict=True)) == [rows[row] for row in order]
    for before, after in zip(values, grouped, strict=True):
        assert after.tolist() == [before[row] for row in order if len(before)]


@given(counts=st.lists(st.integers(0, 4), max_size=9), n_ranks=st.sampled_from([1, 4]), data=st.data())
def test_count_exposure__counts_every_row_once(counts, n_ranks, data):
    n = sum(counts)
    codes = data.draw(st.lists(st.integers(0, 3), min_size=n, max_size=n))
    counted = np.zeros((4, n_ranks), np.int64)
    count_exposure(starts(counts), np.array(codes, np.int32), counted)
    cells = [
        (code, 0 if n_ranks == 1 else rank - 1)
        for code, (_, rank) in zip(codes, reference.rows_of(counts), strict=True)
    ]
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
