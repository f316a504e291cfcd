"""Hold every compile option of the kernels in one place."""

from numba import njit

# Serial (parallelism is Dask's), without the GIL, cached on disk. `contract` alone allows fused multiply-add and
# keeps the order of operations, so that the same input gives the same bits; full fastmath would not.
kernel = njit(nogil=True, cache=True, error_model="numpy", fastmath={"contract"})
