"""The machine of histories: writes are disturbed where told, differences are found, and fixed seeds pass."""

import os
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from begun import LAST
from lakes import date_of

from tests.frozen.export import export_night
from tests.frozen.readers import published_date
from tests.histories import invariants
from tests.histories.__main__ import leave_out
from tests.histories.commands import CLUSTER, KILLED, Machine, run_command
from tests.histories.faults import CRASH, FAIL, FULL, TEAR, Crash, Fault, watched
from tests.histories.inputs import change_byte
from tests.histories.invariants import Differs
from tests.histories.machine import History, simulate_lakes


def write(folder, name):
    temporary = folder / f".tmp-{name}"
    temporary.write_text("whole text")
    temporary.rename(folder / name)


def test_watched__nothing_is_written_after_a_crash(tmp_path):
    with watched(tmp_path, Fault(CRASH, 3)) as writes:
        write(tmp_path, "first")
        with pytest.raises(Crash):
            write(tmp_path, "second")
        with pytest.raises(Crash):
            (tmp_path / "first").unlink()
        write(tmp_path.parent, "elsewhere")
    assert (writes.number, sorted(path.name for path in tmp_path.iterdir())) == (3, ["first"])
    write(tmp_path, "second")


def test_watched__a_torn_write_leaves_half_of_a_file(tmp_path):
    with watched(tmp_path, Fault(TEAR, 2)), pytest.raises(Crash):
        write(tmp_path, "first")
    assert (tmp_path / ".tmp-first").read_text() == "whole"


def test_watched__a_write_fails_once_and_a_full_disk_takes_nothing_new(tmp_path):
    with watched(tmp_path, Fault(FAIL, 1)):
        with pytest.raises(OSError, match="Input/output error"):
            write(tmp_path, "first")
        write(tmp_path, "first")
    with watched(tmp_path, Fault(FULL, 1)):
        for _ in range(2):
            with pytest.raises(OSError, match="No space left"):
                write(tmp_path, "second")
        (tmp_path / "first").unlink()
    assert list(tmp_path.iterdir()) == []


def test_watched__removals_in_an_open_folder_count(tmp_path):
    (tmp_path / "below" / "deeper").mkdir(parents=True)
    (tmp_path / "below" / "deeper" / "file").touch()
    with watched(tmp_path) as writes:
        shutil.rmtree(tmp_path / "below")
    assert writes.number == 3


@pytest.mark.night
def test_machine__goes_on_after_a_crash_as_a_killed_process_does(world):
    options = ["--date", date_of(LAST)]
    before = export_night(world.site.path)
    machine = Machine(world.path)
    crashed = machine.run("nightly", world.site.path, *options, fault=Fault(CRASH, 40))
    assert (crashed.exit_code, export_night(world.site.path)) == (KILLED, before)
    other = machine.run("nightly", world.site.path, *options, fault=Fault(FULL, 40))
    assert other.exit_code == 1
    assert other.said.startswith("ammrank: No space left on device")
    done = machine.run("nightly", world.site.path, *options)
    machine.close()
    assert (done.exit_code, published_date(world.site.path)) == (0, str(date_of(LAST)))


@pytest.mark.night
def test_run_command__is_killed_at_a_write_and_goes_on(world):
    cluster = world.path / "cluster.yaml"
    cluster.write_text(CLUSTER)
    options = ["--date", date_of(LAST)]
    before = export_night(world.site.path)
    killed = run_command("nightly", world.site.path, *options, cluster_file=cluster, kill_at=40)
    assert (killed.exit_code, killed.writes) == (KILLED, 40)
    assert export_night(world.site.path) == before
    done = run_command("nightly", world.site.path, *options, cluster_file=cluster)
    assert done.exit_code == 0, done.said
    assert done.writes > 40
    assert published_date(world.site.path) == str(date_of(LAST))
    assert run_command("nightly", world.site.path, "--date", "never", cluster_file=cluster).exit_code == 2


@pytest.fixture(scope="module")
def lakes(tmp_path_factory):
    """The lakes of all histories."""
    folder = tmp_path_factory.mktemp("lakes")
    simulate_lakes(folder)
    return folder


