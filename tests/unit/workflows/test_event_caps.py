"""A new cap holds for days that nobody has seen results of; others keep theirs."""

import datetime as dt

from ammrank_dask.storage.site.day_fingerprints import DayRows
from ammrank_dask.workflows.stages.history import capped_digest, caps_of_days, without_other_caps

ONE, TWO, THREE = (dt.date(2026, 1, number) for number in (1, 2, 3))


def test_caps_of_days__published_days_keep_theirs():
    rows = {ONE: DayRows(("a",), ""), TWO: DayRows(("b",), "", max_events=9)}
    folded = {ONE: "a", TWO: capped_digest("b", 9), THREE: "c"}
    digests = {ONE: "a", TWO: "b", THREE: "c"}
    caps = caps_of_days(digests, folded, rows, cap=5, published=TWO)
    assert caps == {ONE: None, TWO: 9, THREE: 5}
    assert caps_of_days(digests, folded, rows, cap=5, published=None) == {ONE: 5, TWO: 5, THREE: 5}


def test_caps_of_days__a_day_that_came_late_has_the_new_one():
    assert caps_of_days({ONE: "a"}, {ONE: None}, {}, cap=5, published=TWO) == {ONE: 5}


def test_caps_of_days__without_the_list_of_rows():
    folded = {ONE: capped_digest("a", 5), TWO: "b"}
    assert caps_of_days({ONE: "a", TWO: "b"}, folded, {}, cap=5, published=TWO) == {ONE: 5, TWO: None}


def test_without_other_caps__such_days_are_new():
    rows = {ONE: DayRows(("a",), ""), TWO: DayRows(("b",), "", max_events=9)}
    folded = {ONE: "a", TWO: "b", THREE: "c"}
    assert without_other_caps(folded, rows, {ONE: None, TWO: 5, THREE: 5}) == {ONE: "a", THREE: "c"}
