"""Replace files of a finished run one by one: whoever reads it sees each old or new, and the run is whole at the end.

The new files are written beside the old ones under temporary names. Then a list of them is written, which decides:
what is on it is finished, by whoever holds the site next, and what is not is swept.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from ammrank_dask.storage.objects.atomic import read_json, sync_file, sync_folder, write_text
from ammrank_dask.storage.store.runs import MANIFEST, Run, write_manifest

REPLACING = ".replacing.json"

NewFiles = Mapping[str, tuple[str, list[int]]]
"""By the name of a file below the run that of the new one, and the size and checksum of that."""


def replace_files(run: Run, new: NewFiles) -> None:
    """Give new files the names of old ones, and the manifest their sizes and checksums."""
    for name, _ in new.values():
        sync_file(run.path / name)
    listed = {name: [beside, entry] for name, (beside, entry) in new.items()}
    write_text(run.path / REPLACING, json.dumps(listed))  # not laid out: it is gone in a moment
    finish_replacing(run.path)


def finish_replacing(path: Path) -> None:
    """Finish what `replace_files` began, if it did not come to its end."""
    journal = path / REPLACING
    if not journal.is_file():
        return
    listed: dict[str, tuple[str, list[int]]] = read_json(journal)
    folders = set()
    for name, (beside, _) in listed.items():
        if (path / beside).is_file():
            os.replace(path / beside, path / name)
        folders.add((path / name).parent)
    for folder in sorted(folders):
        sync_folder(folder)
    manifest = read_json(path / MANIFEST)
    manifest["files"] |= {name: entry for name, (_, entry) in listed.items()}
    write_manifest(path, manifest)
    journal.unlink()
    sync_folder(path)
