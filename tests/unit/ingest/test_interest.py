"""Intensity and recency against the definition, for any cut of any log."""

import datetime as dt
import itertools
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import reference
from examples import examples
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from strategies import FIRST_DAY, GROUPS, INTEGER_USERS, LATE_DAYS, PARENT_OF, STRING_USERS, logs

from ammrank_dask.features.build import FeatureSettings, build_rows, rank_users
from ammrank_dask.features.from_pandas import interest_features
from ammrank_dask.ingest import interest_state
from ammrank_dask.ingest.event_rows import EventRows, EventWords
from ammrank_dask.ingest.events import EVENT_SALT, DayReader
from ammrank_dask.ingest.exchange import read_slices, write_slices
from ammrank_dask.ingest.interest_state import InterestState, aggregate_events, end_of, fold_days
from ammrank_dask.ingest.routing import lay_out_users, number_integer_ids
from ammrank_dask.ingest.table_ingest import DecodedRows
from ammrank_dask.kernels.interest import largest_counts
from ammrank_dask.storage.lake.events import KEPT, EventMapping, decode_events
from ammrank_dask.storage.lake.files import EventColumns
from ammrank_dask.storage.lake.taxonomy import build_taxonomy
from ammrank_dask.storage.store.ids import empty_ids, ids_from_values, union
from ammrank_dask.storage.store.parts import Recoding
from ammrank_dask.user_hash import BUCKET_SALT, N_BUCKETS, PARTITION_SALT, hash_ids, partition_of, split_of

ALPHA = 0.9
ZONES = ("UTC", "Europe/Berlin", "America/Los_Angeles", "Asia/Kathmandu")
FAST = examples(60, suppress_health_check=[HealthCheck.function_scoped_fixture])


def mapping_for(level, **columns):
    return EventMapping(
        EventColumns(**columns), {group: code for code, group in enumerate(GROUPS)}, frozenset(),
        build_taxonomy(list(PARENT_OF.items()), level), len(GROUPS), GROUPS.index("adc"), LATE_DAYS,
    )  # fmt: skip


def table_of(events, id_type, zone="UTC"):
    times = pa.array([event[3] for event in events], pa.timestamp("us", tz=zone))
    return pa.table(
        {
            "user_id": pa.array([event[0] for event in events], id_type),
            "group": pa.array([event[1] for event in events], pa.string()),
            "category": pa.array([event[2] for event in events], pa.string()),
            "timestamp": times,
        }
    )


def fold_log(days, folder: Path, *, level, n_partitions, cuts, zone, kind):
    """Take a log through decode, slice, exchange, aggregate and fold; return (user, group, category) → cell."""
    mapping = mapping_for(level)
    categories = mapping.taxonomy.categories
    id_type = pa.int64() if kind == "int64" else pa.string()
    partials = []
    for number, events in enumerate(days):
        end = end_of(FIRST_DAY + dt.timedelta(number))
        reader = DayReader(FIRST_DAY + dt.timedelta(number), kind, mapping, ALPHA)
        paths = []
        bounds = sorted({0, len(events), *[min(cut, len(events)) for cut in cuts]})
        for begin, stop in itertools.pairwise(bounds):
            batch = decode_events(table_of(events[begin:stop], id_type, zone), mapping, end=end, where="log")
            columns = {"cell": batch.cell, "time": batch.time}
            rows = DecodedRows(batch.ids, batch.user, batch.status == KEPT, columns)
            paths.append(folder / f"{number}-{begin}.slices")
            write_slices(paths[-1], n_partitions, [reader.slice(rows, n_partitions)])
        slices = [read_slices(paths, p, n_partitions) for p in range(n_partitions)]
        partials.append(
            [InterestState.from_arrays(reader.collect(own, p, None).arrays) for p, own in enumerate(slices)]
        )
    found = {}
    last_end = end_of(FIRST_DAY + dt.timedelta(len(days) - 1))
    for p in range(n_partitions):
        state = fold_days(
            InterestState.empty(kind, mapping.n_cells),
            [day[p] for day in partials],
            first_end=end_of(FIRST_DAY),
            alpha=ALPHA,
            max_age_days=None,
        ).drop_empty_users()
        assert (partition_of(state.user_ids, n_partitions) == p).all()
        for row, user in enumerate(state.user_ids.to_arrow().to_pylist()):
            for j in range(state.indptr[row], state.indptr[row + 1]):
                group, category = divmod(int(state.cell[j]), len(categories))
                days_since = (last_end - int(state.last[j])) / reference.DAY
                found[(user, GROUPS[group], categories[category])] = (state.intensity[j], days_since)
    return found, last_end


