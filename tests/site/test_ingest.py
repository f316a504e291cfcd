"""The stages ingest and features on a site: same bytes whatever the way, and what happens when days change."""

import datetime as dt
import json
import shutil
from pathlib import Path

import dask.array as da
import numpy as np
import pandas as pd
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
import reference
import zarr
from click.testing import CliRunner
from damage import flip_entry, part_path
from nights import FIRST, LAKE, N_DAYS, copy_world, day

from ammrank_dask.features.store import open_features
from ammrank_dask.ingest.interest_state import InterestState
from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.lake.taxonomy import read_taxonomy
from ammrank_dask.storage.objects.atomic import digest_tree
from ammrank_dask.storage.site.root import without_generation
from ammrank_dask.storage.site.site import Site
from ammrank_dask.storage.store.registry import STATE
from ammrank_dask.workflows.ingest import command
from ammrank_dask.workflows.session.config import check_config
from ammrank_dask.workflows.session.night import Night
from ammrank_dask.workflows.stages.features import score_features, training_features
from ammrank_dask.workflows.stages.ingest import ingest
from ammrank_dask.workflows.stages.publishing import INPUT_FOLDERS, prune

LAST = day(N_DAYS - 1)
CONFIG = {
    "lake": LAKE,
    "label": {"days": 3, "min_categories": 1},
    "keep_days": 5,
    "partitions": 3,
}


def config_of(**changes):
    return check_config({**CONFIG, **changes}, "test")


@pytest.fixture(scope="module")
def ingested_world(client, small_world, tmp_path_factory):
    """The small world with all of its days ingested; nobody changes it."""
    site = copy_world(small_world, tmp_path_factory.mktemp("ingested"))
    ingest(Night(client, site, config_of(), LAST))
    return site


@pytest.fixture
def ingested(ingested_world, tmp_path):
    """A site that has ingested all days, beside a lake that a test may change; to ingest them again is quick."""
    return copy_world(ingested_world, tmp_path)


def state_bytes(site, known):
    """One hash over the state at head and lag, and the features for scoring and training."""
    return digest_tree(site.path, [site.relative(path) for path in known.roles.values()], name_of=without_generation)


def all_bytes(client, site, config, known):
    runs = [
        score_features(Night(client, site, config, known.date), known),
        training_features(Night(client, site, config, known.date), known),
    ]
    features = [site.relative(run.path) for run in runs]
    return state_bytes(site, known), digest_tree(site.path, features, name_of=without_generation)


def other_site(empty_site, name):
    (empty_site.path.parent / name).mkdir()
    return Site(empty_site.path.parent / name)


def event_folder(site, day):
    return site.path.parent / "lake" / "events" / f"date={day}"


def drop_first_row(folder):
    path = sorted(folder.glob("*.parquet"))[0]
    table = pq.read_table(path)
    pq.write_table(table.slice(1), path)


def drop_last_byte(path):
    path.write_bytes(path.read_bytes()[:-1])


def lake_events(site):
    for folder in sorted((site.path.parent / "lake" / "events").glob("date=*")):
        day = dt.date.fromisoformat(folder.name.removeprefix("date="))
        for path in sorted(folder.glob("*.parquet")):
            frame = pq.read_table(path).to_pandas()
            times = frame["timestamp"].astype("datetime64[us, UTC]").astype("int64")
            for row in zip(frame["user_id"], frame["group"], frame["category"], times, strict=True):
                yield day, row


def parents(site):
    table = pd.read_csv(site.path.parent / "lake" / "taxonomy.csv", keep_default_na=False)
    return dict(zip(table["category"], table["parent"], strict=True))


def test_ingest__the_state_equals_a_loop_over_the_lake(client, ingested):
    config = config_of()
    known = ingest(Night(client, ingested, config, LAST))
    expected = reference.interest(
        [event for _, event in lake_events(ingested)], reference.end_of(LAST), config.alpha, parents(ingested), 2
    )
    groups, categories = config.event_groups, known.taxonomy.categories
    found = {}
    for partition in range(config.partitions):
        state = InterestState.from_arrays(known.head.part(partition).read(STATE))
        for row, user in enumerate(state.user_ids.to_arrow().to_pylist()):
            for j in range(state.indptr[row], state.indptr[row + 1]):
                group, category = divmod(int(state.cell[j]), len(categories))
                recency = (reference.end_of(LAST) - int(state.last[j])) / reference.DAY
                found[(user, groups[group], categories[category])] = (state.intensity[j], recency)
    assert found.keys() == expected.keys()
    cells = sorted(expected)
    assert [found[c] for c in cells] == pytest.approx(np.array([expected[c] for c in cells]), rel=1e-9)


