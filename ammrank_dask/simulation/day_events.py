"""Draw the events of one day of a block of simulated users."""

from collections.abc import Sequence
from datetime import date
from typing import NamedTuple

import numpy as np
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
from ammrank_dask.simulation.users import GROUP_RATES, Tastes
from ammrank_dask.simulation.world import Floats, World
from ammrank_dask.storage.vocabulary import AD_VIEW_GROUP, CLICK_GROUP, DAY_US, GROUPS

# Share of the ads shown that follow the user's own taste.
TARGETING = 0.8
# What the ads seen add to clicks at most, and what is left of them a day later.
AD_EFFECT = 4.0
AD_DECAY = 0.93
LATE_SHARE = 0.01
LATE_DAYS = 2

# Bits of a sort key that hold the place of the event; the 38 bits above hold its time of at most three days.
_PLACE_BITS = 25


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
