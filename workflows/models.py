"""Load the models of a site, every byte checked against the manifest of their run first."""

from __future__ import annotations

from pathlib import Path

from ammrank_dask.ranker import AMMRank
from storage.parts import check_files
from storage.runs import Run

MODEL_KIND, MODEL_NAME = "model", "model.zarr"


def checked_model(run: Run) -> Path:
    """Return the folder of the saved model of a run after checking its bytes."""
    check_files(run.path, run.manifest["files"])
    return run.path / MODEL_NAME


def load_site_model(run: Run) -> AMMRank:
    """Load the model of a run after checking its bytes."""
    return AMMRank.load(checked_model(run))
