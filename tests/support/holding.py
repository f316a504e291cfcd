"""Hold a site in a process of its own that a test may stop or kill; ends with 75 where another run has the site.

Run as a program with the URL or folder and a day: it prints `held`, publishes the day after each line that it reads,
printing `published`, and gives the site free at the end of its input.
"""

import datetime as dt
import os
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from ammrank_dask.storage.errors import SiteBusy
from ammrank_dask.storage.objects.posix import open_objects
from ammrank_dask.storage.site.lease import hold
from ammrank_dask.storage.site.root import Root, move_root, read_root


@contextmanager
def holder(where, day, seconds=None):
    """Yield a process that holds a site; it is killed at the end."""
    more = {} if seconds is None else {"AMMRANK_LEASE_SECONDS": str(seconds)}
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, __file__, where, str(day)]
    environment = {**os.environ, **more, "PYTHONPATH": path}
    pipes = {name: subprocess.PIPE for name in ("stdin", "stdout", "stderr")}
    with subprocess.Popen(command, env=environment, text=True, bufsize=1, **pipes) as process:
        try:
            assert process.stdout.readline() == "held\n", process.stderr.read()
            yield process
        finally:
            process.kill()


def main(where, day):
    """Hold a site and publish in it."""
    objects = open_objects(where)
    try:
        with hold(objects):
            print("held", flush=True)
            for _ in sys.stdin:
                root, tag = read_root(objects)
                move_root(objects, replace(root or Root(), date=dt.date(2026, 1, int(day))), tag)
                print("published", flush=True)
    except SiteBusy as error:
        print(error, file=sys.stderr)
        raise SystemExit(75) from None


if __name__ == "__main__":
    main(*sys.argv[1:])
