"""Events as rows of two words against the definition, and against the path that takes any ids and times."""

import dataclasses

import numpy as np
import pytest
import reference
from examples import examples
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from strategies import FIRST_DAY, GROUPS, INTEGER_USERS, LATE_DAYS, PARENT_OF

from ammrank_dask.ingest.event_rows import EventRows, EventWords, slice_events
from ammrank_dask.ingest.events import EVENT_SALT, DayReader
from ammrank_dask.ingest.exchange import read_slices, write_slices
from ammrank_dask.ingest.interest_state import aggregate_events, end_of
from ammrank_dask.ingest.routing import number_integer_ids
from ammrank_dask.ingest.table_ingest import DecodedRows
from ammrank_dask.storage.lake.events import EventMapping
from ammrank_dask.storage.lake.files import EventColumns
from ammrank_dask.storage.lake.taxonomy import build_taxonomy
from ammrank_dask.storage.site.forgotten import ForgetList
from ammrank_dask.storage.store.ids import IntegerIds
from ammrank_dask.user_hash import BUCKET_SALT, N_BUCKETS, PARTITION_SALT

MAPPING = EventMapping(
    EventColumns(), {group: code for code, group in enumerate(GROUPS)}, frozenset(),
    build_taxonomy(list(PARENT_OF.items()), 2), len(GROUPS), GROUPS.index("adc"), LATE_DAYS,
)  # fmt: skip
ALPHA = 0.9
END = end_of(FIRST_DAY)
OLDEST = END - (LATE_DAYS + 1) * reference.DAY
N_CELLS = 5
FAST = examples(60, suppress_health_check=[HealthCheck.function_scoped_fixture])

TIMES = st.integers(OLDEST, END) | st.sampled_from([OLDEST, END - 1, END])
EVENTS = st.lists(
    st.tuples(st.sampled_from(INTEGER_USERS), st.integers(0, N_CELLS - 1), TIMES, st.booleans()), max_size=60
)


def columns_of(events):
    """Return ids, cells, times and the mask of kept rows of (user, cell, time, is kept) events."""
    user, cell, time, keep = zip(*events, strict=True) if events else ((), (), (), ())
    return np.array(user, np.int64), np.array(cell, np.uint16), np.array(time, np.int64), np.array(keep, bool)


def rows_of(user, cell, time, words):
    """Return the events as one partition gets them."""
    everything = np.ones(len(user), bool)
    section, _ = slice_events(IntegerIds(user), everything, cell, time, words, 1)["event"]
    return EventRows(section, words)


@FAST
@given(events=EVENTS, n_partitions=st.integers(1, 5))
def test_slice_events__gives_every_partition_its_words_in_row_order(events, n_partitions):
    words = EventWords.between(OLDEST, END, N_CELLS)
    user, cell, time, keep = columns_of(events)
    found, starts = slice_events(IntegerIds(user), keep, cell, time, words, n_partitions)["event"]
    expected = [[] for _ in range(n_partitions)]
    for who, code, when, is_kept in events:
        if is_kept:
            word = code * 2**words.time_bits + when - OLDEST
            expected[reference.hash_id(who, PARTITION_SALT) % n_partitions] += [who, word]
    assert [found[starts[p] : starts[p + 1]].tolist() for p in range(n_partitions)] == expected


@FAST
@given(events=EVENTS)
def test_event_rows__equal_the_definition(events):
    words = EventWords.between(OLDEST, END, N_CELLS)
    user, cell, time, _ = columns_of(events)
    rows = rows_of(user, cell, time, words)
    state, by_user = rows.aggregate(end=END, alpha=ALPHA, n_cells=N_CELLS)
    named = [(who, "pv", str(code), when) for who, code, when, _ in events]
    expected = reference.interest(named, END, ALPHA, {str(code): "" for code in range(N_CELLS)}, 1)
    assert state.user_ids.values.tolist() == sorted({who for who, *_ in events})
    assert by_user.tolist() == [user.tolist().count(who) for who in state.user_ids.values]
    assert len(expected) == len(state.cell) == state.indptr[-1]
    for row, who in enumerate(state.user_ids.values.tolist()):
        cells = state.cell[state.indptr[row] : state.indptr[row + 1]].tolist()
        assert cells == sorted({code for other, code, *_ in events if other == who})
        for j, code in enumerate(cells, start=state.indptr[row]):
            intensity, recency = expected[who, "pv", str(code)]
            assert state.intensity[j] == pytest.approx(intensity, rel=1e-9)
            assert (END - state.last[j]) / reference.DAY == pytest.approx(recency, rel=1e-9, abs=1e-9)
    sums, counts = rows.digest(EVENT_SALT, N_CELLS)
    plain = [(who, code, when) for who, code, when, _ in events]
    assert sums.tolist() == reference.event_digest(plain, EVENT_SALT, BUCKET_SALT, N_BUCKETS)
    assert counts.tolist() == [cell.tolist().count(code) for code in range(N_CELLS)]
    again, when = words.unpack(rows.rows, N_CELLS)
    assert (again.tolist(), when.tolist()) == (cell.tolist(), time.tolist())


