"""What a plan makes of four measured nights: by hand."""

import pytest

from ammrank_dask.sizing import SECONDS_PER_TASK, Calibration, NightFit, SizeFit, Workload

NOTHING = SizeFit(0.0, 0.0, 0.0)


def calibration_of(seconds, *, tasks=NOTHING, n_bytes=NOTHING, files=NOTHING, workers=2):
    night = NightFit(seconds, n_bytes, files, tasks)
    further = NightFit({name: fit for name, fit in seconds.items() if name != "train"}, n_bytes, files, tasks)
    return Calibration(workers, 8, Workload(3_000, 8, 50, 60, 1.5), night, further)


def load_of(users=100_000, partitions=10, categories=50, days=60, events=1.5):
    return Workload(users, partitions, categories, days, events)


def test_size_fit__what_falls_with_size_does_not_count():
    fit = SizeFit.of([10.0, 9.0, 8.0, 7.0])
    assert fit == SizeFit(7.0, 0.0, 0.0)


def test_size_fit__first_users_cost_more_where_a_sample_grows_with_them():
    # 1 ms a user up to 60,000 users, then a tenth of it; nothing else.
    fit = SizeFit.of([3.0, 3.0, 60.0, 78.0])
    found = (fit.fixed, fit.per_partition, fit.per_user, fit.per_first_user)
    assert found == pytest.approx((0.0, 0.0, 1e-4, 9e-4), abs=1e-9)
    assert fit.at(1_000_000, 8) == pytest.approx(154.0)


def test_size_fit__what_grows_with_many_users_only_is_planned_by_those():
    # The same for 3,000 and 60,000 users, as where tasks are put together, then 0.01 ms a user.
    fit = SizeFit.of([2.0, 2.0, 2.0, 3.8])
    assert fit.at(480_000, 8) == pytest.approx(6.2)
    assert fit.at(240_000, 8) == pytest.approx(3.8)
    steep = SizeFit.of([2.0, 2.0, 2.0, 24.0])  # a line through the last two would begin below 0
    assert steep == SizeFit(0.0, 0.0, 1e-4)


def test_seconds__what_grows_is_shared_and_the_rest_is_not():
    calibration = calibration_of({"features": SizeFit(3.0, 0.5, 1e-4)})
    # 10 partitions · 0.5 s and 100,000 users · 0.1 ms are 15 s on the two workers that were measured.
    assert calibration.seconds(calibration.first, load_of(), 2) == pytest.approx(3.0 + 15.0)
    assert calibration.seconds(calibration.first, load_of(), 6) == pytest.approx(3.0 + 5.0)
    # No stage is wider than the partitions.
    assert calibration.seconds(calibration.first, load_of(), 1_000) == pytest.approx(3.0 + 3.0)


def test_seconds__fresh_workers_load_their_kernels_first():
    night = NightFit({"features": SizeFit(3.0, 0.0, 0.0)}, NOTHING, NOTHING, NOTHING, start=2.5)
    calibration = Calibration(2, 8, load_of(), night, night)
    assert calibration.seconds(night, load_of(), 6) == 5.5


def test_seconds__training_is_no_wider_than_its_shards_and_grows_with_categories():
    calibration = calibration_of({"train": SizeFit(0.0, 0.0, 1e-3)})
    load = load_of(partitions=100, categories=100)
    assert calibration.seconds(calibration.first, load, 50) == pytest.approx(100_000 * 1e-3 * 2 * 2 / 8)
    assert calibration.seconds(calibration.further, load, 50) == 0.0


def test_seconds__only_a_first_night_reads_the_history():
    calibration = calibration_of({"ingest": SizeFit(1.0, 0.0, 1e-4)})
    load = load_of(days=120)
    assert calibration.seconds(calibration.first, load, 2) == pytest.approx(1.0 + 20.0)
    assert calibration.seconds(calibration.further, load, 2) == pytest.approx(1.0 + 10.0)


def test_seconds__are_never_below_what_the_scheduler_needs():
    calibration = calibration_of({"score": SizeFit(0.0, 0.0, 1e-6)}, tasks=SizeFit(0.0, 1_000.0, 0.0))
    assert calibration.tasks(calibration.first, load_of()) == 10_000
    assert calibration.seconds(calibration.first, load_of(), 10) == pytest.approx(10_000 * SECONDS_PER_TASK)


def test_workers_for__is_the_fewest_and_none_where_no_number_does():
    calibration = calibration_of({"features": SizeFit(3.0, 0.0, 1e-4)})
    assert calibration.workers_for(calibration.further, load_of(), 13.0) == 2
    assert calibration.workers_for(calibration.further, load_of(), 12.9) == 3
    assert calibration.workers_for(calibration.further, load_of(), 5.0) == 10
    assert calibration.workers_for(calibration.further, load_of(), 4.9) is None


def test_disk_and_files__grow_with_users_and_with_categories():
    calibration = calibration_of({}, n_bytes=SizeFit(100.0, 10.0, 2.0), files=SizeFit(7.0, 60.0, 0.0))
    assert calibration.disk(calibration.first, load_of()) == 100 + 100 + 200_000
    assert calibration.disk(calibration.first, load_of(events=3.0)) == 100 + 100 + 400_000
    assert calibration.files(calibration.first, load_of()) == 607
    assert calibration.files(calibration.first, load_of(categories=100)) == 1_207


def test_most_useful_workers__end_where_the_scheduler_sets_the_pace():
    seconds, tasks = {"features": SizeFit(0.0, 0.0, 1e-4)}, SizeFit(0.0, 100.0, 0.0)
    calibration = calibration_of(seconds, tasks=tasks)
    # 20 s of one worker, 1,000 tasks of 2.5 ms: 8 workers.
    assert calibration.most_useful_workers(calibration.first, load_of()) == 8
    assert calibration.most_useful_workers(calibration.first, load_of(users=10_000_000)) == 10


def test_seconds__chances_look_at_no_more_users_than_are_enough():
    calibration = calibration_of({"chances": SizeFit(0.0, 0.0, 1e-4)})
    # 4 million cells of a tenth of the users and 50 categories are 800,000 users.
    assert calibration.seconds(calibration.first, load_of(users=400_000), 2) == pytest.approx(40.0)
    assert calibration.seconds(calibration.first, load_of(users=8_000_000), 2) == pytest.approx(80.0)
