"""Hosts of their own, by network namespaces on a switch, and an adaptive cluster whose workers run on two of them."""

import asyncio
import contextlib
import subprocess
import sys

from distributed import Scheduler, SpecCluster
from distributed.deploy.spec import ProcessInterface

ADDRESSES = {"client": "10.77.3.1", "scheduler": "10.77.3.2", "one": "10.77.3.3", "two": "10.77.3.4"}
HOSTS = ("scheduler", "one", "two")
SECONDS_TO_TELL = 4
"""Longer than `distributed.deploy.lost-worker-timeout` of whoever uses the cluster."""


def ip(*arguments):
    """Run a command of iproute2."""
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def on_host(host, module, *arguments):
    """Return the command line of a Python module on a host; `ip` makes way for it, so the process is Python's."""
    return ["ip", "netns", "exec", f"amm-{host}", sys.executable, "-m", module, *map(str, arguments)]


@contextlib.contextmanager
def switched_hosts():
    """Put three hosts on a switch; this process is a fourth."""
    _take_down()  # what a killed test left
    ip("link", "add", "amm-switch", "type", "bridge")
    ip("addr", "add", f"{ADDRESSES['client']}/24", "dev", "amm-switch")
    ip("link", "set", "amm-switch", "up")
    for host in HOSTS:
        ip("netns", "add", f"amm-{host}")
        ip("link", "add", f"amm-{host[:9]}", "type", "veth", "peer", "name", "eth0", "netns", f"amm-{host}")
        ip("link", "set", f"amm-{host[:9]}", "master", "amm-switch", "up")
        ip("-n", f"amm-{host}", "addr", "add", f"{ADDRESSES[host]}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            ip("-n", f"amm-{host}", "link", "set", device, "up")
    try:
        yield
    finally:
        _take_down()


def _take_down():
    for command in (*(("netns", "del", f"amm-{host}") for host in HOSTS), ("link", "del", "amm-switch")):
        with contextlib.suppress(subprocess.CalledProcessError):
            ip(*command)


class HostWorker(ProcessInterface):
    """A worker process on the host `one` or `two`, by its number."""

    def __init__(self, scheduler, name=None, security=None):
        super().__init__(scheduler=scheduler, name=name)
        self.scheduler, self.name, self.security = scheduler, name, security
        self.process = self.watch = None

    async def start(self):
        """Start the process; the cluster hears of it by the scheduler."""
        host = ("one", "two")[int(self.name) % 2]
        options = ["--host", ADDRESSES[host], "--name", self.name, "--nthreads", 1, "--no-nanny", "--no-dashboard"]
        files = self.security.get_tls_config_for_role("worker")
        tls = ["--tls-ca-file", files["ca_file"], "--tls-cert", files["cert"], "--tls-key", files["key"]]
        command = on_host(host, "distributed.cli.dask_worker", self.scheduler, *options, *tls, "--protocol", "tls")
        self.process = await asyncio.create_subprocess_exec(
            *command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self.watch = asyncio.create_task(self._tell_end())
        await super().start()

    async def _tell_end(self):
        """Let the cluster replace a process that was killed before it joined: of others the scheduler tells."""
        await self.process.wait()
        await asyncio.sleep(SECONDS_TO_TELL)
        cluster = self._cluster() if getattr(self, "_cluster", None) is not None else None
        if cluster is not None and cluster.workers.get(self.name) is self:
            del cluster.workers[self.name]
            await self.close()

    async def close(self):
        """End the process, if nobody else has."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
            await self.process.wait()
        await super().close()


class HostCluster(SpecCluster):
    """Workers on two hosts in turn, as many as asked for, with the scheduler in this process."""

    def __init__(self, security):
        options = {"host": ADDRESSES["client"], "port": 0, "protocol": "tls://", "security": security}
        options |= {"dashboard_address": "127.0.0.1:0"}
        super().__init__(
            scheduler={"cls": Scheduler, "options": options},
            worker={"cls": HostWorker, "options": {"security": security}},
            security=security,
        )
