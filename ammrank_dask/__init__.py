"""AMM-rank on Dask: the method, its numba kernels, and for every stage a block function and its driver."""
