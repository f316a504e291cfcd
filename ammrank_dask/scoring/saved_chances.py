"""Keep chances: the one part of a run, every byte checked when it is read."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ammrank_dask.kernels.chances import Curves
from ammrank_dask.scoring.chances import Chances
from ammrank_dask.storage.store.parts import write_part
from ammrank_dask.storage.store.registry import CHANCES
from ammrank_dask.storage.store.runs import Run

_FRAME = ("center", "scale", "width")


def save_chances(folder: Path, chances: Chances) -> None:
    """Write chances as part 0 of a run that is being made."""
    curves = chances.curves._asdict()
    arrays = {name: np.ascontiguousarray(value) for name, value in curves.items() if name not in _FRAME}
    frame = np.array([curves[name] for name in _FRAME])
    classes = {"edges": np.asarray(chances.edges, np.float64)}
    if chances.centers is not None:
        classes["centers"] = chances.centers
    write_part(folder, 0, CHANCES, {"frame": frame, **arrays, **classes})


def load_chances(run: Run) -> Chances:
    """Read the chances of a finished run."""
    arrays = run.part(0).read(CHANCES)
    center, scale, width = arrays["frame"].tolist()
    intercept, slope, knot, bend, level = (arrays[name] for name in ("intercept", "slope", "knot", "bend", "level"))
    return Chances(
        Curves(center, scale, width, intercept, slope, knot, bend, level), arrays["edges"], arrays.get("centers")
    )
