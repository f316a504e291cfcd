"""Write and read one partition of a run: a zarr group in one file, or a folder and the list of its files.

Every byte is checked against its checksum before it is decoded. A missing chunk, which zarr would silently read as
zeros, is a missing file here. Models are folders, for numpy reads those alone; earlier versions wrote all parts so.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Self

import google_crc32c
import numpy as np

from ammrank_dask.storage.errors import BadInput, DamagedStore
from ammrank_dask.storage.store.atomic import read_json, rename_folder, temporary_beside, write_json
from ammrank_dask.storage.store.codec import METADATA, StoredArray, decode_array, encode_array, encode_group
from ammrank_dask.storage.store.container import Container, write_container
from ammrank_dask.storage.store.large_files import expect_file
from ammrank_dask.storage.store.registry import REBUILD, PartSchema
from ammrank_dask.storage.store.retried import retried

FILE_SUFFIX = ".zarr.zip"
FOLDER_SUFFIX = ".zarr"
_LIST_SUFFIX = ".json"
_HERE = PurePosixPath(".")


@dataclass(frozen=True)
class PartFacts:
    """What the manifest keeps of a part."""

    name: str
    rows: int
    nnz: int
    bytes: int
    checksum: str

    def to_json(self) -> dict[str, Any]:
        """Return the entry of the manifest."""
        return {
            "name": self.name,
            "rows": self.rows,
            "nnz": self.nnz,
            "bytes": self.bytes,
            "checksum": self.checksum,
        }


@dataclass(frozen=True)
class Recoding:
    """The code that every category of a run has now, -1 for none, and how many categories and groups there are now."""

    codes: tuple[int, ...]
    n_categories: int
    n_groups: int


@dataclass(frozen=True)
class PartRef:
    """A partition of a run, with its checksum in the manifest, if there is one: small enough to travel with a task.

    With a `recoding`, who reads its cells has to give them the codes of now.
    """

    run: Path
    partition: int
    checksum: str | None = None
    recoding: Recoding | None = None

    @retried
    def read(self, schema: PartSchema, only: Iterable[str] | None = None) -> dict[str, np.ndarray]:
        """Read the arrays, all or only some, after checking every byte that is needed."""
        final = part_path(self.run, self.partition)
        with _open_part(final, self.checksum, schema.remedy) as part, _say_damage(final, schema.remedy):
            arrays = {name: decode_array(part, name) for name in _stored_arrays(part, schema, only)}
        if only is None:
            schema.validate(arrays, str(final))
        return arrays

    @retried
    def expect(self) -> None:
        """Begin to read the part, which will be asked for next."""
        expect_file(part_path(self.run, self.partition))

    @retried
    def open(self, schema: PartSchema) -> OpenPart:
        """Open the part for reading stretches of its arrays."""
        return OpenPart(part_path(self.run, self.partition), self.checksum, schema)

    def attributes(self, schema: PartSchema, group: str = "") -> dict[str, Any]:
        """Read the attributes of the part or of a group inside it, checked."""
        return read_attributes(self.run, self.partition, schema, group, self.checksum)


class OpenPart:
    """A part that is open: its arrays, of which all or some rows are read, after checking every byte of them."""

    def __init__(self, path: Path, checksum: str | None, schema: PartSchema) -> None:
        self._path, self._remedy = path, schema.remedy
        self._part = _open_part(path, checksum, schema.remedy)
        try:
            with _say_damage(path, schema.remedy):
                self._arrays = {name: StoredArray(self._part, name) for name in _stored_arrays(self._part, schema)}
            schema.validate(self._arrays, str(path))
        except BaseException as error:
            self._part.__exit__(type(error), error, None)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        self._part.__exit__(*error)

    def __contains__(self, name: str) -> bool:
        return name in self._arrays

    def expect(self, *names: str) -> None:
        """Begin to read the first rows of arrays, which will be asked for soon."""
        for name in names:
            self._arrays[name].expect()

    @retried
    def rows(self, name: str, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Return the rows of an array from `start` to `stop`, by default all; those of several calls ascending."""
        with _say_damage(self._path, self._remedy):
            return self._arrays[name].rows(start, stop)

    @retried
    def lend(self, name: str, start: int, stop: int) -> np.ndarray:
        """Return the rows of an array from `start` to `stop` until the next call, which asks for later ones."""
        with _say_damage(self._path, self._remedy):
            return self._arrays[name].lend(start, stop)


