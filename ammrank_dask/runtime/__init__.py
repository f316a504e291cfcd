"""Everything that knows how Dask schedules, and how much memory a worker has."""