@pytest.mark.parametrize(("kind", "users"), [("int64", INTEGER_USERS), ("string", STRING_USERS)])
@FAST
@given(data=st.data())
def test_interest__equals_the_definition(tmp_path, kind, users, data):
    days = data.draw(logs(users))
    level = data.draw(st.integers(1, 3))
    n_partitions = data.draw(st.integers(1, 5))
    cuts = data.draw(st.lists(st.integers(0, 25), max_size=4))
    zone = data.draw(st.sampled_from(ZONES))
    found, at = fold_log(days, tmp_path, level=level, n_partitions=n_partitions, cuts=cuts, zone=zone, kind=kind)
    expected = reference.interest([e for day in days for e in day], at, ALPHA, PARENT_OF, level)
    assert set(found) == set(expected)
    for cell, (intensity, recency) in expected.items():
        assert found[cell][0] == pytest.approx(intensity, rel=1e-9, abs=1e-9)
        assert found[cell][1] == pytest.approx(recency, rel=1e-9, abs=1e-9)


@FAST
@given(data=st.data())
def test_interest__does_not_depend_on_the_cut(tmp_path, data):
    days = data.draw(logs())
    cuts = data.draw(st.lists(st.integers(0, 25), max_size=4))
    whole, _ = fold_log(days, tmp_path, level=2, n_partitions=2, cuts=[], zone="UTC", kind="int64")
    pieces, _ = fold_log(days, tmp_path, level=2, n_partitions=2, cuts=cuts, zone="UTC", kind="int64")
    assert pieces == whole  # bit for bit


@FAST
@given(data=st.data(), n_events=st.integers(1, 90))
def test_aggregate_events__does_not_depend_on_the_order_of_rows(data, n_events):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    user, cell = rng.integers(0, 2, n_events), rng.integers(0, 3, n_events).astype(np.uint16)
    time = end_of(FIRST_DAY) - rng.integers(0, 86_400_000_000, n_events)
    order = data.draw(st.permutations(range(n_events)))
    states = [
        aggregate_events(
            ids_from_values([1, 2]), user[rows], cell[rows], time[rows], end=end_of(FIRST_DAY), alpha=ALPHA, n_cells=3
        ).to_arrays()
        for rows in (np.arange(n_events), np.array(order))
    ]
    for name, array in states[0].items():
        assert array.tobytes() == states[1][name].tobytes()


def plain_buckets(events):
    """Return the digest of (user, cell, time) events as it is defined, in Python's numbers."""
    return reference.event_digest(events, EVENT_SALT, BUCKET_SALT, N_BUCKETS)


def test_digest__is_the_sum_of_hashes_by_bucket_of_users():
    events = [(7, 2, 1_000), (7, 2, 1_000), (9, 0, 5)]
    joined = rows_of([7, 9], *zip((1, 0, 5), (0, 2, 1_000), (0, 2, 1_000), strict=True))
    assert joined.digest(EVENT_SALT, 3)[0].tolist() == plain_buckets(events)


def rows_of(ids, user, cell, time):
    """Return events of users at these positions of their ids."""
    words = EventWords.between(0, 1_000, 4)
    packed = np.array(cell, np.uint64) << np.uint64(words.time_bits) | np.array(time, np.uint64)
    rows = np.stack([np.zeros(len(packed), np.uint64), packed], axis=1)
    return EventRows(ids_from_values(ids), np.array(user, np.int32), rows, words)


