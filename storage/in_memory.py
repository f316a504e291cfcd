"""Refuse Dask collections where arrays and tables in memory are wanted: numpy would collect them without a word."""

import sys
from typing import Any

from ammrank_dask.storage.errors import BadInput


def is_collection(value: Any) -> bool:
    """Return whether a value is a Dask collection; who did not import Dask has none, and does not wait for it here."""
    dask = sys.modules.get("dask")
    return dask is not None and bool(dask.is_dask_collection(value))


def check_in_memory(name: str, value: Any, larger: str = "") -> None:
    """Refuse a Dask collection; `larger` says what to do with one that does not fit into memory."""
    if is_collection(value):
        raise BadInput(
            f"{name} must be in memory, got a Dask collection ({type(value).__module__}.{type(value).__name__});"
            f" pass {name}.compute() if it fits{larger}"
        )
