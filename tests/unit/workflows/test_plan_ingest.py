"""Planning of an ingest, with hand-made files and states: no cluster, no file."""

import datetime as dt
from dataclasses import replace
from pathlib import Path

import pytest
from lakes import TAXONOMY, lake_config

from ammrank_dask.ingest.fold import FoldPlan
from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.lake.files import FileFacts, day_digest
from ammrank_dask.storage.lake.taxonomy import build_taxonomy
from ammrank_dask.storage.objects.atomic import digest_of
from ammrank_dask.storage.store.runs import Run
from ammrank_dask.workflows.session.config import check_config
from ammrank_dask.workflows.session.settings import state_settings
from ammrank_dask.workflows.stages.history import (
    HistorySettings,
    digest_days,
    find_lost_days,
    fitting_states,
    plan_ingest,
)

FIRST = dt.date(2026, 3, 1)
STATE = {"alpha": 0.97, "partitions": 2}
REBUILD = "`ammrank ingest site --date 2026-03-08 --rebuild`"
SETTINGS = HistorySettings(STATE, label_days=3, bridges_missing_days=False, rebuild_command=REBUILD)
BRIDGING = HistorySettings(STATE, label_days=3, bridges_missing_days=True, rebuild_command=REBUILD)


def day(number):
    return FIRST + dt.timedelta(number)


def days(*numbers):
    return {day(number) for number in numbers}


def file_of(number, content="a"):
    return FileFacts(f"lake/{day(number)}/0.parquet", "0.parquet", 100, 0, f"{content}{number}", (10,), "int64")


def lake(*numbers, changed=()):
    return digest_days({day(n): (file_of(n, "b" if n in changed else "a"),) for n in numbers}, SETTINGS)


def digest_of_day(number, content="a"):
    return day_digest(digest_of(STATE), [file_of(number, content)])


def state(*numbers, changed=(), bridged=(), config=STATE):
    """Return a state of these days, as its manifest tells it."""
    inputs = [[str(day(n)), None if n in bridged else digest_of_day(n, "b" if n in changed else "a")] for n in numbers]
    manifest = {"config": {**config, "date": inputs[-1][0], "id_kind": "int64"}, "inputs": inputs, "parts": []}
    return Run(Path(f"state/{inputs[-1][0]}"), "state", f"{inputs}", 2, manifest)


def test_plan_ingest__from_scratch_reads_and_folds_every_day():
    plan = plan_ingest(lake(*range(8)), [], SETTINGS, day(7))
    assert plan.head.base is None
    assert plan.head.history == [(day(n), digest_of_day(n)) for n in range(8)]
    assert plan.lag.history == [(day(n), digest_of_day(n)) for n in range(5)]
    assert plan.days == days(*range(8))


def test_plan_ingest__from_scratch_makes_both_states_in_one_pass():
    plan = plan_ingest(lake(*range(8)), [], SETTINGS, day(7))
    runs = {day(n): None for n in range(8)}
    assert plan.fold_plans(runs, {day(7): Path("head"), day(4): Path("lag")}) == [
        FoldPlan(None, tuple((day(n), None) for n in range(8)), {day(4): Path("lag"), day(7): Path("head")})
    ]


WINDOWS = HistorySettings(STATE, label_days=3, bridges_missing_days=False, rebuild_command=REBUILD, n_windows=3)


def test_plan_ingest__from_scratch_makes_the_states_of_closed_windows_too():
    plan = plan_ingest(lake(*range(20)), [], WINDOWS, day(19))
    dates = [state.date for state in plan.windows]
    assert [date.toordinal() % 3 for date in dates] == [0, 0, 0]
    assert dates == [dates[0] - dt.timedelta(3 * number) for number in range(3)]
    assert dates[0] <= day(16) < dates[0] + dt.timedelta(3)
    paths = {state.date: Path(str(state.date)) for state in plan.states}
    (fold,) = plan.fold_plans(dict.fromkeys(plan.days), paths)
    assert fold.outputs == paths
    assert len(fold.days) == 20


def test_plan_ingest__windows_that_are_written_are_not_made_again():
    first = plan_ingest(lake(*range(20)), [], WINDOWS, day(19))
    written = frozenset(state.date for state in first.windows[1:])
    again = plan_ingest(lake(*range(20)), [], replace(WINDOWS, written=written), day(19))
    assert again.windows == first.windows[:1]


def test_plan_ingest__a_window_needs_as_many_days_before_it():
    dates = [state.date for state in plan_ingest(lake(*range(9)), [], WINDOWS, day(8)).windows]
    assert dates
    assert all((date - FIRST).days + 1 >= 3 for date in dates)


def test_plan_ingest__a_window_whose_days_are_gone_is_left_out():
    """The lake has dropped the days that a state remembers; only partials of late days are kept."""
    head, lag = state(*range(19)), state(*range(16))
    partials = {(str(day(n)), digest_of_day(n)) for n in range(16, 20)}
    plan = plan_ingest(lake(18, 19), [lag, head], replace(WINDOWS, partials=partials), day(19))
    assert [state.date >= day(15) for state in plan.windows] == [True]
    assert plan_ingest(lake(18, 19), [lag, head], WINDOWS, day(19)).windows == ()


