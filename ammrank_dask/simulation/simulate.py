"""Simulate a lake of events from a known world, and keep the truth behind it apart."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from distributed import Client
from numpy.typing import NDArray

from ammrank_dask.kernels.simulation import (
    arrange_events,
    count_events,
    count_simulated_clicks,
    draw_ads,
    draw_browsing,
    draw_clicks,
    stamp_events,
)
from ammrank_dask.runtime.client import client_by_name, current_client
from ammrank_dask.runtime.tasks import Progress, run_tasks, silent
from ammrank_dask.simulation.world import (
    GROUP_RATES,
    Floats,
    SimulatedUsers,
    Stream,
    Tastes,
    World,
    draw_tastes,
    draw_users,
    read_world_taxonomy,
)
from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.lake import write as lake_write
from ammrank_dask.storage.objects.atomic import read_json, sweep_temporary, write_json
from ammrank_dask.storage.objects.folders import local_path
from ammrank_dask.storage.vocabulary import AD_VIEW_GROUP, CLICK_GROUP, DAY_US, GROUPS, USER_ID

logger = logging.getLogger(__name__)

MAX_BLOCK_USERS = 100_000
MIN_BLOCKS = 4


# Share of the ads shown that follow the user's own taste.
TARGETING = 0.8
# What the ads seen add to clicks at most, and what is left of them a day later.
AD_EFFECT = 4.0
AD_DECAY = 0.93
LATE_SHARE = 0.01
LATE_DAYS = 2

# Bits of a sort key that hold the place of the event; the 38 bits above hold its time of at most three days.
_PLACE_BITS = 25


@dataclass(frozen=True)
class SimulationParameters:
    """What a simulated lake depends on, and nothing else does.

    Attributes
    ----------
    users, days
        Size of the lake.
    seed
        Of everything random.
    start
        First day, as YYYY-MM-DD.
    user_ids
        `int64` or `string`.
    activity
        Factor on the number of events.
    alpha, label_days
        Decay a day and length in days of the window at the end whose expected click intensity is the truth.
    """

    users: int
    days: int
    seed: int = 0
    start: str = "2026-01-05"
    user_ids: str = "int64"
    activity: float = 1.0
    alpha: float = 0.97
    label_days: int = 30

    def __post_init__(self) -> None:
        for name in ("users", "days", "label_days"):
            if getattr(self, name) < 1:
                raise BadInput(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.seed < 0:
            raise BadInput(f"seed must not be negative, got {self.seed}")
        if self.user_ids not in ("int64", "string"):
            raise BadInput(f"user_ids must be int64 or string, got {self.user_ids}")
        if not 0 < self.activity <= 2:
            raise BadInput(f"activity must be above 0 and at most 2, got {self.activity}")
        if not 0 < self.alpha <= 1:
            raise BadInput(f"alpha must be above 0 and at most 1, got {self.alpha}")

    @property
    def n_blocks(self) -> int:
        """Number of blocks of users; a function of the number of users alone."""
        return max(-(-self.users // MAX_BLOCK_USERS), min(MIN_BLOCKS, self.users))

    def block_range(self, block: int) -> tuple[int, int]:
        """First user of `block` and the first one after it."""
        return self.users * block // self.n_blocks, self.users * (block + 1) // self.n_blocks

    def date_of(self, day: int) -> date:
        """Date of day number `day`; 0 is the first."""
        return date.fromisoformat(self.start) + timedelta(days=day)


@client_by_name
def simulate(
    lake: Path,
    *,
    truth: Path,
    users: int,
    days: int,
    seed: int = 0,
    start: date = date(2026, 1, 5),
    user_ids: str = "int64",
    activity: float = 1.0,
    alpha: float = 0.97,
    label_days: int = 30,
    client: Client | None = None,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Write a lake with a known world, and its truth apart; a rerun writes only the files that are missing.

    One task simulates one block of users over all days. The bytes depend on the parameters alone.

    Returns
    -------
    dict
        The content of `simulation.json`: parameters, categories, digest of the world, events of every group.

    Examples
    --------
    >>> from distributed import Client
    >>> client = Client(n_workers=2, threads_per_worker=1)  # doctest: +SKIP
    >>> simulate(Path("lake"), truth=Path("truth"), users=1000, days=60)  # doctest: +SKIP
    """
    client = current_client(client)
    parameters = SimulationParameters(
        users, days, seed, start.isoformat(), user_ids, float(activity), float(alpha), label_days
    )
    return write_simulation(client, local_path(lake, "lake"), local_path(truth, "truth"), parameters, progress=progress)