def test_cap__keeps_the_first_of_each_user_and_group_in_any_order():
    # Two categories: cells 0 and 1 are of one group, cells 2 and 3 of another.
    rows = [(0, 0, 30), (0, 1, 10), (0, 0, 10), (0, 1, 20), (0, 2, 99), (1, 0, 50), (1, 1, 40)]
    kept = [(0, 0, 10), (0, 1, 10), (0, 2, 99), (1, 0, 50), (1, 1, 40)]
    for shuffled in (rows, rows[::-1], [rows[i] for i in (3, 6, 0, 5, 1, 4, 2)]):
        left = rows_of([7, 9], *zip(*shuffled, strict=True)).cap(2, n_categories=2)
        cell, time = left.words.unpack(left.rows)
        assert sorted(zip(left.user.tolist(), cell.tolist(), time.tolist(), strict=True)) == kept


def test_cap__nothing_to_drop():
    nobody = rows_of([7], [], [], [])
    assert nobody.cap(1, n_categories=2) is nobody


def test_select__users_without_events_are_gone():
    left = rows_of([7, 8, 9], [0, 1, 2, 0], [0, 1, 2, 3], [1, 2, 3, 4]).select(np.array([True, False, True, False]))
    assert left.user_ids.to_arrow().to_pylist() == [7, 9]
    assert left.user.tolist() == [0, 1]
    assert [column.tolist() for column in left.words.unpack(left.rows)] == [[0, 2], [1, 3]]


@FAST
@given(days=logs(max_days=4), split=st.integers(1, 3))
def test_fold_days__night_by_night_is_bit_equal_to_one_go(days, split):
    mapping = mapping_for(2)
    partials = []
    for number, events in enumerate(days):
        end = end_of(FIRST_DAY + dt.timedelta(number))
        batch = decode_events(table_of(events, pa.int64()), mapping, end=end, where="log")
        keep = batch.status == KEPT
        ids, user = number_integer_ids(batch.ids.values[keep])
        partials.append(
            aggregate_events(
                ids, user, batch.cell[keep], batch.time[keep], end=end, alpha=ALPHA, n_cells=mapping.n_cells
            )
        )

    def fold(base, first, parts):
        end = end_of(FIRST_DAY + dt.timedelta(first))
        return fold_days(base, parts, first_end=end, alpha=ALPHA, max_age_days=2).drop_empty_users()

    split = min(split, len(partials))
    empty = InterestState.empty("int64", mapping.n_cells)
    at_once = fold(empty, 0, partials)
    by_night = fold(fold(empty, 0, partials[:split]), split, partials[split:])
    assert at_once.user_ids.equals(by_night.user_ids)
    for name in ("indptr", "cell", "intensity", "last"):
        assert np.array_equal(getattr(at_once, name), getattr(by_night, name))


def fold_by_hand(base, days, first_end, max_age_days):
    """Fold {user: {cell: (intensity, last)}} day by day, at α = ½."""
    state = base
    for number, day in enumerate(days):
        oldest = first_end + (number - max_age_days) * reference.DAY
        after = {}
        for user in sorted({*state, *day}):
            old, new = state.get(user, {}), day.get(user, {})
            cells = {}
            for cell in sorted({*old, *new}):
                value, last = old.get(cell, (0.0, 0))
                more, later = new.get(cell, (0.0, 0))
                if max(last, later) >= oldest:
                    cells[cell] = (value / 2 + more, max(last, later))
            after[user] = cells
        state = after
    return {user: cells for user, cells in state.items() if cells}


def state_of(users, kind):
    ids = ids_from_values(pa.array([str(user) if kind == "string" else user for user in users], kind))
    cells = [sorted(of_user.items()) for of_user in users.values()]
    flat = [entry for of_user in cells for entry in of_user]
    return InterestState(
        ids,
        np.cumsum([0, *map(len, cells)]),
        np.array([cell for cell, _ in flat], np.uint16),
        np.array([value for _, (value, _) in flat], np.float64),
        np.array([last for _, (_, last) in flat], np.int64),
    )


