"""Draw the users of a simulated world: who they are and what they like."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ammrank_dask.kernels.simulation import draw_personas, mix_taste
from ammrank_dask.simulation.world import Floats, Stream, World
from ammrank_dask.storage.vocabulary import AD_VIEW_GROUP, AGE_BUCKET_STARTS

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
