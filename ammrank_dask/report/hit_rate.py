"""Measure what became of past nights: which of their qualifications were clicked since."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from ammrank_dask.ingest.interest_state import recode_cells
from ammrank_dask.runtime.tasks import Call
from ammrank_dask.scoring.qualifications import NightPart
from ammrank_dask.storage.store.ids import ID_ARRAYS, UserIds, empty_ids, ids_from_arrays, union_of_many
from ammrank_dask.storage.store.parts import PartRef
from ammrank_dask.storage.store.qualifications import QualificationRows
from ammrank_dask.storage.store.registry import DAY


@dataclass(frozen=True)
class PastNight:
    """A night whose qualifications are compared with the clicks since.

    `parts` are its by_user files, `days` for each partition the partials of the days since, `popular` the codes of
    the k categories that were clicked most when the night was scored.
    """

    parts: Sequence[NightPart]
    days: Sequence[Sequence[PartRef]]
    popular: np.ndarray
    k: int


@dataclass(frozen=True)
class Hits:
    """How well k categories a user were chosen, summed over users: any hit, hits ÷ k, hits ÷ clicked categories."""

    any_hit: int = 0
    precision: float = 0.0
    recall: float = 0.0

    def __add__(self, other: Self) -> Hits:
        """Return the sums over both sets of users."""
        return Hits(self.any_hit + other.any_hit, self.precision + other.precision, self.recall + other.recall)

    def means(self, n_users: int) -> dict[str, float | None]:
        """Return the means over users, None without any."""
        sums = {"hit_rate": self.any_hit, "precision": self.precision, "recall": self.recall}
        return {name: float(total / n_users) if n_users else None for name, total in sums.items()}


@dataclass(frozen=True)
class SlotCounts:
    """Slots that a policy gave and how many of them were clicked, and the same of those that exploration drew.

    `value` is what the clicks on all of them were worth, None where nobody says.
    """

    slots: int = 0
    clicked: int = 0
    drawn_slots: int = 0
    drawn_clicked: int = 0
    value: float | None = None

    def __add__(self, other: Self) -> SlotCounts:
        """Return the counts of both sets of users together."""
        return SlotCounts(
            self.slots + other.slots,
            self.clicked + other.clicked,
            self.drawn_slots + other.drawn_slots,
            self.drawn_clicked + other.drawn_clicked,
            other.value if self.value is None else self.value + (other.value or 0.0),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the counts as a summary has them; `drawn` is None where nothing was drawn."""
        drawn = {"slots": self.drawn_slots, "clicked": self.drawn_clicked}
        value = {} if self.value is None else {"value": self.value}
        return {"slots": self.slots, "clicked": self.clicked, "drawn": drawn if self.drawn_slots else None, **value}


@dataclass(frozen=True)
class RealisedCounts:
    """Users who clicked and how well they were served, by the qualifications and by the most clicked categories.

    `users` clicked and held a category, `others` clicked and held none. `slots` are of all users.
    """

    users: int
    others: int
    held: Hits
    popular: Hits
    slots: SlotCounts = SlotCounts()

    def __add__(self, other: Self) -> RealisedCounts:
        """Return the counts of both sets of users together."""
        return RealisedCounts(
            self.users + other.users,
            self.others + other.others,
            self.held + other.held,
            self.popular + other.popular,
            self.slots + other.slots,
        )


def measure_realised(
    night: PastNight, categories: Sequence[str], cells: tuple[int, int]
) -> Generator[list[Call], list[RealisedCounts], dict[str, Any]]:
    """Compare the qualifications of a past night with the clicks since, as `measure_drift` compares two nights.

    Parameters
    ----------
    categories
        The names of the L categories of the partials.
    cells
        First and last (excluded) cell of clicks in the partials.

    Returns
    -------
    dict
        Over the users who clicked and held a category: `hit_rate` (share with a click in their k best), `precision`
        (clicked ÷ k), `recall` (clicked ÷ all clicked categories), and the same under `popularity` for the k
        categories that were clicked most before. Over all users: `slots` that the policy gave and how many of them were
        `clicked`, and the same under `drawn` for those of exploration; `value` is what the clicks on both were worth.
    """
    counts = yield [
        (match_part, (part, list(days), list(categories), cells, night.popular, night.k))
        for part, days in zip(night.parts, night.days, strict=True)
    ]
    total = sum(counts, start=RealisedCounts(0, 0, Hits(), Hits()))
    return {
        "users": total.users,
        "users_without_qualification": total.others,
        **total.held.means(total.users),
        "popularity": total.popular.means(total.users),
        **total.slots.to_json(),
    }


