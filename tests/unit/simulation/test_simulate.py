"""The simulated lake: its layout, its rules, its truth, and the same bytes from any number of workers."""

import hashlib
import json
import shutil
from datetime import date
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr
from distributed import Client

from ammrank_dask.simulation.simulate import SimulationParameters, find_simulation, simulate, simulate_block
from ammrank_dask.simulation.world import World, draw_tastes, draw_users, read_world_taxonomy, scramble_user_ids
from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.vocabulary import CLICK_GROUP, GROUPS

SIZE = {"users": 1500, "days": 12, "seed": 5, "label_days": 6}


@pytest.fixture(scope="module")
def lake(client: Client, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("simulated")
    simulate(folder / "lake", client=client, truth=folder / "truth", **SIZE)
    return folder / "lake"


@pytest.fixture(scope="module")
def events(lake: Path) -> pd.DataFrame:
    frames = []
    for path in sorted(lake.glob("events/date=*/*.parquet")):
        frame = pq.ParquetFile(path).read().to_pandas()
        frames.append(frame.assign(date=path.parent.name.removeprefix("date=")))
    return pd.concat(frames, ignore_index=True)


def hash_files(folder: Path) -> dict[str, str]:
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in paths}


def second_level(names: pd.Series) -> pd.Series:
    return names.str.split("/").str[:2].str.join("/")


def test_simulate__two_worker_processes_give_the_same_bytes(lake: Path, two_processes: Client, tmp_path: Path) -> None:
    simulate(tmp_path / "lake", client=two_processes, truth=tmp_path / "truth", **SIZE)
    assert hash_files(tmp_path) == hash_files(lake.parent)


@pytest.mark.parametrize("name", ["events/date=2026-01-05/part-00000.parquet", "users.parquet"])
def test_simulate__pages_have_checksums(lake: Path, tmp_path: Path, name: str) -> None:
    metadata = pq.read_metadata(lake / name)
    for number in range(metadata.num_columns):
        chunk = metadata.row_group(0).column(number)
        start = chunk.dictionary_page_offset if chunk.has_dictionary_page else chunk.data_page_offset
        data = bytearray((lake / name).read_bytes())
        data[start + chunk.total_compressed_size - 1] ^= 1
        (tmp_path / "damaged.parquet").write_bytes(data)
        with pytest.raises(OSError, match="CRC checksum verification failed"):
            pq.read_table(tmp_path / "damaged.parquet", page_checksum_verification=True)


def test_simulate__another_seed_gives_other_bytes(client: Client, lake: Path, tmp_path: Path) -> None:
    simulate(tmp_path / "lake", client=client, truth=tmp_path / "truth", **(SIZE | {"seed": 6}))
    ours, other = hash_files(lake), hash_files(tmp_path / "lake")
    assert ours.keys() == other.keys()
    assert [name for name in ours if ours[name] == other[name]] == ["taxonomy.csv"]


def test_simulate__layout_and_types(lake: Path) -> None:
    folders = sorted(path.name for path in (lake / "events").iterdir())
    assert folders[0] == "date=2026-01-05"
    assert folders[-1] == "date=2026-01-16"
    assert len(folders) == 12
    assert sorted(path.name for path in lake.iterdir()) == ["events", "taxonomy.csv", "users.parquet"]
    parts = sorted(path.name for path in (lake / "events" / folders[0]).iterdir())
    assert parts == [f"part-{block:05d}.parquet" for block in range(4)]
    file = pq.ParquetFile(lake / "events" / folders[0] / parts[0])
    assert file.schema_arrow == pa.schema(
        {
            "user_id": pa.int64(),
            "group": pa.string(),
            "category": pa.string(),
            "timestamp": pa.timestamp("us", tz="UTC"),
        }
    )
    columns = [file.metadata.row_group(0).column(place) for place in (1, 2)]
    assert all("RLE_DICTIONARY" in column.encodings for column in columns)
    users = pq.ParquetFile(lake / "users.parquet").schema_arrow
    assert users == pa.schema({"user_id": pa.int64(), "age": pa.int32(), "gender": pa.string()})


