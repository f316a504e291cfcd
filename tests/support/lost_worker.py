"""A cluster that loses a worker process while it trains."""

import contextlib
import os
import signal

from distributed import Client, LocalCluster


@contextlib.contextmanager
def lose_a_worker(stage, done):
    """Yield a client, a progress callback that kills a worker after `done` tasks of a stage, and whom it killed."""
    killed = []
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):

        def progress(now, n_done, total):
            if now == stage and n_done == done and not killed:
                victim = next(iter(cluster.workers.values()))
                killed.append(victim.pid)
                os.kill(victim.pid, signal.SIGKILL)

        yield client, progress, killed
