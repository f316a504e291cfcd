"""Keep a model as the fused scoring kernels read it, as arrays: workers need no estimator to score."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ammrank_dask.kernels.memberships import Centers
from ammrank_dask.kernels.scoring import Panels
from ammrank_dask.kernels.scoring_plus import OwnPieces, PlusPanels
from ammrank_dask.model.cache_lines import at_line

_PARTS: dict[str, Any] = {"planes": Panels, "own": OwnPieces, "centers": Centers}


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
