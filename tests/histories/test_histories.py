"""The machine of histories: commands die where they are told to, a difference is found, and fixed seeds pass."""

import pytest
from begun import LAST
from lakes import date_of

from tests.frozen.export import export_night
from tests.frozen.readers import published_date
from tests.histories.commands import KILLED, run_command
from tests.histories.machine import CLUSTER, Differs, History, simulate_lakes


@pytest.mark.night
def test_run_command__is_killed_at_a_write_and_goes_on(world):
    cluster = world.path / "cluster.yaml"
    cluster.write_text(CLUSTER)
    options = ["--date", date_of(LAST), "--cluster", cluster, "--quiet"]
    before = export_night(world.site.path)
    killed = run_command("nightly", world.site.path, *options, kill_at=40)
    assert (killed.exit_code, killed.writes) == (KILLED, 40)
    assert export_night(world.site.path) == before
    done = run_command("nightly", world.site.path, *options)
    assert done.exit_code == 0, done.said
    assert done.writes > 40
    assert published_date(world.site.path) == str(date_of(LAST))
    assert run_command("nightly", world.site.path, "--date", "never").exit_code == 2


@pytest.fixture(scope="module")
def lakes(tmp_path_factory):
    """The lakes of all histories."""
    folder = tmp_path_factory.mktemp("lakes")
    simulate_lakes(folder)
    return folder


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", [1, 105])
def test_history__of_a_seed_ends_as_an_undisturbed_one(lakes, tmp_path, seed):
    History(seed, lakes, tmp_path / "worlds").run(10)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_history__that_differs_is_told_with_its_seed_and_steps(lakes, tmp_path):
    class Sabotaged(History):
        def _begin(self):
            super()._begin()
            self.tried.configure(score={"k": 3})

    with pytest.raises(Differs, match=r"(?s)^seed 7, after these steps:\nbegin with .*\nnightly --date .*") as told:
        Sabotaged(7, lakes, tmp_path / "worlds").run(0)
    assert "must be the same in both, found:\n" in str(told.value)