def write_simulation(
    client: Client, lake: Path, truth: Path, parameters: SimulationParameters, *, progress: Progress = silent
) -> dict[str, Any]:
    """Write what is missing of a lake and its truth; return the content of `simulation.json`."""
    began = time.monotonic()
    complete = find_simulation(lake, truth, parameters)
    if complete is not None:
        return complete
    summary = _describe_world(parameters)
    _claim_folders(lake, truth, summary)
    if not lake_write.taxonomy_path(lake).exists():
        lake_write.write_taxonomy(lake_write.taxonomy_path(lake), read_world_taxonomy())
    run_tasks(client, "simulate-users", write_block_users, [(parameters, str(lake))], progress=progress)
    blocks = [(parameters, block, str(lake), str(truth)) for block in range(parameters.n_blocks)]
    counts = run_tasks(client, "simulate-events", write_block, blocks, progress=progress)
    summary["events"] = {group: sum(count[group] for count in counts) for group in GROUPS}
    write_json(lake_write.simulation_path(truth), summary)
    logger.info(
        "simulated %d events of %d users on %d days in %.1f s",
        sum(summary["events"].values()),
        parameters.users,
        parameters.days,
        time.monotonic() - began,
    )
    return summary


def find_simulation(lake: Path, truth: Path, parameters: SimulationParameters) -> dict[str, Any] | None:
    """Return the summary of a lake that is simulated whole, None when a file of it is missing.

    Raises BadInput when the folders hold another simulation.
    """
    path = lake_write.simulation_path(truth)
    if not path.exists():
        return None
    summary: dict[str, Any] = read_json(path)
    _refuse_other(lake, truth, summary, _describe_world(parameters))
    blocks = range(parameters.n_blocks)
    days = [parameters.date_of(day) for day in range(parameters.days)]
    files = [
        lake_write.taxonomy_path(lake),
        lake_write.users_path(lake),
        *(lake_write.truth_path(truth, block) for block in blocks),
        *(lake_write.events_path(lake, day, block) for day in days for block in blocks),
    ]
    return summary if "events" in summary and all(file.exists() for file in files) else None


def _describe_world(parameters: SimulationParameters) -> dict[str, Any]:
    world = World.build(parameters.seed, parameters.days)
    return {
        "parameters": asdict(parameters),
        "categories": list(world.categories),
        "world": world.digest(),
        "blocks": parameters.n_blocks,
    }


def _claim_folders(lake: Path, truth: Path, summary: dict[str, Any]) -> None:
    path = lake_write.simulation_path(truth)
    if path.exists():
        _refuse_other(lake, truth, read_json(path), summary)
        for folder in [lake, truth, *(lake / "events").glob("date=*")]:
            sweep_temporary(folder)
        return
    if lake.exists() and any(lake.iterdir()):
        raise BadInput(f"{lake} is not empty and {truth} holds no simulation; choose an empty folder for the lake")
    write_json(path, summary)


def _refuse_other(lake: Path, truth: Path, before: dict[str, Any], summary: dict[str, Any]) -> None:
    for name, value in summary["parameters"].items():
        if before["parameters"].get(name) != value:
            raise BadInput(
                f"{truth} holds a simulation with {name} = {before['parameters'].get(name)}, not {value}; "
                "choose another lake and truth folder or remove both"
            )
    if before["world"] != summary["world"]:
        raise BadInput(f"{truth} was simulated by another version; remove it and {lake} to simulate again")


def write_block_users(parameters: SimulationParameters, lake: str) -> None:
    """Write the table of users block after block, unless it is there."""
    path = lake_write.users_path(Path(lake))
    if path.exists():
        return
    blocks = (
        draw_users(parameters.seed, block, *parameters.block_range(block)) for block in range(parameters.n_blocks)
    )
    rows = ((_id_column(who.user_id, parameters.user_ids), who.known_age, who.known_gender) for who in blocks)
    lake_write.write_users(path, rows)


