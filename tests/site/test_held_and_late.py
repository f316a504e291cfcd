"""Late days and corrections that come after a night was held back: what is published is that of a clean lake."""

import json
import shutil

import pytest
from begun import IDS, LAST, assert_same_runs
from lakes import date_of, event, event_folder, good_events, write_events

pytestmark = pytest.mark.night

OLD, RECENT, NEXT = 1, LAST - 1, LAST + 1
"""A day before the label window of two days, one in it, and the day after that of the held night."""
HOLD = {"publish": {"hold": ["heaviest_ids"]}}
ROLES = ("head", "lag", "features", "model")


@pytest.fixture(scope="module")
def held_world(begun_world, tmp_path_factory):
    """A world whose last night is held back for one id with most events, and that has one day more."""
    world = begun_world.copy(tmp_path_factory.mktemp("held") / "world")
    add_bot(world, LAST)
    write_events(world.lake, NEXT, good_events(IDS, repeat=2))
    hold(world, LAST)
    return world


@pytest.fixture
def held(held_world, tmp_path):
    """A copy of that world."""
    return held_world.copy(tmp_path / "held")


def add_bot(world, day):
    write_events(world.lake, day, [event(IDS[0], "adc", "Hats")] * 4000, file="bot.parquet")


def add_late(world, day):
    write_events(world.lake, day, [event(IDS[1], "pv", "Hats"), event(IDS[2], "adc", "Boots")], file="late.parquet")


def hold(world, day, **settings):
    """Run a night that must be held back, and return what it says."""
    before = world.site.current()
    world.configure(**HOLD, **settings)
    said = world.run("nightly", "--date", date_of(day), "--json", exit_code=66)
    assert f"the night of {date_of(day)} is on hold for heaviest_ids" in said
    assert world.site.current() == before
    return json.loads(next(line for line in said.splitlines() if line.startswith("{")))


def publish(world, day):
    world.run("publish", "--date", date_of(day), "--anyway")
    assert world.site.current().date == date_of(day)


def never_held(begun_world, world, folder):
    """Return a world with the lake of another one, which holds nothing back and ran no night but the first."""
    twin = begun_world.copy(folder)
    shutil.rmtree(twin.lake)
    shutil.copytree(world.lake, twin.lake)
    return twin


def assert_same_night(one, other, day):
    """Compare what is published, all tables with the delta too, byte for byte."""
    assert one.site.current().date == other.site.current().date == date_of(day)
    assert_same_runs(one.site, other.site, *ROLES)
    assert bytes_of(one, day) == bytes_of(other, day)


def bytes_of(world, day):
    folder = world.site.qualifications_folder(date_of(day))
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*.parquet")}


def test_nightly__a_held_day_that_is_corrected(held, begun_world, tmp_path):
    (event_folder(held.lake, LAST) / "bot.parquet").unlink()
    facts = held.nightly()
    assert facts["published"]
    assert facts["corrected days"] == str(date_of(LAST))  # it was folded with the other rows, if not published
    twin = never_held(begun_world, held, tmp_path / "twin")
    twin.nightly()
    assert_same_night(held, twin, LAST)
    for world in (held, twin):
        assert "corrected days" not in world.nightly(day=NEXT)
    assert_same_night(held, twin, NEXT)
    assert_same_runs(held.site, held.clean(day=NEXT))
    held.run("verify")


def test_nightly__a_correction_after_a_held_night_is_in_it_when_it_is_run_again(held, begun_world, tmp_path):
    add_late(held, RECENT)
    assert hold(held, LAST)["corrected days"] == str(date_of(RECENT))
    publish(held, LAST)
    twin = never_held(begun_world, held, tmp_path / "twin")
    twin.nightly()
    assert_same_night(held, twin, LAST)
    assert_same_runs(held.site, held.clean())


def test_publish__a_held_night_is_what_was_reported_and_the_next_one_has_the_correction(held, begun_world, tmp_path):
    twin = never_held(begun_world, held, tmp_path / "twin")
    twin.nightly()
    add_late(held, RECENT)
    publish(held, LAST)
    assert_same_night(held, twin, LAST)
    held.refused(rf"qualifications of {date_of(LAST)} were written from other input; .*--rebuild")
    add_late(twin, RECENT)
    for world in (held, twin):
        assert world.nightly(day=NEXT)["corrected days"] == str(date_of(RECENT))
    assert_same_night(held, twin, NEXT)
    assert_same_runs(held.site, held.clean(day=NEXT))


def test_nightly__the_night_after_a_held_one_with_a_correction_of_both(held, begun_world, tmp_path):
    add_late(held, RECENT)
    add_late(held, LAST)
    assert hold(held, NEXT)["corrected days"] == f"{date_of(RECENT)}, {date_of(LAST)}"
    publish(held, NEXT)
    twin = never_held(begun_world, held, tmp_path / "twin")
    twin.nightly(day=NEXT)
    assert_same_night(held, twin, NEXT)
    assert_same_runs(held.site, held.clean(day=NEXT))


def test_nightly__a_correction_of_an_old_day_after_a_held_night(held, held_world):
    add_late(held, OLD)
    held.refused(f"events of {date_of(OLD)} changed after .*, or set lake.past: keep to leave")
    facts = hold(held, LAST, lake={"past": "keep"})
    assert facts["changed days kept as folded"] == str(date_of(OLD))
    publish(held, LAST)
    assert bytes_of(held, LAST) == bytes_of(held_world, LAST)


def test_nightly__a_day_that_was_missing_comes_after_a_held_night(begun_world, tmp_path):
    late = begun_world.copy(tmp_path / "late")
    event_folder(late.lake, LAST).rename(tmp_path / "on its way")
    write_events(late.lake, NEXT, good_events(IDS, repeat=2))
    add_bot(late, NEXT)
    assert hold(late, NEXT, lake={"missing_days": "bridge"})["bridged days"] == str(date_of(LAST))
    (tmp_path / "on its way").rename(event_folder(late.lake, LAST))
    assert "bridged days" not in hold(late, NEXT)
    publish(late, NEXT)
    twin = never_held(begun_world, late, tmp_path / "twin")
    twin.nightly(day=NEXT)
    assert_same_night(late, twin, NEXT)
    assert_same_runs(late.site, late.clean(day=NEXT))
