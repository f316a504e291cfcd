"""Make a random history of a site from a seed, and hold it against the same history without disturbance.

Two worlds get the same inputs: days, late files, corrections, lists of users to forget, settings. In the one that is
tried, commands are killed and run again, and days are compacted. After every command, all rows of what is published are
equal in both; after the last one, the state and the features are also those of a new site on the lake as it is then.
"""

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import yaml
from begun import World, reverse
from lakes import date_of, event_folder
from nights import LAKE

from ammrank_dask.simulation.simulate import simulate
from tests.frozen.export import export_night, first_difference
from tests.frozen.sites import own_cluster
from tests.histories.commands import KILLED, Outcome, run_command

N_DAYS, FIRST_NIGHT, LABEL_DAYS = 18, 6, 3
CLUSTER = """version: 1
class: distributed.LocalCluster
kwargs: {processes: false, n_workers: 1, threads_per_worker: 2, dashboard_address: null}
"""
FROM_THE_LAKE = ("state", "lag", "features", "features_users")
"""Tables that follow from the lake and the settings alone, whatever came before."""


class Differs(AssertionError):
    """The two worlds are not the same, or a command did not end as it has to."""


def simulate_lakes(folder: Path) -> None:
    """Simulate the lakes from which all histories take their days."""
    with own_cluster(folder, 2) as (client, _):
        for ids in ("int64", "string"):
            truth = folder / f"{ids}-truth"
            simulate(folder / ids, client=client, truth=truth, users=200, days=N_DAYS, seed=5, user_ids=ids)


