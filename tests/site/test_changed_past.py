"""A lake whose past changes: compacted days, days without forgotten users, corrections."""

import hashlib
import shutil

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from lakes import date_of, event, event_folder, good_events, write_events, write_lake, write_site

from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.site.day_rows import read_day_rows
from ammrank_dask.storage.site.site import Site
from ammrank_dask.storage.store.runs import open_run
from ammrank_dask.workflows.session.config import load_config
from ammrank_dask.workflows.session.night import Night
from ammrank_dask.workflows.stages.forget import forget_users
from ammrank_dask.workflows.stages.nightly import nightly

LAST = 6
IDS = list(range(101, 131))
OLD, RECENT = 1, LAST - 1
"""A day before the label window of two days, and one in it."""
CONFIG = {"features": {"min_days": 1}, "train": {"shards": 1, "epochs": 1}, "score": {"k": 2}}


@pytest.fixture(scope="module")
def begun(client, tmp_path_factory):
    """A world whose nights up to the last but one are published; the events of the last one are there."""
    world = tmp_path_factory.mktemp("world")
    lake = write_lake(world / "lake", n_days=LAST + 1, ids=IDS, repeat=2)
    site = write_site(world / "site", lake, **CONFIG)
    site.config_path.write_text(site.config_path.read_text().replace(str(lake), "../lake"))
    nightly(Night(client, site, load_config(site.config_path), date_of(LAST - 1)))
    return world


@pytest.fixture(scope="module")
def untouched(client, begun, tmp_path_factory):
    """What the last night publishes when nothing changes."""
    world = tmp_path_factory.mktemp("untouched") / "world"
    shutil.copytree(begun, world)
    run(client, world)
    return bytes_of(world)


@pytest.fixture
def world(begun, tmp_path):
    shutil.copytree(begun, tmp_path / "world")
    return tmp_path / "world"


def run(client, world, past="refuse"):
    site = Site(world / "site")
    config = load_config(site.config_path)
    config = config.model_copy(update={"lake": config.lake.model_copy(update={"past": past})})
    return nightly(Night(client, site, config, date_of(LAST)))


def bytes_of(world):
    """Return the checksums of the head state, and the digest of every table of the last night."""
    site = Site(world / "site")
    by_user = site.qualifications_folder(date_of(LAST)) / "by_user"
    tables = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(by_user.iterdir())}
    return open_run(site.path / site.current().runs["head"]).checksums, tables


def rewrite(world, day, change):
    """Write a day again as one other file, after `change` of its table."""
    folder = event_folder(world / "lake", day)
    table = pa.concat_tables(pq.read_table(path, partitioning=None) for path in sorted(folder.iterdir()))
    shutil.rmtree(folder)
    folder.mkdir()
    pq.write_table(change(table), folder / "compacted.parquet", row_group_size=7)


def reverse(table):
    return table.take(pa.array(range(table.num_rows - 1, -1, -1)))


@pytest.mark.parametrize("day", [OLD, RECENT])
def test_nightly__a_compacted_day_changes_nothing(client, world, untouched, day):
    rewrite(world, day, reverse)
    facts = run(client, world)
    assert not {"corrected days", "changed days kept as folded"} & set(facts)
    assert bytes_of(world) == untouched
    assert len(read_day_rows(world / "site")[date_of(day)].digests) == 2


def test_nightly__a_forgotten_user_may_leave_the_lake(client, world, tmp_path):
    gone = IDS[3]
    (tmp_path / "users.csv").write_text(f"user_id\n{gone}\n")
    forget_users(client, Site(world / "site"), tmp_path / "users.csv")
    for day in range(LAST):
        rewrite(world, day, lambda table: table.filter(pc.not_equal(table["user_id"], gone)))
    facts = run(client, world)
    assert not {"corrected days", "changed days kept as folded"} & set(facts)
    by_user = Site(world / "site").qualifications_folder(date_of(LAST)) / "by_user"
    assert set(pq.read_table(by_user).column("user_id").to_pylist()) == {4, *IDS} - {gone}
    assert read_day_rows(world / "site")[date_of(OLD)].blank == ()  # read again, and known again


def test_nightly__a_corrected_old_day_is_refused_or_kept_as_folded(client, world, untouched):
    write_events(world / "lake", OLD, [event(IDS[0])], file="late.parquet")
    with pytest.raises(BadInput, match=f"events of {date_of(OLD)} changed after .*, or set lake.past: keep to leave"):
        run(client, world)
    assert Site(world / "site").current().date == date_of(LAST - 1)
    facts = run(client, world, past="keep")
    assert facts["changed days kept as folded"] == str(date_of(OLD))
    page = (Site(world / "site").report_folder(date_of(LAST)) / "report.html").read_text()
    assert f"Changed days kept as folded: {date_of(OLD)}." in page
    assert bytes_of(world) == untouched


@pytest.mark.parametrize("past", ["refuse", "keep"])
def test_nightly__a_corrected_day_of_the_label_window_is_folded_again_and_told(client, world, past):
    write_events(world / "lake", RECENT, [event(IDS[0], "pv", "Hats")], file="late.parquet")
    facts = run(client, world, past)
    assert facts["corrected days"] == str(date_of(RECENT))
    clean = write_site(world / "clean", world / "lake", **CONFIG)
    nightly(Night(client, clean, load_config(clean.config_path), date_of(LAST)))
    heads = [open_run(site.path / site.current().runs["head"]) for site in (Site(world / "site"), clean)]
    assert heads[0].checksums == heads[1].checksums


def test_nightly__a_day_kept_as_folded_that_is_needed_again_is_refused(client, world):
    write_events(world / "lake", OLD, good_events(IDS[:2]), file="late.parquet")
    site = Site(world / "site")
    shutil.rmtree(site.path / "days")
    lag = site.finished_runs("state")[0]
    assert open_run(lag).digest != open_run(site.path / site.current().runs["head"]).digest
    shutil.rmtree(lag)  # so that the next one has to be folded from the first day on
    with pytest.raises(BadInput, match=f"events of {date_of(OLD)} changed and are needed again as they were folded"):
        run(client, world, past="keep")
