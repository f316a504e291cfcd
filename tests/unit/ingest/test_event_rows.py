"""Events as rows of two words against the definition, and against the aggregation of arrays."""

import dataclasses

import numpy as np
import pyarrow as pa
import pytest
import reference
from examples import examples
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from strategies import FIRST_DAY, GROUPS, INTEGER_USERS, LATE_DAYS, PARENT_OF

from ammrank_dask.ingest.event_rows import EventRows, EventWords
from ammrank_dask.ingest.events import EVENT_SALT, DayReader
from ammrank_dask.ingest.exchange import Slices, read_slices, write_slices
from ammrank_dask.ingest.interest_state import aggregate_events, end_of
from ammrank_dask.ingest.routing import number_integer_ids
from ammrank_dask.ingest.table_ingest import DecodedRows
from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.lake.events import EventMapping
from ammrank_dask.storage.lake.files import EventColumns
from ammrank_dask.storage.lake.taxonomy import build_taxonomy
from ammrank_dask.storage.site.forgotten import ForgetList
from ammrank_dask.storage.store.ids import IntegerIds, ids_from_values
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


def slice_events(user, keep, cell, time, n_partitions):
    """Return the rows that a reader passes on, and where those of each partition begin."""
    rows = DecodedRows(IntegerIds(user), None, keep, {"cell": cell, "time": time})
    section, starts = DayReader(FIRST_DAY, "int64", MAPPING, ALPHA).slice(rows, n_partitions)["event"]
    return section.view(np.uint64).reshape(-1, 2), starts // 2


def rows_of(user, cell, time, words):
    """Return the events as one partition gets them."""
    everything = np.ones(len(user), bool)
    rows, _ = slice_events(user, everything, cell, time, 1)
    return EventRows(*number_integer_ids(rows[:, 0].view(np.int64)), rows, words)


@FAST
@given(events=EVENTS, n_partitions=st.integers(1, 5))
def test_day_reader__gives_every_partition_its_words_in_row_order(events, n_partitions):
    words = EventWords.between(OLDEST, END, N_CELLS)
    user, cell, time, keep = columns_of(events)
    found, starts = slice_events(user, keep, cell, time, n_partitions)
    expected = [[] for _ in range(n_partitions)]
    for who, code, when, is_kept in events:
        if is_kept:
            word = code * 2**words.time_bits + when - OLDEST
            expected[reference.hash_id(who, PARTITION_SALT) % n_partitions].append([who % 2**64, word])
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
    again, when = words.unpack(rows.rows)
    assert (again.tolist(), when.tolist()) == (cell.tolist(), time.tolist())


@FAST
@given(seed=st.integers(0, 2**32), n_events=st.integers(0, 200), n_users=st.integers(1, 9))
def test_event_rows__have_the_bits_of_the_aggregation_of_arrays(seed, n_events, n_users):
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
def test_day_reader__collects_the_same_of_integer_and_string_ids(tmp_path, max_events, is_forgotten):
    rng = np.random.default_rng(3)
    names = np.sort(np.array([str(user) for user in range(100, 109)]))
    user, cell = rng.integers(0, len(names), 80), rng.integers(0, MAPPING.n_cells, 80).astype(np.uint16)
    time = END - rng.integers(0, 2 * reference.DAY, 80)
    key = b"k" * 32
    forgotten = frozenset(ForgetList(key, frozenset()).hash_texts(pa.array(names[:1]))) if is_forgotten else frozenset()
    kept = np.arange(80) % 7 > 0
    parts = []
    for kind, ids, position in (
        ("int64", IntegerIds(names.astype(np.int64)[user]), None),
        ("string", ids_from_values(names.tolist()), user),
    ):
        reader = DayReader(FIRST_DAY, kind, MAPPING, ALPHA, max_events)
        sections = reader.slice(DecodedRows(ids, position, kept, {"cell": cell, "time": time}), 1)
        write_slices(tmp_path / kind, 1, [sections])
        slices = read_slices([tmp_path / kind, tmp_path / kind], 0, 1)
        parts.append(reader.collect(slices, 0, ForgetList(key, forgotten)))
    whole, strings = parts
    assert whole.n_users == strings.n_users == len(names) - is_forgotten
    for name in ("indptr", "cell", "intensity", "last"):
        assert whole.arrays[name].tobytes() == strings.arrays[name].tobytes()
    for counts in (whole.counts, strings.counts):
        del counts["buckets"]  # sums of hashes of the ids
    assert whole.counts == strings.counts
    assert bool(whole.counts["counts"]) == (max_events is not None)


@pytest.mark.parametrize("kind", ["int64", "string"])
def test_day_reader__a_partition_without_events_has_nobody(kind):
    found = DayReader(FIRST_DAY, kind, MAPPING, ALPHA).collect(Slices([], {}), 0, None)
    assert found.n_users == 0
    assert found.arrays["indptr"].tolist() == [0]


def test_day_reader__takes_as_many_days_and_cells_as_a_word_has_room_for():
    assert DayReader(FIRST_DAY, "string", MAPPING, ALPHA).words == EventWords.between(OLDEST, END, MAPPING.n_cells)
    many = dataclasses.replace(MAPPING, late_days=10**5, n_groups=1 << 12)
    with pytest.raises(BadInput, match=r"late_days must be at most 6,514 with 16,384 pairs of an event"):
        _ = DayReader(FIRST_DAY, "int64", many, ALPHA).words


def test_words__hold_no_more_than_63_bits():
    assert EventWords.between(0, 2**40 - 1, 2**23) == EventWords(0, 40)
    assert EventWords.between(0, 2**40 - 1, 2**23 + 1) is None
    assert EventWords.between(0, 2**40, 2**23) is None
