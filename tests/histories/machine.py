"""Make a random history of a site from a seed, and compare it with the same history without disturbance.

Two worlds get the same inputs: days, late files, corrections, lists of users to forget, settings. In the one that is
tried, commands crash or their writes fail and they are run again, days are compacted, files are damaged and the site is
moved. After every command, all rows of what is published are equal in both, and what follows from the lake is as pandas
has it; after the last one, the state and the features are also those of a new site on the lake as it is then.

Every step draws from a generator of its own number, so that a step can be left out and the others stay as they are.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import traceback
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np
from begun import World
from nights import LAKE

from ammrank_dask.simulation.simulate import simulate
from tests.frozen.export import export_night, first_difference
from tests.frozen.sites import own_cluster
from tests.histories import invariants
from tests.histories.commands import CLUSTER, KILLED, Machine, Outcome, run_command, started
from tests.histories.faults import CRASH, DELAY, FAIL, FULL, TEAR, Fault
from tests.histories.inputs import N_DAYS, N_USERS, Inputs, change_byte, date_of, without_users
from tests.histories.invariants import Differs

FIRST_NIGHT, LABEL_DAYS = 6, 3
FROM_THE_LAKE = ("state", "lag", "features", "features_users")
"""Tables that follow from the lake and the settings alone, whatever came before."""
FAULTS = {CRASH: 0.5, TEAR: 0.15, FAIL: 0.15, FULL: 0.1, DELAY: 0.1}
POLICIES = ("user_top_k", "category_top_n", "balanced")
FAILED, REFUSED, HELD, BUSY = 1, 65, 66, 75


def simulate_lakes(folder: Path) -> None:
    """Simulate the lakes from which all histories take their days."""
    with own_cluster(folder, 2) as (client, _):
        for ids in ("int64", "string"):
            truth = folder / f"{ids}-truth"
            simulate(folder / ids, client=client, truth=truth, users=N_USERS, days=N_DAYS, seed=5, user_ids=ids)


class History:
    """The history of one seed: `run` makes it, and raises Differs where it is not as it has to be.

    One in twenty runs its commands in processes that are killed; in the others a crash is an exception after which
    nothing can be written, and the cluster and all caches of the process are dropped.
    """

    def __init__(self, seed: int, lakes: Path, folder: Path, say: Callable[[str], Any] = lambda line: None) -> None:
        self.seed, self.folder, self._say = seed, folder, say
        self.chance = np.random.default_rng([seed, 0])
        self.steps: list[str] = []
        self.ids = str(self.chance.choice(["int64", "string"]))
        self.in_processes = seed % 20 == 0
        folder.mkdir(parents=True)
        self.cluster = folder / "cluster.yaml"
        self.cluster.write_text(CLUSTER, encoding="utf-8")
        self._machines = {True: Machine(self._made("machine")), False: Machine(self._made("machine-of-control"))}
        worlds = (World(folder / "control", self.cluster), World(folder / "tried", self.cluster))
        self.inputs = Inputs(lakes / self.ids, *worlds)
        self.last = FIRST_NIGHT
        self.is_merged = False
        """Whether categories became one since the last rebuild: their sums then differ in the last bits."""
        self.may_need_rebuild = self.must_rebuild = False
        """Whether the next night is perhaps, or for certain, refused until it is rebuilt."""
        self.published: dict[str, str] = {}

    def run(self, n_steps: int, left_out: Collection[int] = ()) -> None:
        """Make a first night and so many random steps, and compare with a new site at the end."""
        try:
            self._begin()
            for number in range(1, n_steps + 1):
                if number not in left_out:
                    self.chance = np.random.default_rng([self.seed, number])
                    self._step()
            self.chance = np.random.default_rng([self.seed, n_steps + 1])
            self._night()
            if not self.is_merged:
                self._compare_with_a_new_site()
            self._rebuild()
            self._compare_with_a_new_site()
        except Exception as error:
            told = str(error) if isinstance(error, Differs) else traceback.format_exc()
            raise Differs(f"seed {self.seed}, after these steps:\n" + "\n".join(self.steps) + f"\n{told}") from error
        finally:
            for machine in self._machines.values():
                machine.close()

    def remove(self) -> None:
        """Remove its worlds."""
        shutil.rmtree(self.folder)

    # Steps.

    def _begin(self) -> None:
        chance = self.chance
        config: dict[str, Any] = {
            "lake": LAKE,
            "label": {"days": LABEL_DAYS, "min_categories": 1},
            "features": {"min_days": 1},
            "train": {
                "model": str(chance.choice(["amm-rank-plus", "amm-rank"])),
                "epochs": 1, "shards": 2, "every_nights": int(chance.integers(1, 4)),
            },
            "gate": {"forward": bool(chance.integers(2)), "min_users": 5},
            "score": {"k": 4, "policy": str(chance.choice(POLICIES)), "explore": float(chance.choice([0, 0.1]))},
            "publish": {"hold": [], "to": str(self.folder / "copies") if chance.integers(2) else None},
            "retention": {"qualifications": int(chance.integers(2, 8)), "reports": 8},
            "partitions": int(chance.integers(1, 4)),
        }  # fmt: skip
        told = json.dumps(config["train"] | config["gate"] | config["score"] | config["retention"])
        self._note(f"begin with {told}, {self.ids} ids{', in processes' if self.in_processes else ''}")
        self.inputs.begin(config)
        for world in self.inputs.worlds:
            world.configure(publish={"to": "../copies" if config["publish"]["to"] else None})
        for day in range(FIRST_NIGHT + 1):
            self.inputs.add_day(day)
        self._command("nightly", "--date", date_of(self.last))

    def _step(self) -> None:
        steps = {
            self._night: 6, self._late_file: 2, self._correct: 2, self._correct_the_past: 1, self._compact: 2,
            self._forget: 2, self._change_category: 2, self._change_settings: 4, self._rebuild: 1,
            self._repartition: 1, self._null_day: 1, self._spoilt_day: 2, self._back_fill: 1, self._damage_site: 2,
            self._train: 1, self._held_night: 1, self._move_site: 1, self._two_at_once: 1, self._opt_out: 1,
            self._foreign_owner: 1,
        }  # fmt: skip
        weights = np.array(list(steps.values()))
        list(steps)[self.chance.choice(len(steps), p=weights / weights.sum())]()

    def _night(self, *, null: bool = False) -> None:
        """Run the night of the next day."""
        if self._next_day(null=null):
            self._nightly()

    def _null_day(self) -> None:
        """Run a night whose day has no category at all."""
        self._night(null=True)

    def _rebuild(self, *, is_damaged: bool = False) -> None:
        self._command("nightly", "--date", date_of(self.last), "--rebuild", is_damaged=is_damaged)
        self.is_merged = self.may_need_rebuild = self.must_rebuild = False

    def _back_fill(self) -> None:
        """Leave a night out, and run it after the next one: what is published stays."""
        if self._next_day() and self._next_day():
            self._nightly()
            self._command("nightly", "--date", date_of(self.last - 1), allowed=(0, REFUSED))

    def _late_file(self) -> None:
        day = self._recent_day()
        self._note(f"late file of {date_of(day)}")
        self.inputs.add_late(day, self.chance)
        if self.chance.random() < 0.3:
            self.inputs.add_empty(day)

    def _correct(self) -> None:
        day = self._recent_day()
        self._note(f"other rows in {date_of(day)}")
        self.inputs.correct(day, self.chance)

    def _correct_the_past(self) -> None:
        day = int(self.chance.integers(self.last + 1 - self._label_days()))
        is_late = bool(self.chance.integers(2))
        self._note(f"{'late file of' if is_late else 'other rows in'} {date_of(day)}, which is folded for good")
        (self.inputs.add_late if is_late else self.inputs.correct)(day, self.chance)
        self.must_rebuild = True

    def _compact(self) -> None:
        day = int(self.chance.integers(self.last + 1))
        self._note(f"compact {date_of(day)}")
        self.inputs.compact(day)

    def _spoilt_day(self) -> None:
        """Let the tried site find a damaged or half compacted day, and mend it."""
        if not self._next_day():
            return
        spoil = [
            lambda: self.inputs.half_compacted(self.last), lambda: self.inputs.damaged(self.last, self.chance)
        ][self.chance.integers(2)]  # fmt: skip
        if not self.must_rebuild and not self.may_need_rebuild:
            with spoil() as sentence:
                before = export_night(self.inputs.tried.site.path)
                self._refused(self.inputs.tried, sentence, "nightly", "--date", date_of(self.last))
                self._compare(before, export_night(self.inputs.tried.site.path))
        self._nightly()

    def _forget(self) -> None:
        gone = self.inputs.forget(int(self.chance.integers(1, 4)), self.chance)
        path = self.folder / "forget.txt"
        path.write_text("".join(f"{user}\n" for user in gone), encoding="utf-8")
        self._command("forget", "--users", path)
        self._check_forgotten()

    def _change_category(self) -> None:
        names = self.inputs.categories()
        one, other = self.chance.choice(names, 2, replace=False).tolist()
        kind = str(self.chance.choice(["rename", "merge", "drop", "new"], p=[0.3, 0.25, 0.2, 0.25]))
        if kind == "new":
            self._note(f"new category {self.inputs.add_category()}")
            return
        new = {"rename": f"{one} {len(self.inputs.renames)}", "merge": other, "drop": None}[kind]
        self.inputs.renames[one] = new
        self.is_merged |= kind == "merge"
        self._note(f"{kind} {one} ({new})")
        self.inputs.configure(categories=self.inputs.renames)

    def _change_settings(self) -> None:
        chance = self.chance
        kind = str(
            chance.choice(
                [
                    "k",
                    "policy",
                    "values",
                    "clicks",
                    "window",
                    "alpha",
                    "label.alpha",
                    "explore",
                    "gate",
                    "audience",
                    "every",
                ]
            )
        )
        choices: dict[str, dict[str, Any]] = {
            "k": {"score": {"k": int(chance.integers(2, 7))}},
            "policy": {"score": {"policy": str(chance.choice(POLICIES))}},
            "clicks": {"score": {"objective": "clicks"}},
            "window": {"label": {"days": int(chance.integers(2, 5))}},
            "alpha": {"alpha": float(chance.choice([0.99, 0.995, 0.97]))},
            "label.alpha": {"label": {"alpha": float(chance.choice([0.9, 0.97]))}},
            "explore": {"score": {"explore": float(chance.choice([0, 0.05, 0.2]))}},
            "gate": {"gate": {"tolerance": float(chance.choice([0, 0.01, 0.2])), "forward": bool(chance.integers(2))}},
            "audience": {"score": {"min_audience": [None, 2, 6][chance.integers(3)]}},
            "every": {"train": {"every_nights": int(chance.integers(1, 4))}},
            "values": {},
        }  # fmt: skip
        kind = str(chance.choice(list(choices)))
        settings = choices[kind]
        if kind == "values":
            self.inputs.set_values(chance)
        self._note(f"change {kind}: {settings}")
        self.must_rebuild |= "alpha" in settings and settings["alpha"] != self.inputs.config.get("alpha", 0.995)
        self.may_need_rebuild |= kind == "window"
        self.inputs.configure(**settings)

    def _opt_out(self) -> None:
        self._note("opt-outs")
        self.inputs.opt_out(6, self.chance)

    def _repartition(self) -> None:
        self._command("repartition", "--partitions", int(self.chance.integers(1, 5)))

    def _train(self) -> None:
        """Train by hand: nothing is published."""
        self._command("train", "--date", date_of(self.last), allowed=(0, REFUSED))

    def _held_night(self) -> None:
        """Let a check hold a night, and release it."""
        if not self._next_day():
            return
        self.inputs.configure(publish={"hold": ["changed_users"]}, report={"thresholds": {"changed_users": 0}})
        self._nightly(allowed=(0, HELD))
        if self.exit_code == HELD:
            self._command("publish", "--date", date_of(self.last), "--anyway")
        self.inputs.configure(publish={"hold": []}, report={"thresholds": {}})

    def _move_site(self) -> None:
        """Move the tried site with its lake, or take a copy in its place."""
        is_copied = bool(self.chance.integers(2))
        self._note(f"{'copy' if is_copied else 'move'} the site")
        tried = self.inputs.tried
        new = World(tried.path.with_name(f"tried-{len(self.steps)}"), self.cluster)
        if is_copied:
            shutil.copytree(tried.path, new.path)
            shutil.rmtree(tried.path)
        else:
            tried.path.rename(new.path)
        self.inputs.tried = new

    def _two_at_once(self) -> None:
        """Run a night while another run has the site."""
        if not self._next_day():
            return
        options = ["nightly", "--date", date_of(self.last)]
        if self.in_processes and not self.must_rebuild and not self.may_need_rebuild:
            site = self.inputs.tried.site.path
            with (
                started(options[0], site, *options[1:], cluster_file=self.cluster) as one,
                started(options[0], site, *options[1:], cluster_file=self.cluster) as other,
            ):
                ends = sorted((one(), other()), key=lambda outcome: outcome.exit_code)
            if ends[0].exit_code != 0 or ends[1].exit_code not in (0, BUSY):
                raise Differs(f"two runs at once ended with {ends}")
        elif not self.in_processes:
            with open(self.inputs.tried.site.path / ".lock", "rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                self._refused(self.inputs.tried, "another run holds", *options, exit_code=BUSY)
        self._nightly()

    def _foreign_owner(self) -> None:
        """Run a night on a site that is of another account, and give it back."""
        if os.geteuid() != 0 or not self._next_day():
            return
        site = self.inputs.tried.site.path
        os.chown(site, 12345, 12345)
        self._refused(self.inputs.tried, "12345", "nightly", "--date", date_of(self.last))
        os.chown(site, 0, 0)
        self._nightly()

    def _damage_site(self) -> None:
        """Flip a bit of a stored file: `verify` names it, and what it says mends it."""
        site = self.inputs.tried.site.path
        current = self.inputs.tried.site.current()
        assert current is not None
        runs = [site / name for role, name in sorted(current.runs.items()) if role not in ("report", "qualifications")]
        files = sorted(path for run in runs for path in run.rglob("*") if path.is_file() and path.stat().st_size > 0)
        path = files[self.chance.integers(len(files))]
        put_right = change_byte(path, int(self.chance.integers(1 << 30)))
        self._note(f"damage {path.relative_to(site)}")
        said = self._refused(self.inputs.tried, "", "verify")
        if path.parent.name not in said and path.parent.parent.name not in said and path.name not in said:
            raise Differs(f"verify does not name {path}: {said}")
        if "--rebuild" in said and str(date_of(self.last)) in said:
            self._rebuild(is_damaged=True)
        else:
            put_right()
        self._ends_with(self._run(self.inputs.tried, "verify"), (0,))

    def _next_day(self, *, null: bool = False) -> bool:
        """Let the next day come to the lake, if there is one."""
        if self.last + 1 >= N_DAYS:
            return False
        self.last += 1
        (self.inputs.add_null_day if null else self.inputs.add_day)(self.last)
        return True

    # Commands.

    def _nightly(self, allowed: Collection[int] = (0,)) -> None:
        """Run the night of the last day; one that has to be rebuilt is refused before."""
        options = ["nightly", "--date", date_of(self.last)]
        if self.must_rebuild or self.may_need_rebuild:
            outcome = self._run(self.inputs.control, *options)
            if outcome.exit_code == REFUSED and "--rebuild" in outcome.said:
                self._refused(self.inputs.tried, "--rebuild", *options)
                self._note(f"nightly {options[2]} is refused")
                options.append("--rebuild")
                self.is_merged = False
            elif self.must_rebuild:
                raise Differs(f"nightly must be refused, ended with {outcome.exit_code}: {outcome.said}")
        self.may_need_rebuild = self.must_rebuild = False
        self._command(*options, allowed=allowed)

    def _command(
        self, name: str, *arguments: object, allowed: Collection[int] = (0,), is_damaged: bool = False
    ) -> None:
        """Run a command in both worlds, and disturb it up to three times in the one that is tried; compare them."""
        control, inputs = self._run(self.inputs.control, name, *arguments), self.inputs
        self._ends_with(control, allowed, "in the control ")
        self.exit_code = control.exit_code
        before, self.published = self.published, export_night(inputs.control.site.path)
        versions = {invariants.fingerprint(world.site.path) for world in inputs.worlds}
        faults = []
        while self.chance.random() < 0.5 and len(faults) < 3:
            kind = CRASH if self.in_processes else str(self.chance.choice(list(FAULTS), p=list(FAULTS.values())))
            faults.append(Fault(kind, int(self.chance.integers(1, control.writes + 1))))
        told = ", ".join(f"{fault.kind} at {fault.at}" for fault in faults) or "undisturbed"
        self._note(f"{name} {' '.join(map(str, arguments))}, {control.writes} writes, {told}")
        is_night = name == "nightly"
        with invariants.reading(inputs.tried.site.path) if is_night else contextlib.nullcontext(versions) as seen:
            for fault in faults:
                self._disturbed(name, *arguments, fault=fault)
                if is_night and before and not is_damaged:
                    self._check_whole(before, fault)
            tried = self._run(inputs.tried, name, *arguments)
        self._ends_with(tried, (control.exit_code,))
        is_new = name in ("nightly", "publish") and self.exit_code == 0
        self._check(is_new=is_new and arguments[1] == date_of(self.last))
        if not seen <= {*versions, None}:
            raise Differs("a reader has read lists that are neither those before nor those after")

    def _disturbed(self, name: str, *arguments: object, fault: Fault) -> None:
        """Run a command with a fault: it ends as usual, or is killed, or says in one sentence what failed."""
        outcome = self._run(self.inputs.tried, name, *arguments, fault=fault)
        ends = {FAIL: (self.exit_code,), DELAY: (self.exit_code,), FULL: (self.exit_code, FAILED)}
        self._ends_with(outcome, ends.get(fault.kind, (self.exit_code, KILLED)), f"with {fault.kind} at {fault.at} ")
        if outcome.exit_code == FAILED and "No space left" not in outcome.said:
            raise Differs(f"a full disk at {fault.at} is not what is said: {outcome.said}")

    def _ends_with(self, outcome: Outcome, codes: Collection[int], how: str = "") -> None:
        if outcome.exit_code not in codes:
            raise Differs(f"it ended {how}with {outcome.exit_code}: {outcome.said}")
        lines = [line for line in outcome.said.splitlines() if line.startswith("ammrank: ")]
        if outcome.exit_code not in (0, KILLED) and (len(lines) != 1 or "unexpected" in lines[0]):
            raise Differs(f"a failure {how}must be one sentence, found {outcome.said}")

    def _refused(self, world: World, sentence: str, name: str, *arguments: object, exit_code: int = REFUSED) -> str:
        outcome = self._run(world, name, *arguments)
        self._ends_with(outcome, (exit_code,), f"after what must be refused as {sentence!r} ")
        if sentence not in outcome.said:
            raise Differs(f"{name} must be refused with {sentence!r}, said {outcome.said}")
        return outcome.said

    def _run(self, world: World, name: str, *arguments: object, fault: Fault | None = None) -> Outcome:
        site = world.site.path
        if self.in_processes:
            at = None if fault is None else fault.at
            return run_command(name, site, *arguments, cluster_file=self.cluster, kill_at=at)
        return self._machines[world is self.inputs.tried].run(name, site, *arguments, fault=fault)

    # What must hold.

    def _check(self, *, is_new: bool) -> None:
        """Check the tried site after a command: as the control, and after a new night as pandas has it."""
        control, tried = (world.site.path for world in self.inputs.worlds)
        texts = export_night(tried)
        self._compare(self.published, texts)
        if is_new:
            events = invariants.events_of(self.inputs)
            invariants.check_state(self.inputs, events, texts, self.last)
            if "by_user" in texts:
                invariants.check_lists(self.inputs, texts)
                invariants.check_exposure(self.inputs, events, texts, self.last)
        invariants.check_size(tried, control)
        if self.chance.random() < 0.3:
            self._ends_with(self._run(self.inputs.tried, "verify"), (0,), "verify ")

    def _check_forgotten(self) -> None:
        for name in ("site", "copies"):
            invariants.check_forgotten(self.inputs.tried.path / name, self.inputs.forgotten)

    def _check_whole(self, before: dict[str, str], fault: Fault) -> None:
        """Compare what is published after a fault: every table is as before or as after the night."""
        for name, text in export_night(self.inputs.tried.site.path).items():
            if text not in (before.get(name), self.published.get(name)):
                rows = first_difference(self.published.get(name, ""), text)
                raise Differs(f"after {fault.kind} at write {fault.at} {name} is neither old nor new:\n{rows}")

    def _compare(self, expected: dict[str, str], actual: dict[str, str], names: tuple[str, ...] = ()) -> None:
        for name in names or {**expected, **actual}:
            if expected.get(name) != actual.get(name):
                rows = first_difference(expected.get(name, ""), actual.get(name, ""))
                raise Differs(f"{name} must be the same in both, found:\n{rows}")

    def _compare_with_a_new_site(self) -> None:
        """Compare what follows from the lake alone with a site that has it from a lake without forgotten users."""
        new = World(self.folder / "new", self.cluster)
        shutil.rmtree(new.path, ignore_errors=True)
        shutil.copytree(self.inputs.control.path, new.path, ignore=shutil.ignore_patterns("site", "copies"))
        new.site.path.mkdir()
        shutil.copy(self.inputs.tried.site.config_path, new.site.config_path)
        without_users(new.lake, self.inputs.forgotten)
        outcome = self._run(new, "nightly", "--date", date_of(self.last))
        self._note("compare with a new site")
        self._ends_with(outcome, (0,), "on a new site ")
        self._compare(export_night(new.site.path), export_night(self.inputs.tried.site.path), FROM_THE_LAKE)

    def _label_days(self) -> int:
        days: int = self.inputs.config["label"]["days"]
        return days

    def _recent_day(self) -> int:
        """Return a day of the label window of the published night: the state before it is kept."""
        return int(self.chance.integers(self.last + 1 - self._label_days(), self.last + 1))

    def _made(self, name: str) -> Path:
        with contextlib.suppress(FileExistsError):
            (self.folder / name).mkdir()
        return self.folder / name

    def _note(self, step: str) -> None:
        self.steps.append(step)
        self._say(step)
