"""Keep arrays that only a running job needs: plain `.npy` files in a folder, whole as soon as it has its name.

Unlike the runs of a site they are mapped into memory, not decoded, and go when the job is done.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from storage.files import read_json, rename_folder, temporary_beside, write_json

FACTS = "facts.json"


def save_arrays(folder: Path, arrays: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> None:
    """Write arrays and facts under a temporary name and rename the folder."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_beside(folder)
    temporary.mkdir()
    try:
        for name, array in arrays.items():
            np.save(temporary / f"{name}.npy", array, allow_pickle=False)
        write_json(temporary / FACTS, dict(facts), durable=False)
        rename_folder(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def is_saved(folder: Path) -> bool:
    """Tell whether a folder was written whole."""
    return (folder / FACTS).is_file()


def load_facts(folder: Path) -> dict[str, Any]:
    """Return the facts of a folder."""
    facts: dict[str, Any] = read_json(folder / FACTS)
    return facts


def load_array(folder: Path, name: str, *, mapped: bool = False) -> np.ndarray:
    """Return one array: a copy of its own, or mapped and read only."""
    array: np.ndarray = np.load(folder / f"{name}.npy", mmap_mode="r" if mapped else None, allow_pickle=False)
    return array