def write_block(parameters: SimulationParameters, block: int, lake: str, truth: str) -> dict[str, int]:
    """Write the files of one block that are missing, the truth last, and return its events of every group."""
    paths = [lake_write.events_path(Path(lake), parameters.date_of(day), block) for day in range(parameters.days)]
    truth_path = lake_write.truth_path(Path(truth), block)
    truth_written = truth_path.exists()
    missing = [day for day, path in enumerate(paths) if not path.exists()]
    if truth_written and not missing:
        return lake_write.read_truth_attributes(truth_path)["events"]
    world = World.build(parameters.seed, parameters.days)
    who = draw_users(parameters.seed, block, *parameters.block_range(block))
    tastes = draw_tastes(world, parameters.seed, block, who, activity=parameters.activity)
    ids = _id_column(who.user_id, parameters.user_ids)
    expected = np.zeros_like(tastes.taste)
    counts = np.zeros(len(GROUPS), dtype=np.int64)
    for events in simulate_block(world, parameters, block, who, tastes, out_expected=expected):
        counts += np.bincount(events.groups, minlength=len(GROUPS))
        if events.day in missing:
            lake_write.write_events(
                paths[events.day],
                user_ids=ids.take(pa.array(events.users)),
                groups=events.groups,
                group_names=GROUPS,
                categories=events.nodes,
                category_names=world.nodes,
                timestamps=events.timestamps,
            )
        if truth_written and events.day == missing[-1]:
            return lake_write.read_truth_attributes(truth_path)["events"]
    by_group = dict(zip(GROUPS, counts.tolist(), strict=True))
    propensity = tastes.taste
    propensity *= tastes.click_rate[:, None]
    arrays: dict[str, NDArray[Any]] = {
        USER_ID: who.user_id,
        "expected_clicks": expected,
        "propensity": propensity,
    }
    lake_write.write_truth(truth_path, arrays, {"events": by_group})
    return by_group


def simulate_block(
    world: World,
    parameters: SimulationParameters,
    block: int,
    who: SimulatedUsers,
    tastes: Tastes,
    *,
    out_expected: Floats,
) -> Iterator[DayEvents]:
    """Simulate one block of users day by day, carrying the ads each user has seen.

    A user's clicks in a category have the mean rate · taste · (1 + effect · stock / (1 + stock)) a day, where
    stock is the decayed count of ads of the category seen on the days before. The mean of each day of the
    label window, decayed to the end of the last day, is added to `out_expected` (users, categories).
    """
    audience = who.audience
    stock = settled_stock(world, tastes)
    # Mean of alpha^(time from an event to the end of its day).
    within_day = float(np.mean(parameters.alpha ** (1 - world.time_quantiles / DAY_US)))
    for day in range(parameters.days):
        rng = np.random.default_rng([parameters.seed, block, Stream.DAYS, day])
        factor = float(world.weekday_factors[parameters.date_of(day).weekday()])
        days_after = parameters.days - 1 - day
        weight = within_day * parameters.alpha**days_after if days_after < parameters.label_days else 0.0
        clicks = draw_day_clicks(rng, tastes, stock, factor, weight, out_expected)
        browsing = draw_day_browsing(rng, world, tastes, audience, stock, factor, day)
        yield arrange_day(rng, world, day, parameters.date_of(day), (browsing, clicks))


def _id_column(user_id: NDArray[np.int64], kind: str) -> pa.Array:
    if kind == "int64":
        return pa.array(user_id)
    return pa.array([f"u{number:016x}" for number in user_id.tolist()])


class DayDraw(NamedTuple):
    """Events without a time, user after user: place of the user in the block, group and category."""

    users: NDArray[np.int32]
    groups: NDArray[np.int8]
    categories: NDArray[np.int8]


class DayEvents(NamedTuple):
    """Events of one block and day by time: place of the user in the block, codes, and µs since 1970 UTC."""

    day: int
    users: NDArray[np.int32]
    groups: NDArray[np.int8]
    nodes: NDArray[np.int16]
    timestamps: NDArray[np.int64]


