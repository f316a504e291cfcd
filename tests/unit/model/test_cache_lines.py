"""Arrays that begin at a cache line."""

import numpy as np
import pytest

from ammrank_dask.model.cache_lines import zeros_at_line
from ammrank_dask.model.plane_panels import cut_into_panels
from ammrank_dask.model.plane_sums import PlaneSums


@pytest.mark.parametrize("shape", [(1,), (17,), (3, 5), (7, 48), (2, 100, 304)])
def test_zeros_at_line__begins_at_one(shape):
    arrays = [zeros_at_line(shape) for _ in range(5)]  # kept, so that each has memory of its own
    for array in arrays:
        assert (array.ctypes.data % 64, array.shape, array.dtype) == (0, shape, np.float32)
        assert array.flags.c_contiguous
        np.testing.assert_array_equal(array, 0)
        array[...] = 1.0  # and may be written to


def test_zeros_at_line__weights_and_sums_have_their_rows_at_lines():
    weights = np.random.default_rng(0).normal(size=(9, 700)).astype(np.float32)
    panels = cut_into_panels(weights)
    planes = PlaneSums.empty(8, 3)
    planes.reserve(37)
    for array in (panels, planes.sums):
        assert array.ctypes.data % 64 == 0
        assert all(step % 64 == 0 for step in array.strides[:-1])
    np.testing.assert_array_equal(panels.transpose(1, 0, 2).reshape(9, -1)[:, :700], weights)
