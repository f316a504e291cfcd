"""Keep runs: immutable folders of partitions, whole as soon as their manifest is there."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

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
    PartFacts,
    PartRef,
    Recoding,
    WrittenPart,
    check_files,
    check_part,
    checksum_of,
    part_names,
)
from ammrank_dask.storage.store.registry import FORMAT, check_format

MANIFEST = "manifest.json"
OPEN_MANIFEST = "manifest.open.json"
"""What is known of the parts of a run that has no manifest yet."""
SECONDS_BETWEEN_SAVES = 5.0
"""A driver that is killed loses the parts of so many seconds."""
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


class RunInWork:
    """A run that is written: `todo` are its partitions that are not, `counts` what tasks told of those that are.

    Tasks return what they wrote, and whoever drives them puts it into `manifest.open.json` every few seconds, and once
    more when the work ends otherwise than well. A rerun keeps the parts that are named there, once tasks have compared
    their bytes: see `begin_runs`.
    """

    def __init__(self, path: Path, n_parts: int) -> None:
        self.path, self.n_parts = path, n_parts
        self._written = _read_open_manifest(path / OPEN_MANIFEST, n_parts)
        self._saved = time.monotonic()
        self._is_saved = True
        make_folder(path)
        sweep_temporary(path)

    @property
    def named(self) -> dict[int, tuple[Path, str]]:
        """Path and checksum of the parts that are written."""
        return {number: (self.path / part.facts.name, part.facts.checksum) for number, part in self._written.items()}

    @property
    def todo(self) -> list[int]:
        """The partitions that are still to be written."""
        return [partition for partition in range(self.n_parts) if partition not in self._written]

    @property
    def parts(self) -> list[PartFacts]:
        """What the manifest keeps of the parts, which are all written."""
        return [self._written[partition].facts for partition in range(self.n_parts)]

    @property
    def counts(self) -> list[Any]:
        """What tasks told of the parts beside the facts, in order."""
        return [self._written[partition].counts for partition in range(self.n_parts)]

    def keep(self, partitions: Container[int]) -> None:
        """Keep those of the parts that an attempt before has written, and remove whatever else is there of others."""
        self._written = {number: part for number, part in self._written.items() if number in partitions}
        # Listed once: asking for each of them takes a day of many partitions longer than making them.
        names = {found.name for found in list_paths(self.path)}
        for name in names & {name for partition in self.todo for name in part_names(partition)}:
            remove(self.path / name)

    def add(self, partition: int, part: WrittenPart) -> None:
        """Take in what a task wrote."""
        self._written[partition], self._is_saved = part, False
        if time.monotonic() > self._saved + SECONDS_BETWEEN_SAVES:
            self._save()

    def _save(self) -> None:
        parts = {str(n): [part.facts.to_json(), part.counts] for n, part in sorted(self._written.items())}
        content = {"format": FORMAT, "parts": parts}
        # What a power cut leaves of it, and of the parts, does not have the checksum.
        write_json(self.path / OPEN_MANIFEST, {**content, "checksum": checksum_of(content)}, durable=False)
        self._saved, self._is_saved = time.monotonic(), True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: object, *_: object) -> None:
        if error is not None and not self._is_saved and not is_finished(self.path):
            with contextlib.suppress(OSError):  # of a disk that is full: the error that led here says so
                self._save()


def _read_open_manifest(path: Path, n_parts: int) -> dict[int, WrittenPart]:
    """Return what an attempt before has written, nothing when that cannot be read."""
    try:
        content = read_json(path)
        if content.pop("checksum") != checksum_of(content) or content["format"] != FORMAT:
            return {}
        parts = {int(n): WrittenPart(PartFacts(**facts), counts) for n, (facts, counts) in content["parts"].items()}
    except (FileNotFoundError, DamagedStore, LookupError, TypeError, ValueError, AttributeError):
        return {}
    return {number: part for number, part in parts.items() if number < n_parts}


def finish_run(
    path: Path,
    kind: str,
    digest: str,
    parts: Sequence[PartFacts],
    *,
    config: Mapping[str, Any],
    inputs: Sequence[Any] | Mapping[str, Any],
    counts: Mapping[str, Any] | None = None,
    files: Mapping[str, list[int]] | None = None,
) -> Run:
    """Sweep what a killed worker left, make all parts durable, and write the manifest, which makes the run whole.

    Parameters
    ----------
    parts
        What the tasks that wrote the parts returned.
    config
        The settings that the content depends on.
    inputs
        What was read, with digests.
    counts
        Anything a report may quote: counts of events, reasons of quarantine; `facts` in the manifest.
    files
        Files of the run beside its parts, with size and checksum.
    """
    make_folder(path)
    sweep_tree(path)
    remove(path / OPEN_MANIFEST)
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
    sync_folder(path.parent)
    return open_run(path, kind)


def rewrite_manifest(run: Run, folder: Path, parts: Mapping[int, PartFacts], files: Mapping[str, list[int]]) -> None:
    """Make a changed copy of a run whole: its manifest with what is known of the `parts` and `files` that changed.

    All others keep their checksums: what was damaged before the copy is still found in it.
    """
    facts = [parts[i].to_json() if i in parts else part for i, part in enumerate(run.manifest["parts"])]
    sync_tree(folder)
    write_manifest(folder, {**run.manifest, "parts": facts, "files": {**run.files, **files}})


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
    total = sum(check_part(path / part.name, part.checksum) for part in run.parts)
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
    return found - known


@retried
def remove_run(path: Path) -> None:
    """Remove a run: first its manifest, so that no reader ever sees half of it as whole."""
    remove(path / MANIFEST)
    remove(path)
