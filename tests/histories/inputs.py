"""What comes to two sites from outside: days, late and spoilt files, categories, opt-outs, values, settings."""

from __future__ import annotations

import contextlib
import csv
import functools
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import yaml
from begun import World, reverse
from lakes import date_of, event_folder

N_DAYS = 30
N_USERS = 160


class Inputs:
    """The inputs of a site and of its control: the same, but for how the days of the tried site are written."""

    def __init__(self, lake: Path, control: World, tried: World) -> None:
        self.lake, self.control, self.tried = lake, control, tried
        self.users: list[Any] = pq.read_table(lake / "users.parquet")["user_id"].to_pylist()
        self.forgotten: list[Any] = []
        self.renames: dict[str, str | None] = {}
        self.n_late = 0
        self.added: list[str] = []

    @property
    def worlds(self) -> tuple[World, World]:
        """Both, the control first."""
        return self.control, self.tried

    @property
    def config(self) -> dict[str, Any]:
        """The settings of both sites."""
        content: dict[str, Any] = yaml.safe_load(self.control.site.config_path.read_text(encoding="utf-8"))
        return content

    def begin(self, config: dict[str, Any]) -> None:
        """Make two lakes without days, and two sites without nights."""
        for world in self.worlds:
            world.lake.mkdir(parents=True)
            for name in ("users.parquet", "taxonomy.csv"):
                shutil.copy(self.lake / name, world.lake / name)
            (world.path / "opt-outs.csv").touch()
            world.site.path.mkdir()
            world.site.config_path.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")

    def configure(self, **settings: Any) -> None:
        """Change settings of both sites."""
        for world in self.worlds:
            world.configure(**settings)

    def add_day(self, day: int) -> None:
        """Add a day as it was simulated; every 17th row is of a category that came later, if there is one."""
        table = _read(sorted(event_folder(self.lake, day).iterdir()))
        if self.added:
            names = table["category"].to_pylist()
            for row in range(day % 17, len(names), 17):
                names[row] = self.added[row % len(self.added)]
            table = _with(table, "category", pa.array(names, pa.string()))
        self.write(day, "part-0.parquet", table)

    def add_null_day(self, day: int) -> None:
        """Add a day on which no event has a category, in a column that has no type."""
        table = _read(sorted(event_folder(self.lake, day).iterdir()))
        self.write(day, "part-0.parquet", _with(table, "category", pa.nulls(len(table))))

    def add_late(self, day: int, chance: np.random.Generator) -> None:
        """Add a file with some rows of the day, some minutes earlier and of other users."""
        table = self.rows_of(day)
        late = table.take(pa.array(np.sort(chance.choice(len(table), len(table) // 8, replace=False))))
        self.n_late += 1
        earlier = pc.subtract(late["timestamp"], pa.scalar(60_000_000 * self.n_late + self.n_late, pa.duration("us")))
        late = _with(_with(late, "timestamp", earlier), "user_id", reverse(late)["user_id"])
        self.write(day, f"late-{self.n_late}.parquet", late)

    def add_empty(self, day: int) -> None:
        """Add a file without rows."""
        self.n_late += 1
        self.write(day, f"empty-{self.n_late}.parquet", self.rows_of(day).slice(0, 0))

    def correct(self, day: int, chance: np.random.Generator) -> None:
        """Write a day again without some of its rows."""
        table = self.rows_of(day)
        table = table.filter(pa.array(chance.random(len(table)) < 0.8))
        for world in self.worlds:
            shutil.rmtree(event_folder(world.lake, day))
        self.write(day, "corrected.parquet", table)

    def compact(self, day: int) -> None:
        """Write a day of the tried site again as one file, its rows in another order."""
        self.tried.rewrite(day, reverse)

    @contextlib.contextmanager
    def half_compacted(self, day: int) -> Iterator[str]:
        """Leave the files of a day beside the one that they were compacted to; yield what is to be said of them."""
        folder = event_folder(self.tried.lake, day)
        before = sorted(folder.iterdir())
        pq.write_table(_read(before), folder / "compacted.parquet")
        yield "lake.duplicates"
        for path in before:
            path.unlink()

    @contextlib.contextmanager
    def damaged(self, day: int, chance: np.random.Generator) -> Iterator[str]:
        """Cut a file of a day short, or flip a byte of its first pages; yield what is to be said of it."""
        path = sorted(event_folder(self.tried.lake, day).iterdir())[0]
        content = path.read_bytes()
        path.write_bytes(content[: len(content) - int(chance.integers(1, len(content) // 2))])
        yield path.name
        path.write_bytes(content)

    def forget(self, n: int, chance: np.random.Generator) -> list[Any]:
        """Choose users who are to be forgotten."""
        gone = chance.choice(len(self.users), n, replace=False)
        chosen = [self.users[number] for number in gone]
        self.forgotten += chosen
        self.users = [user for number, user in enumerate(self.users) if number not in gone]
        return chosen

    def opt_out(self, n: int, chance: np.random.Generator) -> None:
        """Add pairs that are never to be qualified."""
        names = self.categories()
        pairs = [(self.users[chance.integers(len(self.users))], names[chance.integers(len(names))]) for _ in range(n)]
        for world in self.worlds:
            with open(world.path / "opt-outs.csv", "a", encoding="utf-8") as file:
                file.writelines(f"{user},{name}\n" for user, name in pairs)
        self.configure(score={"opt_out": "../opt-outs.csv"})

    def set_values(self, chance: np.random.Generator) -> None:
        """Say of every category what a click is worth, over two orders of magnitude."""
        lines = [f'"{name}",{10 ** chance.uniform(-2, 0):.4f}\n' for name in self.categories()]
        for world in self.worlds:
            (world.path / "values.csv").write_text("category,value (EUR)\n" + "".join(lines), encoding="utf-8")
        self.configure(score={"values": "../values.csv", "objective": "value"})

    def add_category(self) -> str:
        """Add a ranked category to the taxonomy: later days have events of it."""
        name = f"Retail/New {len(self.added)}"
        for world in self.worlds:
            with open(world.lake / "taxonomy.csv", "a", encoding="utf-8") as file:
                file.write(f'"{name}",Retail\n')
        self.added.append(name)
        return name

    def categories(self) -> list[str]:
        """Return the names of the ranked categories, those of the lake and those that they were given since."""
        parent_of = self.parents()
        ranked = {name for name, parent in parent_of.items() if parent and not parent_of[parent]}
        return sorted((ranked | {name for name in self.renames.values() if name is not None}) - set(self.renames))

    def parents(self) -> dict[str, str]:
        """Return the parent of every node of the taxonomy, an empty name of a root."""
        with open(self.control.lake / "taxonomy.csv", encoding="utf-8", newline="") as file:
            return {row["category"]: row["parent"] for row in csv.DictReader(file)}

    def rows_of(self, day: int) -> pa.Table:
        """Return the events of a day."""
        return _read(sorted(event_folder(self.control.lake, day).iterdir()))

    def write(self, day: int, name: str, table: pa.Table) -> None:
        """Write a file of a day into both lakes."""
        for world in self.worlds:
            folder = event_folder(world.lake, day)
            folder.mkdir(parents=True, exist_ok=True)
            pq.write_table(table, folder / name)

    def days(self) -> list[int]:
        """Return the days that are there."""
        return [day for day in range(N_DAYS) if event_folder(self.control.lake, day).is_dir()]


def without_users(lake: Path, gone: list[Any]) -> None:
    """Take users out of all files of a lake."""
    for path in (lake / "users.parquet", *lake.glob("events/*/*.parquet")):
        table = pq.read_table(path, partitioning=None)
        ids = pa.array(gone, table.schema.field("user_id").type)
        pq.write_table(table.filter(pc.invert(pc.is_in(table["user_id"], ids))), path)


def change_byte(path: Path, at: int) -> Callable[[], object]:
    """Flip a bit of a file; return what puts it right."""
    content = path.read_bytes()
    at %= len(content)
    path.write_bytes(content[:at] + bytes([content[at] ^ 16]) + content[at + 1 :])
    return functools.partial(path.write_bytes, content)


def _read(paths: list[Path]) -> pa.Table:
    return pa.concat_tables((pq.read_table(path, partitioning=None) for path in paths), promote_options="default")


def _with(table: pa.Table, name: str, values: Any) -> pa.Table:
    return table.set_column(table.column_names.index(name), name, values)


__all__ = ["N_DAYS", "N_USERS", "Inputs", "change_byte", "date_of", "event_folder", "without_users"]
