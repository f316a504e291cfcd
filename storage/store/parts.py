"""Write and read one partition of a run: a zarr group and the list of its files with their checksums.

Every byte is checked against its checksum before it is decoded. A missing chunk, which zarr would silently read as
zeros, is a missing file here.
"""

import json
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import google_crc32c
import numpy as np

from ammrank_dask.storage.errors import BadInput, DamagedStore
from ammrank_dask.storage.store.atomic import read_json, rename_folder, temporary_beside, write_json
from ammrank_dask.storage.store.codec import METADATA, decode_array, encode_array, encode_group
from ammrank_dask.storage.store.registry import REBUILD, PartSchema

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
class PartRef:
    """A partition of a run, with its checksum in the manifest, if there is one: small enough to travel with a task."""

    run: Path
    partition: int
    checksum: str | None = None

    def read(self, schema: PartSchema, only: Iterable[str] | None = None) -> dict[str, np.ndarray]:
        """Read the arrays, all or only some, after checking every byte that is needed."""
        final = part_path(self.run, self.partition)
        sidecar = _read_sidecar(final, self.checksum, schema.remedy)
        stored = {name.removesuffix(f"/{METADATA}") for name in sidecar["files"]}
        wanted = {spec.name for spec in schema.arrays} & stored
        if only is not None:
            wanted &= set(only)
        read = CheckedReader(final, sidecar["files"], schema.remedy)
        try:
            arrays = {name: decode_array(read, name) for name in sorted(wanted)}
        except (ValueError, KeyError, TypeError, RuntimeError) as error:
            if isinstance(error, DamagedStore):
                raise
            raise DamagedStore(f"{final} cannot be decoded: {error}; {schema.remedy}") from None
        if only is None:
            schema.validate(arrays, str(final))
        return arrays

    def attributes(self, schema: PartSchema, group: str = "") -> dict[str, Any]:
        """Read the attributes of the part or of a group inside it, checked."""
        return read_attributes(self.run, self.partition, schema, group, self.checksum)


def part_path(run: Path, partition: int) -> Path:
    """Return the folder of a partition of a run."""
    return run / f"part-{partition:05d}.zarr"


def is_written(run: Path, partition: int) -> bool:
    """Tell whether a partition was written whole."""
    return part_path(run, partition).is_dir()


def write_part(
    run: Path,
    partition: int,
    schema: PartSchema,
    arrays: Mapping[str, np.ndarray],
    attributes: Mapping[str, Any] | None = None,
    group_attributes: Mapping[str, Mapping[str, Any]] | None = None,
) -> PartFacts:
    """Write a partition under a temporary name, list its files, and rename it: afterwards it is whole.

    Parameters
    ----------
    attributes
        Attributes of the part's root group.
    group_attributes
        Attributes of groups inside the part, by name.
    """
    final = part_path(run, partition)
    lengths = schema.validate(arrays, str(final))
    files = _encode_groups(arrays, attributes or {}, group_attributes or {})
    for name, array in arrays.items():
        files |= {f"{name}/{file}": data for file, data in encode_array(array, compressed=schema.compressed).items()}
    listing = {name: [len(data), google_crc32c.value(data)] for name, data in sorted(files.items())}
    sidecar = {
        "rows": lengths.get(schema.rows_dim, 0),
        "nnz": lengths.get(schema.nnz_dim, 0) if schema.nnz_dim else 0,
        "files": listing,
    }
    temporary = temporary_beside(final)
    try:
        # Making folders and files is most of the cost of a small part: each is made once, and asked for never.
        for folder in sorted({parent for name in files for parent in PurePosixPath(name).parents}):
            (temporary / folder).mkdir(parents=folder == _HERE)
        for name, data in files.items():
            with open(temporary / name, "xb") as file:
                file.write(data)
        # The list comes before the rename: a part that has its name has its list. The end of the run syncs all.
        write_json(final.with_suffix(".json"), sidecar, durable=False)
        rename_folder(temporary, final)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return _facts(final, sidecar)


def part_facts(run: Path, partition: int) -> PartFacts:
    """Read what the manifest keeps of a part that was written before."""
    final = part_path(run, partition)
    return _facts(final, _read_sidecar(final))


def read_attributes(
    run: Path, partition: int, schema: PartSchema, group: str = "", expected: str | None = None
) -> dict[str, Any]:
    """Read the attributes of a part, or of a group inside it, after checking them.

    `expected` is the checksum of the part in the manifest; it is not compared when None.
    """
    final = part_path(run, partition)
    listing = _read_sidecar(final, expected, schema.remedy)["files"]
    name = f"{group}/{METADATA}" if group else METADATA
    attributes: dict[str, Any] = json.loads(CheckedReader(final, listing, schema.remedy)(name))["attributes"]
    return attributes


class CheckedReader:
    """Reads files of a folder one at a time and compares each with the list of sizes and checksums.

    One at a time, so that a chunk is still in the cache of the core when it is decoded.
    """

    def __init__(self, folder: Path, listing: Mapping[str, list[int]], remedy: str = REBUILD) -> None:
        self.folder = folder
        self.listing = listing
        self.remedy = remedy

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


def checksum_file(path: Path) -> list[int]:
    """Return size and checksum of a file."""
    data = path.read_bytes()
    return [len(data), google_crc32c.value(data)]


def check_part(run: Path, partition: int, expected: str | None = None) -> int:
    """Check every byte of a part without decoding it; return the number of bytes read."""
    final = part_path(run, partition)
    sidecar = _read_sidecar(final, expected)
    found = {(Path(root) / name).relative_to(final).as_posix() for root, _, names in os.walk(final) for name in names}
    extra = sorted(found - set(sidecar["files"]))
    if extra:
        raise BadInput(f"{final / extra[0]} was not written by this package; remove it")
    return check_files(final, sidecar["files"])


def checksum_of(content: Mapping[str, Any]) -> str:
    """Return the checksum of a JSON document's content."""
    return f"{google_crc32c.value(json.dumps(content, sort_keys=True).encode()):08x}"


def _read_sidecar(final: Path, expected: str | None = None, remedy: str = REBUILD) -> dict[str, Any]:
    """Read the list of a part, and compare it with its checksum in the manifest, if that is given."""
    path = final.with_suffix(".json")
    if not path.is_file():
        raise DamagedStore(f"{path} is missing; {remedy}")
    try:
        sidecar = read_json(path)
    except DamagedStore:
        sidecar = None
    if not isinstance(sidecar, dict) or not {"rows", "nnz", "files"} <= set(sidecar):
        raise DamagedStore(f"{path} is not the JSON that was written; {remedy}")
    if expected is not None and checksum_of(sidecar) != expected:
        raise DamagedStore(f"{path} is not the list in the manifest; {remedy}")
    return sidecar


def _facts(final: Path, sidecar: Mapping[str, Any]) -> PartFacts:
    size = sum(entry[0] for entry in sidecar["files"].values())
    return PartFacts(final.name, sidecar["rows"], sidecar["nnz"], size, checksum_of(sidecar))


def _encode_groups(
    arrays: Iterable[str], attributes: Mapping[str, Any], group_attributes: Mapping[str, Mapping[str, Any]]
) -> dict[str, bytes]:
    files = {METADATA: encode_group(attributes)}
    groups = {name.rpartition("/")[0] for name in arrays} - {""}
    for name in sorted(groups):
        files[f"{name}/{METADATA}"] = encode_group(group_attributes.get(name, {}))
    return files
