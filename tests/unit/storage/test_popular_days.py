"""What was clicked on every day, kept for a year and the windows of training."""

import datetime as dt

import pytest

from ammrank_dask.storage.site.popular_days import (
    POPULAR_DAYS_NAME,
    add_popular_days,
    popular_around,
    read_popular_days,
    remove_popular_days,
)

NIGHT = dt.date(2026, 3, 31)


def ago(days):
    return NIGHT - dt.timedelta(days)


def test_add_popular_days__a_day_that_is_read_again_takes_the_place_of_what_was_known(tmp_path):
    (tmp_path / "days").mkdir()
    add_popular_days(tmp_path, {ago(2): {"b": 1}, ago(1): {"a": 2, "b": 3}}, n_kept=10)
    add_popular_days(tmp_path, {ago(1): {"c": 4}, NIGHT: {}}, n_kept=10)
    assert read_popular_days(tmp_path) == {ago(2): {"b": 1}, ago(1): {"c": 4}, NIGHT: {}}


def test_add_popular_days__only_the_newest_are_kept_and_the_same_days_are_not_written_again(tmp_path):
    (tmp_path / "days").mkdir()
    days = {ago(number): {"a": number} for number in range(5)}
    add_popular_days(tmp_path, days, n_kept=3)
    assert read_popular_days(tmp_path) == {ago(number): {"a": number} for number in range(3)}
    path = tmp_path / "days" / POPULAR_DAYS_NAME
    before = path.stat().st_mtime_ns
    add_popular_days(tmp_path, {ago(1): {"a": 1}}, n_kept=3)
    assert path.stat().st_mtime_ns == before


@pytest.mark.parametrize("content", [None, "{", "[]", '{"categories": [], "days": {"2026-03-31": [[0, 1]]}}'])
def test_read_popular_days__nothing_where_it_cannot_be_read(tmp_path, content):
    (tmp_path / "days").mkdir()
    if content is not None:
        (tmp_path / "days" / POPULAR_DAYS_NAME).write_text(content)
    assert read_popular_days(tmp_path) == {}


def test_remove_popular_days__nothing_is_known_then(tmp_path):
    (tmp_path / "days").mkdir()
    add_popular_days(tmp_path, {NIGHT: {"a": 1}}, n_kept=3)
    remove_popular_days(tmp_path)
    assert read_popular_days(tmp_path) == {}


def test_popular_around__sums_the_window_and_the_one_that_began_a_year_before():
    days = {
        ago(2): {"a": 1},  # before the window of two days
        ago(1): {"a": 2, "old": 3},
        NIGHT: {"a": 4, "gone": 5},
        ago(365): {"a": 6},  # before the days of last year
        ago(364): {"a": 7, "b": 8},
        ago(363): {"old": 9},
        ago(362): {"a": 10},
    }
    now = popular_around(days, NIGHT, 2, ["a", "b"], lambda name: {"old": "b"}.get(name, name))
    assert now.tolist() == [[6, 3], [7, 17]]


@pytest.mark.parametrize(("youngest", "is_known"), [(364, True), (363, False)])
def test_popular_around__a_younger_log_knows_nothing_of_last_year(youngest, is_known):
    days = {ago(youngest): {"a": 7}, NIGHT: {"a": 1}}
    assert popular_around(days, NIGHT, 30, ["a"], str).tolist() == ([[1], [7]] if is_known else [[0], [0]])
