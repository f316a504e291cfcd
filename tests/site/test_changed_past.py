"""A lake whose past changes: compacted days, days without forgotten users, corrections."""

import shutil

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from begun import IDS, LAST, assert_same_runs, current_run, reverse, tables_of
from lakes import TAXONOMY, date_of, event, good_events, write_events, write_taxonomy, write_users

from ammrank_dask.storage.site.day_fingerprints import read_day_rows
from ammrank_dask.storage.store.ids import ids_from_values
from ammrank_dask.storage.store.runs import open_run
from ammrank_dask.user_hash import bucket_of

pytestmark = pytest.mark.night

OLD, RECENT = 1, LAST - 1
"""A day before the label window of two days, and one in it."""


@pytest.fixture(scope="module")
def untouched(begun_world, tmp_path_factory):
    """What the last night publishes when nothing changes."""
    world = begun_world.copy(tmp_path_factory.mktemp("untouched") / "world")
    world.nightly()
    return bytes_of(world)


def bytes_of(world):
    """Return the checksums of the head state, and the bytes of every table of the last night."""
    return current_run(world.site, "head").checksums, tables_of(world.site, date_of(LAST))


@pytest.mark.parametrize("day", [OLD, RECENT])
def test_nightly__a_compacted_day_changes_nothing(world, untouched, day):
    world.rewrite(day, reverse)
    facts = world.nightly()
    assert not {"corrected days", "changed days kept as folded"} & set(facts)
    assert bytes_of(world) == untouched
    assert len(read_day_rows(world.site.path)[date_of(day)].digests) == 2


def test_nightly__a_forgotten_user_may_leave_the_lake(world, tmp_path):
    gone = IDS[3]
    (tmp_path / "users.csv").write_text(f"user_id\n{gone}\n")
    world.run("forget", "--users", tmp_path / "users.csv")
    for day in range(LAST + 1):
        world.rewrite(day, lambda table: table.filter(pc.not_equal(table["user_id"], gone)))
    write_users(world.lake, [(4, 70, "female"), *((user, 34, "male") for user in IDS if user != gone)])
    facts = world.nightly()
    assert not {"corrected days", "changed days kept as folded"} & set(facts)
    by_user = world.site.qualifications_folder(date_of(LAST)) / "by_user"
    assert set(pq.read_table(by_user).column("user_id").to_pylist()) == {4, *IDS} - {gone}
    assert read_day_rows(world.site.path)[date_of(OLD)].blank == ()  # read again, and known again
    assert_same_runs(world.site, world.clean())


def in_bucket_of(user):
    """Return somebody else whose rows are in the same bucket."""
    bucket = bucket_of(ids_from_values([user]))[0]
    others = ids_from_values(range(1000, 9000))
    return int(others.values[bucket_of(others) == bucket][0])


def forget(world, *users):
    path = world.path / "users.txt"
    path.write_text("\n".join(map(str, users)))
    world.run("forget", "--users", path)


def test_nightly__a_correction_is_seen_where_a_user_of_the_same_bucket_was_forgotten(world):
    forget(world, in_bucket_of(IDS[0]))
    write_events(world.lake, RECENT, [event(IDS[0], "pv", "Hats")], file="late.parquet")
    assert world.nightly()["corrected days"] == str(date_of(RECENT))
    assert_same_runs(world.site, world.clean(), "head")


@pytest.mark.parametrize("is_partial_kept", [True, False])
def test_nightly__so_many_forgotten_users_that_no_bucket_is_left_may_leave_the_lake(world, is_partial_kept):
    gone = IDS[:3]
    if not is_partial_kept:
        shutil.rmtree(world.site.path / "days" / f"date={date_of(OLD)}")  # as `keep_days` does it
    forget(world, *gone, *range(10_000, 14_000))
    assert read_day_rows(world.site.path)[date_of(OLD)].is_blank
    for day in range(LAST + 1):
        world.rewrite(day, lambda table: table.filter(pc.invert(pc.is_in(table["user_id"], pa.array(gone)))))
    facts = world.nightly()
    assert "corrected days" not in facts
    # Nothing is left to tell the rows of the old day by: it stays as it is, and that is said.
    assert facts.get("changed days kept as folded") == (None if is_partial_kept else str(date_of(OLD)))
    assert_same_runs(world.site, world.clean(), "head")


