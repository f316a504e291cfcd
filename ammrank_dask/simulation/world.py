"""Make the known world behind a simulated lake and its users: who they are, what they read and what they click."""

from __future__ import annotations

import csv
import hashlib
from dataclasses import dataclass, fields
from enum import IntEnum
from functools import cached_property
from importlib.resources import files
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ammrank_dask.kernels.simulation import draw_personas, mix_taste
from ammrank_dask.storage.vocabulary import AD_VIEW_GROUP, AGE_BUCKET_STARTS, GENDERS

Floats = NDArray[np.float32]

# The groups a user browses in, and how much of each is general traffic rather than the user's interest.
BROWSE_NOISE = {"pv": 0.45, "sq": 0.20, "slc": 0.25, "olc": 0.35}

# From the most to the least popular, by the last part of the name.
POPULARITY_ORDER = (
    "Internet Services;Apparel;Cellular and Wireless;Destinations;Consumer Electronics;Loans;"
    "Home;Insurance;Beauty and Personal Care;Education;Vacations;Contests and Sweepstakes;"
    "Television;Games;Investment;Non US;Flights and Hotels;Credit Cards;Food and Drink;Medicine;"
    "Careers;Computer Software;Home Internet;Movies;Music;New Cars;Groceries;Banking;Nutrition;"
    "Homes for Sale;Team Sports;Fitness;Celebrities;Parenting;Used Cars;Books;Computer Hardware;"
    "Pets;Parts and Service;Taxes;Rentals;Outdoor;Toys;Retirement;Gardening;Jewelry;"
    "Mental Wellness;Weddings;Golf;Motorcycles"
)


# Events of an average user and day; clicks are given before they are raised by the ads seen.
GROUP_RATES = {"pv": 0.62, "sq": 0.22, "slc": 0.06, "olc": 0.14, AD_VIEW_GROUP: 0.48}
CLICK_RATE = 0.062

PERSONAS_PER_USER = 3
INACTIVE_SHARE = 0.03
# Keeps the mean of a day's Poisson counts where `poisson_count` is exact.
MAX_ACTIVITY = 25.0
# Standard deviations of logarithms: activity, clicks at equal activity, a user's own taste in a category.
ACTIVITY_SPREAD = 0.85
CLICK_SPREAD = 0.35
TASTE_SPREAD = 0.9
# Weight of an interaction between two personas against that of the personas.
PAIR_GAIN = 5.0
UNKNOWN_AGE_SHARE, UNKNOWN_GENDER_SHARE = 0.08, 0.06

_ID_BITS = 62
_ID_MASK = np.uint64(2**_ID_BITS - 1)


class Stream(IntEnum):
    """Third part of a seed, after the seed of the world and a block (or week): no two streams are the same.

    None is 0, because numpy makes the same numbers from a seed with and without zeros at its end.
    """

    WORLD = 1
    CAMPAIGNS = 2
    DEMOGRAPHICS = 3
    TASTES = 4
    DAYS = 5


class Persona(NamedTuple):
    """A kind of user: typical age and its spread in years, share of women, categories strongest first."""

    name: str
    age: float
    spread: float
    female: float
    browse: str
    click: str


