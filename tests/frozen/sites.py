"""Twelve small sites of three nights, in which every setting occurs at least twice, and the commands that make them."""

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import yaml
from begun import World
from distributed import Client, LocalCluster
from nights import CONFIG, N_DAYS

from ammrank_dask.simulation.simulate import simulate
from ammrank_dask.workflows.session import night as night_session
from tests.frozen.export import export_night
from tests.frozen.readers import published_date

NIGHTS = (6, 7, 8)
RENAMES = {
    "rename": {"Retail/Home": "Retail/House"},
    "merge": {"Health/Fitness": "Health/Nutrition", "Finance/Banking": "Finance/Loans"},
}


@dataclass(frozen=True)
class FrozenSite:
    """The settings of a site, and what happens between its first and its second night."""

    model: str
    policy: str
    explore: float
    ids: str
    cap: int | None
    opt_outs: bool
    forget: bool
    correct: str | None
    partitions: int
    rename: str | None
    forward: bool
    k: int

    @property
    def config(self) -> dict[str, Any]:
        """The config of its first night."""
        score = {"policy": self.policy, "explore": self.explore, "k": self.k}
        return {
            **CONFIG,
            "label": {"days": 2, "min_categories": 1},
            "train": {"model": self.model, "epochs": 1, "shards": 2, "every_nights": 2},
            "gate": {"forward": self.forward, "min_users": 10},
            "ingest": {"max_events_per_user": self.cap},
            "score": {**score, "opt_out": "../opt-outs.csv"} if self.opt_outs else score,
            "partitions": self.partitions,
        }


PLUS, PAPER = "amm-rank-plus", "amm-rank"
TOP_K, TOP_N, BALANCED = "user_top_k", "category_top_n", "balanced"
# fmt: off
SITES = {
    #              model  policy    explore ids    cap  opt   forget correct   parts rename   forward k
    1: FrozenSite(PLUS,  TOP_K,    0.0, "int64",  None, False, False, None,      2, None,     True,  10),
    2: FrozenSite(PLUS,  TOP_N,    0.1, "string", 2,    True,  False, "removed", 3, None,     True,  3),
    3: FrozenSite(PLUS,  BALANCED, 0.0, "int64",  None, False, True,  None,      2, "rename", False, 3),
    4: FrozenSite(PLUS,  BALANCED, 0.1, "string", None, True,  False, "late",    3, None,     True,  10),
    5: FrozenSite(PLUS,  TOP_K,    0.1, "int64",  2,    False, True,  None,      3, "merge",  False, 3),
    6: FrozenSite(PLUS,  TOP_N,    0.0, "string", None, False, True,  "removed", 2, "rename", False, 10),
    7: FrozenSite(PAPER, TOP_K,    0.1, "string", None, True,  False, None,      2, None,     True,  3),
    8: FrozenSite(PAPER, TOP_N,    0.0, "int64",  2,    False, False, "late",    3, "merge",  False, 10),
    9: FrozenSite(PAPER, BALANCED, 0.1, "int64",  None, False, True,  "removed", 2, None,     False, 3),
    10: FrozenSite(PAPER, BALANCED, 0.0, "string", 2,   True,  False, None,      3, "rename", False, 10),
    11: FrozenSite(PAPER, TOP_N,   0.1, "int64",  None, True,  False, None,      2, "merge",  True,  3),
    12: FrozenSite(PAPER, TOP_K,   0.0, "string", None, False, True,  "late",    3, None,     False, 10),
}
# fmt: on


@contextlib.contextmanager
def own_cluster(folder: Path, n_workers: int) -> Iterator[tuple[Client, Path]]:
    """Start workers that are threads of this process; yield a client, and the file by which commands join them."""
    with (
        LocalCluster(
            n_workers=n_workers, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0", silence_logs=50
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        path = folder / "cluster.yaml"
        path.write_text(f"version: 1\naddress: {client.scheduler.address}\n", encoding="utf-8")
        yield client, path


@contextlib.contextmanager
def without_performance_pages() -> Iterator[None]:
    """Leave out of every night Dask's own page of it, which is a third of a small night's work."""
    drawn = night_session.record_performance
    night_session.record_performance = lambda client, folder: contextlib.nullcontext()
    try:
        yield
    finally:
        night_session.record_performance = drawn


def simulate_lakes(client: Client, folder: Path) -> None:
    """Simulate the lake of all sites, once with integers and once with strings as ids."""
    for ids in ("int64", "string"):
        simulate(
            folder / ids, client=client, truth=folder / f"{ids}-truth", users=300, days=N_DAYS, seed=3, user_ids=ids
        )


def run_site(site: FrozenSite, lakes: Path, folder: Path, cluster_file: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Run the nights of a site with the real commands; yield the date and the exported tables of each."""
    shutil.copytree(lakes / site.ids, folder / "lake")
    users = pq.read_table(folder / "lake" / "users.parquet")["user_id"].to_pylist()
    (folder / "opt-outs.csv").write_text("".join(f"{user},Retail/Home\n" for user in users[:40]), encoding="utf-8")
    (folder / "forget.txt").write_text("".join(f"{user}\n" for user in users[5:120:10]), encoding="utf-8")
    world = World(folder, cluster_file)
    world.site.path.mkdir()
    world.site.config_path.write_text(yaml.safe_dump(site.config), encoding="utf-8")
    for night in NIGHTS:
        world.nightly(day=night)
        date = published_date(world.site.path)
        assert date is not None
        yield date, export_night(world.site.path)
        if night == NIGHTS[0]:
            _change(world, site, night)


def _change(world: World, site: FrozenSite, last: int) -> None:
    """Do what happens before the second night: `last` is the day of the first, which is corrected."""
    if site.forget:
        world.run("forget", "--users", world.path / "forget.txt")
    if site.correct is not None:
        world.rewrite(last, _without_some if site.correct == "removed" else _with_some_more)
    if site.rename is not None:
        world.configure(categories=RENAMES[site.rename])


def _without_some(table: pa.Table) -> pa.Table:
    return table.filter(pa.array([number % 5 != 0 for number in range(len(table))]))


def _with_some_more(table: pa.Table) -> pa.Table:
    """Return the table with the clicks and views of some users once more, as if they came late, at other times."""
    late = table.slice(0, len(table) // 7)
    hour_before = pc.subtract(late["timestamp"], pa.scalar(3_600_000_001, pa.duration("us")))
    return pa.concat_tables([table, late.set_column(late.column_names.index("timestamp"), "timestamp", hour_before)])