def test_features__equal_a_loop_over_the_lake(client, ingested):
    config = config_of()
    known = ingest(Night(client, ingested, config, LAST))
    lag = LAST - dt.timedelta(config.label.days)
    before = [event for day, event in lake_events(ingested) if day <= lag]
    after = [event for day, event in lake_events(ingested) if day > lag]
    cells = reference.interest(before, reference.end_of(lag), config.alpha, parents(ingested), 2)
    clicks = reference.interest(after, reference.end_of(LAST), config.alpha, parents(ingested), 2)
    users = pq.read_table(ingested.path.parent / "lake" / "users.parquet").to_pandas().set_index("user_id")
    features = open_features(training_features(Night(client, ingested, config, known.date), known).path)
    categories = features.categories
    starts = [13, 18, 21, 25, 30, 35, 45, 55, 65]
    seen = set()
    for partition in range(features.n_partitions):
        part = features.partition(partition, normalize=False)
        for row, user in enumerate(part.user_ids.to_arrow().to_pylist()):
            seen.add(user)
            age, gender = users.loc[user, "age"], users.loc[user, "gender"]
            bucket = -1 if pd.isna(age) else sum(age >= start for start in starts) - 1
            code = {"female": 0, "male": 1}.get(gender, -1)
            expected = reference.feature_row(
                cells, user, config.features.groups, categories, config.alpha, bucket, code
            )
            assert part.X[[row]].toarray()[0] == pytest.approx(expected, rel=1e-6, abs=1e-6)
            ranked = [categories[c] for c in part.rankings[row] if c >= 0]
            assert ranked == reference.ranking(clicks, user)
    assert seen == {user for user, group, _ in clicks if group == "adc"}


def test_ingest__nights_and_one_back_fill_give_the_same_bytes(client, empty_site):
    config = config_of()
    for night in range(N_DAYS):
        known = ingest(Night(client, empty_site, config, FIRST + dt.timedelta(night)))
        empty_site.publish(known.date, known.roles)
        prune(empty_site, config, known.date, known.roles.values(), INPUT_FOLDERS)
    nightly = all_bytes(client, empty_site, config, known)
    again = other_site(empty_site, "again")
    filled = ingest(Night(client, again, config, LAST))
    assert all_bytes(client, again, config, filled) == nightly
    kept = sorted(path.name for path in (empty_site.path / "days").glob("date=*"))
    assert kept == [f"date={LAST - dt.timedelta(n)}" for n in range(config.keep_days - 1, -1, -1)]
    assert len(empty_site.finished_runs("state")) == 2  # head and lag; those of earlier nights are removed


def test_ingest__any_number_of_workers_gives_the_same_bytes(client, elsewhere, empty_site):
    config = config_of()
    two = all_bytes(client, empty_site, config, ingest(Night(client, empty_site, config, LAST)))
    other = other_site(empty_site, "other")
    assert all_bytes(elsewhere, other, config, ingest(Night(elsewhere, other, config, LAST))) == two


def test_ingest__a_second_time_changes_nothing(client, empty_site):
    config = config_of()
    first = ingest(Night(client, empty_site, config, LAST))
    before = {p: p.stat().st_mtime_ns for p in empty_site.path.rglob("*") if p.is_file()}
    stages = []
    second = ingest(Night(client, empty_site, config, LAST, lambda stage, done, total: stages.append((stage, total))))
    assert second.roles == first.roles
    assert [stage for stage in stages if stage[1]] == []  # no task was run
    assert {p: p.stat().st_mtime_ns for p in empty_site.path.rglob("*") if p.is_file()} == before


def test_ingest__a_corrected_day_after_the_lag_gives_the_bytes_of_a_fresh_site(client, ingested):
    config = config_of()
    ingest(Night(client, ingested, config, LAST))
    drop_first_row(event_folder(ingested, LAST - dt.timedelta(1)))
    corrected = ingest(Night(client, ingested, config, LAST))
    fresh = other_site(ingested, "fresh")
    assert state_bytes(ingested, corrected) == state_bytes(fresh, ingest(Night(client, fresh, config, LAST)))


def test_ingest__an_older_corrected_day_needs_a_rebuild(client, ingested):
    config = config_of()
    ingest(Night(client, ingested, config, LAST))
    drop_first_row(event_folder(ingested, FIRST))
    with pytest.raises(BadInput, match=f"the events of {FIRST} changed .* --rebuild"):
        ingest(Night(client, ingested, config, LAST))
    rebuilt = ingest(Night(client, ingested, config, LAST), rebuild=True)
    fresh = other_site(ingested, "fresh")
    assert state_bytes(ingested, rebuilt) == state_bytes(fresh, ingest(Night(client, fresh, config, LAST)))


def test_ingest__days_that_the_lake_drops_stay_in_the_state(client, empty_site):
    config = config_of()
    ingest(Night(client, empty_site, config, LAST - dt.timedelta(1)))
    shutil.rmtree(event_folder(empty_site, FIRST))
    known = ingest(Night(client, empty_site, config, LAST))
    assert known.history[0][0] == FIRST
    assert len(known.history) == N_DAYS


