"""Place the users of runs in another number of partitions, and prove that no row changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from distributed import Client

from ammrank_dask.features.csr import csr_attributes
from ammrank_dask.runtime.run_in_work import begin_runs
from ammrank_dask.runtime.tasks import run_tasks
from ammrank_dask.storage.errors import AmmrankError
from ammrank_dask.storage.objects.folders import share_file
from ammrank_dask.storage.store.ids import ID_ARRAYS, ids_from_arrays
from ammrank_dask.storage.store.manifests import CHANGEABLE, RunManifest, StateManifest
from ammrank_dask.storage.store.part_rows import STARTS, Arrays, join_users, position_in_row, take_users
from ammrank_dask.storage.store.parts import PartRef, WrittenPart, write_part
from ammrank_dask.storage.store.registry import FEATURES, PART_SCHEMAS, STATE, PartSchema
from ammrank_dask.storage.store.runs import Run, RunInWork, finish_run, is_finished, open_run, remove_run
from ammrank_dask.user_hash import hash_ids, partition_of, source_partitions

ROW_SALT = 0x726F772D64696765


def repartition_run(client: Client, run: Run, n_partitions: int, path: Path | None) -> int:
    """Write a run again in other partitions at a path, and return the digest of its rows.

    What a killed attempt has written is not written again. A run that is in these partitions already has no `path`.
    """
    before = digest_run(client, run)
    if path is None:
        return before
    if not is_finished(path):
        refs = [run.part(number) for number in range(run.n_parts)]
        (work,) = begin_runs(client, [path], n_partitions)
        with work:
            todo = work.todo
            tasks = [
                (run.kind, [refs[number] for number in source_partitions(partition, run.n_parts, n_partitions)],
                 path, partition, n_partitions)
                for partition in todo
            ]  # fmt: skip
            keep = lambda number, part: work.add(todo[number], part)  # noqa: E731
            run_tasks(client, "repartition", write_partition, tasks, on_result=keep)
            _finish(run, work)
    after = digest_run(client, open_run(path, run.kind))
    if after != before:
        remove_run(path)
        raise AmmrankError(f"the rows of {run.path} are others in {n_partitions} partitions; nothing was changed")
    return after


def write_partition(kind: str, sources: list[PartRef], run: Path, partition: int, n_partitions: int) -> WrittenPart:
    """Write one partition of the users that some partitions of another number have."""
    schema = PART_SCHEMAS[kind]
    arrays = choose_rows(schema, [source.read(schema) for source in sources], partition, n_partitions)
    attributes = {}
    if schema is FEATURES:
        n_columns = sources[0].open().attributes("X")["shape"][1]
        attributes = csr_attributes(len(ids_from_arrays(arrays)), n_columns)
    ordered = {spec.name: arrays[spec.name] for spec in schema.arrays if spec.name in arrays}
    return WrittenPart(write_part(run, partition, schema, ordered, group_attributes=attributes))


def choose_rows(schema: PartSchema, parts: list[dict[str, np.ndarray]], partition: int, n_partitions: int) -> Arrays:
    """Return the rows of the users who are in a partition, from parts that have no user in common."""
    chosen = []
    for arrays in parts:
        home = partition_of(ids_from_arrays(arrays), n_partitions)
        chosen.append(take_users(schema, arrays, np.flatnonzero(home == partition)))
    return join_users(schema, chosen)


def digest_run(client: Client, run: Run) -> int:
    """Return a digest of the rows of a run, the same in any number of partitions."""
    tasks = [(run.kind, run.part(number)) for number in range(run.n_parts)]
    return sum(run_tasks(client, "digest-rows", digest_part, tasks)) % 2**64


def digest_part(kind: str, part: PartRef) -> int:
    """Return the digest of the rows of one partition."""
    return digest_rows(PART_SCHEMAS[kind], part.read(PART_SCHEMAS[kind]))


def digest_rows(schema: PartSchema, arrays: Arrays) -> int:
    """Return the sum of the hashes of all values, each with its user, its array and its position in the row."""
    users = hash_ids(ids_from_arrays(arrays), ROW_SALT)
    dims = {spec.name: spec.dims[0] for spec in schema.arrays}
    starts = {dim: position_in_row(arrays[name]) for name, dim in STARTS.items() if name in arrays}
    with np.errstate(over="ignore"):
        total = int(_mix(users).sum())
        for number, name in enumerate(sorted(set(arrays) - set(ID_ARRAYS) - set(STARTS))):
            bits = arrays[name].view(f"u{arrays[name].dtype.itemsize}").astype(np.uint64)
            salted = _mix(users + np.uint64(number + 1))
            if dims[name] != "user":
                user, position = starts[dims[name]]
                salted = _mix(salted[user] ^ position.astype(np.uint64))
            total += int(_mix(salted ^ bits).sum())
    return total % 2**64


def _mix(values: Any) -> Any:
    """Return hashes of 64-bit values (the finaliser of splitmix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _finish(run: Run, work: RunInWork) -> None:
    """Make the copy whole: the manifest of before with the new partitions, and the files beside the parts."""
    for name in run.files:
        share_file(run.path / name, work.path / name)
    manifest = RunManifest.of(run)
    config = dict(manifest.settings)
    if "partitions" in config:
        config["partitions"] = work.n_parts
    if run.kind == STATE.kind:
        now = {name: config[name] for name in CHANGEABLE}
        earlier = [dict(one) for one in StateManifest.of(run).folded_with if one != now]
        config["folded_with"] = [now, *earlier]
    finish_run(
        work.path, run.kind, run.digest, work.parts, config=config, inputs=manifest.inputs,
        counts=manifest.counts, files=run.files,
    )  # fmt: skip
