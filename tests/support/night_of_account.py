"""Run `ammrank` commands as another account; run as a program by root.

A night of root's on another site comes first: it imports all there is to import and compiles the kernels. The account
may not be allowed to read where Python lies.
"""

import os
import sys

from ammrank_dask.workflows.cli import ammrank


def main(uid, gid, cluster, date, warm_site, site):
    """Run a night as root on one site, then as an account with one group on another, and look at what it left."""
    run_night(warm_site, date, cluster)
    os.setgroups([])
    os.setgid(int(gid))
    os.setuid(int(uid))
    os.umask(0o022)
    run_night(site, date, cluster)


def run_night(site, date, cluster):
    """Run a night; leave with the exit code of one that fails."""
    arguments = ["nightly", site, "--date", date, "--cluster", cluster, "--quiet"]
    try:
        ammrank.main(arguments, prog_name="ammrank")
    except SystemExit as end:
        if end.code:
            raise


if __name__ == "__main__":
    main(*sys.argv[1:])