class Campaign(NamedTuple):
    """Ads of a category shown `factor` times as often to an audience from `first_day` to before `end_day`."""

    first_day: int
    end_day: int
    category: int
    factor: float
    first_age: int
    last_age: int
    genders: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class World:
    """Everything about a simulated world that does not depend on the number of users or workers.

    Categories are the 50 second-level ones in the order of their names, nodes all of the taxonomy. Arrays
    named `*_cumulated` are running sums that end in 1 along their last axis, searched with uniform numbers.
    An audience is the pair age bucket × gender, `age_bucket * 2 + gender`.
    """

    categories: tuple[str, ...]
    nodes: tuple[str, ...]
    popularity: Floats
    persona_bounds: Floats
    browse_bounds: Floats
    click: Floats
    pairs: NDArray[np.int8]
    pair_click: Floats
    node_bounds: Floats
    node_codes: NDArray[np.int16]
    weekday_factors: Floats
    time_quantiles: NDArray[np.float64]
    campaigns: tuple[Campaign, ...]

    @classmethod
    def build(cls, seed: int, days: int) -> World:
        """Make the world of `seed`; more `days` only add campaigns after the earlier ones."""
        taxonomy = read_world_taxonomy()
        categories = tuple(sorted(name for name in taxonomy if name.count("/") == 1))
        nodes = tuple(sorted(taxonomy))
        rng = np.random.default_rng([seed, 0, Stream.WORLD])
        popularity = _popularity(rng, categories)
        personas = read_personas()
        own = np.stack([_preference(persona.browse, categories) for persona in personas])
        browse = [(1 - noise) * own + noise * popularity for noise in BROWSE_NOISE.values()]
        click = np.stack([_preference(persona.click, categories) for persona in personas])
        number = {persona.name: code for code, persona in enumerate(personas)}
        interactions = _read_rows("interactions.csv")
        pairs = [(number[row["persona"]], number[row["other_persona"]]) for row in interactions]
        node_bounds, node_codes = _node_tables(rng, categories, nodes)
        return cls(
            categories=categories,
            nodes=nodes,
            popularity=popularity.astype(np.float32),
            persona_bounds=_cumulated(_persona_shares(personas)),
            browse_bounds=_cumulated(np.stack(browse)),
            click=(0.72 * click + 0.28 * popularity).astype(np.float32),
            pairs=np.array(pairs, dtype=np.int8),
            pair_click=np.stack([_preference(row["click"], categories) for row in interactions], dtype=np.float32),
            node_bounds=node_bounds,
            node_codes=node_codes,
            weekday_factors=np.array([1.06, 1.04, 1.02, 1.0, 0.93, 0.92, 1.03], dtype=np.float32),
            time_quantiles=_time_quantiles(),
            campaigns=_campaigns(seed, days, len(categories)),
        )

    @cached_property
    def pair_table(self) -> NDArray[np.int16]:
        """Number of the interaction of two personas, -1 for none; shape (personas, personas)."""
        n_personas = len(self.click)
        table = np.full((n_personas, n_personas), -1, dtype=np.int16)
        table[self.pairs[:, 0], self.pairs[:, 1]] = np.arange(len(self.pairs))
        table[self.pairs[:, 1], self.pairs[:, 0]] = np.arange(len(self.pairs))
        return table

    def campaign_factors(self, day: int) -> Floats:
        """Factor on the ads of every category on `day` (0 is the first), shape (audiences, categories)."""
        factors = np.ones((len(AGE_BUCKET_STARTS), len(GENDERS), len(self.categories)), dtype=np.float32)
        for campaign in self.campaigns:
            if campaign.first_day <= day < campaign.end_day:
                ages = slice(campaign.first_age, campaign.last_age + 1)
                for gender in campaign.genders:
                    factors[ages, gender, campaign.category] *= campaign.factor
        return factors.reshape(-1, len(self.categories))

    def digest(self) -> str:
        """SHA-256 over every part of the world."""
        sha = hashlib.sha256()
        for field in fields(self):
            value = getattr(self, field.name)
            sha.update(value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode())
        return sha.hexdigest()


def read_world_taxonomy() -> dict[str, str]:
    """Parent of every node of the world's taxonomy, in the order of the file; empty for a root."""
    return {row["category"]: row["parent"] for row in _read_rows("taxonomy.csv")}


def read_personas() -> list[Persona]:
    """Read the kinds of users there are."""
    return [
        Persona(
            row["persona"],
            float(row["age"]),
            float(row["spread"]),
            float(row["female"]),
            row["browse"],
            row["click"],
        )
        for row in _read_rows("personas.csv")
    ]


