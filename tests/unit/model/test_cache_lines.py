"""Arrays that begin at a cache line."""

import numpy as np
import pytest

from ammrank_dask.model.plane_panels import (
    arrange_planes,
    at_line,
    cut_into_panels,
    panel_arrays,
    panels_from,
    zeros_at_line,
)
from ammrank_dask.model.plane_sums import PlaneSums


@pytest.mark.parametrize("shape", [(1,), (17,), (3, 5), (7, 48), (2, 100, 304)])
def test_zeros_at_line__begins_at_one(shape):
    arrays = [zeros_at_line(shape) for _ in range(5)]  # kept, so that each has memory of its own
    arrays += [zeros_at_line(shape, np.int16) for _ in range(5)]
    for number, array in enumerate(arrays):
        assert (array.ctypes.data % 64, array.shape, array.dtype) == (0, shape, np.float32 if number < 5 else np.int16)
        assert array.flags.c_contiguous
        np.testing.assert_array_equal(array, 0)
        array[...] = 1.0  # and may be written to


def test_at_line__moves_what_begins_elsewhere():
    array = np.arange(200, dtype=np.float32)
    for first in range(0, 16, 4):
        moved = at_line(array[first : first + 160].reshape(10, 16))
        assert moved.ctypes.data % 64 == 0
        np.testing.assert_array_equal(moved.ravel(), array[first : first + 160])
    turned = at_line(moved.T)
    assert turned.flags.c_contiguous
    np.testing.assert_array_equal(turned, moved.T)
    assert at_line(moved) is moved


def test_panels_from__begin_at_lines_wherever_they_were_read_to():
    rng = np.random.default_rng(0)
    panels = arrange_planes(rng.normal(size=(9, 70)).astype(np.float32), np.arange(70), np.arange(70), 1.0)
    arrays, values = panel_arrays(panels)
    room = np.zeros(panels.weights.size + 4, np.float32)
    arrays["weights"] = room[4:].reshape(panels.weights.shape)
    arrays["weights"][:] = panels.weights
    restored = panels_from(arrays, values)
    assert restored.weights.ctypes.data % 64 == 0
    np.testing.assert_array_equal(restored.weights, panels.weights)


def test_zeros_at_line__weights_and_sums_have_their_rows_at_lines():
    weights = np.random.default_rng(0).normal(size=(9, 700)).astype(np.float32)
    panels = cut_into_panels(weights)
    planes = PlaneSums.empty(8, 3)
    planes.reserve(37)
    for array in (panels, planes.sums):
        assert array.ctypes.data % 64 == 0
        assert all(step % 64 == 0 for step in array.strides[:-1])
    np.testing.assert_array_equal(panels.transpose(1, 0, 2).reshape(9, -1)[:, :700], weights)
