"""Watch the stages of a run: how many tasks each has, in the order in which they begin, and stop before one of them."""

from ammrank_dask.runtime import tasks


def watch_stages(monkeypatch, fail_at=None, error=None):
    """Return by stage the numbers of tasks of its runs, which are added while tests go on; `error` ends `fail_at`."""
    real, counts = tasks._Flight.run, {}

    def run(flight, *arguments, **options):
        counts.setdefault(flight.stage, []).append(len(flight.tasks))
        if flight.stage == fail_at:
            raise error
        return real(flight, *arguments, **options)

    monkeypatch.setattr(tasks._Flight, "run", run)
    return counts