def content_of(state):
    return {
        int(user): {
            int(state.cell[j]): (state.intensity[j], int(state.last[j]))
            for j in range(state.indptr[row], state.indptr[row + 1])
        }
        for row, user in enumerate(state.user_ids.to_arrow().to_pylist())
    }


@pytest.mark.parametrize("kind", ["int64", "string"])
@pytest.mark.parametrize("days_at_once", [1, 3, 16])
def test_fold_days__equals_the_fold_by_hand_whatever_is_taken_together(monkeypatch, kind, days_at_once):
    """With α = ½ and whole intensities every sum is exact; cells are dropped, and some come again after that."""
    monkeypatch.setattr(interest_state, "DAYS_AT_ONCE", days_at_once)
    rng = np.random.default_rng(5)
    first_end, max_age = end_of(FIRST_DAY), 3

    def draw(end, share):
        users = [user for user in range(100, 130) if rng.random() < share]
        return {
            user: {
                int(cell): (float(rng.integers(1, 9)), end - int(rng.integers(0, 4 * reference.DAY)))
                for cell in rng.choice(60, rng.integers(1, 50), replace=False)
            }
            for user in users
        }

    base = draw(first_end - reference.DAY, 0.5)
    days = [draw(first_end + number * reference.DAY, 0.3) if number % 5 != 2 else {} for number in range(18)]
    parts = [state_of(day, kind) if day else None for day in days]
    found = fold_days(state_of(base, kind), parts, first_end=first_end, alpha=0.5, max_age_days=max_age)
    expected = fold_by_hand(base, days, first_end, max_age)
    assert len(expected) > 10
    assert content_of(found.drop_empty_users()) == expected


@pytest.mark.parametrize("kind", ["int64", "string"])
@pytest.mark.parametrize(("first", "stop"), [(0, 3), (3, 6), (6, 9), (9, 12), (0, 12), (4, 4)])
def test_select_range__is_what_a_dictionary_of_cells_says(kind, first, stop):
    users = {1: {0: (0.5, 1), 5: (1.5, 2), 8: (2.5, 3)}, 2: {3: (1.0, 4)}, 5: {}, 7: {c: (c / 4, c) for c in range(9)}}
    found = content_of(state_of(users, kind).select_range(first, stop))
    kept = {user: {c: v for c, v in cells.items() if first <= c < stop} for user, cells in users.items()}
    assert found == content_of(state_of({user: cells for user, cells in kept.items() if cells}, kind))


@pytest.mark.parametrize("rows", [[], [0], [1, 3], [0, 1, 2, 3]])
def test_select_users__has_these_users_with_all_their_cells(rows):
    users = {1: {0: (0.5, 1), 5: (1.5, 2)}, 2: {3: (1.0, 4)}, 5: {}, 7: {2: (0.25, 5), 11: (4.0, 6)}}
    found = content_of(state_of(users, "int64").select_users(np.array(rows, np.int64)))
    assert found == content_of(state_of({user: users[user] for user in np.array(list(users))[rows].tolist()}, "int64"))


def test_lay_out_users__of_empty_lists_has_nobody():
    users, positions = lay_out_users([empty_ids("string"), empty_ids("int64")])
    assert len(users) == 0
    assert [len(position) for position in positions] == [0, 0]


def test_fold_days__drops_cells_older_than_the_limit_and_users_without_cells():
    ids = ids_from_values([1, 2])
    end = end_of(FIRST_DAY)
    day = InterestState(
        ids, np.array([0, 1, 2]), np.array([0, 1], np.uint16), np.ones(2), np.array([end - reference.DAY, end])
    )
    folded = fold_days(InterestState.empty("int64", 6), [day, None], first_end=end, alpha=0.5, max_age_days=1)
    last = folded.drop_empty_users()
    assert last.user_ids.to_arrow().to_pylist() == [2]
    assert last.intensity.tolist() == [0.5]