def test_plan_ingest__a_window_over_a_changed_day_that_stays_as_folded_is_left_out():
    """Its rows are in no file: the night would end, and only for rows that it can do without."""
    head, lag = state(*range(19)), state(*range(16))
    whole = plan_ingest(lake(*range(20)), [lag, head], WINDOWS, day(19))
    kept = plan_ingest(lake(*range(20)), [lag, head], WINDOWS, day(19), other_rows=[day(9)])
    assert len(whole.windows) == 3
    assert [one.date for one in kept.windows] == [one.date for one in whole.windows if one.date > day(14)]
    assert len(kept.windows) == 1


def test_plan_ingest__files_after_the_date_do_not_count():
    plan = plan_ingest(lake(*range(8)), [], SETTINGS, day(5))
    assert plan.head.date == day(5)
    assert plan.lag.date == day(2)


def test_plan_ingest__no_day_before_the_label_window_has_no_lag():
    plan = plan_ingest(lake(0, 1, 2), [], SETTINGS, day(2))
    assert plan.lag is None
    assert plan.fold_plans(dict.fromkeys(plan.days), {day(2): Path("head")})[0].outputs == {day(2): Path("head")}


def test_plan_ingest__night_after_night_folds_one_day_into_each_state():
    head, lag = state(*range(7)), state(*range(4))
    plan = plan_ingest(lake(*range(8)), [lag, head], SETTINGS, day(7))
    assert plan.head.base is head
    assert plan.head.new_days == [day(7)]
    assert plan.lag.base is lag
    assert plan.lag.new_days == [day(4)]
    # Besides the days to fold, the clicks of the label window are needed.
    assert plan.days == days(4, 5, 6, 7)
    folds = plan.fold_plans(dict.fromkeys(plan.days), {day(7): Path("head"), day(4): Path("lag")})
    assert folds == [
        FoldPlan(head, ((day(7), None),), {day(7): Path("head")}),
        FoldPlan(lag, ((day(4), None),), {day(4): Path("lag")}),
    ]


def test_plan_ingest__the_same_night_again_folds_nothing():
    head, lag = state(*range(8)), state(*range(5))
    plan = plan_ingest(lake(*range(8)), [lag, head], SETTINGS, day(7))
    assert plan.head.new_days == plan.lag.new_days == []
    assert plan.fold_plans(dict.fromkeys(plan.days), {day(7): Path("head"), day(4): Path("lag")}) == []


def test_plan_ingest__without_lag_needs_no_label_window():
    plan = plan_ingest(lake(*range(8)), [state(*range(7))], SETTINGS, day(7), with_lag=False)
    assert plan.lag is None
    assert plan.days == days(7)


def test_plan_ingest__a_day_changed_after_lag_makes_head_again_from_lag():
    head, lag = state(*range(7)), state(*range(4))
    plan = plan_ingest(lake(*range(8), changed=[5]), [lag, head], SETTINGS, day(7))
    assert plan.head.base is lag
    assert plan.head.new_days == [day(n) for n in (4, 5, 6, 7)]
    assert plan.head.history[5] == (day(5), digest_of_day(5, "b"))
    runs = dict.fromkeys(plan.days)
    assert [fold.outputs for fold in plan.fold_plans(runs, {day(7): Path("head"), day(4): Path("lag")})] == [
        {day(4): Path("lag"), day(7): Path("head")}
    ]


def test_plan_ingest__a_day_changed_before_lag_needs_a_rebuild():
    with pytest.raises(
        BadInput,
        match=f"events of {day(2)} changed after they were folded .*; rebuild with {REBUILD}, or set lake.past: keep",
    ):
        plan_ingest(lake(*range(8), changed=[2]), [state(*range(4)), state(*range(7))], SETTINGS, day(7))


def test_plan_ingest__a_rebuild_sees_no_states_and_takes_the_changed_day():
    plan = plan_ingest(lake(*range(8), changed=[2]), [], SETTINGS, day(7))
    assert plan.head.base is None
    assert plan.head.history[2] == (day(2), digest_of_day(2, "b"))


def test_plan_ingest__missing_days_are_refused_and_the_first_three_named():
    with pytest.raises(BadInput, match=f"no events for {day(1)}, {day(2)}, {day(4)} …; add them, or set lake.missing"):
        plan_ingest(lake(0, 3, 7), [], SETTINGS, day(7))


def test_plan_ingest__missing_last_day_is_refused():
    with pytest.raises(BadInput, match=f"the lake has no events for {day(1)}; add them"):
        plan_ingest(lake(0), [], SETTINGS, day(1))