@FAST
@given(seed=st.integers(0, 2**32), n_events=st.integers(0, 200), n_users=st.integers(1, 9))
def test_event_rows__have_the_bits_of_the_path_for_all_ids(seed, n_events, n_users):
    # Users with a few events, and with more than are sorted one by one.
    rng = np.random.default_rng(seed)
    user = rng.integers(-(2**63), 2**63 - 1, n_users)[rng.integers(0, n_users, n_events)]
    cell = rng.integers(0, N_CELLS, n_events).astype(np.uint16)
    time = END - rng.integers(0, 1_000 if seed % 2 else reference.DAY, n_events)
    found, _ = rows_of(user, cell, time, EventWords.between(OLDEST, END, N_CELLS)).aggregate(
        end=END, alpha=ALPHA, n_cells=N_CELLS
    )
    expected = aggregate_events(*number_integer_ids(user), cell, time, end=END, alpha=ALPHA, n_cells=N_CELLS)
    for name, array in expected.to_arrays().items():
        assert found.to_arrays()[name].tobytes() == array.tobytes()


@pytest.mark.parametrize("max_events", [None, 2])
@pytest.mark.parametrize("is_forgotten", [False, True])
def test_day_reader__collects_the_same_of_rows_of_two_words(tmp_path, max_events, is_forgotten):
    # Of so many days and groups that times and cells take more bits than a word has.
    wide = dataclasses.replace(MAPPING, late_days=10**5, n_groups=1 << 12)
    assert DayReader(FIRST_DAY, "int64", wide, ALPHA).words is None
    rng = np.random.default_rng(3)
    ids = IntegerIds(np.array(INTEGER_USERS)[rng.integers(0, len(INTEGER_USERS), 80)])
    cell = rng.integers(0, MAPPING.n_cells, 80).astype(np.uint16)
    time = END - rng.integers(0, 2 * reference.DAY, 80)
    listed = ForgetList(b"k" * 32, frozenset())
    if is_forgotten:
        listed = ForgetList(listed.key, frozenset(listed.hash_texts(ids.take(np.array([0])).to_arrow().cast("string"))))
    parts = []
    for number, one in enumerate((MAPPING, wide)):
        reader = DayReader(FIRST_DAY, "int64", one, ALPHA, max_events)
        path = tmp_path / str(number)
        rows = DecodedRows(ids, None, np.ones(80, bool), {"cell": cell, "time": time})
        write_slices(path, 1, [reader.slice(rows, 1)])
        parts.append(reader.collect(read_slices([path, path], 0, 1), 0, listed))
    assert parts[0].counts == parts[1].counts
    assert parts[0].n_users == parts[1].n_users == len(set(ids.values.tolist()))
    for name, array in parts[1].arrays.items():
        assert parts[0].arrays[name].tobytes() == array.tobytes()


def test_day_reader__takes_two_words_where_they_fit():
    assert DayReader(FIRST_DAY, "int64", MAPPING, ALPHA).words == EventWords.between(OLDEST, END, MAPPING.n_cells)
    assert DayReader(FIRST_DAY, "string", MAPPING, ALPHA).words is None


def test_words__hold_no_more_than_63_bits():
    assert EventWords.between(0, 2**40 - 1, 2**23) == EventWords(0, 40)
    assert EventWords.between(0, 2**40 - 1, 2**23 + 1) is None
    assert EventWords.between(0, 2**40, 2**23) is None