@FAST
@given(data=st.data())
def test_interest_features__equals_the_definition(data):
    (events,) = data.draw(logs(max_days=1).filter(lambda days: len(days) == 1))
    at = reference.end_of(FIRST_DAY)
    frame = pd.DataFrame(
        {
            "user_id": pd.array([e[0] for e in events], dtype="int64"),
            "group": pd.array([e[1] for e in events], dtype="str"),
            "category": pd.array([e[2] for e in events], dtype="str"),
            "timestamp": pd.to_datetime([e[3] for e in events], unit="us", utc=True),
        }
    )
    users = pd.DataFrame({"user_id": [7, 99], "age": [20, None], "gender": ["male", None]})
    X, user_ids, columns = interest_features(
        frame, pd.Timestamp(at, unit="us"), users=users, taxonomy=PARENT_OF, alpha=ALPHA
    )
    cells = reference.interest(events, at, ALPHA, PARENT_OF, 2)
    categories = sorted({reference.ancestor_at(c, PARENT_OF, 2) for c in PARENT_OF} - {None})
    with_events = {user for user, _, c, _ in events if reference.ancestor_at(c, PARENT_OF, 2) is not None}
    assert list(user_ids) == sorted(with_events | {7, 99})
    assert len(columns) == X.shape[1] == 2 * 5 * len(categories) + 11
    for row, user in enumerate(user_ids):
        expected = reference.feature_row(
            cells, user, GROUPS[:5], categories, ALPHA, 1 if user == 7 else -1, 1 if user == 7 else -1
        )
        assert X[[row]].toarray()[0] == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_interest_features__numbers_of_categories_count_as_their_text():
    log = pd.DataFrame({"user_id": [1, 1], "group": "pv", "category": [0, 7], "timestamp": pd.Timestamp("2026-01-01")})
    _, _, columns = interest_features(log, at="2026-01-02", groups=["pv"], recency="none")
    assert columns == ["pv:intensity:0", "pv:intensity:7"]
    tree = pd.DataFrame({"category": [0, 7], "parent": [np.nan, 0]})
    _, _, columns = interest_features(log, at="2026-01-02", taxonomy={0: None, 7: 0}, groups=["pv"], recency="none")
    assert columns == ["pv:intensity:7"]
    assert interest_features(log, "2026-01-02", None, tree.astype("Int64"), groups=["pv"], recency="none")[2] == columns


def test_interest_features__refuses_what_cannot_be_used():
    log = pd.DataFrame({"user_id": [1], "group": ["pv"], "category": ["A"], "timestamp": [pd.Timestamp("2026-01-01")]})
    with pytest.raises(ValueError, match="1 events cannot be used: unknown group"):
        interest_features(log.assign(group="web"), at="2026-01-02")
    with pytest.raises(ValueError, match=r"alpha must be between 0 and 1, got 1\.5"):
        interest_features(log, at="2026-01-02", alpha=1.5)
    with pytest.raises(ValueError, match="has no column 'category'"):
        interest_features(log.drop(columns="category"), at="2026-01-02")
    with pytest.raises(ValueError, match="unknown category"):
        interest_features(log, at="2026-01-02", taxonomy={"B": ""}, level=1)
    with pytest.raises(ValueError, match=r"a time must be one that pandas\.Timestamp takes, got 'soon'"):
        interest_features(log, at="soon")
    with pytest.raises(ValueError, match="a time must be given, got None"):
        interest_features(log, at=None)
    with pytest.raises(ValueError, match="events must be a DataFrame of pandas or Dask, got list; read files with"):
        interest_features([], at="2026-01-02")
    with pytest.raises(ValueError, match="events: user ids in 'user_id' must be int64 or string, found double"):
        interest_features(log.assign(user_id=1.5), at="2026-01-02")
    with pytest.raises(ValueError, match="events: 'user_id' must have values of one type, found several") as mixed:
        interest_features(pd.concat([log, log.assign(user_id="secret")]), at="2026-01-02")
    assert "secret" not in str(mixed.value)
    with pytest.raises(ValueError, match=r"level must be a whole number, got 1\.5"):
        interest_features(log, at="2026-01-02", taxonomy={"A": ""}, level=1.5)
    with pytest.raises(ValueError, match="the taxonomy must be a DataFrame or a mapping, got list"):
        interest_features(log, at="2026-01-02", taxonomy=["A"])
    with pytest.raises(ValueError, match="users must be distinct"):
        interest_features(log, at="2026-01-02", users=pd.DataFrame({"user_id": [1, 1]}))


