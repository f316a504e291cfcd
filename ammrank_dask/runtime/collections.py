"""Work with the blocks of Dask arrays and tables that a caller has: one task a block, nothing collected here."""

from __future__ import annotations

import logging
import shutil
import tempfile
import time
import uuid
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from distributed import Client, Future, KilledWorker, as_completed

from ammrank_dask.runtime.task_workers import TaskWorkers
from ammrank_dask.storage.errors import AmmrankError, BadInput
from ammrank_dask.storage.in_memory import is_collection
from ammrank_dask.storage.objects.folders import local_path

logger = logging.getLogger(__name__)

SECONDS_BETWEEN_LOOKS = 0.05


def check_blocks(X: Any, name: str = "X") -> None:
    """Refuse what is no Dask array of rows, each of which is in one block."""
    import dask.array as da

    if not isinstance(X, da.Array):
        hint = "; pass its to_dask_array(lengths=True)" if is_collection(X) else "; make one with dask.array.from_array"
        raise BadInput(f"{name} must be a Dask array, got {type(X).__module__}.{type(X).__name__}{hint}")
    if X.ndim != 2:
        raise BadInput(f"{name} must have two dimensions, got {X.ndim}")
    if np.isnan(X.shape[1]):
        raise BadInput(f"{name} must have a known number of columns; pass {name}.compute_chunk_sizes()")
    if X.numblocks[1] != 1:
        raise BadInput(
            f"{name} must have one block along its columns, got {X.numblocks[1]}; pass {name}.rechunk({{1: -1}})"
        )


def blocks_of(name: str, values: Any, X: Any) -> list[Any]:
    """Return the part of some values for each block of rows of X: what is in memory is cut as X is."""
    n_blocks, lengths = X.numblocks[0], X.chunks[0]
    is_known = not np.isnan(lengths).any()
    if not is_collection(values):
        if not is_known:
            raise BadInput(
                f"{name} must be a Dask collection with the blocks of X, for their lengths are not known; pass"
                " X.compute_chunk_sizes() for X"
            )
        if len(values) != sum(lengths):
            raise BadInput(f"{name} must have the {sum(lengths):,} rows of X, got {len(values):,}")
        values = values if isinstance(values, pd.Series) else np.asarray(values)
        ends = np.cumsum(lengths)
        return [values[end - length : end] for end, length in zip(ends, lengths, strict=True)]
    found = values.npartitions if not hasattr(values, "chunks") else values.numblocks[0]
    own = getattr(values, "chunks", (lengths,))[0]
    if found != n_blocks or (is_known and not np.isnan(own).any() and own != lengths):
        how = "rechunk({0: X.chunks[0]})" if hasattr(values, "chunks") else "repartition(npartitions=X.numblocks[0])"
        raise BadInput(
            f"{name} must have the blocks of X ({n_blocks}), got {found} of other lengths; pass {name}.{how}"
        )
    if hasattr(values, "chunks") and values.ndim > 1:
        check_blocks(values, name)
    return list(np.ravel(values.to_delayed()))


def run_blocks(
    client: Client, function: Callable[..., Any], blocks: Sequence[Sequence[Any]], *common: Any
) -> list[Any]:
    """Run `function(*block, number, *common)` for every block on the cluster, and return the results in order.

    A block is computed for its task and dropped after it. Results must be small: they come here.
    """
    import dask

    shared = dask.delayed(common, pure=False, traverse=False)
    task = dask.delayed(_run_block, pure=False)
    tasks = [task(function, number, shared, *block) for number, block in enumerate(blocks)]
    futures = client.compute(tasks)
    try:
        _wait_for_all(client, function.__name__, futures)
        return list(client.gather(futures))
    except KilledWorker:
        raise AmmrankError(
            "a worker ran out of memory with one block; make blocks smaller with rechunk, repartition or n_partitions=,"
            " or give workers more"
        ) from None
    except ImportError as error:
        raise AmmrankError(
            f"a worker has not what {function.__name__} needs ({error}); install the same packages where workers start"
        ) from None


