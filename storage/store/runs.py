"""Keep runs: immutable folders of partitions, whole as soon as their manifest is there."""

from __future__ import annotations

import functools
from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from ammrank_dask.storage.errors import REBUILD_COMMAND, BadInput, DamagedStore
from ammrank_dask.storage.objects.atomic import (
    read_json,
    sweep_temporary,
    sweep_tree,
    sync_folder,
    sync_tree,
    write_json,
)
from ammrank_dask.storage.objects.folders import is_file, list_paths, make_folder, remove, walk
from ammrank_dask.storage.objects.retry import retried
from ammrank_dask.storage.store.parts import (
    LINES,
    PartFacts,
    PartRef,
    Recoding,
    append_counts,
    check_files,
    check_part,
    checksum_of,
    part_facts,
    part_names,
    read_counts,
    remove_counts,
)
from ammrank_dask.storage.store.registry import FORMAT, PART_SCHEMAS, check_format

MANIFEST = "manifest.json"
SUCCESS = "_SUCCESS"
"""An empty file in the folder of a night that is published."""
LATEST = "LATEST"
"""A file beside the folders of nights with the name of the newest published one."""
DECIDE_BYTES = ("ammrank-dask", "numpy", "numba", "zarr", "numcodecs", "pyarrow")
"""The packages on whose versions stored bytes depend."""
VERSIONED = (*DECIDE_BYTES, "cloudpickle", "dask", "distributed", "pandas")
"""The packages on whose versions a run depends; workers must have the same."""


@functools.cache
def version_of(package: str) -> str:
    """Return the version of an installed package; it is looked up once, for that reads and parses a file."""
    # Here, because whoever serves a model waits for its import, and asks for no version.
    from importlib.metadata import version

    return version(package)


@dataclass(frozen=True)
class Run:
    """A finished run: its folder and its manifest; `recoding` where its categories have other codes now."""

    path: Path
    kind: str
    digest: str
    n_parts: int
    manifest: Mapping[str, Any] = field(repr=False)
    recoding: Recoding | None = field(default=None, repr=False)

    @property
    def parts(self) -> list[PartFacts]:
        """Rows, values, bytes and checksum of every part."""
        return [PartFacts(**part) for part in self.manifest["parts"]]

    @property
    def files(self) -> Mapping[str, list[int]]:
        """Size and checksum of every file beside the parts, by relative name."""
        files: Mapping[str, list[int]] = self.manifest["files"]
        return files

    @property
    def checksums(self) -> list[str]:
        """Checksum of every part, as the manifest has it."""
        return [part["checksum"] for part in self.manifest["parts"]]

    def part(self, partition: int) -> PartRef:
        """Return what a task needs to read one partition."""
        return PartRef(self.path, partition, self.manifest["parts"][partition]["checksum"], self.recoding)

    @property
    def n_rows(self) -> int:
        """Rows over all parts."""
        return sum(part["rows"] for part in self.manifest["parts"])

    @property
    def nnz(self) -> int:
        """Cells or values over all parts."""
        return sum(part["nnz"] for part in self.manifest["parts"])


@retried
def start_run(path: Path, n_parts: int, keep: Container[int] | None = None) -> list[int]:
    """Make the folder of a run, sweep what a crash left, and return the partitions still to be written.

    A partition that was written before is kept only if its bytes are still what was written, and it is one of `keep`.
    """
    make_folder(path)
    sweep_temporary(path)
    # Listed once: asking for each of them takes a day of many partitions longer than making them.
    names, written = {found.name for found in list_paths(path)}, read_counts(path)
    unfinished, kept = [], {}
    for partition in range(n_parts):
        if not names.isdisjoint(part_names(partition)):
            if (keep is None or partition in keep) and _is_intact(path, partition, written.get(partition)):
                kept[partition] = written[partition]
                continue
            remove_part(path, partition)
        unfinished.append(partition)
    remove_counts(path)
    for partition, counts in kept.items():
        append_counts(path, partition, counts)
    return unfinished


def _is_intact(run: Path, partition: int, written: Mapping[str, Any] | None) -> bool:
    """Return whether the bytes of a part are those that were written."""
    try:
        return written is not None and check_part(run, partition, written["checksum"]) > 0
    except BadInput:
        return False


def remove_part(run: Path, partition: int) -> None:
    """Remove a partition that is to be written again."""
    for name in part_names(partition):
        remove(run / name)


