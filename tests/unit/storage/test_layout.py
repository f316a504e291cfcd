"""Layouts of folders: what they say of day and group."""

import pytest
from lakes import write_lake

from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.lake.listing import Layout, list_days
from ammrank_dask.workflows.operations.lake_init.places import find_places


@pytest.mark.parametrize("text", ["date=YYYY-MM", "YYYY/MM/DD/YYYY", "GROUP/GROUP/YYYY/MM/DD", ""])
def test_layout__without_a_whole_day_is_refused(text):
    with pytest.raises(BadInput, match=r"must have YYYY, MM and DD once and GROUP at most once, .* got"):
        Layout.parse(text)


def test_layout__folders_that_are_no_date_are_named():
    with pytest.raises(BadInput, match=r"2026/02/30/a\.parquet is in folders YYYY/MM/DD that are not a date"):
        Layout.parse("YYYY/MM/DD").match("2026/02/30/a.parquet")


def test_list_days__a_layout_that_no_file_has(tmp_path):
    lake = write_lake(tmp_path / "lake", n_days=1)
    with pytest.raises(BadInput, match=r"has no parquet files in folders YYYY/MM/DD; set lake.events or lake\.layout"):
        list_days(lake / "events", "date", "YYYY/MM/DD")


def test_find_places__folders_of_days_without_clicks_are_not_groups(tmp_path):
    for name in ("orders", "visits"):
        (tmp_path / name / "date=2026-01-05").mkdir(parents=True)
    with pytest.raises(BadInput, match="has several folders of days"):
        find_places(tmp_path)