@pytest.mark.parametrize("missing_days", ["refuse", "bridge"])
@pytest.mark.parametrize("is_damaged", [False, True], ids=["sound", "damaged"])
@pytest.mark.parametrize("dropped", [0, 3], ids=["first", "middle"])
def test_ingest__rebuild_never_loses_days_that_the_lake_dropped(client, ingested, missing_days, is_damaged, dropped):
    config = config_of(lake={**CONFIG["lake"], "missing_days": missing_days})
    known = ingest(Night(client, ingested, config, LAST))
    ingested.publish(LAST, known.roles)
    shutil.rmtree(event_folder(ingested, FIRST + dt.timedelta(dropped)))
    if is_damaged:
        drop_last_byte(part_path(known.head.path, 0))
    before = digest_tree(ingested.path, ["state", "ROOT"])
    lost, begin = FIRST + dt.timedelta(dropped), FIRST + dt.timedelta(dropped == 0)
    with pytest.raises(
        BadInput,
        match=f"the lake no longer has 1 of the days that the state remembers, from {lost} to {lost}, and begins with"
        f" {begin}; --rebuild would lose them: put them back in the lake, or .* --rebuild --forget-history`",
    ):
        ingest(Night(client, ingested, config, LAST), rebuild=True)
    assert digest_tree(ingested.path, ["state", "ROOT"]) == before


def test_ingest__forgotten_history_is_the_state_of_a_lake_that_never_had_it(client, ingested):
    ingested.publish(LAST, ingest(Night(client, ingested, config_of(), LAST)).roles)
    shutil.rmtree(event_folder(ingested, FIRST))
    other_alpha = config_of(alpha=0.5)
    known = ingest(Night(client, ingested, other_alpha, LAST), rebuild=True, forget_history=True)
    assert known.history[0][0] == FIRST + dt.timedelta(1)
    fresh = other_site(ingested, "fresh")
    assert state_bytes(ingested, known) == state_bytes(fresh, ingest(Night(client, fresh, other_alpha, LAST)))
    # What was accepted once is not asked again: the night that follows folds the same days.
    again = ingest(Night(client, ingested, other_alpha, LAST), rebuild=True)
    assert again.head.path == known.head.path


def test_ingest__forget_history_is_for_a_rebuild_only(empty_site):
    done = CliRunner().invoke(command, [str(empty_site.path), "--forget-history"])
    assert done.exit_code == 2
    assert "--forget-history needs --rebuild" in done.output


def test_ingest__a_missing_day_is_refused_or_bridged_and_taken_in_when_it_comes(client, empty_site):
    late = LAST - dt.timedelta(1)
    away = empty_site.path.parent / "away"
    shutil.move(event_folder(empty_site, late), away)
    with pytest.raises(BadInput, match=f"no events for {late}; .* lake.missing_days: bridge"):
        ingest(Night(client, empty_site, config_of(), LAST))
    bridge = config_of(lake={**CONFIG["lake"], "missing_days": "bridge"})
    known = ingest(Night(client, empty_site, bridge, LAST))
    assert dict(known.history)[late] is None
    shutil.move(away, event_folder(empty_site, late))
    whole = ingest(Night(client, empty_site, bridge, LAST))
    fresh = other_site(empty_site, "fresh")
    assert state_bytes(empty_site, whole) == state_bytes(fresh, ingest(Night(client, fresh, bridge, LAST)))


def test_features__of_any_kept_day_equal_those_of_that_night(client, ingested):
    config = config_of()
    past = LAST - dt.timedelta(2)
    known = ingest(Night(client, ingested, config, LAST))
    ingested.publish(LAST, known.roles)
    old = ingest(Night(client, ingested, config, past), with_lag=False)
    run = score_features(Night(client, ingested, config, old.date), old)
    other = other_site(ingested, "other")
    then = score_features(Night(client, other, config, past), ingest(Night(client, other, config, past)))
    assert digest_tree(run.path, ["."]) == digest_tree(then.path, ["."])
    assert ingested.current().date == LAST


def test_ingest__a_rerun_repeats_only_unfinished_partitions(client, empty_site, monkeypatch):
    config = config_of()
    whole = other_site(empty_site, "whole")
    expected = state_bytes(whole, ingest(Night(client, whole, config, LAST)))

    import ammrank_dask.ingest.table_ingest as stage

    real, calls = stage.collect_partition, empty_site.path / "calls"

    def fail_once(run, partition, *rest):
        with open(calls, "a") as file:
            file.write(f"{partition}\n")
        if len(calls.read_text().splitlines()) >= 5:
            raise OSError(28, "No space left on device")
        return real(run, partition, *rest)

    monkeypatch.setattr(stage, "collect_partition", fail_once)
    with pytest.raises(OSError, match="No space left"):
        ingest(Night(client, empty_site, config, LAST))
    monkeypatch.undo()
    written = {path for path in (empty_site.path / "days").glob("date=*/*/part-*.arrow")}
    assert written
    times = {path: path.stat().st_mtime_ns for path in written}
    assert empty_site.current() is None
    known = ingest(Night(client, empty_site, config, LAST))
    assert state_bytes(empty_site, known) == expected
    assert all(path.stat().st_mtime_ns == times[path] for path in written if path.exists())


