"""The models and their measures, in memory; no Dask here."""
