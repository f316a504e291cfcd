"""A cluster that is slow to close, for the class of a cluster file."""

from collections.abc import Callable

from distributed import LocalCluster


def _do_nothing() -> None:
    pass


class SlowToClose(LocalCluster):
    """A cluster that first does something else when it is closed."""

    before_closing: Callable[[], None] = staticmethod(_do_nothing)

    def close(self, timeout=None):
        type(self).before_closing()
        return super().close(timeout)