def test_plan_ingest__missing_days_are_bridged_when_the_config_says_so():
    plan = plan_ingest(lake(0, 1, 3), [], BRIDGING, day(3))
    assert [digest for _, digest in plan.head.history] == [digest_of_day(0), digest_of_day(1), None, digest_of_day(3)]


def test_plan_ingest__a_bridged_day_that_comes_late_is_new_input():
    lag, head = state(0, 1), state(0, 1, 2, 3, bridged=[2])
    plan = plan_ingest(lake(0, 1, 2, 3, 4), [lag, head], BRIDGING, day(4))
    assert plan.head.base is lag
    assert plan.head.new_days == [day(2), day(3), day(4)]


def test_plan_ingest__days_that_the_lake_dropped_stay_in_the_state():
    head = state(*range(7))
    plan = plan_ingest(lake(6, 7), [head], SETTINGS, day(7), with_lag=False)
    assert plan.head.base is head
    assert plan.head.history == [(day(n), digest_of_day(n)) for n in range(8)]


def test_plan_ingest__a_day_before_the_state_was_begun_needs_a_rebuild():
    with pytest.raises(
        BadInput, match=f"events of {day(0)} came after the state was begun with {day(1)}; rebuild with {REBUILD}"
    ):
        plan_ingest(lake(*range(8)), [state(*range(1, 7))], SETTINGS, day(7))


@pytest.mark.parametrize("inputs", [{}, lake(5)])
def test_plan_ingest__a_lake_without_files_up_to_the_date(inputs):
    with pytest.raises(BadInput, match=f"the lake has no parquet files up to {day(3)}; check lake.events and --date"):
        plan_ingest(inputs, [], SETTINGS, day(3))


def test_fitting_states__leaves_out_those_of_other_settings():
    fitting, other = state(0, 1), state(0, config={**STATE, "alpha": 0.5})
    assert fitting_states([other, fitting], SETTINGS) == [fitting]
    assert fitting_states([], SETTINGS) == []


def test_fitting_states__only_others_need_a_rebuild():
    with pytest.raises(
        BadInput, match=rf"the state of {day(1)} was built when alpha was 0.5 and is now 0.97; rebuild with {REBUILD}"
    ):
        fitting_states([state(0, 1, config={**STATE, "alpha": 0.5})], SETTINGS)


CHANGES = {
    "alpha": ({"alpha": 0.5}, "alpha was 0.995 and is now 0.5"),
    "partitions": ({"partitions": 3}, "partitions was 2 and is now 3"),
    "level": ({"taxonomy": {"level": 1}}, "the taxonomy was another one"),
    "late_days": ({"late_days": 3}, "late_days was 7 and is now 3"),
    "timezone": ({"timezone": "UTC"}, "timezone was None and is now 'UTC'"),
    "groups": ({"groups": {"adc": ["adc"]}, "features": {"groups": ["adc"]}}, "groups was "),
    "unknown_user_ids": ({"unknown_user_ids": [3]}, r"unknown_user_ids was \[\] and is now \['3'\]"),
}


def state_settings_of(**config):
    checked = check_config(lake_config(Path("lake"), **config), "test")
    return state_settings(checked, build_taxonomy(TAXONOMY, checked.taxonomy.level))


@pytest.mark.parametrize(("changes", "phrase"), CHANGES.values(), ids=CHANGES)
def test_fitting_states__a_changed_setting_is_named(changes, phrase):
    built = state(0, config=state_settings_of())
    now = HistorySettings(state_settings_of(**changes), 3, False, REBUILD)
    with pytest.raises(BadInput, match=f"the state of {day(0)} was built when {phrase}.*; rebuild with {REBUILD}"):
        fitting_states([built], now)
    assert fitting_states([built], HistorySettings(state_settings_of(), 3, False, REBUILD)) == [built]


def test_find_lost_days__are_those_that_only_states_have():
    manifests = [state(*range(4)).manifest, state(*range(7)).manifest]
    assert find_lost_days(manifests, days(2, 3, 4, 5, 6, 7), STATE, day(7)) == days(0, 1)
    assert find_lost_days(manifests, days(*range(8)), STATE, day(7)) == set()


def test_find_lost_days__a_bridged_day_was_never_there():
    assert find_lost_days([state(0, 1, 2, bridged=[1]).manifest], days(0, 2), STATE, day(2)) == set()


def test_find_lost_days__none_once_the_date_was_made_without_them():
    old, new = state(*range(8), config={**STATE, "alpha": 0.5}), state(*range(3, 8))
    assert find_lost_days([new.manifest, old.manifest], days(*range(3, 8)), STATE, day(7)) == set()
    assert find_lost_days([old.manifest], days(*range(3, 8)), STATE, day(7)) == days(0, 1, 2)


@pytest.mark.parametrize("manifest", [{}, {"inputs": None}, {"inputs": [["no date", "x"]], "config": {}}, []])
def test_find_lost_days__what_is_no_manifest_is_left_out(manifest):
    assert find_lost_days([manifest], set(), STATE, day(7)) == set()
