"""The jobs that a person or a scheduler starts."""

# A task or plugin pickled under another name could not be imported on a worker of another host.
if __name__ != "ammrank_dask.workflows":
    raise ImportError(f"this package is ammrank_dask.workflows, not {__name__}")