@pytest.mark.night
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [6, 7])
def test_history__of_a_seed_ends_as_an_undisturbed_one(lakes, tmp_path, seed):
    History(seed, lakes, tmp_path / "worlds").run(12)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_history__in_processes_that_are_killed(lakes, tmp_path):
    history = History(20, lakes, tmp_path / "worlds")
    assert history.in_processes
    history.run(12)


@pytest.mark.night
@pytest.mark.timeout(600)
def test_history__that_differs_is_told_with_its_seed_and_steps(lakes, tmp_path):
    class Sabotaged(History):
        def _begin(self):
            super()._begin()
            self.inputs.tried.configure(score={"k": 3})

    with pytest.raises(Differs, match=r"(?s)^seed 7, after these steps:\nbegin with .*\nnightly --date .*") as told:
        Sabotaged(7, lakes, tmp_path / "worlds").run(0)
    assert "must be the same in both, found:\n" in str(told.value)


def test_leave_out__drops_all_steps_but_those_that_it_takes(monkeypatch, tmp_path):
    tried = []

    def try_history(seed, lakes, steps, without, say):
        tried.append(without)
        return None if {4, 9} & set(without) else Differs("it differs")

    monkeypatch.setattr("tests.histories.__main__.try_history", try_history)
    assert leave_out(1, tmp_path, 12, (2,)) == (1, 2, 3, 5, 6, 7, 8, 10, 11, 12)
    assert all(2 in without for without in tried)


TEXTS = {
    "by_user": '"user_id"\t"rank"\t"category"\t"score"\n1\t1\t"A"\t0x1.0p+0\n1\t2\t"B"\t0x1.0p-1\n',
    "by_category": '"category"\t"user_id"\n"A"\t1\n"B"\t1\n',
}


@pytest.mark.parametrize(
    ("name", "before", "after", "sentence"),
    [
        ("by_user", '1\t2\t"B"', '1\t2\t"A"', "a user has a category twice"),
        ("by_user", '1\t2\t"B"', '1\t3\t"B"', r"ranks are \[1, 3\]"),
        ("by_user", "0x1.0p-1", "0x1.0p+2", "the score of a list does not fall"),
        ("by_category", '"B"\t1', '"B"\t2', "by_category has other pairs"),
        ("by_category", "", "", "lists have"),
    ],
)
def test_check_lists__names_what_does_not_hold(tmp_path, name, before, after, sentence):
    (tmp_path / "opt-outs.csv").touch()
    config = {"score": {"policy": "user_top_k", "k": 2, "explore": 0.0}}
    names = ["A", "B"] if before else ["A"]
    inputs = SimpleNamespace(users=[1], control=SimpleNamespace(path=tmp_path), config=config, categories=lambda: names)
    with pytest.raises(Differs, match=sentence):
        invariants.check_lists(inputs, {**TEXTS, name: TEXTS[name].replace(before, after) if before else TEXTS[name]})


@pytest.mark.night
def test_check_forgotten__finds_ids_in_tables_and_text_in_all_bytes(world, tmp_path):
    with pytest.raises(Differs, match="has a forgotten user"):
        invariants.check_forgotten(world.site.path, [101])
    invariants.check_forgotten(world.site.path, [-5, "no such user"])
    (tmp_path / "page.html").write_text("of somebody")
    with pytest.raises(Differs, match=r"page.html has a forgotten user"):
        invariants.check_forgotten(tmp_path, ["somebody"])


@pytest.mark.night
def test_check_size__finds_what_a_crash_left(world):
    control = world.copy(world.path.with_name("control")).site.path
    invariants.check_size(world.site.path, control)
    (world.site.path / "roots" / ".tmp-000001.json-abc").touch()
    with pytest.raises(Differs, match="is left"):
        invariants.check_size(world.site.path, control)
    (world.site.path / "roots" / ".tmp-000001.json-abc").unlink()
    for number in range(500):
        (world.site.path / f"more-{number}").touch()
    with pytest.raises(Differs, match="its control"):
        invariants.check_size(world.site.path, control)


def test_change_byte__flips_one_bit_and_puts_it_right(tmp_path):
    path = tmp_path / "file"
    content = np.arange(9, dtype=np.uint8).tobytes()
    path.write_bytes(content)
    put_right = change_byte(path, 13)
    assert [one for one, other in zip(path.read_bytes(), content, strict=True) if one != other] == [4 ^ 16]
    put_right()
    assert path.read_bytes() == content
    assert os.listdir(tmp_path) == ["file"]
