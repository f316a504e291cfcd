"""Keep fitted models: named arrays and JSON attributes in one zarr folder."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import google_crc32c
import numpy as np
import zarr

from ammrank_dask.storage.errors import BadInput, DamagedStore
from ammrank_dask.storage.store.atomic import swap_folder, temporary_beside
from ammrank_dask.storage.store.codec import METADATA
from ammrank_dask.storage.store.parts import checksum_of
from ammrank_dask.storage.store.registry import FORMAT

_CHUNK_BYTES = 8_000_000


def save_model(path: str | Path, arrays: Mapping[str, np.ndarray], attributes: Mapping[str, Any]) -> None:
    """Write a model as a zarr group; an earlier model at `path` is replaced.

    The folder is written under a temporary name and renamed, so that `path` is never half a model.

    Parameters
    ----------
    path
        The folder of the model.
    arrays
        Numeric arrays by name.
    attributes
        What JSON can hold, without NaN.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_beside(path)
    try:
        group = zarr.open_group(temporary, mode="w-", zarr_format=3)
        checksums = {}
        for name, array in arrays.items():
            array = np.ascontiguousarray(array)
            checksums[name] = _checksum(array)
            # An all-zero chunk that is not written could not be told from one that was lost.
            stored = group.create_array(
                name,
                shape=array.shape,
                dtype=array.dtype,
                chunks=_chunk_shape(array),
                config={"write_empty_chunks": True},
            )
            stored[...] = array
        # Through JSON and back, so that what cannot be kept fails here and not at the next load.
        attributes = json.loads(json.dumps(dict(attributes), allow_nan=False))
        kept = {"checksums": checksums, "model": attributes}
        group.attrs.update({"format": FORMAT, **kept, "checksum": checksum_of(kept)})
        swap_folder(temporary, path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def load_model(path: str | Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read the arrays and attributes of a model and check all of them against their checksums."""
    path = Path(path)
    if not (path / METADATA).is_file():
        raise BadInput(f"there must be a model at {path}, found none; train one with `ammrank train`")
    try:
        return _read(path)
    except BadInput:
        raise
    except Exception as error:  # of zarr, its codecs and JSON: whatever damaged bytes make of them
        raise DamagedStore(f"model at {path} cannot be read ({type(error).__name__}); train it again") from error


def _read(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    group = zarr.open_group(path, mode="r", zarr_format=3)
    found = group.attrs.get("format")
    if found != FORMAT:
        raise BadInput(
            f"model at {path} has format {found}, this version reads {FORMAT}; train it again with `ammrank train`"
        )
    kept = {name: cast(dict[str, Any], group.attrs[name]) for name in ("checksums", "model")}
    if checksum_of(kept) != group.attrs["checksum"]:
        raise DamagedStore(f"attributes of the model at {path} are not what was written; train it again")
    arrays: dict[str, np.ndarray] = {}
    for name, expected in kept["checksums"].items():
        stored = group.get(name)
        if not isinstance(stored, zarr.Array):
            raise DamagedStore(f"model at {path} must hold the array {name}, found none; train it again")
        arrays[name] = np.asarray(stored[...])
        if _checksum(arrays[name]) != expected:
            raise DamagedStore(f"array {name} of the model at {path} is not what was written; train it again")
    return arrays, kept["model"]


def _chunk_shape(array: np.ndarray) -> tuple[int, ...]:
    if array.ndim == 0:
        return ()
    row_bytes = max(1, array.nbytes // max(1, len(array)))
    n_rows = min(max(1, len(array)), max(1, _CHUNK_BYTES // row_bytes))
    return (n_rows, *(max(1, n) for n in array.shape[1:]))


def _checksum(array: np.ndarray) -> int:
    return int(google_crc32c.value(array.tobytes()))