def settled_stock(world: World, tastes: Tastes) -> Floats:
    """Ads seen before the first day: as many as fade away and are shown anew on an average day."""
    stock = tastes.taste * np.float32(TARGETING)
    stock += (1 - TARGETING) * world.popularity
    ad_share = GROUP_RATES[AD_VIEW_GROUP] / sum(GROUP_RATES.values())
    stock *= tastes.browse_rate[:, None] * np.float32(ad_share / (1 - AD_DECAY))
    return stock


def draw_day_clicks(
    rng: np.random.Generator,
    tastes: Tastes,
    stock: Floats,
    factor: float,
    weight: float,
    out_expected: Floats,
) -> DayDraw:
    """Draw the clicks of a day, and add `weight` times their mean to `out_expected` (users, categories)."""
    effect = np.float32(AD_EFFECT)
    counts = np.empty(len(stock), dtype=np.int32)
    chances = rng.random(len(stock))
    count_simulated_clicks(
        tastes.taste, stock, tastes.click_rate, factor, effect, weight, chances, counts, out_expected
    )
    n_clicks = int(counts.sum())
    users: NDArray[np.int32] = np.empty(n_clicks, dtype=np.int32)
    groups = np.full(n_clicks, GROUPS.index(CLICK_GROUP), dtype=np.int8)
    categories = np.empty(n_clicks, dtype=np.int8)
    uniforms = rng.random(n_clicks, dtype=np.float32)
    draw_clicks(counts, tastes.taste, stock, effect, uniforms, users, categories)
    return DayDraw(users, groups, categories)


def draw_day_browsing(
    rng: np.random.Generator,
    world: World,
    tastes: Tastes,
    audience: NDArray[np.int64],
    stock: Floats,
    factor: float,
    day: int,
) -> DayDraw:
    """Draw the events of all groups but clicks; `stock` is changed in place."""
    rates = np.array(list(GROUP_RATES.values()))
    group_bounds = (np.cumsum(rates) / rates.sum()).astype(np.float32)
    counts = np.empty(len(stock), dtype=np.int32)
    count_events(tastes.browse_rate, factor, rng.random(len(stock)), counts)
    n_events = int(counts.sum())
    users = np.empty(n_events, dtype=np.int32)
    groups = np.empty(n_events, dtype=np.int8)
    categories = np.empty(n_events, dtype=np.int8)
    draw_browsing(
        counts,
        tastes.personas,
        tastes.weight_bounds,
        group_bounds,
        world.browse_bounds,
        rng.random((n_events, 3), dtype=np.float32),
        users,
        groups,
        categories,
    )
    draw_ads(
        users,
        tastes.taste,
        world.popularity,
        np.float32(TARGETING),
        world.campaign_factors(day),
        audience,
        rng.random(n_events, dtype=np.float32),
        np.float32(AD_DECAY),
        stock,
        categories,
    )
    return DayDraw(users, groups, categories)


def arrange_day(
    rng: np.random.Generator,
    world: World,
    day: int,
    on: date,
    draws: Sequence[DayDraw],
) -> DayEvents:
    """Give every event of a day a node and a time, and sort by time."""
    users = np.concatenate([draw.users for draw in draws])
    groups = np.concatenate([draw.groups for draw in draws])
    categories = np.concatenate([draw.categories for draw in draws])
    n_events = len(users)
    late_us = LATE_DAYS * DAY_US
    nodes = np.empty(n_events, dtype=np.int16)
    times = np.empty(n_events, dtype=np.int64)
    stamp_events(
        categories,
        world.node_bounds,
        world.node_codes,
        world.time_quantiles,
        LATE_SHARE,
        late_us,
        rng.random((n_events, 2), dtype=np.float32),
        rng.random(n_events),
        nodes,
        times,
    )
    # One vectorised sort of keys that hold time and place is several times faster than an argsort.
    times += late_us
    times <<= _PLACE_BITS
    times |= np.arange(n_events)
    times.sort()
    events = DayEvents(day, np.empty_like(users), np.empty_like(groups), np.empty_like(nodes), np.empty_like(times))
    arrange_events(times, _PLACE_BITS, users, groups, nodes, *events[1:])
    midnight = (on - date(1970, 1, 1)).days * DAY_US
    events.timestamps[:] += midnight - late_us
    return events
