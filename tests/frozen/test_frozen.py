"""What twelve small sites come to is what was recorded, row by row, on any number of workers."""

import dataclasses
import math
from collections import Counter

import pytest

from ammrank_dask.workflows.cluster.checks import cpu_type
from tests.frozen.export import differences, export_table, first_difference, freeze
from tests.frozen.readers import Table
from tests.frozen.results import RECORDED, compare, read_recorded, run_sites
from tests.frozen.sites import SITES

FEW = [2, 3, 9]
"""Both models, both kinds of ids, a cap, opt-outs, forgotten users, corrected days and a renamed category."""


@pytest.mark.parametrize("setting", [field.name for field in dataclasses.fields(SITES[1])])
def test_sites__every_setting_occurs_twice(setting):
    times = Counter(getattr(site, setting) for site in SITES.values())
    assert len(times) > 1
    assert min(times.values()) >= 2


def test_recorded__has_every_site_and_is_small():
    assert list(map(int, read_recorded()["sites"])) == list(SITES)
    assert RECORDED.stat().st_size < 200_000


def assert_as_recorded(numbers, workers):
    recorded = read_recorded()["machine"]["cpu"]
    if cpu_type() != recorded:
        pytest.skip(f"recorded on {recorded}, and the bytes of {cpu_type()} are others; record both commits here")
    assert compare(run_sites(numbers, workers=workers)) == []


@pytest.mark.night
@pytest.mark.timeout(900)
def test_sites__three_are_as_recorded():
    assert_as_recorded(FEW, workers=2)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("workers", [1, 2])
def test_sites__are_as_recorded(workers):
    assert_as_recorded(list(SITES), workers)


def test_export_table__the_order_of_rows_does_not_matter_and_every_bit_of_a_value_does():
    rows = [("b\t", 0.1, None), ("a", 2.0, True)]
    text = export_table(Table(["name", "value", "is"], rows))
    assert text == '"name"\t"value"\t"is"\n"a"\t0x1.0000000000000p+1\ttrue\n"b\\t"\t0x1.999999999999ap-4\tnull\n'
    assert export_table(Table(["name", "value", "is"], rows[::-1])) == text
    other = export_table(Table(["name", "value", "is"], [("b\t", math.nextafter(0.1, 1), None), ("a", 2.0, True)]))
    assert list(differences(freeze({"t": text}), freeze({"t": other}))) == ["t: other values in its 2 rows"]
    assert first_difference(text, other).endswith("1 rows gone, 1 rows new")


def test_differences__name_the_table_and_its_rows():
    before, now = {"state": [3, "a"], "lag": [1, "b"], "delta": [1, "c"]}, {"state": [4, "d"], "delta": [1, "c"]}
    assert list(differences(before, now)) == ["state: 4 rows, recorded were 3", "lag: gone"]


def test_compare__names_site_night_and_table():
    site = read_recorded()["sites"]["1"]
    nights = {date: dict(night) for date, night in site["nights"].items()}
    assert compare({1: nights}) == []
    date = sorted(nights)[1]
    nights[date]["by_user"] = [nights[date]["by_user"][0] + 1, "other"]
    rows = nights[date]["by_user"][0]
    (line,) = compare({1: nights})[:1]
    assert line == f"site 1, {date}, by_user: {rows} rows, recorded were {rows - 1} (recorded at {site['commit']})"
