"""The exponential of the kernels against that of numpy."""

import numpy as np
import pytest

from ammrank_dask.kernels.exponential import exp_below


def test_exp_below__equals_numpy():
    values = np.concatenate([np.linspace(-80, 80, 4001), [0.0, 1e-30, -1e-30, 0.5 * np.log(2), -0.5 * np.log(2)]])
    computed = [exp_below(np.float32(value)) for value in values]
    np.testing.assert_allclose(computed, np.exp(values.astype(np.float32).astype(float)), rtol=3e-7)


def test_exp_below__one_at_zero():
    assert exp_below(np.float32(0)) == 1


@pytest.mark.parametrize("exponent", [-80.5, -1e30, -np.inf])
def test_exp_below__lowest_exponent(exponent):
    assert exp_below(np.float32(exponent)) == pytest.approx(np.exp(-80), rel=1e-6)