def _stored_arrays(part: Container | _FolderPart, schema: PartSchema, only: Iterable[str] | None = None) -> list[str]:
    """Return the names of the arrays of a part, all or only some."""
    wanted = {spec.name for spec in schema.arrays}
    if only is not None:
        wanted &= set(only)
    return sorted(wanted & {name.removesuffix(f"/{METADATA}") for name in part.entries})


@contextlib.contextmanager
def _say_damage(path: Path, remedy: str) -> Iterator[None]:
    """Say of a part that cannot be decoded what to do about it."""
    try:
        yield
    except (ValueError, KeyError, TypeError, RuntimeError) as error:
        if isinstance(error, DamagedStore):
            raise
        raise DamagedStore(f"{path} cannot be decoded: {error}; {remedy}") from None


def part_path(run: Path, partition: int) -> Path:
    """Return where a partition of a run is: its file, or its folder where it is one."""
    folder = run / f"part-{partition:05d}{FOLDER_SUFFIX}"
    return folder if folder.is_dir() else folder.with_name(f"part-{partition:05d}{FILE_SUFFIX}")


def part_names(partition: int) -> tuple[str, ...]:
    """Return all names that a partition can have in the folder of a run."""
    return tuple(f"part-{partition:05d}{suffix}" for suffix in (FILE_SUFFIX, FOLDER_SUFFIX, _LIST_SUFFIX))


@retried
def is_written(run: Path, partition: int) -> bool:
    """Tell whether a partition was written whole."""
    return part_path(run, partition).exists()


@retried
def write_part(
    run: Path,
    partition: int,
    schema: PartSchema,
    arrays: Mapping[str, np.ndarray],
    attributes: Mapping[str, Any] | None = None,
    group_attributes: Mapping[str, Mapping[str, Any]] | None = None,
) -> PartFacts:
    """Write a partition under a temporary name and rename it: afterwards it is whole.

    Parameters
    ----------
    attributes
        Attributes of the part's root group.
    group_attributes
        Attributes of groups inside the part, by name.
    """
    final = run / f"part-{partition:05d}{FOLDER_SUFFIX if schema.is_folder else FILE_SUFFIX}"
    lengths = schema.validate(arrays, str(final))
    files = _encode_groups(arrays, attributes or {}, group_attributes or {})
    for name, array in arrays.items():
        encoded = encode_array(array, compressed=schema.compressed, share_worth=schema.share_worth)
        files |= {f"{name}/{file}": data for file, data in encoded.items()}
    counts = {
        "rows": lengths.get(schema.rows_dim, 0),
        "nnz": lengths.get(schema.nnz_dim, 0) if schema.nnz_dim else 0,
    }
    if schema.is_folder:
        _write_folder(final, files, counts)
        return part_facts(run, partition)
    size, checksum = write_container(final, files, counts)
    return PartFacts(final.name, **counts, bytes=size, checksum=checksum)


def _write_folder(final: Path, files: Mapping[str, bytes], counts: Mapping[str, int]) -> None:
    """Write files into a folder under a temporary name, and then rename it."""
    listing = {name: [len(data), google_crc32c.value(data)] for name, data in sorted(files.items())}
    temporary = temporary_beside(final)
    try:
        # Making folders and files is most of the cost of a small part: each is made once, and asked for never.
        for folder in sorted({parent for name in files for parent in PurePosixPath(name).parents}):
            (temporary / folder).mkdir(parents=folder == _HERE)
        for name, data in files.items():
            with open(temporary / name, "xb") as file:
                file.write(data)
        # The list comes before the rename: a part that has its name has its list. The end of the run syncs all.
        write_json(final.with_suffix(_LIST_SUFFIX), {**counts, "files": listing}, durable=False)
        rename_folder(temporary, final)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@retried
def part_facts(run: Path, partition: int) -> PartFacts:
    """Read what the manifest keeps of a part that was written before."""
    final = part_path(run, partition)
    with _open_part(final, whole=False) as part:
        return PartFacts(final.name, part.about["rows"], part.about["nnz"], part.size, part.checksum)


