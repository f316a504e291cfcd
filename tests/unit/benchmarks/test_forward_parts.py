"""`python -m benchmarks forward-parts` and `window-curve`: which windows they take, and their tables by hand."""

import datetime as dt

import numpy as np
import pytest

from ammrank_dask.features.store import open_features
from ammrank_dask.features.write import write_features
from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.site.site import Site
from ammrank_dask.training.forward import ForwardResult
from benchmarks.forward_parts import Variant, describe_all, describe_moment, kept_windows, try_variants

COLUMNS = [f"pv:{kind}:{name}" for kind in ("intensity", "recency") for name in "abc"]


def result_of(hits):
    """Return a result of 4 users in which the second source has 1 hit more of 4 users, with the error √(1/3)."""
    sums = {"default": np.array([8.0, 3.0, 2.0, 0.5]), "less": np.array([hits, 3.0, 2.0, 1.0])}
    return ForwardResult(10, 4, sums, {("default", "less"): np.array([8.0, 0.0, 0.0, 0.25])})


def test_kept_windows__two_are_needed(tmp_path):
    with pytest.raises(BadInput, match=r"must keep two closed windows or more to try anything, found 0"):
        kept_windows(Site(tmp_path), None)


def test_describe_moment__by_hand():
    lines = describe_moment(dt.date(2026, 1, 31), {"default": (900, 1.5), "less": (90, 0.5)}, result_of(12)).split("\n")
    assert lines[1] == "clicks of the window after 2026-01-31, 4 users; differences from: default"
    assert lines[3].split() == ["default", "900", "1.5", "2.000", "0.1250"]
    assert lines[4].split() == [
        "less",
        "90",
        "0.5",
        "3.000",
        "+1.0000",
        "±",
        "0.5774",
        "0.2500",
        "+0.1250",
        "±",
        "0.1250",
    ]


def test_describe_all__counts_at_how_many_moments_a_source_is_ahead():
    lines = describe_all([result_of(12), result_of(4)]).split("\n")
    assert lines[1].startswith("all 2 moments, differences from: default")
    assert lines[3].split()[:2] == ["less", "+0.0000"]
    assert lines[3].endswith("1 of 2")


def test_try_variants__learn_from_so_many_windows_before_the_newest(client, tmp_path):
    rng, windows = np.random.default_rng(7), []
    for number in range(3):
        rows = np.where(rng.random((60, 6)) < 0.6, rng.random((60, 6)), 0)
        path = tmp_path / str(number)
        write_features(path, rows, np.arange(60), COLUMNS, rng.integers(0, 3, (60, 1)), categories=list("abc"))
        windows.append((dt.date(2026, 3 - number, 1), open_features(path)))
    variants = {"one window": Variant(windows=1), "no clusterings": Variant({"n_clusterings": 0})}
    facts, result = try_variants(client, windows, variants)
    assert {name: rows for name, (rows, _) in facts.items()} == {
        "default": 120,
        "one window": 60,
        "no clusterings": 120,
    }
    assert list(result.sums) == ["default", "one window", "no clusterings", "own-history"]
    assert result.gain("default") == (0, 0)
