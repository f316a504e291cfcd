"""Damage parts of a run as a disk or a stranger's zip program would."""

import io
import warnings
import zipfile
from pathlib import Path


def flip_entry(part, name):
    """Flip a bit in the middle of a file of a part, which may be a folder; return how messages call the file.

    A second call puts it right.
    """
    path = Path(part)
    if path.is_dir():
        path, start, size = path / name, 0, (path / name).stat().st_size
    else:
        with zipfile.ZipFile(path) as opened:
            entry = opened.getinfo(name)
        start, size = entry.header_offset + 30 + len(name), entry.file_size
    data = bytearray(path.read_bytes())
    data[start + size // 2] ^= 4
    path.write_bytes(bytes(data))
    return Path(part) / name


def drop_entry(part, name):
    """Write a container again without one of its files, as `zip -d` does."""
    _rewrite(part, lambda entries: [entry for entry in entries if entry[0].filename != name])


def repeat_entry(part, name):
    """Write a container again with one of its files twice."""
    _rewrite(part, lambda entries: [*entries, *(entry for entry in entries if entry[0].filename == name)])


def cut(path):
    """Take the last bytes of a file away."""
    path.write_bytes(path.read_bytes()[:-9])


def _rewrite(part, change):
    target = io.BytesIO()
    with zipfile.ZipFile(part) as old, zipfile.ZipFile(target, "w") as new, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of names that are there twice
        for entry, data in change([(entry, old.read(entry)) for entry in old.infolist()]):
            new.writestr(entry, data)
        new.comment = old.comment
    Path(part).write_bytes(target.getvalue())
