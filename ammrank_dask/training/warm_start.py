"""Begin training with the planes of an earlier model: columns and categories are matched by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ammrank_dask.model.plane_model import PlaneModel
from ammrank_dask.model.plane_sums import PlaneSums
from ammrank_dask.storage.errors import BadInput


def planes_of_model(
    model: PlaneModel,
    columns: Sequence[str],
    categories: Sequence[str],
    *,
    regularization: float,
    max_planes: int,
    step: int,
) -> PlaneSums:
    """Return the state of training whose planes are those of a fitted model.

    With S = λ · step · w the next steps move a plane as if `step` − 1 steps had made it. A model that was trained over
    millions of steps would hardly move again; the driver gives the steps of one epoch of a shard.

    Parameters
    ----------
    model
        A fitted model. Columns and categories that it does not name are taken in their order.
    columns, categories
        The names of the d columns and L categories to train on. A column the model did not know starts with weight 0;
        what only the model knows is left out.
    regularization, step
        λ of the training to come, and the t of its first step.
    max_planes
        Limit of planes in a category; of more the longest are kept.
    """
    new_column, old_column = match_names("columns", model.columns_, model.n_features_in_, columns)
    new_category, old_category = match_names("categories", model.categories_, model.n_categories_, categories)
    code_of = np.full(model.n_categories_, -1)
    code_of[old_category] = new_category
    category = code_of[model.plane_category_]
    kept = choose_planes(model.weights_, category, np.full(len(categories), max_planes))
    sums = np.zeros((len(columns) + 1, len(kept)), np.float32)
    scale = np.float32(regularization * step)
    sums[new_column] = model.weights_[:-1][np.ix_(old_column, kept)] * scale
    sums[-1] = model.weights_[-1, kept] * scale
    plane_category = category[kept].astype(np.int32)
    return PlaneSums(
        sums,
        plane_category,
        np.bincount(plane_category, minlength=len(categories)).astype(np.int64),
        step=step,
        plane_id=np.arange(len(kept)),
        next_id=len(kept),
    )


def match_names(what: str, old: Sequence[str] | None, n_old: int, new: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions of the names that both have, in the new order: (positions in new, positions in old)."""
    if old is None:
        if n_old != len(new):
            raise BadInput(
                f"the model to start from must have {len(new)} {what}, found {n_old} without names; train without it"
            )
        return np.arange(n_old), np.arange(n_old)
    place = {name: i for i, name in enumerate(old)}
    both = [(i, place[name]) for i, name in enumerate(new) if name in place]
    if not both:
        raise BadInput(
            f"the model to start from must share {what} with the features, found none in common; train without it"
        )
    pairs = np.array(both)
    return pairs[:, 0], pairs[:, 1]


def rename_once(categories: Sequence[str], name_now: Callable[[str], str]) -> dict[str, str]:
    """Return the names of now of distinct categories; of several that became one, only one counts.

    That is the one that had the name before, or else the first; the others keep their names.

    Examples
    --------
    >>> now = {"Boots": "Shoes", "Caps": "Hats"}
    >>> rename_once(["Boots", "Caps", "Shoes"], lambda name: now.get(name, name))
    {'Boots': 'Boots', 'Caps': 'Hats', 'Shoes': 'Shoes'}
    """
    renamed = {name: name_now(name) for name in categories}
    taken = {name for name, now in renamed.items() if now == name}
    for name, now in renamed.items():
        if now != name and now in taken:
            renamed[name] = name
        taken.add(renamed[name])
    return renamed


def rename_column(column: str, renamed: Mapping[str, str]) -> str:
    """Return the name of a column with its category renamed; that of a column without a category as it is."""
    group, _, rest = column.partition(":")
    kind, _, category = rest.partition(":")
    return f"{group}:{kind}:{renamed[category]}" if category in renamed else column


def choose_planes(weights: np.ndarray, category: np.ndarray, limit: np.ndarray) -> np.ndarray:
    """Return the planes that have a category (-1 is none), by category; over its limit it keeps the longest."""
    squares = np.einsum("ij,ij->j", weights, weights, dtype=np.float64)
    ordered = np.lexsort((-squares, category))
    start = np.searchsorted(category[ordered], category[ordered])
    chosen = ordered[(np.arange(len(ordered)) - start < limit[category[ordered]]) & (category[ordered] >= 0)]
    return np.sort(chosen)[np.argsort(category[np.sort(chosen)], kind="stable")]
