"""Standard errors of the comparison: what resampling says against what statistics say."""

import numpy as np
import pytest

from ammrank_dask.evaluation.measures import measure_block
from ammrank_dask.model.metrics import disagreement_errors
from ammrank_dask.storage.store.ids import ids_from_values
from ammrank_dask.user_hash import hash_ids


def test_standard_error__is_that_of_a_mean_and_of_a_mean_of_differences():
    rng = np.random.default_rng(4)
    n = 2_000
    rankings = rng.permuted(np.tile(np.arange(6), (n, 1)), axis=1)[:, :3].astype(np.int32)
    tied, hashes = np.zeros(rankings.shape, bool), hash_ids(ids_from_values(np.arange(n)), 9)
    truth = np.zeros((n, 6))
    np.put_along_axis(truth, rankings.astype(np.int64), 1.0, axis=1)
    scores = [(truth + rng.normal(size=(n, 6)) * noise).astype(np.float32) for noise in (1.0, 2.0)]
    one, other = (measure_block(found, rankings, tied, hashes, {}) for found in scores)
    errors = [disagreement_errors(found, rankings) for found in scores]
    # 400 replicates know a standard error to within 3.5 %, one standard error of it.
    assert one.standard_error() == pytest.approx(errors[0].std() / np.sqrt(n), rel=0.12)
    assert one.standard_error(other) == pytest.approx((errors[0] - errors[1]).std() / np.sqrt(n), rel=0.12)
    assert one.standard_error(one) == 0