def test_simulate__string_ids_are_the_same_users(client: Client, lake: Path, tmp_path: Path) -> None:
    simulate(tmp_path / "lake", client=client, truth=tmp_path / "truth", **SIZE, user_ids="string")
    numbers = pd.read_parquet(lake / "users.parquet")["user_id"]
    strings = pd.read_parquet(tmp_path / "lake" / "users.parquet")["user_id"]
    assert strings.tolist() == [f"u{number:016x}" for number in numbers]
    name = "events/date=2026-01-06/part-00001.parquet"
    file = pq.ParquetFile(tmp_path / "lake" / name)
    assert file.schema_arrow.field("user_id").type == pa.string()
    found = [int(text[1:], 16) for text in file.read()["user_id"].to_pylist()]
    assert found == pq.ParquetFile(lake / name).read()["user_id"].to_pylist()


def test_simulate__users(lake: Path, events: pd.DataFrame) -> None:
    users = pd.read_parquet(lake / "users.parquet")
    assert len(users) == users["user_id"].nunique() == 1500
    assert users["user_id"].min() > 0
    assert 0.05 < users["age"].isna().mean() < 0.11
    assert 0.03 < users["gender"].isna().mean() < 0.09
    assert users["age"].dropna().between(13, 90).all()
    assert set(users["gender"].dropna()) == {"female", "male"}
    assert set(events["user_id"]) < set(users["user_id"])


def test_simulate__categories_are_in_the_taxonomy(lake: Path, events: pd.DataFrame) -> None:
    taxonomy = pd.read_csv(lake / "taxonomy.csv", keep_default_na=False)
    assert list(taxonomy.columns) == ["category", "parent"]
    assert set(events["category"]) <= set(taxonomy["category"])
    assert set(events["group"]) == set(GROUPS)
    level = events["category"].str.count("/") + 1
    assert 0.94 < (level == 3).mean() < 0.99
    assert 0.01 < (level == 2).mean() < 0.05
    assert 0 < (level == 1).mean() < 0.01


def test_simulate__timestamps(lake: Path, events: pd.DataFrame) -> None:
    midnight = pd.to_datetime(events["date"], utc=True)
    early = midnight - events["timestamp"]
    assert (events["timestamp"] < midnight + pd.Timedelta(days=1)).all()
    assert early.max() <= pd.Timedelta(days=2)
    assert 0.005 < (early > pd.Timedelta(0)).mean() < 0.02
    for path in lake.glob("events/date=*/*.parquet"):
        assert pd.Series(pq.ParquetFile(path).read()["timestamp"].to_pandas()).is_monotonic_increasing
    hours = events["timestamp"].dt.hour.value_counts(normalize=True)
    assert hours[20] > 3 * hours[4]


def test_simulate__events_per_user_are_many_for_few(events: pd.DataFrame) -> None:
    counts = events.groupby("user_id").size().reindex(events["user_id"].unique())
    assert 1.4 < len(events) / 1500 / 12 < 1.9
    assert counts.nlargest(150).sum() > 0.25 * len(events)
    assert 20 < 1500 - len(counts) < 150


def test_simulate__truth_follows_the_clicks(lake: Path, events: pd.DataFrame) -> None:
    truth = lake.parent / "truth"
    categories = sorted(name for name in read_world_taxonomy() if name.count("/") == 1)
    groups = [zarr.open_group(path, mode="r") for path in sorted(truth.glob("block-*.zarr"))]
    ids = np.concatenate([group["user_id"][:] for group in groups])
    expected = np.concatenate([group["expected_clicks"][:] for group in groups])
    propensity = np.concatenate([group["propensity"][:] for group in groups])
    assert expected.shape == propensity.shape == (1500, 50)
    assert expected.dtype == propensity.dtype == np.float32
    assert ids.tolist() == pd.read_parquet(lake / "users.parquet")["user_id"].tolist()
    end = pd.Timestamp("2026-01-17", tz="UTC")
    clicks = events[(events["group"] == CLICK_GROUP) & (events["date"] > "2026-01-10")]
    clicks = clicks.assign(category=second_level(clicks["category"]))
    weights = 0.97 ** ((end - clicks["timestamp"]) / pd.Timedelta(days=1))
    table = weights.groupby([clicks["user_id"], clicks["category"]]).sum().unstack(fill_value=0.0)
    realised = table.reindex(index=ids, columns=categories, fill_value=0.0).fillna(0.0).to_numpy()
    assert abs(realised.sum() / expected.sum() - 1) < 0.1
    assert np.corrcoef(realised.ravel(), expected.ravel())[0, 1] > 0.4
    assert np.corrcoef(realised.sum(axis=1), expected.sum(axis=1))[0, 1] > 0.7
    assert (expected.sum(axis=1) >= propensity.sum(axis=1)).all()