def finish_run(
    path: Path,
    kind: str,
    digest: str,
    n_parts: int,
    *,
    config: Mapping[str, Any],
    inputs: Sequence[Any] | Mapping[str, Any],
    counts: Mapping[str, Any] | None = None,
    files: Mapping[str, list[int]] | None = None,
) -> Run:
    """Sweep what a killed worker left, make all parts durable, and write the manifest, which makes the run whole.

    Parameters
    ----------
    config
        The settings that the content depends on.
    inputs
        What was read, with digests.
    counts
        Anything a report may quote: counts of events, reasons of quarantine; `facts` in the manifest.
    files
        Files of the run beside its parts, with size and checksum.
    """
    written = read_counts(path)
    parts: list[PartFacts] = [part_facts(path, partition, written) for partition in range(n_parts)]
    sweep_tree(path)
    sync_tree(path)
    manifest = {
        "format": FORMAT,
        "kind": kind,
        "digest": digest,
        "config": dict(config),
        "inputs": inputs,
        "facts": dict(counts or {}),
        "files": dict(files or {}),
        "versions": {name: version_of(name) for name in DECIDE_BYTES},
        "parts": [part.to_json() for part in parts],
    }
    write_manifest(path, manifest)
    remove_counts(path)
    sync_folder(path.parent)
    return open_run(path, kind)


def rewrite_manifest(run: Run, folder: Path, parts: Collection[str], files: Mapping[str, list[int]]) -> None:
    """Make a changed copy of a run whole: its manifest with what is known of the `parts` and `files` that changed.

    All others keep their checksums: what was damaged before the copy is still found in it.
    """
    written = read_counts(folder)
    facts = [
        part_facts(folder, i, written).to_json() if part["name"] in parts else part
        for i, part in enumerate(run.manifest["parts"])
    ]
    sync_tree(folder)
    write_manifest(folder, {**run.manifest, "parts": facts, "files": {**run.files, **files}})
    remove_counts(folder)


def write_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Write the manifest of a run with the checksum of its content."""
    content = {name: value for name, value in manifest.items() if name != "checksum"}
    write_json(folder / MANIFEST, {**content, "checksum": checksum_of(content)})


def replace_counts(run: Run, counts: Mapping[str, Any]) -> None:
    """Write the manifest of a run again with other counts; its parts stay as they are."""
    write_manifest(run.path, {**run.manifest, "facts": dict(counts)})


@retried
def is_finished(path: Path) -> bool:
    """Return whether a run is whole."""
    return is_file(path / MANIFEST)


def open_run(path: Path, kind: str | None = None) -> Run:
    """Open a finished run and check that this version can read it."""
    if not is_finished(path):
        raise BadInput(f"{path} is not a finished run: it has no {MANIFEST}", missing=path / MANIFEST)
    manifest = read_json(path / MANIFEST)
    try:
        found, found_kind, checksum = manifest["format"], manifest["kind"], manifest.pop("checksum")
        run = Run(path, found_kind, manifest["digest"], len(manifest["parts"]), manifest)
    except (KeyError, TypeError, AttributeError):
        raise DamagedStore(
            f"{path / MANIFEST} is not the JSON that was written; make it again with {REBUILD_COMMAND}"
        ) from None
    check_format(path, found)
    if checksum_of(manifest) != checksum:
        raise DamagedStore(
            f"{path / MANIFEST} is not what was written (checksum differs); make it again with {REBUILD_COMMAND}"
        )
    if kind is not None and found_kind != kind:
        raise BadInput(f"{path} is a {found_kind} run, expected a {kind} run")
    return run


@retried
def verify_run(path: Path) -> int:
    """Check every byte of a finished run against its manifest; return the number of bytes read.

    A file that the manifest does not list is refused: nobody knows what it holds.
    """
    run = open_run(path)
    if run.kind in PART_SCHEMAS:
        total = sum(check_part(path, i, expected) for i, expected in enumerate(run.checksums))
    else:
        total = 0
    extra = sorted(_found_beside_parts(run) - set(run.files))
    if extra:
        raise DamagedStore(f"{path / extra[0]} is not in the manifest of its run; make it again with {REBUILD_COMMAND}")
    return total + check_files(path, run.files)


def _found_beside_parts(run: Run) -> set[str]:
    """Return the files of a run that are neither its manifest nor of one of its parts."""
    parts = [part["name"] for part in run.manifest["parts"]]
    known = {MANIFEST, SUCCESS, *parts}
    found = set()
    for root, folders, names in walk(run.path):
        place = Path(root).relative_to(run.path)
        folders[:] = [name for name in folders if (place / name).as_posix() not in known]
        found |= {(place / name).as_posix() for name in names}
    return {name for name in found - known if not fnmatchcase(name, LINES)}


@retried
def remove_run(path: Path) -> None:
    """Remove a run: first its manifest, so that no reader ever sees half of it as whole."""
    remove(path / MANIFEST)
    remove(path)
