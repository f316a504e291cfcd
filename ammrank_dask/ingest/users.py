"""Ingest users.parquet: age and gender of every user, placed in partitions."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from distributed import Client

from ammrank_dask.ingest.routing import Intake, number_users, slice_by_partition
from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.lake.files import BATCH_ROWS, FileFacts, FileSlice, plan_blocks, read_batches
from ammrank_dask.storage.lake.people import DUPLICATE_USER, PeopleMapping, decode_people
from ammrank_dask.storage.lake.quarantine import QuarantineRows, collect_quarantine, write_quarantine
from ammrank_dask.storage.site.forgotten import leave_out_forgotten, load_forgotten
from ammrank_dask.storage.store.atomic import read_json, write_json
from ammrank_dask.storage.store.exchange import ExchangeBlock, read_slices, write_slices
from ammrank_dask.storage.store.ids import UserIds, empty_ids
from ammrank_dask.storage.store.parts import write_part
from ammrank_dask.storage.store.registry import USERS
from ammrank_dask.storage.store.runs import Run, finish_run, is_finished, open_run, remove_part, start_run
from ammrank_dask.storage.vocabulary import AGE_BUCKET_STARTS
from ammrank_dask.tasks import Progress, run_tasks, silent

VALUES_SHOWN, VALUES_COUNTED = 20, 10_000
"""Values that could not be understood: how many the manifest lists, and how many of a block are counted."""


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
    intake: Intake,
    *,
    progress: Progress = silent,
) -> Run:
    """Write the demographics of all users, once for each content of users.parquet.

    Raises BadInput when too many of the rows have something that cannot be used.
    """
    if is_finished(run):
        return open_run(run, USERS.kind)
    filled = [file for file in files if sum(file.rows)] or list(files)
    kinds = sorted({file.id_kind for file in filled})
    if len(kinds) != 1:
        raise BadInput(f"the users table has user ids of types {' and '.join(kinds)}; convert one of its files")
    rows = TableRows(files)
    folder = intake.scratch / f"users-{digest}"
    folder.mkdir(parents=True, exist_ok=True)
    pieces = plan_blocks(files, BATCH_ROWS)
    blocks = [ExchangeBlock(folder, number) for number in range(len(pieces))]
    readings = [(piece, mapping, rows, intake.n_partitions, block) for piece, block in zip(pieces, blocks, strict=True)]
    run_tasks(client, "users-read", read_users_block, readings, progress=progress)
    slices = [path for block in blocks for path in block.slice_paths()]
    start_run(run, intake.n_partitions)
    # A partition whose facts are lost with the scratch folder would look flawless: it is written again.
    facts = [folder / f"part-{partition:05d}.json" for partition in range(intake.n_partitions)]
    for partition, path in enumerate(facts):
        if not path.is_file():
            remove_part(run, partition)
    collections = [
        (run, partition, intake.n_partitions, slices, kinds[0], rows, facts[partition], intake.forgotten)
        for partition in start_run(run, intake.n_partitions)
    ]
    run_tasks(client, "users-collect", collect_users_partition, collections, progress=progress)

    problems = Problems()
    for found in [*(block.read_facts() for block in blocks), *(read_json(path) for path in facts)]:
        problems.add(Problems.from_json(found))
    place = intake.quarantine / "users.parquet"
    collect_quarantine(sorted(folder.glob("quarantine-*.parquet")), place, intake.forgotten)
    if problems.rows > intake.max_quarantine_share * rows.total:
        raise BadInput(
            f"{problems.rows:,} of {rows.total:,} users cannot be read fully ({problems.describe()}), more than"
            f" quarantine.max_share {intake.max_quarantine_share:.2%}: see {place}, then map the values under"
            " `genders` in ammrank.yaml or correct the table"
        )
    finished = finish_run(
        run,
        USERS.kind,
        digest,
        intake.n_partitions,
        config={**intake.settings, "id_kind": kinds[0]},
        inputs=[file.identity for file in files],
        facts={"rows": rows.total, **problems.to_json(VALUES_SHOWN)},
    )
    shutil.rmtree(folder, ignore_errors=True)
    return finished


class TableRows:
    """Numbers the rows of a table of several files, in the order of the files."""

    def __init__(self, files: Sequence[FileFacts]) -> None:
        self.names = [file.name for file in files]
        self.starts = np.concatenate([[0], np.cumsum([sum(file.rows) for file in files])]).astype(np.int64)
        self.total = int(self.starts[-1])

    def number(self, name: str, row: int) -> int:
        """Return the number of a row of a file."""
        return int(self.starts[self.names.index(name)]) + row

    def by_file(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        """Return by file which of the row numbers are in it."""
        files = np.searchsorted(self.starts, numbers, side="right") - 1
        return {self.names[file]: np.flatnonzero(files == file) for file in np.unique(files)}


@dataclass
class Problems:
    """What could not be understood in the users table: rows with a problem, counts by reason, values."""

    rows: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    values: Counter[str] = field(default_factory=Counter)

    def add(self, other: Problems) -> None:
        """Add the problems of another block."""
        self.rows += other.rows
        self.counts.update(other.counts)
        self.values.update(other.values)

    def describe(self) -> str:
        """Return reasons and the most frequent values as a phrase."""
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in self.counts.most_common())
        unknown = ", ".join(repr(value) for value, _ in self.values.most_common(3))
        return f"{reasons}; values {unknown}" if unknown else reasons

    def to_json(self, n_values: int | None = None) -> dict[str, Any]:
        """Return the counts, and so many of the values, the most frequent first."""
        values = sorted(self.values.items(), key=lambda item: (-item[1], item[0]))[:n_values]
        return {"bad_rows": self.rows, "counts": dict(sorted(self.counts.items())), "unknown_values": dict(values)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Problems:
        """Return the problems that `to_json` wrote."""
        return cls(content["bad_rows"], Counter(content["counts"]), Counter(content["unknown_values"]))


def read_users_block(
    pieces: Sequence[FileSlice],
    mapping: PeopleMapping,
    rows: TableRows,
    n_partitions: int,
    block: ExchangeBlock,
) -> None:
    """Read a block of the users table and write its rows, sliced by partition, to scratch files."""
    if block.is_whole():
        return
    problems = Problems()
    bad_rows = QuarantineRows()
    n_batches = 0
    for piece in pieces:
        for row, table in read_batches(piece, mapping.columns, ()):
            people = decode_people(table, mapping, where=piece.file.path)
            is_bad = np.zeros(table.num_rows, bool)
            for reason, positions, found in people.problems:
                is_bad[positions] = True
                problems.counts[reason] += len(positions)
                problems.values.update(value for value in found.to_pylist() if value is not None)
                user = people.id_text.take(pa.array(positions))
                bad_rows.add_rows(reason, piece.file.name, positions + row, user, found)
            problems.rows += int(is_bad.sum())
            first = rows.number(piece.file.name, row)
            columns = {
                "row": np.arange(first, first + table.num_rows),
                "age": people.age,
                "gender": people.gender,
            }
            sections = slice_by_partition(people.ids, people.user, people.has_id, columns, n_partitions)
            write_slices(block.slice_path(n_batches), n_partitions, sections)
            n_batches += 1
    write_quarantine(block.quarantine_path, bad_rows)
    block.finish(n_batches, problems.to_json(VALUES_COUNTED))


def collect_users_partition(
    run: Path,
    partition: int,
    n_partitions: int,
    slices: Sequence[Path],
    id_kind: str,
    rows: TableRows,
    facts: Path,
    forgotten: Path | None = None,
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
    is_again = np.ones(len(user), bool)
    is_again[first] = False
    again = np.flatnonzero(is_again)
    bad_rows = QuarantineRows()
    for name, positions in rows.by_file(columns["row"][again]).items():
        chosen = again[positions]
        text = ids.take(user[chosen]).to_arrow().cast(pa.string())
        in_file = columns["row"][chosen] - rows.number(name, 0)
        bad_rows.add_rows(DUPLICATE_USER, name, in_file, text, pa.nulls(len(chosen), pa.string()))
    write_quarantine(facts.with_name(f"quarantine-part-{partition:05d}.parquet"), bad_rows)
    problems = Problems(len(again), Counter({DUPLICATE_USER: len(again)} if len(again) else {}))
    write_json(facts, problems.to_json(), durable=False)
    arrays = {**ids.to_arrays(), "age": columns["age"][first], "gender": columns["gender"][first]}
    write_part(run, partition, USERS, leave_out_forgotten(USERS, arrays, load_forgotten(forgotten)))
