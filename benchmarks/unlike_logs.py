"""Small logs of unlike shapes, made to be as different from the simulator, and from each other, as logs of sites are.

Nothing of the method was chosen on them: they ask whether what a site publishes is safe on a log that nobody has seen.
Each is a table of events of 240 days, which `benchmarks.real_lakes` writes as a lake, made from a seed alone.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd

from ammrank_dask.storage.errors import BadInput
from benchmarks.command_line import Option, benchmark
from benchmarks.forward import HITS, check_nights, measure_night, read_events
from benchmarks.measure import describe_machine
from benchmarks.real_lakes import EVENT_COLUMNS, write_real_lake

FIRST_DAY, N_DAYS = dt.date(2026, 1, 1), 240
NIGHTS = ("2026-02-28", "2026-07-28")
"""59 and 209 days of log."""
GROUPS = ("pv", "sq", "adv", "adc")
CLICKS = "adc"

Rng = np.random.Generator
Draw = Callable[[Rng, np.ndarray, np.ndarray], np.ndarray]
"""Categories of visits, from the users and the days of them."""


def repeat(rng: Rng) -> pd.DataFrame:
    """Return visits of which nine in ten are at one of six favourites that a user keeps."""
    tastes = _tastes(rng, 1_200, 60, favourites=6)
    return _events(rng, *_visits(rng, np.full(1_200, 0.25)), _by_taste(tastes, 0.9, _zipf(60)), click_rate=0.3)


def weekly(rng: Rng) -> pd.DataFrame:
    """Return visits whose categories depend on the day of the week, for everybody and for each user."""
    working, weekend = (_tastes(rng, 1_000, 40, favourites=5) for _ in range(2))
    popular = [_zipf(40), _zipf(40)[::-1]]

    def draw(rng: Rng, users: np.ndarray, days: np.ndarray) -> np.ndarray:
        is_weekend = days % 7 >= 5
        on_weekends = _by_taste(weekend, 0.6, popular[1])(rng, users, days)
        return np.where(is_weekend, on_weekends, _by_taste(working, 0.6, popular[0])(rng, users, days))

    return _events(rng, *_visits(rng, np.full(1_000, 0.2)), draw, click_rate=0.2)


def drift(rng: Rng) -> pd.DataFrame:
    """Return visits of users who change all favourites every 20 to 40 days."""
    n_users, n_spells = 1_200, N_DAYS // 20
    tastes = _tastes(rng, n_users * n_spells, 50, favourites=5)
    lengths, starts = rng.integers(20, 41, n_users), rng.integers(0, 40, n_users)

    def draw(rng: Rng, users: np.ndarray, days: np.ndarray) -> np.ndarray:
        spells = np.minimum((days + starts[users]) // lengths[users], n_spells - 1)
        return _by_taste(tastes, 0.8, _zipf(50))(rng, users * n_spells + spells, days)

    return _events(rng, *_visits(rng, np.full(n_users, 0.3)), draw, click_rate=0.3)


def swapped(rng: Rng) -> pd.DataFrame:
    """Return visits of users who all change their favourites on one day, 45 days before the last night."""
    before, after = (_tastes(rng, 1_000, 50, favourites=6) for _ in range(2))
    day_of_change = 164

    def draw(rng: Rng, users: np.ndarray, days: np.ndarray) -> np.ndarray:
        late = _by_taste(after, 0.8, _zipf(50))(rng, users, days)
        return np.where(days >= day_of_change, late, _by_taste(before, 0.8, _zipf(50))(rng, users, days))

    return _events(rng, *_visits(rng, np.full(1_000, 0.25)), draw, click_rate=0.3)


def heavy(rng: Rng) -> pd.DataFrame:
    """Return visits of users of whom a few are a hundred times as active as most, in 340 categories."""
    rates = np.minimum(rng.lognormal(-3.0, 1.6, 2_500), 8.0)
    tastes = _tastes(rng, 2_500, 340, favourites=12)
    return _events(rng, *_visits(rng, rates), _by_taste(tastes, 0.6, _zipf(340)), click_rate=0.3)


def few(rng: Rng) -> pd.DataFrame:
    """Return visits in eight categories, fewer than a list is long."""
    tastes = _tastes(rng, 1_000, 8, favourites=2)
    return _events(rng, *_visits(rng, np.full(1_000, 0.1)), _by_taste(tastes, 0.5, _zipf(8)), click_rate=0.2)


def small(rng: Rng) -> pd.DataFrame:
    """Return visits of 300 users."""
    tastes = _tastes(rng, 300, 40, favourites=5)
    return _events(rng, *_visits(rng, np.full(300, 0.2)), _by_taste(tastes, 0.6, _zipf(40)), click_rate=0.25)


def sparse(rng: Rng) -> pd.DataFrame:
    """Return visits of users of whom most come once in two months and click one category in twenty visits."""
    tastes = _tastes(rng, 4_000, 100, favourites=3)
    return _events(rng, *_visits(rng, np.full(4_000, 0.03)), _by_taste(tastes, 0.5, _zipf(100)), click_rate=0.1)


def novelty(rng: Rng) -> pd.DataFrame:
    """Return visits of users who hardly ever click again what they clicked before: own history is of no use."""
    n_users, n_categories = 1_500, 80
    orders = np.argsort(-np.log(_zipf(n_categories)) + rng.gumbel(size=(n_users, n_categories)) * -1, axis=1)
    users, days = _visits(rng, np.full(n_users, 0.12))
    # The n-th visit of a user is at the n-th category of an order of the user's own.
    number = pd.Series(users).groupby(users).cumcount().to_numpy()
    return _events(rng, users, days, lambda *_: orders[users, number % n_categories], click_rate=0.5)


def seasons(rng: Rng) -> pd.DataFrame:
    """Return visits to categories of which a third are popular for one month, one after the other."""
    n_categories = 48
    tastes = _tastes(rng, 1_200, n_categories, favourites=4)
    months = np.arange(N_DAYS) // 30
    popular = np.repeat(_zipf(n_categories)[None], N_DAYS, axis=0)
    for category in range(0, n_categories, 3):
        popular[:, category] *= np.where(months % 8 == category // 3 % 8, 12, 0.2)
    chances = np.cumsum(popular / popular.sum(axis=1, keepdims=True), axis=1)

    def draw(rng: Rng, users: np.ndarray, days: np.ndarray) -> np.ndarray:
        in_season = (rng.random(len(days))[:, None] > chances[days]).sum(axis=1)
        own = tastes[users, rng.integers(0, tastes.shape[1], len(users))]
        return np.where(rng.random(len(users)) < 0.4, own, np.minimum(in_season, n_categories - 1))

    return _events(rng, *_visits(rng, np.full(1_200, 0.2)), draw, click_rate=0.25)


def replaced(rng: Rng) -> pd.DataFrame:
    """Return visits to categories of which ten vanish and ten come, four times; the last 15 days before a night."""
    tastes = _tastes(rng, 1_200, 50, favourites=5)
    changes = [60, 120, 163, 193]
    plain = _by_taste(tastes, 0.7, _zipf(50))

    def draw(rng: Rng, users: np.ndarray, days: np.ndarray) -> np.ndarray:
        categories = plain(rng, users, days)
        generation = np.searchsorted(changes, days, side="right")
        return np.where(categories < 10, 50 + 10 * generation + categories, categories)

    return _events(rng, *_visits(rng, np.full(1_200, 0.2)), draw, click_rate=0.25)


def gaps(rng: Rng) -> pd.DataFrame:
    """Return visits of a log without the days of three weeks, twice, and some single days."""
    events = repeat(rng)
    day = (events["timestamp"].dt.normalize() - pd.Timestamp(FIRST_DAY)).dt.days
    missing = {*range(70, 91), *range(140, 161), 30, 100, 101, 180}
    return events[~day.isin(missing)]


def silent(rng: Rng) -> pd.DataFrame:
    """Return visits without any click in two months, and in 20 days of the month before the last night."""
    events = repeat(rng)
    day = (events["timestamp"].dt.normalize() - pd.Timestamp(FIRST_DAY)).dt.days
    is_silent = day.between(60, 119) | day.between(180, 199)
    return events[~(is_silent & (events["group"] == CLICKS))]


def clicks_only(rng: Rng) -> pd.DataFrame:
    """Return clicks without any page view."""
    events = repeat(rng)
    return events[events["group"] == CLICKS]


def newcomers(rng: Rng) -> pd.DataFrame:
    """Return visits of users who come new every day and stay for 40 days."""
    n_users = 3_000
    arrived = rng.integers(-30, N_DAYS, n_users)
    tastes = _tastes(rng, n_users, 60, favourites=5)
    users, days = _visits(rng, np.full(n_users, 0.3))
    there = (days >= arrived[users]) & (days < arrived[users] + 40)
    return _events(rng, users[there], days[there], _by_taste(tastes, 0.7, _zipf(60)), click_rate=0.3)


LOGS: dict[str, Callable[[Rng], pd.DataFrame]] = {
    make.__name__: make
    for make in (
        repeat, weekly, drift, swapped, heavy, few, small, sparse, novelty, seasons, replaced, gaps, silent,
        clicks_only, newcomers,
    )
}  # fmt: skip


@benchmark("unlike")
def compare_on_unlike_logs(
    work: Path, *, logs: Annotated[Sequence[str], Option("Logs, with commas between.")] = tuple(LOGS),
    nights: Annotated[Sequence[str], Option("Nights, with commas between.")] = NIGHTS,
    seed: Annotated[int, Option("Seed of the logs.")] = 1,
) -> None:  # fmt: skip
    """Print how many published categories are clicked in the next month on small logs of unlike shapes.

    As `forward`, on logs that are made up to be unlike each other: which source makes the lists, its hits, and those
    minus the hits of lists without a model.
    """
    unknown = [name for name in logs if name not in LOGS]
    if unknown:
        raise BadInput(f"logs must be of {', '.join(LOGS)}, got {unknown[0]}")
    dates = check_nights(nights, FIRST_DAY + dt.timedelta(N_DAYS - 1))
    found = {}
    for name in logs:
        lake = build_lake(work / f"unlike-{name}-{seed}-lake", name, seed)
        for night in dates:
            folder = work / f"unlike-{name}-{seed}" / f"date={night}"
            _, found[name, night] = measure_night(lake, read_events(lake), folder, night, missing_days="bridge")
    print(f"\n{describe_logs(found)}\n\nseed {seed}; {describe_machine()}")


def describe_logs(found: Mapping[tuple[str, dt.date], Mapping[str, Any]]) -> str:
    """Return the table as markdown: a row for each log and night."""
    lines = []
    for (name, night), facts in found.items():
        published, *others = facts["lists"].items()
        if not lines:
            heads = [f"minus {label}" for label, _ in others]
            lines = [
                f"| log | night | users | source | {HITS} | {' | '.join(heads)} |",
                "|---" * (5 + len(heads)) + "|",
            ]
        cells = [f"{row[HITS]['difference']:+.3f} ± {row[HITS]['standard_error']:.3f}" for _, row in others]
        about = f"{facts['users']:,} | {facts['model']} | {published[1][HITS]['mean']:.3f}"
        lines.append(f"| {name} | {night} | {about} | {' | '.join(cells)} |")
    return "\n".join(lines)


def build_lake(folder: Path, name: str, seed: int) -> Path:
    """Write the lake of a log unless it is there from an earlier run."""
    if not folder.exists():
        events = LOGS[name](np.random.default_rng([seed, list(LOGS).index(name)]))
        parents = dict.fromkeys(sorted(events["node"].unique()), "")
        write_real_lake(folder, events[EVENT_COLUMNS], parents, groups=GROUPS)
    return folder


def _zipf(n_categories: int) -> np.ndarray:
    """Return shares of categories, each less popular than the one before it."""
    weights = 1 / np.arange(2, n_categories + 2)
    return weights / weights.sum()


def _tastes(rng: Rng, n_users: int, n_categories: int, *, favourites: int) -> np.ndarray:
    """Return (n_users, favourites) categories; users are of a few kinds, whose favourites are near each other."""
    kinds = rng.integers(0, max(2, n_categories // 8), n_users)
    near = (kinds[:, None] * 8 + rng.integers(0, 12, (n_users, favourites))) % n_categories
    anywhere = rng.choice(n_categories, (n_users, favourites), p=_zipf(n_categories))
    return np.where(rng.random((n_users, favourites)) < 0.7, near, anywhere)


def _by_taste(tastes: np.ndarray, share: float, popular: np.ndarray) -> Draw:
    """Return visits of which a share is at favourites, and the rest where everybody goes."""

    def draw(rng: Rng, users: np.ndarray, days: np.ndarray) -> np.ndarray:
        own = tastes[users, rng.integers(0, tastes.shape[1], len(users))]
        return np.where(rng.random(len(users)) < share, own, rng.choice(len(popular), len(users), p=popular))

    return draw


def _visits(rng: Rng, rates: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return users and days of visits, by day; a user makes so many a day on average."""
    counts = rng.poisson(rates[:, None], (len(rates), N_DAYS))
    users, days = np.nonzero(counts.T)[::-1]
    repeats = counts[users, days]
    return np.repeat(users, repeats), np.repeat(days, repeats)


def _events(rng: Rng, users: np.ndarray, days: np.ndarray, draw: Draw, *, click_rate: float) -> pd.DataFrame:
    """Return the events of visits: a page view each, sometimes a search, an ad view or a click."""
    categories = draw(rng, users, days)
    seconds = rng.integers(0, 86_400, len(users))
    visits = pd.DataFrame(
        {
            "user_id": np.char.add("u", users.astype(str)),
            "node": np.char.add("c", np.char.zfill(categories.astype(str), 3)),
            "timestamp": pd.Timestamp(FIRST_DAY) + pd.to_timedelta(days * 86_400 + seconds, unit="s"),
        }
    )
    shares = {"pv": 1.0, "sq": 0.1, "adv": 0.3, CLICKS: click_rate}
    parts = [visits[rng.random(len(visits)) < share].assign(group=group) for group, share in shares.items()]
    return pd.concat(parts, ignore_index=True)
