"""Know the models of a site: load them checked, and tell which features they were trained on."""

from __future__ import annotations

from pathlib import Path

from ammrank_dask.model.amm_rank import AMMRank
from ammrank_dask.storage.lake.taxonomy import Taxonomy
from ammrank_dask.storage.store.atomic import digest_of
from ammrank_dask.storage.store.parts import check_files
from ammrank_dask.storage.store.runs import Run
from ammrank_dask.workflows.session.config import Config
from ammrank_dask.workflows.session.settings import feature_settings

MODEL_KIND, MODEL_NAME = "model", "model.zarr"


def checked_model(run: Run) -> Path:
    """Return the folder of the saved model of a run after checking its bytes."""
    check_files(run.path, run.manifest["files"])
    return run.path / MODEL_NAME


def load_site_model(run: Run) -> AMMRank:
    """Load the model of a run after checking its bytes."""
    return AMMRank.load(checked_model(run))


def model_identity(config: Config, taxonomy: Taxonomy) -> dict[str, str]:
    """Return by what a model knows its features: their columns, and what the values in them mean."""
    settings = feature_settings(config, taxonomy)
    return {
        "columns": settings.columns.digest,
        "values": digest_of([settings.alpha, settings.intensity, settings.normalize]),
    }


def fits(run: Run, config: Config, taxonomy: Taxonomy) -> bool:
    """Tell whether a model was trained on features of these columns, with the same meaning."""
    found = run.manifest["config"]
    return all(found.get(key) == value for key, value in model_identity(config, taxonomy).items())


def has_same_values(run: Run, config: Config, taxonomy: Taxonomy) -> bool:
    """Tell whether values mean the same to a model: columns and categories can be matched by name, values cannot."""
    same: bool = run.manifest["config"].get("values") == model_identity(config, taxonomy)["values"]
    return same


def model_date(run: Run) -> str:
    """Return the date that a model was trained for."""
    return str(run.manifest["config"]["date"])