def _wait_for_all(client: Client, stage: str, futures: Sequence[Future]) -> None:
    """Wait for tasks; raise the first error, and when there is no worker for too long."""
    finished, workers = as_completed(futures, loop=client.loop), TaskWorkers(client, stage, 1)
    while finished.count():
        done = finished.next_batch(block=False)
        if done:
            workers.are_there()
        else:
            workers.wait_for_some(_Blocks(stage))
            time.sleep(SECONDS_BETWEEN_LOOKS)
        for future in done:
            if future.status != "finished":
                future.result()


class _Blocks:
    """Tasks that Dask alone places: they stay where they are when workers are paused or silent."""

    def __init__(self, stage: str) -> None:
        self.stage = stage

    def leave(self, workers: Sequence[str]) -> None:
        """Leave the tasks to Dask."""

    def say(self, what: str) -> None:
        """Report to people who watch."""
        logger.warning("stage %s: %s", self.stage, what)


def _run_block(function: Callable[..., Any], number: int, common: tuple[Any, ...], *block: Any) -> Any:
    return function(*block, number, *common)


def map_rows(X: Any, function: Callable[..., Any], width: int, dtype: Any, *args: Any) -> Any:
    """Return a lazy array of `width` columns, `function(rows, *args)` of each block of rows."""
    return X.map_blocks(function, *args, chunks=(X.chunks[0], (width,)), dtype=dtype, meta=np.empty((0, 0), dtype))


def call_by_block(X: Any, model: Any, call: str, width: int, dtype: Any, *args: Any) -> Any:
    """Return a lazy array of what a call of a model returns for each block of rows.

    The model travels as one task of its own, not with the task of every block.
    """
    import dask

    check_blocks(X)
    once = dask.delayed(model, name=f"model-{uuid.uuid4().hex}", traverse=False)
    return map_rows(X, _call_model, width, dtype, once, call, *args)


def _call_model(rows: Any, model: Any, call: str, *args: Any) -> Any:
    return getattr(model, call)(rows, *args)


def read_blocks(function: Callable[..., Any], lengths: Sequence[int], width: int, meta: Any, *args: Any) -> Any:
    """Return a lazy array whose block i is `function(i, *args)`, so many rows each, with `width` columns."""
    import dask.array as da

    numbers = da.from_array(np.arange(len(lengths)), chunks=1)
    return numbers.map_blocks(
        _read_block, function, *args, new_axis=1, chunks=(tuple(lengths), (width,)), dtype=meta.dtype, meta=meta
    )


def _read_block(number: np.ndarray, function: Callable[..., Any], *args: Any) -> Any:
    return function(int(number[0]), *args)


def scratch_folder(client: Client, scratch: str | Path | None) -> Path:
    """Return a new folder that all workers see: below `scratch`, or else beside the local directories of the workers.

    It is removed when the client is gone, at the end of this process at the latest.
    """
    if scratch is not None:
        above = local_path(scratch, "scratch")
    else:
        workers = client.scheduler_info(n_workers=-1)["workers"].values()
        hosts = {worker["host"] for worker in workers}
        if len(hosts) > 1:
            raise BadInput(
                f"scratch must be given, a folder that all workers see: they are on {len(hosts)} hosts, which share no"
                " local directory; pass scratch=…"
            )
        above = next((Path(worker["local_directory"]).parent for worker in workers), Path(tempfile.gettempdir()))
    folder = above / f"ammrank-{uuid.uuid4().hex[:12]}"
    weakref.finalize(client, shutil.rmtree, folder, ignore_errors=True)
    return folder


@contextmanager
def temporary_scratch(client: Client, scratch: str | Path | None) -> Iterator[Path]:
    """Give a folder as `scratch_folder` does, and remove it at the end."""
    folder = scratch_folder(client, scratch)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