class History:
    """The history of one seed: `run` makes it, and raises Differs where it is not as it has to be."""

    def __init__(self, seed: int, lakes: Path, folder: Path, say: Callable[[str], Any] = lambda line: None) -> None:
        self.seed, self.folder, self._say = seed, folder, say
        self.chance = np.random.default_rng(seed)
        self.steps: list[str] = []
        self.ids = str(self.chance.choice(["int64", "string"]))
        self.lake = lakes / self.ids
        cluster = folder / "cluster.yaml"
        folder.mkdir(parents=True)
        cluster.write_text(CLUSTER, encoding="utf-8")
        self.control, self.tried = World(folder / "control", cluster), World(folder / "tried", cluster)
        self.users = pq.read_table(self.lake / "users.parquet")["user_id"].to_pylist()
        self.forgotten: list[Any] = []
        self.renames: dict[str, str | None] = {}
        self.last = FIRST_NIGHT
        self.n_late = 0
        self.is_merged = False
        """Whether categories became one since the last rebuild: their sums then differ in the last bits."""
        self.is_old_corrected = False
        self.published: dict[str, str] = {}

    def run(self, n_steps: int) -> None:
        """Make a first night and so many random steps, and compare with a new site at the end."""
        try:
            self._begin()
            for _ in range(n_steps):
                self._step()
            self._night()
            if not self.is_merged:
                self._compare_with_a_new_site()
            self._rebuild()
            self._compare_with_a_new_site()
        except Exception as error:
            raise Differs(f"seed {self.seed}, after these steps:\n" + "\n".join(self.steps) + f"\n{error}") from error

    def remove(self) -> None:
        """Remove its worlds."""
        shutil.rmtree(self.folder)

    def _begin(self) -> None:
        chance = self.chance
        policy = str(chance.choice(["user_top_k", "category_top_n", "balanced"]))
        config = {
            "lake": LAKE,
            "label": {"days": LABEL_DAYS, "min_categories": 1},
            "features": {"min_days": 1},
            "train": {
                "model": str(chance.choice(["amm-rank-plus", "amm-rank"])),
                "epochs": 1, "shards": 2, "every_nights": int(chance.integers(1, 4)),
            },
            "gate": {"forward": bool(chance.integers(2)), "min_users": 5},
            "score": {"k": 4, "policy": policy, "explore": float(chance.choice([0, 0.1]))},
            "publish": {"hold": []},
            "partitions": int(chance.integers(1, 4)),
        }  # fmt: skip
        self._note(f"begin with {json.dumps(config['train'] | config['gate'] | config['score'])}, {self.ids} ids")
        for world in (self.control, self.tried):
            world.lake.mkdir(parents=True)
            for name in ("users.parquet", "taxonomy.csv"):
                shutil.copy(self.lake / name, world.lake / name)
            world.site.path.mkdir()
            world.site.config_path.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
        for day in range(FIRST_NIGHT + 1):
            self._add_day(day)
        self._command("nightly", "--date", date_of(self.last))

    def _step(self) -> None:
        steps = {
            self._night: 6, self._late_file: 2, self._correct: 2, self._correct_the_past: 1, self._compact: 3,
            self._forget: 2, self._rename: 1, self._change_k: 1, self._rebuild: 1, self._repartition: 1,
        }  # fmt: skip
        weights = np.array(list(steps.values()))
        list(steps)[self.chance.choice(len(steps), p=weights / weights.sum())]()

    def _night(self) -> None:
        """Run the night of the next day; one after a correction of the past is refused, and rebuilt."""
        if self.last + 1 == N_DAYS:
            return
        self.last += 1
        self._add_day(self.last)
        options = ["--date", date_of(self.last)]
        if self.is_old_corrected:
            self._refused("changed after", "nightly", *options)
            options.append("--rebuild")
            self.is_merged = self.is_old_corrected = False
        self._command("nightly", *options)

    def _rebuild(self) -> None:
        self._command("nightly", "--date", date_of(self.last), "--rebuild")
        self.is_merged = self.is_old_corrected = False

    def _late_file(self) -> None:
        day = self._recent_day()
        self._note(f"late file of {date_of(day)}")
        self._add_late(day)

    def _correct(self) -> None:
        day = self._recent_day()
        self._note(f"other rows in {date_of(day)}")
        self._rewrite(day)

    def _correct_the_past(self) -> None:
        day = int(self.chance.integers(self.last + 1 - LABEL_DAYS))
        is_late = bool(self.chance.integers(2))
        self._note(f"{'late file of' if is_late else 'other rows in'} {date_of(day)}, which is folded for good")
        if is_late:
            self._add_late(day)
        else:
            self._rewrite(day)
        self.is_old_corrected = True

    def _compact(self) -> None:
        """Write a day of the tried world again as one file, its rows in another order."""
        day = int(self.chance.integers(self.last + 1))
        self._note(f"compact {date_of(day)}")
        self.tried.rewrite(day, reverse)

    def _forget(self) -> None:
        gone = self.chance.choice(len(self.users), int(self.chance.integers(1, 4)), replace=False)
        self.forgotten += [self.users[number] for number in gone]
        self.users = [user for number, user in enumerate(self.users) if number not in gone]
        path = self.folder / "forget.txt"
        path.write_text("".join(f"{user}\n" for user in self.forgotten[-len(gone) :]), encoding="utf-8")
        self._command("forget", "--users", path)

    def _rename(self) -> None:
        now = [name for name in self._categories() if name not in self.renames]
        one, other = self.chance.choice(now, 2, replace=False).tolist()
        kind = self.chance.choice(["rename", "merge", "drop"], p=[0.5, 0.3, 0.2])
        self.renames[one] = {"rename": f"{one} {len(self.renames)}", "merge": other, "drop": None}[str(kind)]
        self.is_merged |= kind == "merge"
        self._note(f"{kind} {one} ({self.renames[one]})")
        self._configure(categories=self.renames)

    def _change_k(self) -> None:
        k = int(self.chance.integers(2, 7))
        self._note(f"k is {k}")
        self._configure(score={"k": k})

    def _repartition(self) -> None:
        self._command("repartition", "--partitions", int(self.chance.integers(1, 5)))

    def _categories(self) -> list[str]:
        """Return the names of the ranked categories, those of the lake and those that they were given since."""
        with open(self.lake / "taxonomy.csv", encoding="utf-8", newline="") as file:
            parent_of = {row["category"]: row["parent"] for row in csv.DictReader(file)}
        ranked = {name for name, parent in parent_of.items() if parent and not parent_of[parent]}
        return sorted(ranked | {name for name in self.renames.values() if name is not None})

    def _configure(self, **settings: Any) -> None:
        for world in (self.control, self.tried):
            world.configure(**settings)

    def _command(self, name: str, *arguments: object) -> None:
        """Run a command in both worlds, and kill it once, twice or never in the one that is tried; compare them."""
        control = self._run(self.control, name, *arguments)
        if control.exit_code != 0:
            raise Differs(f"{name} ended with {control.exit_code} in the control: {control.said}")
        before, self.published = self.published, export_night(self.control.site.path)
        kills = []
        while self.chance.random() < 0.5 and len(kills) < 3:
            kills.append(int(self.chance.integers(1, control.writes + 1)))
        self._note(f"{name} {' '.join(map(str, arguments))}, {control.writes} writes, killed at {kills or 'none'}")
        for kill_at in kills:
            killed = self._run(self.tried, name, *arguments, kill_at=kill_at)
            if killed.exit_code not in (0, KILLED):
                raise Differs(f"it ended with {killed.exit_code} before write {kill_at}: {killed.said}")
            if name == "nightly" and before:
                self._check_whole(before, kill_at)
        tried = self._run(self.tried, name, *arguments)
        if tried.exit_code != 0:
            raise Differs(f"it ended with {tried.exit_code}: {tried.said}")
        self._compare(self.published, export_night(self.tried.site.path))

    def _refused(self, sentence: str, name: str, *arguments: object) -> None:
        for world in (self.control, self.tried):
            outcome = self._run(world, name, *arguments)
            if outcome.exit_code != 65 or sentence not in outcome.said:
                raise Differs(f"{name} must be refused, ended with {outcome.exit_code}: {outcome.said}")
        self._note(f"{name} {' '.join(map(str, arguments))} is refused")

    def _run(self, world: World, name: str, *arguments: object, kill_at: int | None = None) -> Outcome:
        options = ["--cluster", world.cluster_file, "--quiet"]
        return run_command(name, world.site.path, *arguments, *options, kill_at=kill_at)

    def _check_whole(self, before: dict[str, str], kill_at: int) -> None:
        """Compare what is published after a crash: every table is as before or as after the night."""
        for name, text in export_night(self.tried.site.path).items():
            if text not in (before.get(name), self.published.get(name)):
                rows = first_difference(self.published.get(name, ""), text)
                raise Differs(f"after the crash at write {kill_at} {name} is neither old nor new:\n{rows}")

    def _compare(self, expected: dict[str, str], actual: dict[str, str], names: tuple[str, ...] = ()) -> None:
        for name in names or {**expected, **actual}:
            if expected.get(name) != actual.get(name):
                rows = first_difference(expected.get(name, ""), actual.get(name, ""))
                raise Differs(f"{name} must be the same in both, found:\n{rows}")

    def _compare_with_a_new_site(self) -> None:
        """Compare what follows from the lake alone with a site that has it from a lake without forgotten users."""
        new = World(self.folder / "new", self.tried.cluster_file)
        shutil.rmtree(new.path, ignore_errors=True)
        shutil.copytree(self.control.lake, new.lake)
        new.site.path.mkdir()
        shutil.copy(self.tried.site.config_path, new.site.config_path)
        for path in (new.lake / "users.parquet", *new.lake.glob("events/*/*.parquet")):
            table = pq.read_table(path, partitioning=None)
            gone = pa.array(self.forgotten, table.schema.field("user_id").type)
            pq.write_table(table.filter(pc.invert(pc.is_in(table["user_id"], gone))), path)
        outcome = self._run(new, "nightly", "--date", date_of(self.last))
        self._note("compare with a new site")
        if outcome.exit_code != 0:
            raise Differs(f"the night of a new site ended with {outcome.exit_code}: {outcome.said}")
        self._compare(export_night(new.site.path), export_night(self.tried.site.path), FROM_THE_LAKE)

    def _recent_day(self) -> int:
        """Return a day of the label window of the published night: the state before it is kept."""
        return int(self.chance.integers(self.last + 1 - LABEL_DAYS, self.last + 1))

    def _add_day(self, day: int) -> None:
        for world in (self.control, self.tried):
            shutil.copytree(event_folder(self.lake, day), event_folder(world.lake, day), dirs_exist_ok=True)

    def _add_late(self, day: int) -> None:
        """Add a file with some rows of the day, some minutes earlier and of other users."""
        table = self._rows_of(day)
        rows = np.sort(self.chance.choice(len(table), len(table) // 8, replace=False))
        late = table.take(pa.array(rows))
        self.n_late += 1
        earlier = pc.subtract(late["timestamp"], pa.scalar(60_000_000 * self.n_late + self.n_late, pa.duration("us")))
        late = late.set_column(late.column_names.index("timestamp"), "timestamp", earlier)
        late = late.set_column(late.column_names.index("user_id"), "user_id", reverse(late)["user_id"])
        for world in (self.control, self.tried):
            pq.write_table(late, event_folder(world.lake, day) / f"late-{self.n_late}.parquet")

    def _rewrite(self, day: int) -> None:
        """Write a day again without some of its rows."""
        keep = pa.array(self.chance.random(len(self._rows_of(day))) < 0.8)
        table = self._rows_of(day).filter(keep)
        for world in (self.control, self.tried):
            folder = event_folder(world.lake, day)
            shutil.rmtree(folder)
            folder.mkdir()
            pq.write_table(table, folder / "corrected.parquet")

    def _rows_of(self, day: int) -> pa.Table:
        paths = sorted(event_folder(self.control.lake, day).iterdir())
        return pa.concat_tables(pq.read_table(path, partitioning=None) for path in paths)

    def _note(self, step: str) -> None:
        self.steps.append(step)
        self._say(step)
