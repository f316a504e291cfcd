"""What becomes of days whose files are not those that were folded; no cluster, no file."""

import datetime as dt

import pytest

from ammrank_dask.storage.site.day_rows import DayRows, read_day_rows, write_day_rows
from ammrank_dask.workflows.stages.changed_days import ChangedDays, days_to_compare, judge_days

ONE, TWO, THREE = (dt.date(2026, 3, day) for day in (1, 2, 3))
FOLDED = {ONE: "a1", TWO: "a2", THREE: None}
ROWS, OTHER_ROWS = f"{7:016x}{8:016x}", f"{7:016x}{9:016x}"
KNOWN = {ONE: DayRows(("a1",), ROWS), TWO: DayRows(("a2",), ROWS)}


def test_days_to_compare__same_files_bridged_days_and_new_days_are_not_read():
    inputs = {ONE: "a1", TWO: "b2", THREE: "b3", THREE + dt.timedelta(1): "b4"}
    assert days_to_compare(inputs, FOLDED, KNOWN) == [TWO]


def test_days_to_compare__files_that_were_read_before_are_not_read_again():
    rows = {TWO: DayRows(("a2", "b2"), ROWS)}
    assert days_to_compare({TWO: "b2"}, FOLDED, rows) == []
    assert judge_days({TWO: "b2"}, FOLDED, rows, {}, keep_until=None).as_folded == {TWO: "a2"}


def test_judge_days__the_same_rows_in_other_files_stand_as_folded():
    found = judge_days({ONE: "b1"}, FOLDED, KNOWN, {ONE: ROWS}, keep_until=None)
    assert (found.as_folded, found.kept, found.corrected) == ({ONE: "a1"}, (), ())
    assert found.rows[ONE] == DayRows(("a1", "b1"), ROWS)


@pytest.mark.parametrize(
    ("keep_until", "expected"),
    [
        (None, ChangedDays({}, (), (ONE, TWO), KNOWN)),
        (ONE, ChangedDays({ONE: "a1"}, (ONE,), (TWO,), KNOWN)),
        (TWO, ChangedDays({ONE: "a1", TWO: "a2"}, (ONE, TWO), (), KNOWN)),
    ],
)
def test_judge_days__other_rows_are_kept_as_folded_up_to_a_day(keep_until, expected):
    read = {ONE: OTHER_ROWS, TWO: OTHER_ROWS}
    assert judge_days({ONE: "b1", TWO: "b2"}, FOLDED, KNOWN, read, keep_until=keep_until) == expected


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
    assert judge_days({ONE: "b1"}, FOLDED, rows, {ONE: ROWS}, keep_until=None).corrected == (ONE,)


def test_day_rows__forgotten_users_blank_their_bucket_until_the_day_is_read_again():
    day = DayRows(("a1",), ROWS).without([1])
    assert day.has_rows(OTHER_ROWS)
    assert not day.with_input("b1", ROWS).has_rows(OTHER_ROWS)
    assert day.without([0]).blank == (0, 1)


def test_read_day_rows__returns_what_was_written(tmp_path):
    days = {ONE: DayRows(("a1", "b1"), ROWS, (1,)), TWO: DayRows(("a2",), OTHER_ROWS)}
    write_day_rows(tmp_path, days)
    assert read_day_rows(tmp_path) == days


@pytest.mark.parametrize("content", [None, "{", "[]", '{"days": {"x": {}}}', '{"days": []}'])
def test_read_day_rows__what_cannot_be_read_is_nothing(tmp_path, content):
    (tmp_path / "days").mkdir()
    if content is not None:
        (tmp_path / "days" / "rows.json").write_text(content)
    assert read_day_rows(tmp_path) == {}
