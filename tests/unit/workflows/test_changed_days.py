"""What becomes of days whose files are not those that were folded; no cluster, no file."""

import datetime as dt

import pytest

from ammrank_dask.storage.site.day_fingerprints import DayRows, read_day_rows, write_day_rows
from ammrank_dask.workflows.stages.corrected_days import ChangedDays, ReadDay, days_to_compare, judge_days

ONE, TWO, THREE = (dt.date(2026, 3, day) for day in (1, 2, 3))
FOLDED = {ONE: "a1", TWO: "a2", THREE: None}
ROWS, OTHER_ROWS = f"{7:016x}{8:016x}", f"{7:016x}{9:016x}"
KNOWN = {ONE: DayRows(("a1",), ROWS), TWO: DayRows(("a2",), ROWS)}


def judge(inputs, rows, read, lag_date=THREE, keeps_past=False):
    return judge_days(inputs, FOLDED, rows, read, lag_date=lag_date, keeps_past=keeps_past)


def test_days_to_compare__same_files_bridged_days_and_new_days_are_not_read():
    inputs = {ONE: "a1", TWO: "b2", THREE: "b3", THREE + dt.timedelta(1): "b4"}
    assert days_to_compare(inputs, FOLDED, KNOWN) == [TWO]


def test_days_to_compare__files_that_were_read_before_are_not_read_again():
    rows = {TWO: DayRows(("a2", "b2"), ROWS)}
    assert days_to_compare({TWO: "b2"}, FOLDED, rows) == []
    assert judge({TWO: "b2"}, rows, {}).as_folded == {TWO: "a2"}


def test_judge_days__the_same_rows_in_other_files_stand_as_folded():
    found = judge({ONE: "b1"}, KNOWN, {ONE: ReadDay(ROWS, 5)})
    assert (found.as_folded, found.kept, found.corrected) == ({ONE: "a1"}, (), ())
    assert found.rows[ONE] == DayRows(("a1", "b1"), ROWS, n_events=5)


OTHERS = {ONE: KNOWN[ONE].with_other("b1"), TWO: KNOWN[TWO].with_other("b2")}


@pytest.mark.parametrize(
    ("lag_date", "keeps_past", "expected"),
    [
        (TWO, False, ChangedDays({}, (), (ONE, TWO), KNOWN)),
        (ONE, True, ChangedDays({ONE: "a1"}, (ONE,), (TWO,), {**KNOWN, ONE: OTHERS[ONE]})),
        (TWO, True, ChangedDays({ONE: "a1", TWO: "a2"}, (ONE, TWO), (), OTHERS)),
    ],
)
def test_judge_days__other_rows_are_kept_as_folded_up_to_a_day(lag_date, keeps_past, expected):
    read = {ONE: ReadDay(OTHER_ROWS, 5), TWO: ReadDay(OTHER_ROWS, 5)}
    inputs = {ONE: "b1", TWO: "b2"}
    assert judge(inputs, KNOWN, read, lag_date, keeps_past) == expected
    # What was found to be other rows is not read every night, and what was decided can be decided otherwise.
    assert days_to_compare(inputs, FOLDED, OTHERS) == []
    found = judge(inputs, OTHERS, {}, lag_date, keeps_past)
    assert (found.as_folded, found.kept, found.corrected) == (expected.as_folded, expected.kept, expected.corrected)


@pytest.mark.parametrize(("is_same", "corrected"), [(True, ()), (False, (ONE,))])
def test_judge_days__a_partial_tells_what_blank_buckets_cannot(is_same, corrected):
    rows = {ONE: DayRows(("a1",), ROWS, blank=(1,), n_events=5)}
    assert judge({ONE: "b1"}, rows, {ONE: ReadDay(OTHER_ROWS, 5, is_same)}).corrected == corrected


@pytest.mark.parametrize(
    ("n_events", "lag_date", "kept"),
    [(4, THREE, (ONE,)), (5, THREE, (ONE,)), (6, THREE, ()), (4, ONE - dt.timedelta(1), ())],
    ids=["fewer rows", "as many", "more", "a day that can be folded again"],
)
def test_judge_days__an_old_day_of_which_nothing_can_be_told_stays_and_is_named(n_events, lag_date, kept):
    rows = {ONE: DayRows(("a1",), ROWS, blank=(0, 1), n_events=5)}
    found = judge({ONE: "b1"}, rows, {ONE: ReadDay(OTHER_ROWS, n_events)}, lag_date)
    assert found.kept == kept
    assert found.corrected == (() if kept else (ONE,))
    if kept:
        assert found.rows[ONE] == DayRows(("a1", "b1"), OTHER_ROWS, n_events=n_events)


@pytest.mark.parametrize(
    "rows",
    [
        {},
        {ONE: DayRows(("a0",), ROWS)},
        {ONE: DayRows(("a1",), "")},
        {ONE: DayRows(("a1",), ROWS, blank=(0, 1))},
    ],
    ids=["not known", "of another input", "of an earlier version", "all buckets blank"],
)
def test_judge_days__what_cannot_be_told_counts_as_changed(rows):
    assert judge({ONE: "b1"}, rows, {ONE: ReadDay(ROWS, 5)}).corrected == (ONE,)


def test_day_rows__forgotten_users_blank_their_bucket_until_the_day_is_read_again():
    day = DayRows(("a1",), ROWS).without([1])
    assert day.has_rows(OTHER_ROWS)
    assert not day.with_input("b1", ROWS, 5).has_rows(OTHER_ROWS)
    assert day.without([0]).blank == (0, 1)
    assert (day.is_blank, day.without([0]).is_blank) == (False, True)


def test_read_day_rows__returns_what_was_written(tmp_path):
    days = {ONE: DayRows(("a1", "b1"), ROWS, (1,), n_events=7, others=("c1",)), TWO: DayRows(("a2",), OTHER_ROWS)}
    write_day_rows(tmp_path, days)
    assert read_day_rows(tmp_path) == days


@pytest.mark.parametrize("content", [None, "{", "[]", '{"days": {"x": {}}}', '{"days": []}'])
def test_read_day_rows__what_cannot_be_read_is_nothing(tmp_path, content):
    (tmp_path / "days").mkdir()
    if content is not None:
        (tmp_path / "days" / "rows.json").write_text(content)
    assert read_day_rows(tmp_path) == {}
