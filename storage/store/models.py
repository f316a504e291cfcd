"""Keep fitted models: a folder with `model.json`, what is known of the model, and `arrays.npz`, what it learned.

numpy alone reads both. `model.json` has the size and the CRC-32C of the arrays, and a checksum of its own content: both
are compared before anything is decoded. What imports this to serve a model waits for it, so it loads little.
"""

import io
import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np

from ammrank_dask.storage.errors import BadInput, DamagedStore
from ammrank_dask.storage.objects.atomic import json_text, write_folder
from ammrank_dask.storage.objects.folders import is_file, list_paths, local_path, read_file
from ammrank_dask.storage.objects.retry import retried
from ammrank_dask.storage.store.registry import FORMAT, MODEL

ABOUT, ARRAYS = "model.json", "arrays.npz"
_FORMAT, _LISTED, _CHECKSUM = "format", "arrays", "checksum"
_DECODING = threading.Lock()
"""numpy reads the headers of arrays with `ast.literal_eval`, which fails now and then in two threads of Python 3.11.7
(https://github.com/python/cpython/issues/106905); may go when 3.11 does."""


def save_model(path: str | Path, arrays: Mapping[str, np.ndarray], attributes: Mapping[str, Any]) -> None:
    """Write a model as a folder of two files; an earlier model at `path` is replaced.

    The folder is written under a temporary name and renamed, so that `path` is never half a model.

    Parameters
    ----------
    path
        The folder of the model.
    arrays
        The arrays of the registry's `MODEL` by name.
    attributes
        What JSON can hold, without NaN; `model` names the kind of model.
    """
    path = local_path(path)
    if list_paths(path) and not is_model(path):
        raise BadInput(f"{path} must be free or hold a model, found other files there; choose another folder")
    MODEL.validate(arrays, str(path))
    # Sorted and in C order: the same values are the same bytes.
    in_order: dict[str, Any] = {name: np.ascontiguousarray(arrays[name]) for name in sorted(arrays)}
    file = io.BytesIO()
    np.savez(file, **in_order)
    data = file.getvalue()
    content = json_text({**attributes, _FORMAT: FORMAT, _LISTED: _size_and_checksum(data)})
    about = json_text({**json.loads(content), _CHECKSUM: google_crc32c.value(content.encode())})
    write_folder(path, {ARRAYS: data, ABOUT: about.encode()})


def read_model(path: str | Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read the arrays and attributes of a model, every byte of them checked."""
    path = local_path(path)
    if not is_model(path):
        raise BadInput(f"there must be a model at {path}, found none; train one with `ammrank train`", missing=path)
    attributes = _read_about(path / ABOUT)
    stored, listed = attributes.pop(_FORMAT), attributes.pop(_LISTED)
    if stored != FORMAT:
        raise BadInput(f"model at {path} has format {stored}, this version reads {FORMAT}; {MODEL.remedy}")
    data = _read_file(path / ARRAYS)
    if _size_and_checksum(data) != listed:
        raise _damage(path / ARRAYS)
    with _DECODING, np.lib.npyio.NpzFile(io.BytesIO(data)) as found:
        arrays = dict(found)
    MODEL.validate(arrays, str(path))
    return arrays, attributes


def is_model(path: Path) -> bool:
    """Return whether a model was saved to a folder."""
    return is_file(path / ABOUT)


def model_files(path: Path) -> dict[str, list[int]]:
    """Return size and checksum of the files of a model, as the manifest of a run lists them."""
    return {name: _size_and_checksum(_read_file(path / name)) for name in (ABOUT, ARRAYS)}


def _read_about(path: Path) -> dict[str, Any]:
    try:
        about: dict[str, Any] = json.loads(_read_file(path))
        checksum = about.pop(_CHECKSUM)
    except (ValueError, AttributeError, KeyError, TypeError):
        raise _damage(path) from None
    if google_crc32c.value(json_text(about).encode()) != checksum:
        raise _damage(path)
    return about


@retried
def _read_file(path: Path) -> bytes:
    try:
        return read_file(path)
    except FileNotFoundError:
        raise DamagedStore(f"{path} is missing; {MODEL.remedy}", missing=path) from None


def _size_and_checksum(data: bytes) -> list[int]:
    return [len(data), google_crc32c.value(data)]


def _damage(path: Path) -> DamagedStore:
    return DamagedStore(f"{path} is not what was written (checksum differs); {MODEL.remedy}")
