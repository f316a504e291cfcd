"""Hosts of their own, by network namespaces on a switch."""

import contextlib
import subprocess
import sys

ADDRESSES = {"client": "10.77.3.1", "scheduler": "10.77.3.2", "one": "10.77.3.3", "two": "10.77.3.4"}
HOSTS = ("scheduler", "one", "two")


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