def test_simulate_block__ad_views_raise_clicks() -> None:
    """Compare clicks per unit of taste on days after an ad of the category with those on other days."""
    parameters = SimulationParameters(users=20_000, days=12, seed=2)
    world = World.build(2, 12)
    who = draw_users(2, 0, *parameters.block_range(0))
    tastes = draw_tastes(world, 2, 0, who, activity=1.0)
    node_category = np.array(
        [world.categories.index(second) if second in world.categories else -1
         for second in ("/".join(node.split("/")[:2]) for node in world.nodes)]
    )  # fmt: skip
    shape = tastes.taste.shape
    seen = np.zeros(shape, dtype=bool)
    taste_only = tastes.taste * tastes.click_rate[:, None]
    ratio = np.zeros((2, 2))
    expected = np.zeros(shape, dtype=np.float32)
    for events in simulate_block(world, parameters, 0, who, tastes, out_expected=expected):
        category = node_category[events.nodes]
        ranked = category >= 0
        clicked = ranked & (events.groups == GROUPS.index("adc"))
        counts = np.zeros(shape)
        np.add.at(counts, (events.users[clicked], category[clicked]), 1)
        for after_ad in (0, 1):
            cells = seen == after_ad
            ratio[after_ad] += counts[cells].sum(), taste_only[cells].sum()
        shown = ranked & (events.groups == GROUPS.index("adv"))
        seen[:] = False
        seen[events.users[shown], category[shown]] = True
    without_ad, with_ad = ratio[:, 0] / ratio[:, 1]
    assert with_ad > 1.2 * without_ad > 1.2


def test_simulate__rerun_restores_a_missing_file(client: Client, lake: Path, tmp_path: Path) -> None:
    shutil.copytree(lake, tmp_path / "lake")
    shutil.copytree(lake.parent / "truth", tmp_path / "truth")
    before = hash_files(tmp_path)
    (tmp_path / "lake" / "events" / "date=2026-01-09" / "part-00002.parquet").unlink()
    (tmp_path / "lake" / "events" / "date=2026-01-07" / ".tmp-part-00000.parquet-0").touch()
    (tmp_path / "lake" / "users.parquet").unlink()
    shutil.rmtree(tmp_path / "truth" / "block-00003.zarr")
    simulate(tmp_path / "lake", client=client, truth=tmp_path / "truth", **SIZE)
    assert hash_files(tmp_path) == before


def test_find_simulation__a_whole_lake_needs_no_tasks(lake: Path, tmp_path: Path) -> None:
    shutil.copytree(lake.parent, tmp_path, dirs_exist_ok=True)
    parameters = SimulationParameters(users=1500, days=12, seed=5, label_days=6)
    summary = find_simulation(tmp_path / "lake", tmp_path / "truth", parameters)
    assert summary == json.loads((tmp_path / "truth" / "simulation.json").read_text())
    min((tmp_path / "lake" / "events" / "date=2026-01-07").iterdir()).unlink()
    assert find_simulation(tmp_path / "lake", tmp_path / "truth", parameters) is None
    assert find_simulation(tmp_path / "other", tmp_path / "other-truth", parameters) is None


