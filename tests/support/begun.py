"""A small lake whose nights up to the last but one are published, and the real commands on it.

world = begin_world(folder, cluster_file)          # once; then copies, which a test may change
facts = world.nightly(categories={"Hats": "Shoes"})
world.refused("'Hats' was a category")
assert_same_runs(world.site, world.clean())
"""

from __future__ import annotations

import datetime as dt
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from click.testing import CliRunner
from lakes import date_of, event_folder, write_lake, write_site

from ammrank_dask.storage.site.site import Site
from ammrank_dask.storage.store.runs import Run, open_run
from ammrank_dask.workflows.cli import ammrank

LAST = 6
"""The day whose events are there, and whose night is not published."""
IDS = list(range(101, 131))
CONFIG: dict[str, Any] = {"features": {"min_days": 1}, "train": {"shards": 1, "epochs": 1}, "score": {"k": 2}}


def invoke(cluster_file: Path, name: str, site: Path, *arguments: object, exit_code: int = 0) -> str:
    """Run a command on a site with the cluster of the tests, check its exit code, and return all that it said."""
    more = ["--cluster", str(cluster_file), "--quiet"] if name not in ("verify", "status", "publish") else []
    result = CliRunner().invoke(ammrank, [name, str(site), *map(str, arguments), *more])
    assert result.exit_code == exit_code, result.output
    return result.output


@dataclass(frozen=True)
class World:
    """A lake and a site beside each other in a folder."""

    path: Path
    cluster_file: Path

    @property
    def lake(self) -> Path:
        """The lake."""
        return self.path / "lake"

    @property
    def site(self) -> Site:
        """The site."""
        return Site(self.path / "site")

    def copy(self, folder: Path) -> World:
        """Return a copy that may be changed."""
        shutil.copytree(self.path, folder)
        return World(folder, self.cluster_file)

    def run(self, name: str, *arguments: object, exit_code: int = 0) -> str:
        """Run a command on the site."""
        return invoke(self.cluster_file, name, self.site.path, *arguments, exit_code=exit_code)

    def configure(self, **settings: Any) -> None:
        """Change settings of the site for good; a section is changed key by key."""
        content = yaml.safe_load(self.site.config_path.read_text(encoding="utf-8"))
        for name, value in settings.items():
            is_section = isinstance(content.get(name), dict) and isinstance(value, dict) and name != "categories"
            content[name] = {**content[name], **value} if is_section else value
        self.site.config_path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")

    def nightly(self, *options: str, day: int = LAST, **settings: Any) -> dict[str, Any]:
        """Run a night after a change of settings, and return what it says in JSON."""
        self.configure(**settings)
        said = self.run("nightly", "--date", date_of(day), "--json", *options)
        facts: dict[str, Any] = json.loads(said.splitlines()[-1])
        return facts

    def refused(self, sentence: str, *, day: int = LAST, exit_code: int = 65, **settings: Any) -> None:
        """Run a night that must end with one sentence, and leave what is published as it is."""
        before = self.site.current()
        self.configure(**settings)
        said = self.run("nightly", "--date", date_of(day), exit_code=exit_code)
        assert re.search(sentence, said), said
        assert said.count("\n") == 1, said
        assert self.site.current() == before

    def clean(self, *, day: int = LAST, **settings: Any) -> Site:
        """Run a night on a new site with the lake as it is now, and return the site."""
        clean = World(self.path / "clean", self.cluster_file)
        write_site(clean.site.path, self.lake, **{**CONFIG, **settings})
        clean.run("nightly", "--date", date_of(day))
        return clean.site

    def rewrite(self, day: int, change: Callable[[pa.Table], pa.Table]) -> None:
        """Write a day again as one other file, after `change` of its table."""
        folder = event_folder(self.lake, day)
        table = pa.concat_tables(pq.read_table(path, partitioning=None) for path in sorted(folder.iterdir()))
        shutil.rmtree(folder)
        folder.mkdir()
        pq.write_table(change(table), folder / "compacted.parquet", row_group_size=7)


def begin_world(folder: Path, cluster_file: Path) -> World:
    """Make a world whose nights up to the last but one are published; the events of the last one are there."""
    lake = write_lake(folder / "lake", n_days=LAST + 1, ids=IDS, repeat=2)
    site = write_site(folder / "site", lake, **CONFIG)
    site.config_path.write_text(site.config_path.read_text().replace(str(lake), "../lake"))
    world = World(folder, cluster_file)
    world.nightly(day=LAST - 1)
    return world


def reverse(table: pa.Table) -> pa.Table:
    """Return the rows of a table in the opposite order."""
    return table.take(pa.array(range(table.num_rows - 1, -1, -1)))


def current_run(site: Site, role: str) -> Run:
    """Return a run of the published night."""
    current = site.current()
    assert current is not None
    return open_run(site.path / current.runs[role])


def assert_same_runs(one: Site, other: Site, *roles: str) -> None:
    """Compare all bytes of published runs by the checksums of their parts; those of head and features if not told."""
    for role in roles or ("head", "features"):
        assert current_run(one, role).checksums == current_run(other, role).checksums, role


def tables_of(site: Site, date: dt.date) -> dict[str, bytes]:
    """Return the bytes of the tables by user and by category of a night."""
    folder = site.qualifications_folder(date)
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for name in ("by_user", "by_category")
        for path in sorted((folder / name).rglob("*.parquet"))
    }
