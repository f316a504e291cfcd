"""Make the known world behind a simulated lake: who the users are, what they read and what they click."""

import csv
import hashlib
from dataclasses import dataclass, fields
from enum import IntEnum
from functools import cached_property
from importlib.resources import files
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ammrank_dask.storage.vocabulary import AGE_BUCKET_STARTS, GENDERS

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
    def build(cls, seed: int, days: int) -> "World":
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
