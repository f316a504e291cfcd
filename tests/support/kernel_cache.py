"""Give each of several test processes its own cache of compiled kernels: import this before anything of `ammrank_dask`.

Processes that compile different signatures of one kernel at the same time write over each other's files. A process
alone keeps the cache beside the sources.
"""

import os
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[2] / ".numba_cache"


def folder_of_process() -> Path | None:
    """Return the folder of the cache of this process, None when it is alone."""
    name = os.environ.get("PYTEST_XDIST_WORKER")
    return FOLDER / name if name else None


if folder_of_process() is not None:
    assert "numba" not in sys.modules, "numba reads the folder of its cache when it is imported"
    os.environ["NUMBA_CACHE_DIR"] = str(folder_of_process())
