"""Arrange a model for the fused scoring kernels, call them, and keep the arrangement as arrays between tasks."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from ammrank_dask.features.csr import CsrRows
from ammrank_dask.kernels.memberships import Centers, Members
from ammrank_dask.kernels.scoring import Filter, Panels, score_top_k
from ammrank_dask.kernels.scoring_plus import OwnPieces, PlusPanels, score_plus_top_k

UNKNOWN = Members(np.zeros(1, np.int64), np.zeros(0, np.int32), np.zeros(0, np.float32))
"""Of rows whose memberships are not known yet."""
_PANEL_BYTES = 640 * 1024
_PANEL_WIDTH = (32, 640)

_LINE_BYTES = 64
LINE = _LINE_BYTES // 4
"""Floats of a cache line."""

_PARTS: dict[str, Any] = {"planes": Panels, "own": OwnPieces, "centers": Centers}


def arrange_planes(weights: np.ndarray, plane_category: np.ndarray, tie_order: np.ndarray, bias: float) -> Panels:
    """Return the planes as the kernel reads them.

    Parameters
    ----------
    weights
        (d + 1, n_planes) float32, the bias as last row, planes sorted by category.
    plane_category
        (n_planes,) the category of each plane.
    tie_order
        (L,) all category codes, the one to prefer among equal scores first.
    bias
        The value of the constant last feature.
    """
    n_categories = len(tie_order)
    slots, order, run_length = order_planes(plane_category, n_categories)
    place = np.empty(n_categories, np.int64)
    place[tie_order] = np.arange(n_categories)
    bare = np.setdiff1d(np.arange(n_categories), place[slots])
    return Panels(
        cut_into_panels(weights[:, order]), run_length, place[slots], tie_order.astype(np.int32), bare, float(bias)
    )


def order_planes(plane_category: np.ndarray, n_categories: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the category of each slot, the order in which planes sorted by category are scored, and `run_length`."""
    counts = np.bincount(plane_category, minlength=n_categories)
    slots = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]
    slot_of = np.zeros(n_categories, np.int64)
    slot_of[slots] = np.arange(len(slots))
    first = np.concatenate([[0], np.cumsum(counts)])[plane_category]
    number = np.arange(len(plane_category)) - first
    return slots, np.lexsort((slot_of[plane_category], number)), np.bincount(number)


def top_categories(
    X: sp.csr_matrix | sp.csr_array | CsrRows,
    panels: Panels | PlusPanels,
    k: int,
    limits: Filter | None = None,
    *,
    keep_all: bool = False,
    members: Members = UNKNOWN,
    out: tuple[np.ndarray, np.ndarray] | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return codes (n, k) int32 and scores (n, k) float32, best first, and if asked for all scores (L, n).

    Where a row may hold fewer than k, codes are -1 and scores -inf. `members` are the rows' memberships in the centres
    of AMM-rank-plus, where they were found before. With `out`, codes and scores are written there.
    """
    n_rows, n_categories = X.shape[0], len(panels.tie_order)
    if limits is None:
        limits = Filter(np.ones((0, n_categories), bool), np.zeros(n_rows, np.uint8), -np.inf, keep_bare=True)
    codes, scores = (np.empty((n_rows, k), np.int32), np.empty((n_rows, k), np.float32)) if out is None else out
    everything = np.empty((n_categories, n_rows) if keep_all else (0, 0), np.float32)
    if isinstance(panels, PlusPanels):
        score_plus_top_k(X.data, X.indices, X.indptr, panels, members, limits, codes, scores, everything)
    else:
        score_top_k(X.data, X.indices, X.indptr, panels, limits, codes, scores, everything)
    return codes, scores, everything


def cut_into_panels(weights: np.ndarray) -> np.ndarray:
    """Return (d + 1, n_planes) weights as (n_panels, d + 1, width) of the same type, zeros behind the last plane."""
    n_weights, n_planes = weights.shape
    n_panels, width = _cut_panels(n_weights * weights.itemsize, n_planes)
    padded = np.zeros((n_weights, n_panels * width), weights.dtype)
    padded[:, :n_planes] = weights
    return at_line(padded.reshape(n_weights, n_panels, width).transpose(1, 0, 2))


def _cut_panels(plane_bytes: int, n_planes: int) -> tuple[int, int]:
    """Return the number of panels and their width, so that one stays in the cache of a core."""
    lowest, highest = _PANEL_WIDTH
    most = min(highest, max(lowest, _PANEL_BYTES // max(1, plane_bytes) // LINE * LINE))
    n_panels = max(1, -(-n_planes // most))
    return n_panels, max(LINE, LINE * -(-n_planes // (n_panels * LINE)))


def zeros_at_line(shape: tuple[int, ...], dtype: type = np.float32) -> np.ndarray:
    """Return zeros; with rows of whole cache lines every row begins at one.

    Examples
    --------
    >>> array = zeros_at_line((3, 32))
    >>> array.dtype.name, array.shape, array.ctypes.data % 64
    ('float32', (3, 32), 0)
    """
    n_bytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    room = np.zeros(n_bytes + _LINE_BYTES, np.uint8)
    # Numpy promises 16 bytes: a fourth of a line.
    first = -room.ctypes.data % _LINE_BYTES
    return room[first : first + n_bytes].view(dtype).reshape(shape)


def at_line(array: np.ndarray) -> np.ndarray:
    """Return an array that begins at a cache line: itself, or a copy, in the order of C."""
    if array.ctypes.data % _LINE_BYTES == 0 and array.flags.c_contiguous:
        return array
    moved = zeros_at_line(array.shape, array.dtype.type)
    moved[...] = array
    return moved


def panel_arrays(panels: Panels | PlusPanels) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return the arrays and the plain values from which `panels_from` makes the same again."""
    arrays, values = _flatten(panels, "")
    return arrays, {**values, "is_plus": isinstance(panels, PlusPanels)}


def panels_from(arrays: dict[str, np.ndarray], values: dict[str, Any]) -> Panels | PlusPanels:
    """Return the panels that `panel_arrays` took apart."""
    kind = PlusPanels if values["is_plus"] else Panels
    # What was read begins anywhere. The weights are most of it, and the only arrays of three dimensions.
    placed = {name: at_line(array) if array.ndim == 3 else array for name, array in arrays.items()}
    panels: Panels | PlusPanels = _restore(kind, "", {**placed, **values})
    return panels


def _flatten(parts: NamedTuple, prefix: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    arrays: dict[str, np.ndarray] = {}
    values: dict[str, Any] = {}
    for name, value in parts._asdict().items():
        if isinstance(value, np.ndarray):
            arrays[prefix + name] = value
        elif name in _PARTS:
            more_arrays, more_values = _flatten(value, f"{prefix}{name}-")
            arrays, values = arrays | more_arrays, values | more_values
        else:
            values[prefix + name] = value
    return arrays, values


def _restore(kind: Any, prefix: str, contents: dict[str, Any]) -> Any:
    return kind(
        **{
            name: _restore(_PARTS[name], f"{prefix}{name}-", contents) if name in _PARTS else contents[prefix + name]
            for name in kind._fields
        }
    )