@FAST
@given(days=logs(max_days=1))
def test_rank_users__equals_the_definition(days):
    (events,) = days
    mapping = mapping_for(2)
    categories = mapping.taxonomy.categories
    end = end_of(FIRST_DAY)
    clicks = [event for event in events if event[1] == "adc"]
    batch = decode_events(table_of(clicks, pa.int64()), mapping, end=end, where="log")
    keep = batch.status == KEPT
    ids, user = number_integer_ids(batch.ids.values[keep])
    state = aggregate_events(
        ids, user, batch.cell[keep], batch.time[keep], end=end, alpha=ALPHA, n_cells=mapping.n_cells
    )
    codes, intensity = rank_users(state, len(categories))
    cells = reference.interest(clicks, end, ALPHA, PARENT_OF, 2)
    for row, who in enumerate(ids.values.tolist()):
        begin, stop = state.indptr[row], state.indptr[row + 1]
        assert [categories[code] for code in codes[begin:stop]] == reference.ranking(cells, who)
        assert (np.diff(intensity[begin:stop]) <= 0).all()


def test_rank_users__equal_intensity_goes_to_the_more_recent_then_the_lower_code():
    state = InterestState(
        ids_from_values([1]), np.array([0, 4]), np.array([0, 1, 2, 3], np.uint16), np.array([1.0, 1.0, 2.0, 1.0]),
        np.array([5, 9, 1, 9]),
    )  # fmt: skip
    codes, _ = rank_users(state, 4)
    assert codes.tolist() == [2, 1, 3, 0]


def test_build_rows__by_hand():
    # Two groups of two categories; one user saw category 1 of pv twice as strong as category 0 of adc (unused).
    settings_ = FeatureSettings(("pv", "adc"), ("pv",), ("A", "B"), alpha=0.5)
    end = end_of(FIRST_DAY)
    state = InterestState(
        ids_from_values([1, 2]), np.array([0, 2, 2]), np.array([1, 2], np.uint16), np.array([np.e - 1, 3.0]),
        np.array([end - reference.DAY, end]),
    )  # fmt: skip
    indptr, indices, data = build_rows(
        state, np.array([0, -1], np.int8), np.array([1, -1], np.int8), settings_, end=end
    )
    assert settings_.columns.names[:4] == ("pv:intensity:A", "pv:intensity:B", "pv:recency:A", "pv:recency:B")
    assert indptr.tolist() == [0, 4, 4]
    assert indices.tolist() == [1, 3, 4, 14]
    assert data.tolist() == pytest.approx([1.0, 0.5, 1.0, 1.0])


def test_hash_ids__equals_the_reference_for_integers_and_strings():
    for values in (list(INTEGER_USERS), list(STRING_USERS)):
        ids = ids_from_values(values)
        hashes = hash_ids(ids, 12345).tolist()
        assert hashes == [reference.hash_id(value, 12345) for value in ids.to_arrow().to_pylist()]


@given(ids=st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3)), n_partitions=st.integers(1, 9))
def test_partition_of__is_the_hash_modulo_the_partitions(ids, n_partitions):
    users = ids_from_values(np.array(ids, np.int64))
    expected = [int(value) % n_partitions for value in hash_ids(users, PARTITION_SALT)]
    assert partition_of(users, n_partitions).tolist() == expected


