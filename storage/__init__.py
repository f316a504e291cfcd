"""Data at rest: schemas, zarr and parquet layouts, manifests, checksums, atomic publish."""

# A task or plugin pickled under another name could not be imported on a worker of another host.
if __name__ != "ammrank_dask.storage":
    raise ImportError(f"this package is ammrank_dask.storage, not {__name__}")
