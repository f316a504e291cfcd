"""`python -m benchmarks growth`: sizes, slopes and what is called a defect."""

import pytest

from ammrank_dask.storage.errors import BadInput
from benchmarks.growth import last_slopes, measure_growth, sizes_up_to, slope_of


def night(cpu, seconds, **stages):
    return {"cpu": cpu, "seconds": seconds, "peak": 1} | {f"stage {name}": value for name, value in stages.items()}


def test_sizes_up_to__begin_with_the_least_and_end_with_the_most():
    assert sizes_up_to(1_000_000, least=10_000) == [10_000, 30_000, 100_000, 300_000, 1_000_000]
    assert sizes_up_to(2_500, least=2_000) == [2_000, 2_500]
    assert sizes_up_to(4_000, least=1_000) == [1_000, 3_000, 4_000]
    assert sizes_up_to(10_000, least=10_000) == [10_000]


def test_slope_of__is_the_power_by_which_it_grows():
    assert slope_of({10: night(2, 1), 100: night(20, 1), 1_000: night(200, 1)}, "cpu") == pytest.approx(1)
    assert slope_of({10: night(3, 1), 100: night(300, 1)}, "cpu") == pytest.approx(2)


def test_last_slopes__by_cpu_and_by_the_clock_of_the_two_largest_sizes():
    found = {
        1_000: night(30.0, 20.0, fold=9.0),
        10_000: night(40.0, 25.0, fold=1.0, brief=0.1),
        100_000: night(400.0, 125.0, fold=20.0, brief=0.9, new=5.0),
    }
    largest, slopes = last_slopes(found)
    assert largest == 100_000
    assert slopes == pytest.approx({"cpu": 1.0, "seconds": 0.69897, "stage fold": 1.30103}, abs=1e-5)


def test_measure_growth__refuses_a_single_size(tmp_path):
    with pytest.raises(BadInput, match="users must be above 10,000, of the smallest night, got 10,000"):
        measure_growth(tmp_path, users=10_000)