@given(ids=st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3), max_size=40))
def test_number_integer_ids__has_distinct_ids_ascending_and_the_position_of_each(ids):
    distinct, position = number_integer_ids(np.array(ids, np.int64))
    assert distinct.values.tolist() == sorted(set(ids))
    assert [distinct.values[at] for at in position] == ids


@pytest.mark.parametrize("n_bits", [3, 11, 12, 22, 23, 40, 62])
def test_number_integer_ids__orders_ids_that_begin_alike(n_bits):
    # Half of them spread, half of them next to each other: their first bits say nothing.
    rng = np.random.default_rng(n_bits)
    spread = rng.integers(-(2**n_bits), 2**n_bits, 300)
    ids = np.concatenate([spread, 2**n_bits - rng.permutation(300), [2**n_bits - 1, -(2**n_bits)]])
    distinct, position = number_integer_ids(ids)
    assert distinct.values.tolist() == sorted(set(ids.tolist()))
    assert distinct.values[position].tolist() == ids.tolist()


@given(counts=st.lists(st.integers(0, 9), max_size=20))
def test_largest_counts__are_the_head_of_a_sort(counts):
    largest = np.empty(4, np.int64)
    largest_counts(np.array(counts, np.int64), largest)
    assert largest.tolist() == [*sorted(counts, reverse=True), 0, 0, 0, 0][:4]


def test_split_of__is_even_and_independent_of_partitions():
    ids = ids_from_values(np.arange(50_000))
    shares = np.bincount(split_of(ids), minlength=3) / 50_000
    assert shares == pytest.approx([0.8, 0.1, 0.1], abs=0.01)
    inside = split_of(ids)[partition_of(ids, 8) == 3]
    assert np.bincount(inside, minlength=3) / len(inside) == pytest.approx([0.8, 0.1, 0.1], abs=0.03)
    counts = np.bincount(partition_of(ids, 8))
    assert counts.min() > 0.95 * 50_000 / 8


@given(values=st.lists(st.lists(st.sampled_from(STRING_USERS), max_size=6), min_size=1, max_size=3))
def test_union__is_sorted_and_positions_find_every_id(values):
    parts = [ids_from_values(pa.array(part, pa.string())) for part in values]
    merged = union(parts)
    assert merged.to_arrow().to_pylist() == sorted({v for part in values for v in part}, key=str.encode)
    for part in parts:
        positions = merged.positions_of(part)
        assert merged.take(positions).to_arrow().to_pylist() == part.to_arrow().to_pylist()


def test_recode__is_what_a_dictionary_of_cells_says():
    rng = np.random.default_rng(5)
    n_users, n_groups, codes = 30, 3, (4, -1, 0, 4, 2)
    counts = rng.integers(0, 9, n_users)
    cell = np.concatenate([np.sort(rng.choice(n_groups * len(codes), n, replace=False)) for n in counts])
    indptr = np.concatenate([[0], np.cumsum(counts)])
    state = InterestState(
        ids_from_values(np.arange(n_users)), indptr, cell.astype(np.uint16), rng.random(len(cell)),
        rng.integers(0, 99, len(cell)),
    )  # fmt: skip
    recoded = state.recode(Recoding(codes, 6, n_groups))
    expected = {}
    for user in range(n_users):
        for at in range(indptr[user], indptr[user + 1]):
            group, code = divmod(int(cell[at]), len(codes))
            if codes[code] >= 0:
                total, last = expected.get((user, group * 6 + codes[code]), (0.0, 0))
                merged = (total + state.intensity[at], max(last, state.last[at]))
                expected[user, group * 6 + codes[code]] = merged
    users = np.repeat(recoded.user_ids.values, np.diff(recoded.indptr)).tolist()
    assert list(zip(users, recoded.cell.tolist(), strict=True)) == sorted(expected)
    assert recoded.cell.dtype == np.uint16
    assert recoded.intensity.tolist() == [expected[key][0] for key in sorted(expected)]
    assert recoded.last.tolist() == [expected[key][1] for key in sorted(expected)]