def test_ingest__a_part_damaged_by_a_crash_is_written_again(client, ingested):
    config = config_of()
    known = ingest(Night(client, ingested, config, LAST))
    expected = state_bytes(ingested, known)
    (known.head.path / "manifest.json").unlink()
    flip_entry(part_path(known.head.path, 1))
    assert state_bytes(ingested, ingest(Night(client, ingested, config, LAST))) == expected


def test_publish__never_goes_back_nor_loses_a_role(client, ingested):
    config = config_of()
    known = ingest(Night(client, ingested, config, LAST))
    run = score_features(Night(client, ingested, config, known.date), known)
    assert ingested.publish(LAST, {**known.roles, "features": run.path})
    earlier = ingest(Night(client, ingested, config, LAST - dt.timedelta(1)), with_lag=False)
    assert not ingested.publish(earlier.date, {**earlier.roles, "features": run.path})
    assert not ingested.publish(LAST, known.roles)
    assert json.loads((ingested.path / "ROOT").read_text())["date"] == str(LAST)


def test_features__every_user_has_a_row_and_variants_choose_columns(client, ingested):
    config = config_of()
    known = ingest(Night(client, ingested, config, LAST))
    features = open_features(score_features(Night(client, ingested, config, known.date), known).path)
    n_categories = len(read_taxonomy(ingested.path.parent / "lake" / "taxonomy.csv", 2).categories)
    assert features.n_users == 300
    assert features.n_columns("adv") == 2 * 5 * n_categories + 11
    assert features.n_columns("no-adv") == 2 * 4 * n_categories + 11
    full, small = features.partition(0), features.partition(0, variant="no-adv")
    raw = features.partition(0, normalize=False).X.toarray()
    keep = [not name.startswith("adv:") for name in features.columns]
    chosen = raw[:, keep]
    norms = np.linalg.norm(chosen, axis=1, keepdims=True)
    assert small.X.toarray() == pytest.approx(chosen / np.where(norms == 0, 1, norms), rel=1e-5)
    assert np.linalg.norm(full.X.toarray(), axis=1) == pytest.approx(np.where(raw.any(axis=1), 1.0, 0.0), rel=1e-5)
    with pytest.raises(BadInput, match="no columns of group 'web'; it has pv, sq, slc, olc, adv, age, gender"):
        features.partition(0, variant="web")


def test_features__open_with_plain_zarr_and_scipy(client, ingested):
    import scipy.sparse as sp

    config = config_of()
    known = ingest(Night(client, ingested, config, LAST))
    features = open_features(score_features(Night(client, ingested, config, known.date), known).path)
    run = zarr.open_group(features.path, mode="r")
    group = run["part-00001/X"]
    assert group.attrs["encoding-type"] == "csr_matrix"
    assert group["data"].metadata.codecs[-1].to_dict() == {"name": "crc32c"}
    assert {name for name, _ in run["part-00001"].members()} == {"X", "user_id", "age_bucket", "gender"}
    X = sp.csr_matrix((group["data"][:], group["indices"][:], group["indptr"][:]), shape=group.attrs["shape"])
    assert (X != features.partition(1, normalize=False).X).nnz == 0
    total = da.from_zarr(features.path, component="part-00001/X/data").sum(dtype="float64")
    assert total.compute(scheduler="synchronous") == pytest.approx(X.data.sum(dtype="float64"))


def test_state__opens_with_pandas_and_pyarrow(client, ingested):
    known = ingest(Night(client, ingested, config_of(), LAST))
    state = InterestState.from_part(known.head.part(0), STATE)
    path = known.head.path / "part-00000.arrow"
    frame = pd.read_feather(path)
    assert frame["user_id"].tolist() == state.user_ids.to_arrow().to_pylist()
    cells = frame.explode("cells")["cells"]
    assert [cell["last"] for cell in cells] == state.last.tolist()
    table = ds.dataset(path, format="ipc").to_table()
    assert table["cells"].combine_chunks().flatten().field("intensity").to_pylist() == state.intensity.tolist()


def test_workers__see_no_dask_dataframe():
    source = "".join(path.read_text() for path in Path("ammrank_dask").glob("*.py"))
    assert "dask.dataframe" not in source