def _read_rows(name: str) -> list[dict[str, str]]:
    text = files("ammrank_dask.simulation").joinpath(name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


def _cumulated(shares: NDArray[np.floating]) -> Floats:
    bounds = np.cumsum(shares, axis=-1)
    return (bounds / bounds[..., -1:]).astype(np.float32)


def _codes(names: str, categories: tuple[str, ...]) -> list[int]:
    by_short_name = {category.split("/")[1]: code for code, category in enumerate(categories)}
    return [by_short_name[name] for name in names.split(";")]


def _preference(names: str, categories: tuple[str, ...]) -> NDArray[np.float64]:
    shares = np.zeros(len(categories))
    codes = _codes(names, categories)
    shares[codes] = 0.75 ** np.arange(len(codes))
    return shares / shares.sum()


def _popularity(rng: np.random.Generator, categories: tuple[str, ...]) -> NDArray[np.float64]:
    shares = np.zeros(len(categories))
    shares[_codes(POPULARITY_ORDER, categories)] = (np.arange(len(categories)) + 2.0) ** -0.9
    shares *= np.exp(0.15 * rng.standard_normal(len(categories)))
    return shares / shares.sum()


def _persona_shares(personas: list[Persona]) -> NDArray[np.float64]:
    ages = np.append(np.array(AGE_BUCKET_STARTS[:-1]) + np.diff(AGE_BUCKET_STARTS) / 2, 72.0)
    shares = np.empty((len(ages), len(GENDERS), len(personas)))
    for code, persona in enumerate(personas):
        by_age = 0.03 + np.exp(-0.5 * ((ages - persona.age) / persona.spread) ** 2)
        shares[:, 0, code] = by_age * persona.female
        shares[:, 1, code] = by_age * (1 - persona.female)
    return shares.reshape(-1, len(personas))


def _node_tables(
    rng: np.random.Generator, categories: tuple[str, ...], nodes: tuple[str, ...]
) -> tuple[Floats, NDArray[np.int16]]:
    """Most events name a leaf, a few percent the category itself, a tiny share its root."""
    code_of = {name: code for code, name in enumerate(nodes)}
    leaves = [[name for name in nodes if name.startswith(category + "/")] for category in categories]
    width = max(map(len, leaves)) + 2
    shares = np.zeros((len(categories), width))
    codes = np.zeros((len(categories), width), dtype=np.int16)
    for row, (category, below) in enumerate(zip(categories, leaves, strict=True)):
        skew = rng.permutation(1.0 / (1 + np.arange(len(below))))
        shares[row, : len(below) + 2] = [*(0.967 * skew / skew.sum()), 0.03, 0.003]
        names = [*below, category, category.split("/")[0]]
        codes[row] = [code_of[name] for name in names] + [0] * (width - len(names))
    return _cumulated(shares), codes


def _time_quantiles() -> NDArray[np.float64]:
    """Microseconds into the day at even steps of probability: quiet at night, busiest in the evening."""
    hours = np.array(
        [
            2.2,
            1.4,
            1,
            0.8,
            0.8,
            1.1,
            1.9,
            3,
            4,
            4.6,
            4.9,
            5,
            5.2,
            5,
            4.8,
            4.8,
            5,
            5.4,
            6,
            6.8,
            7.2,
            6.8,
            5.4,
            3.6,
        ]
    )
    passed = np.append(0.0, np.cumsum(hours)) / hours.sum()
    return np.interp(np.linspace(0, 1, 4097), passed, np.arange(25) * 3_600_000_000.0)


def _campaigns(seed: int, days: int, n_categories: int) -> tuple[Campaign, ...]:
    campaigns = []
    for week in range((days + 6) // 7):
        rng = np.random.default_rng([seed, week, Stream.CAMPAIGNS])
        for _ in range(3):
            first_day = int(7 * week + rng.integers(7))
            ages = sorted(int(age) for age in rng.choice(len(AGE_BUCKET_STARTS), 2, replace=False))
            genders = ((0,), (1,), (0, 1), (0, 1))[int(rng.integers(4))]
            length, category = int(rng.integers(5, 15)), int(rng.integers(n_categories))
            factor = float(rng.choice([3.0, 5.0, 8.0]))
            campaigns.append(Campaign(first_day, first_day + length, category, factor, ages[0], ages[1], genders))
    return tuple(campaigns)


class SimulatedUsers(NamedTuple):
    """Who the users of a block are; `known_*` is what the lake shows, -1 for unknown."""

    user_id: NDArray[np.int64]
    age: NDArray[np.int16]
    gender: NDArray[np.int8]
    known_age: NDArray[np.int16]
    known_gender: NDArray[np.int8]

    @property
    def audience(self) -> NDArray[np.int64]:
        """Age bucket × gender of every user, as in `World`."""
        bucket = np.searchsorted(AGE_BUCKET_STARTS, self.age, side="right") - 1
        return bucket * 2 + self.gender


class Tastes(NamedTuple):
    """What the users of a block do.

    personas and the running sums of their weights have shape (users, 3), taste (click shares without ads)
    (users, categories); the rates are events per day.
    """

    personas: NDArray[np.int8]
    weight_bounds: Floats
    browse_rate: Floats
    click_rate: Floats
    taste: Floats


def draw_users(seed: int, block: int, first: int, end: int) -> SimulatedUsers:
    """Draw who the users of a block are, the ones from number `first` to before `end`."""
    n_users = end - first
    rng = np.random.default_rng([seed, block, Stream.DEMOGRAPHICS])
    ages = np.arange(13, 91)
    shares = np.where(ages < 18, 0.7, np.where(ages < 50, 1.2, np.maximum(0.03, 1.2 - (ages - 50) / 35)))
    age = rng.choice(ages, size=n_users, p=shares / shares.sum()).astype(np.int16)
    gender = rng.integers(2, size=n_users, dtype=np.int8)
    known_age = np.where(rng.random(n_users) < UNKNOWN_AGE_SHARE, -1, age).astype(np.int16)
    known_gender = np.where(rng.random(n_users) < UNKNOWN_GENDER_SHARE, -1, gender).astype(np.int8)
    user_id = scramble_user_ids(np.arange(first, end), seed)
    return SimulatedUsers(user_id, age, gender, known_age, known_gender)


def draw_tastes(world: World, seed: int, block: int, who: SimulatedUsers, *, activity: float) -> Tastes:
    """Draw what the users of a block do: personas by age and gender, activity, and a taste of their own."""
    n_users = len(who.user_id)
    rng = np.random.default_rng([seed, block, Stream.TASTES])
    personas = np.empty((n_users, PERSONAS_PER_USER), dtype=np.int8)
    draw_personas(world.persona_bounds, who.audience, rng.random(personas.shape, dtype=np.float32), personas)
    weights = rng.standard_gamma(1.5, size=personas.shape, dtype=np.float32) + np.float32(0.01)
    weights /= weights.sum(axis=1, keepdims=True)
    spread = ACTIVITY_SPREAD
    level = np.exp(spread * rng.standard_normal(n_users, dtype=np.float32) - spread**2 / 2)
    level = np.minimum(level, MAX_ACTIVITY) * np.float32(activity)
    level[rng.random(n_users) < INACTIVE_SHARE] = 0.0
    click_level = level * np.exp(CLICK_SPREAD * rng.standard_normal(n_users, dtype=np.float32))
    taste = rng.standard_normal((n_users, len(world.categories)), dtype=np.float32)
    taste *= np.float32(TASTE_SPREAD)
    np.exp(taste, out=taste)
    mix_taste(personas, weights, world.click, world.pair_table, world.pair_click, np.float32(PAIR_GAIN), taste)
    return Tastes(
        personas=personas,
        weight_bounds=np.cumsum(weights, axis=1, dtype=np.float32),
        browse_rate=(level * sum(GROUP_RATES.values())).astype(np.float32),
        click_rate=(click_level * CLICK_RATE).astype(np.float32),
        taste=taste,
    )


def scramble_user_ids(index: NDArray[np.integer], seed: int) -> NDArray[np.int64]:
    """Map 0, 1, 2, … to different ids between 1 and 2^62 that tell nothing of the order.

    Every step (add, xor with the upper half, multiply by an odd number) is a bijection of 62-bit numbers.

    Examples
    --------
    >>> len(set(scramble_user_ids(np.arange(1000), seed=0).tolist()))
    1000
    """
    ids = (index.astype(np.uint64) + np.uint64(seed % 2**_ID_BITS)) & _ID_MASK
    for factor in (0x1E3779B97F4A7C15, 0x3F58476D1CE4E5B9, 0x14D049BB133111EB):
        ids = ids ^ (ids >> np.uint64(31))
        ids = (ids * np.uint64(factor)) & _ID_MASK
    ids = ids ^ (ids >> np.uint64(31))
    return ids.astype(np.int64) + 1