def test_find_simulation__other_parameters_are_refused(lake: Path) -> None:
    with pytest.raises(BadInput, match="holds a simulation with seed = 5, not 7; choose another lake and truth folder"):
        find_simulation(lake, lake.with_name("truth"), SimulationParameters(1500, 12, 7, label_days=6))


def test_simulate__other_parameters_are_refused(client: Client, lake: Path) -> None:
    with pytest.raises(BadInput, match="holds a simulation with days = 12, not 13"):
        simulate(lake, client=client, truth=lake.parent / "truth", **(SIZE | {"days": 13}))


def test_simulate__folder_of_somebody_else_is_refused(client: Client, tmp_path: Path) -> None:
    (tmp_path / "lake").mkdir()
    (tmp_path / "lake" / "notes.txt").touch()
    with pytest.raises(BadInput, match=r"is not empty and .* holds no simulation"):
        simulate(tmp_path / "lake", client=client, truth=tmp_path / "truth", users=10, days=1)
    assert not (tmp_path / "truth").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"users": 0}, "users must be at least 1, got 0"),
        ({"seed": -1}, "seed must not be negative, got -1"),
        ({"user_ids": "uuid"}, "user_ids must be int64 or string, got uuid"),
        ({"activity": 3.0}, "activity must be above 0 and at most 2, got 3.0"),
        ({"alpha": 0.0}, "alpha must be above 0 and at most 1, got 0.0"),
    ],
)
def test_simulation_parameters__refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        SimulationParameters(**({"users": 10, "days": 1} | change))  # type: ignore[arg-type]


@pytest.mark.parametrize(("users", "n_blocks"), [(1, 1), (3, 3), (4, 4), (400_000, 4), (400_001, 5), (3_289_229, 33)])
def test_simulation_parameters__blocks(users: int, n_blocks: int) -> None:
    parameters = SimulationParameters(users=users, days=1)
    ranges = [parameters.block_range(block) for block in range(parameters.n_blocks)]
    assert parameters.n_blocks == n_blocks
    assert ranges[0][0] == 0
    assert ranges[-1][1] == users
    assert all(left[1] == right[0] for left, right in pairwise(ranges))
    assert max(end - first for first, end in ranges) <= 100_000


def test_scramble_user_ids__different_and_positive() -> None:
    ids = scramble_user_ids(np.arange(200_000), seed=7)
    assert len(np.unique(ids)) == 200_000
    assert ids.min() > 0
    assert ids.max() <= 2**62


def test_read_world_taxonomy__three_levels() -> None:
    parents = read_world_taxonomy()
    levels = pd.Series([name.count("/") + 1 for name in parents]).value_counts()
    assert levels[1] == 12
    assert levels[2] == 50
    assert 240 <= levels[3] <= 260
    assert all(name.rpartition("/")[0] == parent for name, parent in parents.items())
    children = pd.Series([parent for parent in parents.values() if "/" in parent]).value_counts()
    assert len(children) == 50
    assert children.between(4, 6).all()


def test_world__interactions_raise_what_neither_persona_raises() -> None:
    world = World.build(0, 60)
    raised = world.click - world.click.min(axis=0) > 1e-6
    for (first, second), click in zip(world.pairs, world.pair_click, strict=True):
        assert not (raised[first] | raised[second])[click > 0].any()


def test_world__campaigns_multiply_only_their_audience() -> None:
    world = World.build(0, 60)
    campaign = world.campaigns[0]
    factors = world.campaign_factors(campaign.first_day).reshape(9, 2, 50)
    inside = factors[campaign.first_age, campaign.genders[0], campaign.category]
    assert inside >= campaign.factor
    assert (World.build(0, 90).campaign_factors(30) == world.campaign_factors(30)).all()
    assert World.build(0, 60).digest() == world.digest() != World.build(1, 60).digest()


def test_simulation_parameters__first_day_is_a_monday() -> None:
    parameters = SimulationParameters(users=1, days=1)
    assert parameters.date_of(0) == date(2026, 1, 5)
    assert parameters.date_of(0).weekday() == 0
