"""Begin runs that tasks write part by part, or go on with those that an attempt before has begun."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from distributed import Client

from ammrank_dask.runtime.tasks import Progress, run_together, silent
from ammrank_dask.storage.store.parts import is_intact
from ammrank_dask.storage.store.runs import RunInWork


def begin_runs(client: Client, paths: Sequence[Path], n_parts: int, *, progress: Progress = silent) -> list[RunInWork]:
    """Begin runs of so many parts; of parts that an attempt before has written those are kept that are what it wrote.

    Tasks compare their bytes.
    """
    runs = [RunInWork(path, n_parts) for path in paths]
    named = [(number, partition, part) for number, run in enumerate(runs) for partition, part in run.named.items()]
    intact = run_together(client, "compare", [(is_intact, part) for *_, part in named], progress=progress)
    kept = {(number, partition) for (number, partition, _), is_same in zip(named, intact, strict=True) if is_same}
    for number, run in enumerate(runs):
        run.keep({partition for partition in run.named if (number, partition) in kept})
    return runs