@retried
def read_attributes(
    run: Path, partition: int, schema: PartSchema, group: str = "", expected: str | None = None
) -> dict[str, Any]:
    """Read the attributes of a part, or of a group inside it, after checking them.

    `expected` is the checksum of the part in the manifest; it is not compared when None.
    """
    with _open_part(part_path(run, partition), expected, schema.remedy, whole=False) as part:
        attributes: dict[str, Any] = json.loads(part(f"{group}/{METADATA}" if group else METADATA))["attributes"]
    return attributes


class CheckedReader:
    """Reads files of a folder one at a time and compares each with the list of sizes and checksums.

    One at a time, so that a chunk is still in the cache of the core when it is decoded.
    """

    def __init__(self, folder: Path, listing: Mapping[str, list[int]], remedy: str = REBUILD) -> None:
        self.folder = folder
        self.listing = listing
        self.remedy = remedy

    @retried
    def __call__(self, name: str) -> bytes:
        """Return the bytes of a file."""
        path = self.folder / name
        if name not in self.listing:
            raise DamagedStore(f"{path} is not in the list of its part; {self.remedy}")
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            raise DamagedStore(f"{path} is missing; {self.remedy}") from None
        if self.listing[name] != [len(data), google_crc32c.value(data)]:
            raise DamagedStore(f"{path} is not what was written (checksum differs); {self.remedy}")
        return data


def check_files(folder: Path, listing: Mapping[str, list[int]]) -> int:
    """Compare files with the list of their sizes and checksums; return the bytes read, name the first that differs."""
    read = CheckedReader(folder, listing)
    return sum(len(read(name)) for name in listing)


@retried
def checksum_file(path: Path) -> list[int]:
    """Return size and checksum of a file."""
    data = path.read_bytes()
    return [len(data), google_crc32c.value(data)]


@retried
def check_part(run: Path, partition: int, expected: str | None = None) -> int:
    """Check every byte of a part without decoding it; return the number of bytes read."""
    with _open_part(part_path(run, partition), expected) as part:
        return part.check()


def checksum_of(content: Mapping[str, Any]) -> str:
    """Return the checksum of a JSON document's content."""
    return f"{google_crc32c.value(json.dumps(content, sort_keys=True).encode()):08x}"


def _open_part(
    final: Path, expected: str | None = None, remedy: str = REBUILD, *, whole: bool = True
) -> Container | _FolderPart:
    """Open a part, and compare its checksum with that in the manifest, if it is given."""
    if final.suffix == FOLDER_SUFFIX:
        return _FolderPart(final, expected, remedy)
    return Container(final, expected, remedy, whole=whole)


class _FolderPart(CheckedReader):
    """A part that is a folder, with the calls of a container."""

    def __init__(self, path: Path, expected: str | None, remedy: str) -> None:
        listed = path.with_suffix(_LIST_SUFFIX)
        if not listed.is_file():
            raise DamagedStore(f"{listed} is missing; {remedy}")
        try:
            about = read_json(listed)
        except DamagedStore:
            about = None
        if not isinstance(about, dict) or not {"rows", "nnz", "files"} <= set(about):
            raise DamagedStore(f"{listed} is not the JSON that was written; {remedy}")
        super().__init__(path, about["files"], remedy)
        self.about: Mapping[str, Any] = about
        self.entries: Mapping[str, Any] = about["files"]
        self.size = sum(entry[0] for entry in self.entries.values())
        self.checksum = checksum_of(about)
        if expected is not None and self.checksum != expected:
            raise DamagedStore(f"{listed} is not the list in the manifest; {remedy}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing is open between two reads."""

    def check(self) -> int:
        """Check every file, and that there are no others; return the bytes read."""
        folder = self.folder
        found = {
            (Path(root) / name).relative_to(folder).as_posix() for root, _, names in os.walk(folder) for name in names
        }
        extra = sorted(found - set(self.entries))
        if extra:
            raise BadInput(f"{folder / extra[0]} was not written by this package; remove it")
        return check_files(folder, self.listing)


def _encode_groups(
    arrays: Iterable[str], attributes: Mapping[str, Any], group_attributes: Mapping[str, Mapping[str, Any]]
) -> dict[str, bytes]:
    files = {METADATA: encode_group(attributes)}
    groups = {name.rpartition("/")[0] for name in arrays} - {""}
    for name in sorted(groups):
        files[f"{name}/{METADATA}"] = encode_group(group_attributes.get(name, {}))
    return files
