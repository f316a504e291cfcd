"""`python -m ammrank_dask`: the command line `ammrank`."""

import runpy

runpy.run_module("ammrank_dask.workflows.cli", run_name="__main__")
