"""Damage parts of a run as a disk would."""

from pathlib import Path


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