def match_part(
    part: NightPart,
    days: list[PartRef],
    categories: list[str],
    cells: tuple[int, int],
    popular: np.ndarray,
    k: int,
) -> RealisedCounts:
    """Compare the file of one partition with the clicks of its users."""
    users, user, category = read_clicks(days, cells)
    return match_clicks(part.read(categories), users, user, category, popular, k)


def most_clicked(clicks: Sequence[int], names: Sequence[str], k: int, categories: Sequence[str]) -> np.ndarray:
    """Return the codes in `categories` of the k categories with the most clicks; equal clicks: the first one.

    Parameters
    ----------
    clicks, names
        Clicks on the categories of the past night, and their names.

    Examples
    --------
    >>> most_clicked([1, 5, 5, 9], ["a", "b", "c", "d"], 2, ["d", "c", "b"]).tolist()
    [0, 2]
    """
    best = np.argsort(-np.asarray(clicks), kind="stable")[:k]
    chosen = {names[code] for code in best}
    return np.array([code for code, name in enumerate(categories) if name in chosen], np.int64)


def read_clicks(days: Sequence[PartRef], cells: tuple[int, int]) -> tuple[UserIds, np.ndarray, np.ndarray]:
    """Return who clicked what in the days of one partition, each pair once: users, position of the user, category."""
    first, last = cells
    clicked: list[tuple[UserIds, np.ndarray, np.ndarray]] = []
    for day in days:
        arrays = day.read(DAY, (*ID_ARRAYS, "indptr", "cell"))
        cell = arrays["cell"] if day.recoding is None else recode_cells(arrays["cell"], day.recoding)
        is_click = (cell >= first) & (cell < last)
        row = np.repeat(np.arange(len(arrays["indptr"]) - 1), np.diff(arrays["indptr"]))[is_click]
        rows, user = np.unique(row, return_inverse=True)
        clicked.append((ids_from_arrays(arrays).take(rows), user, cell[is_click].astype(np.int64) - first))
    users = union_of_many(ids for ids, _, _ in clicked)
    if users is None or not len(users):
        return users if users is not None else empty_ids("int64"), np.empty(0, np.int64), np.empty(0, np.int64)
    width = last - first
    keys = np.unique(
        np.concatenate([users.positions_of(ids)[user] * width + category for ids, user, category in clicked])
    )
    return users, keys // width, keys % width


def match_clicks(
    rows: QualificationRows, users: UserIds, user: np.ndarray, category: np.ndarray, popular: np.ndarray, k: int
) -> RealisedCounts:
    """Count how many of the k best categories of each user were clicked.

    Parameters
    ----------
    users
        Who clicked, sorted.
    user, category
        Every pair of position in `users` and code that was clicked, each once.
    popular
        Codes of the most clicked categories before.
    """
    n_clicked = np.bincount(user, minlength=len(users))
    place = users.positions_of(rows.user_ids)
    is_served = np.zeros(len(users), bool)
    is_served[place[place >= 0]] = True
    is_clicked = find_clicked(rows, users, user, category)
    hits = place[rows.user][is_clicked & (rows.rank <= k)]
    is_drawn = rows.is_drawn
    slots = SlotCounts(
        int((~is_drawn).sum()), int((is_clicked & ~is_drawn).sum()), int(is_drawn.sum()),
        int((is_clicked & is_drawn).sum()), None if rows.value is None else float(rows.per_click[is_clicked].sum()),
    )  # fmt: skip
    popular_hits = user[np.isin(category, popular)]
    return RealisedCounts(
        int(is_served.sum()),
        int((~is_served).sum()),
        _hits(hits, n_clicked, is_served, k),
        _hits(popular_hits, n_clicked, is_served, k),
        slots,
    )


def find_clicked(rows: QualificationRows, users: UserIds, user: np.ndarray, category: np.ndarray) -> np.ndarray:
    """Return of every qualification whether it was clicked; parameters are those of `match_clicks`."""
    n_codes = 1 + max(category.max(initial=0), rows.category.max(initial=0))
    holder = users.positions_of(rows.user_ids)[rows.user]
    return (holder >= 0) & np.isin(holder * n_codes + rows.category, user * n_codes + category)


def _hits(user_of_hit: np.ndarray, n_clicked: np.ndarray, is_served: np.ndarray, k: int) -> Hits:
    n_hits = np.bincount(user_of_hit, minlength=len(n_clicked))[is_served]
    return Hits(int((n_hits > 0).sum()), float((n_hits / k).sum()), float((n_hits / n_clicked[is_served]).sum()))
