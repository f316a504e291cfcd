"""Damage parts of a run as a disk would."""

from pathlib import Path

from ammrank_dask.storage.store.parts import part_names


def part_path(run, partition):
    """Return where a part of a run is: its file, or its folder."""
    table, group = (run / name for name in part_names(partition))
    return group if group.is_dir() else table


def flip_entry(part, name=None):
    """Flip a bit in the middle of a part that is a file, or of a file of one that is a folder; return its path.

    A second call puts it right.
    """
    path = Path(part) / name if Path(part).is_dir() else Path(part)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(bytes(data))
    return path


def cut(path):
    """Take the last bytes of a file away."""
    path.write_bytes(path.read_bytes()[:-9])
