"""Estimate the memory that the largest partition of a site takes, before any of it is read.

The figures were read off a worker with one thread while nights of 100,000 and 600,000 users in one partition ran, those
of scores and planes while 200,000 users of 300 categories were scored, and 5,000 by a model of 191 MiB; those of
training are the arrays that its tasks have at a time with 1,500 planes of 5,401 weights.
"""

from __future__ import annotations

from dataclasses import dataclass

PROCESS_BYTES = 320 << 20
"""A worker with all packages loaded and kernels compiled, and no data."""
REQUEST_BYTES = 40 << 20
"""What a thread has of files on their way: slices that it joins, rows that it reads in pieces, a column it writes."""
BYTES_PER_CELL = 64
BYTES_PER_USER = 40
BYTES_PER_EVENT = 110
BYTES_PER_SLOT = 60
"""A category that a user qualifies for, by user and by category, while both tables are written."""
BYTES_PER_SCORE = 4
BYTES_PER_CHANCE = 6
"""A chance as float32 and two marks: whether it is too low, and whether the category is barred."""
BYTES_PER_WEIGHT = 4
BYTES_PER_CENTER_VALUE = 2
BYTES_PER_TRAINED_WEIGHT = 16
"""State, mean, weights and their copy in another order, when a round is closed or a model is validated."""
BYTES_PER_TRAINED_CENTER_VALUE = 4
BYTES_PER_CLUSTERED_VALUE = 37
"""A value of a centre while it is sought: sums and centres in float64, and what kernels read."""
BYTES_PER_USED_CENTER_VALUE = 13
"""A value of a centre when rows get their memberships: itself, and on its way to what kernels read."""
BYTES_PER_SAMPLED_VALUE = 12
"""A value of the rows that centres are sought with: itself, its column, and which kind of column that is."""
BYTES_PER_OWN_COLUMN = 20
"""Kind, category and lift of a column of amm-rank-plus."""
CELLS_PER_EVENT = 0.75
"""Distinct cells an event of a short history makes; over months it falls to a third."""


@dataclass(frozen=True)
class PartitionSize:
    """The size of the largest partition: users, cells of their state, and events of a day."""

    users: int
    cells: int
    events: int


@dataclass(frozen=True)
class ModelSize:
    """The most that a model can grow to: categories, planes of all of them, weights of a plane, and its clusterings.

    `centers` are those of all clusterings, of `columns` values each; weights of a plane count columns, centres and the
    constant. `sample_values` are those of the rows that centres are sought with, one clustering at a time.
    """

    categories: int
    planes: int
    weights: int
    centers: int = 0
    columns: int = 0
    sample_values: int = 0
    clusterings: int = 1

    @property
    def training_bytes(self) -> int:
        """Memory of a task that trains the model, besides some rows: before the first step, or in and after rounds."""
        values = self.centers * self.columns
        of_one = values // max(1, self.clusterings)
        centers = BYTES_PER_CLUSTERED_VALUE * of_one + BYTES_PER_SAMPLED_VALUE * self.sample_values
        begin = max(centers, BYTES_PER_USED_CENTER_VALUE * values)
        rounds = BYTES_PER_TRAINED_WEIGHT * self.planes * self.weights + BYTES_PER_TRAINED_CENTER_VALUE * values
        return max(begin, rounds)

    @property
    def n_bytes(self) -> int:
        """Memory of the model as it is scored: planes, centres with their constant, and whose own a column is."""
        planes, centers = self.planes * self.weights, self.centers * (self.columns + 1)
        own = BYTES_PER_OWN_COLUMN * self.columns
        return BYTES_PER_WEIGHT * planes + BYTES_PER_CENTER_VALUE * centers + own


def estimate_memory(
    size: PartitionSize,
    model: ModelSize,
    *,
    k: int,
    keeps_all_scores: bool = False,
    keeps_chances: bool = False,
    threads: int = 1,
) -> int:
    """Return the bytes of a worker process that works on as many partitions as it has threads.

    The stages come one after the other: the hungriest one counts.

    Parameters
    ----------
    size, model
        The largest partition, and the model that is trained and scores it: every task reads its own.
    k
        Categories a user qualifies for.
    keeps_all_scores
        Whether a policy asks for the scores of all users in all categories.
    keeps_chances
        Whether their chances are kept beside them, with what is barred.
    threads
        Tasks that a worker does at a time.
    """
    fold = BYTES_PER_CELL * size.cells + BYTES_PER_USER * size.users
    collect = BYTES_PER_EVENT * size.events
    score = BYTES_PER_SLOT * k * size.users + model.n_bytes
    if keeps_all_scores:
        score += BYTES_PER_SCORE * model.categories * size.users
    if keeps_chances:
        score += BYTES_PER_CHANCE * model.categories * size.users
    return PROCESS_BYTES + threads * (REQUEST_BYTES + max(fold, collect, score, model.training_bytes))
