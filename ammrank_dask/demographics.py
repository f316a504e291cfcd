"""Ingest users.parquet: age and gender of every user, placed in partitions."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from distributed import Client

from ammrank_dask.routing import number_users, slice_by_partition
from ammrank_dask.tasks import Progress, run_tasks, silent
from storage.errors import BadInput
from storage.exchange import read_slices, write_slices
from storage.files import read_json, write_json
from storage.ids import UserIds, empty_ids
from storage.lake import BATCH_ROWS, FileFacts, FileSlice, plan_blocks, read_batches
from storage.parts import write_part
from storage.people import DUPLICATE_USER, PeopleMapping, decode_people
from storage.quarantine import QuarantineRows, collect_quarantine, write_quarantine
from storage.registry import USERS
from storage.runs import Run, finish_run, is_finished, open_run, start_run
from storage.vocabulary import AGE_BUCKET_STARTS


@dataclass(frozen=True)
class Demographics:
    """Users with their age in years and gender code, -1 where unknown; sorted by id."""

    user_ids: UserIds
    age: np.ndarray
    gender: np.ndarray


def age_buckets(age: np.ndarray) -> np.ndarray:
    """Return the bucket of every age, 0 to 8; -1 for unknown ages and for children below the first (int8).

    Examples
    --------
    >>> age_buckets(np.array([-1, 12, 13, 20, 65, 99])).tolist()
    [-1, -1, 0, 1, 8, 8]
    """
    return (np.searchsorted(AGE_BUCKET_STARTS, age, side="right") - 1).astype(np.int8)


def describe_users(users: UserIds, people: Demographics | None) -> tuple[np.ndarray, np.ndarray]:
    """Return age bucket and gender of users (int8), -1 where nothing is known of them."""
    bucket = np.full(len(users), -1, np.int8)
    gender = np.full(len(users), -1, np.int8)
    if people is not None and len(people.user_ids) and len(users):
        found = people.user_ids.positions_of(users)
        known = found >= 0
        bucket[known] = age_buckets(people.age[found[known]])
        gender[known] = people.gender[found[known]]
    return bucket, gender


def ingest_users(
    client: Client,
    files: Sequence[FileFacts],
    mapping: PeopleMapping,
    run: Path,
    digest: str,
    *,
    n_partitions: int,
    scratch: Path,
    quarantine: Path,
    max_quarantine_share: float,
    settings: Mapping[str, Any],
    progress: Progress = silent,
) -> Run:
    """Write the demographics of all users, once for each content of users.parquet.

    Raises BadInput when more than `max_quarantine_share` of the rows have something that cannot be used.
    """
    if is_finished(run):
        return open_run(run, USERS.kind)
    kinds = sorted({file.id_kind for file in files})
    if len(kinds) != 1:
        raise BadInput(f"the users table has user ids of types {' and '.join(kinds)}; convert one of its files")
    blocks = plan_blocks(files, BATCH_ROWS)
    first_rows = np.concatenate([[0], np.cumsum([sum(file.rows) for file in files])])
    row_of = {file.path: int(row) for file, row in zip(files, first_rows, strict=False)}
    folder = scratch / f"users-{digest}"
    folder.mkdir(parents=True, exist_ok=True)
    readings = [(block, mapping, row_of, n_partitions, folder, number) for number, block in enumerate(blocks)]
    run_tasks(client, "users-read", read_users_block, readings, progress=progress)
    slices = [
        folder / f"block-{number:05d}-{batch:03d}.slices"
        for number in range(len(blocks))
        for batch in range(read_json(_facts_path(folder, number))["batches"])
    ]
    collections = [
        (run, partition, n_partitions, slices, kinds[0], folder) for partition in start_run(run, n_partitions)
    ]
    run_tasks(client, "users-collect", collect_users_partition, collections, progress=progress)

    counts: Counter[str] = Counter()
    values: Counter[str] = Counter()
    names = [_facts_path(folder, number) for number in range(len(blocks))]
    names += [_facts_path(folder, partition, "part") for partition in range(n_partitions)]
    for name in names:
        if name.is_file():
            content = read_json(name)
            counts.update(content["counts"])
            values.update(content["values"])
    n_rows = sum(sum(file.rows) for file in files)
    place = quarantine / "users.parquet"
    collect_quarantine(sorted(folder.glob("quarantine-*.parquet")), place)
    n_bad = sum(counts.values())
    if n_bad > max_quarantine_share * n_rows:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in counts.most_common())
        unknown = ", ".join(repr(value) for value, _ in values.most_common(3))
        raise BadInput(
            f"{n_bad:,} of {n_rows:,} users cannot be read fully ({reasons}{'; values ' + unknown if unknown else ''}),"
            f" more than quarantine.max_share {max_quarantine_share:.2%}: see {place}, then map the values under"
            " `genders` in ammrank.yaml or correct the table"
        )
    finished = finish_run(
        run,
        USERS.kind,
        digest,
        n_partitions,
        config={**settings, "id_kind": kinds[0]},
        inputs=[file.identity for file in files],
        facts={
            "rows": n_rows,
            "counts": {name: count for name, count in sorted(counts.items()) if count},
            "unknown_values": dict(sorted(values.items(), key=lambda item: (-item[1], item[0]))[:20]),
        },
    )
    shutil.rmtree(folder, ignore_errors=True)
    return finished


def _facts_path(folder: Path, number: int, what: str = "block") -> Path:
    return folder / f"{what}-{number:05d}.json"


def read_users_block(
    pieces: Sequence[FileSlice],
    mapping: PeopleMapping,
    row_of: Mapping[str, int],
    n_partitions: int,
    folder: Path,
    number: int,
) -> None:
    """Read a block of the users table and write its rows, sliced by partition, to scratch files."""
    if _facts_path(folder, number).is_file():
        return
    counts: Counter[str] = Counter()
    values: Counter[str] = Counter()
    bad_rows = QuarantineRows()
    n_batches = 0
    for piece in pieces:
        for row, table in read_batches(piece, mapping.columns, ()):
            people = decode_people(table, mapping, where=piece.file.path)
            first = row_of[piece.file.path] + row
            for reason, positions, found in people.problems:
                counts[reason] += len(positions)
                values.update(value for value in found.to_pylist() if value is not None)
                user = people.id_text.take(pa.array(positions))
                bad_rows.add_rows(reason, piece.file.name, positions + row, user, found)
            columns = {
                "row": np.arange(first, first + table.num_rows),
                "age": people.age,
                "gender": people.gender,
            }
            sections = slice_by_partition(people.ids, people.user, people.has_id, columns, n_partitions)
            write_slices(folder / f"block-{number:05d}-{n_batches:03d}.slices", n_partitions, sections)
            n_batches += 1
    write_quarantine(folder / f"quarantine-{number:05d}.parquet", bad_rows)
    content = {"batches": n_batches, "counts": dict(counts), "values": dict(values)}
    write_json(_facts_path(folder, number), content, durable=False)


def collect_users_partition(
    run: Path, partition: int, n_partitions: int, slices: Sequence[Path], id_kind: str, folder: Path
) -> None:
    """Sort the users of one partition by id; of a user who is there twice the first row counts."""
    found = read_slices(slices, partition, n_partitions)
    if sum(len(part["user"]) for part in found):
        ids, user = number_users(found, id_kind)
    else:
        ids, user = empty_ids(id_kind), np.empty(0, np.int64)
    columns = {
        name: np.concatenate([part[name] for part in found]) if found else np.empty(0, dtype)
        for name, dtype in (("row", np.int64), ("age", np.int16), ("gender", np.int8))
    }
    first = np.full(len(ids), len(user), np.int64)
    np.minimum.at(first, user, np.arange(len(user)))
    again = np.ones(len(user), bool)
    again[first] = False
    duplicates = np.flatnonzero(again)
    if len(duplicates):
        rows = QuarantineRows()
        text = ids.take(user[duplicates]).to_arrow().cast(pa.string())
        rows.add_rows(DUPLICATE_USER, "", columns["row"][duplicates], text, pa.nulls(len(duplicates), pa.string()))
        write_quarantine(folder / f"quarantine-part-{partition:05d}.parquet", rows)
    write_json(
        _facts_path(folder, partition, "part"),
        {"counts": {DUPLICATE_USER: len(duplicates)} if len(duplicates) else {}, "values": {}},
        durable=False,
    )
    arrays = {**ids.to_arrays(), "age": columns["age"][first], "gender": columns["gender"][first]}
    write_part(run, partition, USERS, arrays)
