"""Keep fitted models: one part of the kind `model`, alone in a folder or the one part of a run.

Models that version 0.1.0 wrote, as a group of zarr-python with checksums of its own, are still read.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import google_crc32c
import numpy as np

from ammrank_dask.storage.errors import BadInput, DamagedStore
from ammrank_dask.storage.store.atomic import swap_folder, temporary_beside
from ammrank_dask.storage.store.codec import METADATA
from ammrank_dask.storage.store.folders import list_paths, make_folder
from ammrank_dask.storage.store.parts import (
    PartRef,
    check_files,
    checksum_of,
    is_written,
    read_attributes,
    write_part,
)
from ammrank_dask.storage.store.registry import FORMAT, MODEL
from ammrank_dask.storage.store.retried import retried
from ammrank_dask.storage.store.runs import is_finished, open_run

_EARLIER_NAME = "model.zarr"
_ABOUT = ("format", "arrays")


def save_model(path: str | Path, arrays: Mapping[str, np.ndarray], attributes: Mapping[str, Any]) -> None:
    """Write a model as a folder with one part; an earlier model at `path` is replaced.

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
    path = Path(path)
    if list_paths(path) and not is_model(path):
        raise BadInput(f"{path} must be free or hold a model, found other files there; choose another folder")
    temporary = temporary_beside(path)
    try:
        make_folder(temporary)
        # Through JSON and back, so that what cannot be kept fails here and not at the next load.
        kept = json.loads(json.dumps(dict(attributes), allow_nan=False))
        write_part(temporary, 0, MODEL, arrays, {"format": FORMAT, "arrays": sorted(arrays), **kept})
        swap_folder(temporary, path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def read_model(path: str | Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read the arrays and attributes of a model. Every byte is checked, in a run also against its manifest."""
    path = Path(path)
    if not is_model(path):
        raise BadInput(f"there must be a model at {path}, found none; train one with `ammrank train`")
    if not is_written(path, 0):
        return _load_earlier(path)
    expected = open_run(path, MODEL.kind).checksums[0] if is_finished(path) else None
    attributes = read_attributes(path, 0, MODEL, expected=expected)
    _check_format(path, attributes["format"])
    arrays = PartRef(path, 0, expected).read(MODEL)
    # An optional array that the list of the part has lost would not be missed otherwise.
    if sorted(arrays) != attributes["arrays"]:
        names = [", ".join(names) for names in (attributes["arrays"], sorted(arrays))]
        raise DamagedStore(f"model at {path} must hold the arrays {names[0]}, found {names[1]}; {MODEL.remedy}")
    return arrays, {name: value for name, value in attributes.items() if name not in _ABOUT}


@retried
def is_model(path: Path) -> bool:
    """Tell whether a model was saved to a folder, by this version or an earlier one."""
    return is_written(path, 0) or any((path / name / METADATA).is_file() for name in (_EARLIER_NAME, "."))


def _check_format(path: Path, stored: Any) -> None:
    if stored != FORMAT:
        raise BadInput(f"model at {path} has format {stored}, this version reads {FORMAT}; {MODEL.remedy}")


def _load_earlier(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read a model of version 0.1.0: a zarr group, alone or as `model.zarr` in a run that lists its files."""
    # Here, because only these models need it, and whoever serves a model waits for its import.
    import zarr

    folder = path
    if (path / _EARLIER_NAME).is_dir():
        folder = path / _EARLIER_NAME
        if is_finished(path):
            check_files(path, open_run(path, MODEL.kind).files)
    try:
        group = zarr.open_group(folder, mode="r", zarr_format=3)
        _check_format(path, group.attrs.get("format"))
        kept = {name: cast(dict[str, Any], group.attrs[name]) for name in ("checksums", "model")}
        arrays = {name: np.asarray(cast(zarr.Array, group[name])[...]) for name in kept["checksums"]}
        is_same = checksum_of(kept) == group.attrs["checksum"] and all(
            google_crc32c.value(array.tobytes()) == kept["checksums"][name] for name, array in arrays.items()
        )
    except BadInput:
        raise
    except Exception as error:  # of zarr, its codecs and JSON: whatever damaged bytes make of them
        raise DamagedStore(f"model at {path} cannot be read ({type(error).__name__}); {MODEL.remedy}") from error
    if not is_same:
        raise DamagedStore(f"model at {path} is not what was written (checksum differs); {MODEL.remedy}")
    attributes = {**kept["model"], "model": kept["model"].get("method")}
    return arrays, attributes