def test_nightly__a_corrected_old_day_is_refused_or_kept_as_folded(world, untouched):
    write_events(world.lake, OLD, [event(IDS[0])], file="late.parquet")
    world.refused(f"events of {date_of(OLD)} changed after .*, or set lake.past: keep to leave")
    facts = world.nightly(lake={"past": "keep"})
    assert facts["changed days kept as folded"] == str(date_of(OLD))
    page = (world.site.report_folder(date_of(LAST)) / "report.html").read_text()
    assert f"Changed days kept as folded: {date_of(OLD)}." in page
    assert bytes_of(world) == untouched
    assert len(read_day_rows(world.site.path)[date_of(OLD)].others) == 1  # so that it is not read every night


@pytest.mark.parametrize("past", ["refuse", "keep"])
def test_nightly__a_corrected_day_of_the_label_window_is_folded_again_and_told(world, past):
    write_events(world.lake, RECENT, [event(IDS[0], "pv", "Hats")], file="late.parquet")
    facts = world.nightly(lake={"past": past})
    assert facts["corrected days"] == str(date_of(RECENT))
    assert_same_runs(world.site, world.clean())


def test_nightly__a_corrected_day_is_told_although_it_was_folded_by_a_night_that_was_stopped(world):
    write_events(world.lake, RECENT, [event(IDS[0], "pv", "Hats")], file="late.parquet")
    undisturbed = world.copy(world.path.parent / "undisturbed")
    undisturbed.nightly()
    world.run("ingest", "--date", date_of(LAST))  # the states are there, and are not published
    assert world.nightly()["corrected days"] == str(date_of(RECENT))
    assert bytes_of(world) == bytes_of(undisturbed)
    assert world.site.digest() == undisturbed.site.digest()


def test_nightly__a_day_kept_as_folded_that_is_needed_again_is_refused(world):
    write_events(world.lake, OLD, good_events(IDS[:2]), file="late.parquet")
    site = world.site
    shutil.rmtree(site.path / "days")
    lag = site.finished_runs("state")[0]
    assert open_run(lag).digest != current_run(site, "head").digest
    shutil.rmtree(lag)  # so that the next one has to be folded from the first day on
    world.refused(f"events of {date_of(OLD)} changed and are needed again as they were folded", lake={"past": "keep"})


def test_ingest__an_earlier_date_knows_later_days_as_before(world, untouched):
    world.nightly()
    rows = read_day_rows(world.site.path)
    world.run("ingest", "--date", date_of(OLD + 2))
    assert read_day_rows(world.site.path) == rows
    world.rewrite(LAST, reverse)
    assert "corrected days" not in world.nightly()
    assert bytes_of(world) == untouched


def compact_last(world):
    world.rewrite(LAST, reverse)


def add_node(world):
    write_taxonomy(world.lake, (*TAXONOMY, ("Sandals", "Shoes")))


def add_category(world):
    write_taxonomy(world.lake, (*TAXONOMY, ("Caps", "Retail")))


@pytest.mark.parametrize("change", [compact_last, add_node])
def test_nightly__a_published_night_run_again_after_a_change_of_no_row_stays(world, untouched, change):
    world.nightly()
    change(world)
    assert world.nightly()["published"]
    assert bytes_of(world) == untouched


def test_nightly__a_published_night_run_again_in_other_partitions_stays_until_a_rebuild(world, untouched):
    world.nightly()
    world.run("repartition", "--partitions", 4)
    assert world.nightly()["published"]
    assert tables_of(world.site, date_of(LAST)) == untouched[1]
    world.nightly("--rebuild")
    assert_same_runs(world.site, world.clean(partitions=4))


def test_nightly__a_published_night_run_again_after_a_new_category_asks_for_a_rebuild(world, untouched):
    world.nightly()
    add_category(world)
    world.refused(f"qualifications of {date_of(LAST)} were written from other input; write them again with .*--rebuild")
    assert tables_of(world.site, date_of(LAST)) == untouched[1]
    world.nightly("--rebuild")
    assert_same_runs(world.site, world.clean())
