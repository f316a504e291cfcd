"""Distributed training: one shard is the plain loop, any cluster gives the same bits, a rerun goes on."""

import asyncio
import functools

import numpy as np
import pytest
from distributed import Client, LocalCluster
from lost_worker import lose_a_worker
from stages import watch_stages

import ammrank_dask.training.round_tasks as round_tasks
import ammrank_dask.training.train as training
import ammrank_dask.training.validation as validation
from ammrank_dask.features.store import open_features
from ammrank_dask.features.write import write_features
from ammrank_dask.model.amm_rank import AMMRank
from ammrank_dask.model.metrics import disagreement_error
from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.store.scratch_arrays import load_arrays, save_arrays
from ammrank_dask.training.checkpoints import TrainingFolder
from ammrank_dask.training.prepared_rows import PreparedRows, prepare_rows
from ammrank_dask.training.shards import advance_step, choose_sample, cut_blocks, deal_blocks
from ammrank_dask.training.warm_start import planes_of_model
from ammrank_dask.user_hash import SPLITS, split_of

train = functools.partial(training.train, model=AMMRank.method)

CATEGORIES = [f"c{i}" for i in range(6)]


@pytest.fixture(scope="module")
def features(tmp_path_factory):
    """Users who click what they look at most, with noise; some have no ranking."""
    rng = np.random.default_rng(4)
    X = np.where(rng.random((1500, 12)) < 0.5, rng.random((1500, 12)), 0)
    liked = X[:, :6] + 0.5 * X[:, 6:] ** 2 + 0.1 * rng.random((1500, 6))
    rankings = np.argsort(-liked, axis=1)[:, :3]
    rankings[rng.random(1500) < 0.1] = -1
    path = tmp_path_factory.mktemp("store") / "features"
    names = [f"f{i}" for i in range(12)]
    return write_features(path, X, np.arange(1500) * 7, names, rankings, categories=CATEGORIES, n_partitions=3)


def labelled(features, split):
    """The labelled rows of a split, partition by partition."""
    for index in range(features.n_partitions):
        part = features.partition(index)
        chosen = (part.rankings >= 0).any(axis=1) & (split_of(part.user_ids) == SPLITS.index(split))
        yield part.X[chosen], part.rankings[chosen]


def blocks_of(features, block_rows):
    return [
        (X[start : start + block_rows], rankings[start : start + block_rows])
        for X, rankings in labelled(features, "train")
        for start in range(0, X.shape[0], block_rows)
    ]


def validation_error(model, features):
    X, rankings = zip(*labelled(features, "validation"), strict=True)
    scores = np.concatenate([model.decision_function(part) for part in X])
    return disagreement_error(scores, np.concatenate(rankings))


@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("rounds", [1, 3])
def test_train__one_shard_equals_the_estimator_bit_for_bit(client, features, average, rounds):
    options = {"epochs": 3, "max_planes": 4, "seed": 5, "average": average}
    model = train(features, client=client, shards=1, rounds_per_epoch=rounds, block_rows=100, **options)
    alone = AMMRank(n_categories=6, **options).fit_blocks(blocks_of(features, 100))
    np.testing.assert_array_equal(model.weights_, alone.weights_)
    np.testing.assert_array_equal(model.plane_category_, alone.plane_category_)
    np.testing.assert_array_equal(model.popularity_, alone.popularity_)
    assert model.n_steps_ == alone.n_steps_
    assert model.categories_ == CATEGORIES


def test_prepare_rows__does_not_depend_on_the_pieces(features, monkeypatch, tmp_path):
    for name, values_at_once in (("all", 1 << 21), ("some", 50)):
        monkeypatch.setattr("ammrank_dask.features.csr.VALUES_AT_ONCE", values_at_once)
        prepare_rows(str(features.path), 1, None, 16, tmp_path / name)
    whole, facts = load_arrays(tmp_path / "all")
    pieces, facts_of_pieces = load_arrays(tmp_path / "some")
    assert facts == facts_of_pieces
    assert whole.keys() == pieces.keys()
    for name, array in whole.items():
        np.testing.assert_array_equal(pieces[name], array)
        assert pieces[name].dtype == array.dtype
    part = features.partition(1)
    chosen = (part.rankings >= 0).any(axis=1) & (split_of(part.user_ids) == SPLITS.index("train"))
    for rows, rankings in PreparedRows(tmp_path / "some", "train").pieces():
        np.testing.assert_array_equal(rows.toarray(), part.X[chosen][: rows.shape[0]].toarray())
        chosen[np.flatnonzero(chosen)[: len(rankings)]] = False
    assert not chosen.any()


def test_train__any_number_of_workers_gives_the_same_bits(client, elsewhere, features):
    options = {"shards": 9, "epochs": 2, "block_rows": 50, "seed": 1}
    here = train(features, client=client, **options)
    there = train(features, client=elsewhere, **options)
    np.testing.assert_array_equal(here.weights_, there.weights_)


def test_train__shards_learn_nearly_what_one_learns(client, features):
    options = {"epochs": 6, "block_rows": 25, "regularization": 1e-2}
    errors = {
        shards: validation_error(train(features, client=client, shards=shards, **options), features)
        for shards in (1, 8)
    }
    untrained = 0.5
    assert errors[1] < 0.25 < untrained
    assert errors[8] < errors[1] + 0.05


@pytest.mark.parametrize(("in_a_task", "n_tasks"), [(10_000, 1), (1, None)])
def test_train__validation_users_of_small_partitions_share_a_task(client, features, monkeypatch, in_a_task, n_tasks):
    counts = watch_stages(monkeypatch)
    monkeypatch.setattr(validation, "USERS_OF_TASK", in_a_task)
    model = train(features, client=client, shards=2, epochs=2, block_rows=60, average=False)
    expected = n_tasks or features.n_partitions
    assert features.n_partitions > 1
    measured = {"train-first": [1 + expected], "train-validate": [expected]}
    assert {stage: n for stage, n in counts.items() if stage in measured} == measured
    # The error of the first epoch is measured beside the first round of the second.
    assert counts["train-e000-r00"] == counts["train-e001-r01"] == [2]
    assert counts["train-e001-r00"] == [2 + expected]
    assert model.training_["validation_error"] == pytest.approx(validation_error(model, features))


@pytest.mark.parametrize(
    "failing", ["train-e001-r00", "train-e001-r00-merge", "train-e001-r01", "train-e002-r01-merge"]
)
def test_train__interrupted_and_resumed_equals_uninterrupted(client, features, monkeypatch, tmp_path, failing):
    options = {"shards": 4, "epochs": 3, "block_rows": 60, "seed": 2}
    expected = train(features, client=client, **options)
    with monkeypatch.context() as patch:
        begun = watch_stages(patch, failing, RuntimeError("the scheduler is gone"))
        with pytest.raises(RuntimeError, match="the scheduler is gone"):
            train(features, client=client, scratch=tmp_path, **options)
    stages = []
    resumed = train(
        features, client=client, scratch=tmp_path, progress=lambda stage, done, total: stages.append(stage), **options
    )
    assert "train-e000-r00" in begun
    assert "train-e000-r00" not in stages
    assert "train-prepare" not in stages
    np.testing.assert_array_equal(resumed.weights_, expected.weights_)
    assert resumed.training_ == expected.training_
    assert [closed["epoch"] for closed in resumed.training_["epochs"]] == [1, 2, 3]
    assert not list(tmp_path.iterdir())


def test_sweep_earlier__leaves_the_round_to_go_on_with(tmp_path):
    for name in ("train-e000-r01-s0003", "train-e001-r00-s0000", "train-e001-r00-m0-0000", "checkpoint-0001-0000"):
        (tmp_path / name).mkdir()
    TrainingFolder(tmp_path).sweep_earlier("train-e001-r00")
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["checkpoint-0001-0000", "train-e001-r00-m0-0000", "train-e001-r00-s0000"]


def test_train__leaves_the_client_and_the_features_as_they_were(client, features):
    before = sorted(path.name for path in features.path.parent.iterdir())
    train(features, client=client, epochs=1, block_rows=100)
    assert sorted(path.name for path in features.path.parent.iterdir()) == before
    assert client.status == "running"
    assert open_features(features.path).n_users == 1500


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shards": 0}, "shards must be at least 1, got 0"),
        ({"shards": 1.5}, "shards must be a whole number, got 1.5"),
        ({"block_rows": 0}, "block_rows must be at least 1, got 0"),
        ({"shards": 5000}, r"shards must be at most the number of training users \(\d+\), got 5000"),
    ],
)
def test_train__refuses_plans_that_cannot_be(client, features, options, message):
    with pytest.raises(BadInput, match=message):
        train(features, client=client, **options)


def test_deal_blocks__deals_every_block_once_and_one_shard_in_order():
    dealt = deal_blocks(11, 3, 2, seed=4, epoch=1)
    flat = [int(block) for round_ in dealt for shard in round_ for block in shard]
    assert sorted(flat) == list(range(11))
    assert flat == np.random.default_rng([4, 1]).permutation(11).tolist()
    assert [len(round_) for round_ in dealt] == [3, 3]
    assert flat != [int(b) for round_ in deal_blocks(11, 3, 2, seed=4, epoch=2) for s in round_ for b in s]


def test_cut_blocks__covers_every_row_once():
    blocks = cut_blocks([5, 0, 3], 2)
    assert [(b.partition, b.start, b.stop) for b in blocks] == [(0, 0, 2), (0, 2, 4), (0, 4, 5), (2, 0, 2), (2, 2, 3)]
    assert [b.number for b in blocks] == list(range(5))


def test_choose_sample__has_enough_clickers_of_rare_categories():
    clickers = np.zeros((40, 3), np.int64)
    clickers[:, 0] = 10
    clickers[7, 1] = 3  # a category with three clickers, all in one block
    sample = choose_sample(clickers, np.full(40, 10), wanted=50, min_rows=100, seed=0)
    assert 7 in sample
    assert clickers[sample].sum(axis=0)[0] >= 50
    assert len(sample) < 15


def test_advance_step__is_the_mean_of_the_shards_that_had_rows_rounded_up():
    assert advance_step(10, [3, 4]) == 14
    assert advance_step(10, [3, 0]) == 13
    assert advance_step(10, [0, 0]) == 10


@pytest.mark.parametrize("at_once", [1, 14, 1 << 17])
def test_merge_arrays__does_not_depend_on_the_pieces(tmp_path, monkeypatch, at_once):
    monkeypatch.setattr(round_tasks, "VALUES_AT_ONCE", at_once)
    rng = np.random.default_rng(0)
    sums = [rng.normal(size=(9, 7)).astype(np.float32) for _ in range(3)]
    for number, part in enumerate(sums):
        save_arrays(tmp_path / str(number), {"sums": part, "squares": part[:, 0].astype(np.float64)}, {})
    folders, weights = [tmp_path / str(number) for number in range(3)], [0.2, 0.3, 0.5]
    merged = round_tasks.merge_arrays(folders, "sums", weights, np.float32)
    expected = (0.2 * sums[0].astype(float) + 0.3 * sums[1].astype(float)) + 0.5 * sums[2].astype(float)
    np.testing.assert_array_equal(merged, expected.astype(np.float32))
    squares = round_tasks.merge_arrays(folders, "squares", weights, np.float64)
    np.testing.assert_array_equal(squares, expected[:, 0])
    alone = round_tasks.merge_arrays(folders[:1], "sums", [1.0], np.float32)
    assert alone.tobytes() == sums[0].tobytes()


def test_train__a_killed_worker_changes_no_bit(client, features, tmp_path):
    options = {"shards": 6, "epochs": 3, "block_rows": 40, "seed": 3}
    expected = train(features, client=client, **options)
    with lose_a_worker("train-e001-r00", 2) as (elsewhere, progress, killed):
        model = train(features, client=elsewhere, scratch=tmp_path, progress=progress, **options)
    assert len(killed) == 1
    np.testing.assert_array_equal(model.weights_, expected.weights_)
    assert model.training_ == expected.training_


def test_train__keeps_loss_and_validation_error_by_epoch(client, features):
    model = train(features, client=client, shards=4, epochs=4, block_rows=60, average=False)
    epochs = model.training_["epochs"]
    assert [closed["epoch"] for closed in epochs] == [1, 2, 3, 4]
    assert epochs[-1]["loss"] < epochs[0]["loss"]
    assert model.training_["published"] == "last"
    assert epochs[-1]["validation_error"] == pytest.approx(validation_error(model, features))


def test_train__the_validation_users_choose_between_last_and_average(client, features):
    options = {"shards": 4, "epochs": 4, "block_rows": 60}
    candidates = {
        kind: validation_error(train(features, client=client, average=kind == "average", **options), features)
        for kind in ("last", "average")
    }
    assert candidates["last"] != candidates["average"]
    model = train(features, client=client, **options)
    assert model.training_["published"] == min(candidates, key=candidates.get)
    assert validation_error(model, features) == pytest.approx(min(candidates.values()))


def test_train__stops_early_and_keeps_the_best_epoch(client, features):
    # So strong a λ that later epochs swing around the best one.
    options = {"shards": 2, "block_rows": 60, "regularization": 0.3, "average": False, "seed": 1}
    full = train(features, client=client, epochs=12, **options).training_["epochs"]
    errors = [closed["validation_error"] for closed in full]
    stop = next(e for e in range(2, 13) if e - (1 + int(np.argmin(errors[:e]))) >= 2)
    assert stop < 12
    stopped = train(features, client=client, epochs=12, patience=2, **options)
    assert [closed["validation_error"] for closed in stopped.training_["epochs"]] == errors[:stop]
    assert stopped.training_["published"] == "best"
    assert validation_error(stopped, features) == pytest.approx(min(errors[:stop]))


def test_train__warm_start_goes_on_where_the_model_was(client, features):
    options = {"block_rows": 60, "regularization": 1e-2}
    first = train(features, client=client, shards=1, epochs=4, **options)
    cold = train(features, client=client, shards=1, epochs=1, **options)
    warm = train(features, client=client, shards=1, epochs=1, start=first, **options)
    assert validation_error(warm, features) < validation_error(cold, features)
    # Several shards plant no planes when every category has some.
    sharded = train(features, client=client, shards=4, epochs=1, start=first, **options)
    np.testing.assert_array_equal(sharded.n_planes_, first.n_planes_)


def test_train__warm_start_plants_planes_for_a_new_category(client, features):
    first = train(features, client=client, shards=4, epochs=2, block_rows=60)
    planted = first.plane_category_ != 5
    start = AMMRank(n_categories=5)
    start.set_planes(first.weights_[:, planted], first.plane_category_[planted], first.popularity_[:5], n_steps=9)
    start.categories_, start.columns_ = CATEGORIES[:5], first.columns_
    warm = train(features, client=client, shards=4, epochs=2, block_rows=60, start=start)
    assert (warm.n_planes_ > 0).all()
    assert validation_error(warm, features) < 0.2


def test_planes_of_model__matches_columns_and_categories_by_name():
    model = AMMRank(n_categories=3)
    weights = np.array([[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0], [0.5, 0.5, 0.5, 0.5]], np.float32)
    model.set_planes(weights, np.array([0, 1, 1, 2]), np.array([1, 1, 1]), n_steps=100)
    model.columns_, model.categories_ = ["x", "y"], ["a", "b", "c"]
    planes = planes_of_model(model, ["y", "new", "x"], ["b", "d", "a"], regularization=0.5, max_planes=1, step=4)
    # c is gone; of the two planes of b the longer, (3, 7), stays; S = λ · step · w = 2w.
    np.testing.assert_array_equal(planes.plane_category, [0, 2])
    np.testing.assert_array_equal(planes.n_planes, [1, 0, 1])
    np.testing.assert_array_equal(planes.sums, [[14.0, 10.0], [0.0, 0.0], [6.0, 2.0], [1.0, 1.0]])
    np.testing.assert_array_equal(planes.weights(0.5), planes.sums / 2)
    assert (planes.step, planes.next_id, planes.plane_id.tolist()) == (4, 2, [0, 1])


@pytest.mark.parametrize(
    ("columns", "categories", "message"),
    [
        (["p", "q"], ["a"], "must share columns with the features, found none in common; train without it"),
        (["x"], ["z"], "must share categories with the features, found none in common"),
    ],
)
def test_planes_of_model__refuses_a_model_of_something_else(columns, categories, message):
    model = AMMRank(n_categories=1)
    model.set_planes(np.ones((2, 1), np.float32), np.array([0]), np.array([1]), n_steps=1)
    model.columns_, model.categories_ = ["x"], ["a"]
    with pytest.raises(BadInput, match=message):
        planes_of_model(model, columns, categories, regularization=1.0, max_planes=5, step=1)


def test_planes_of_model__refuses_another_width_without_names():
    model = AMMRank(n_categories=1)
    model.set_planes(np.ones((3, 1), np.float32), np.array([0]), np.array([1]), n_steps=1)
    with pytest.raises(BadInput, match="must have 1 columns, found 2 without names"):
        planes_of_model(model, ["x"], ["a"], regularization=1.0, max_planes=5, step=1)


def test_train__a_category_nobody_clicked_is_told_and_ranks_last(client, tmp_path, caplog):
    rng = np.random.default_rng(0)
    X = rng.random((300, 4))
    rankings = np.argsort(-X[:, :3], axis=1)[:, :2]
    categories = ["a", "b", "c", "never"]
    store = write_features(tmp_path / "f", X, np.arange(300), list("wxyz"), rankings, categories=categories)
    with caplog.at_level("WARNING", logger="ammrank_dask"):
        model = train(store, client=client, shards=2, epochs=1, block_rows=50)
    assert "1 of 4 categories have no clicks of training users and rank last: never" in caplog.text
    assert (model.predict(X)[:, -1] == 3).all()


def test_train__a_checkpoint_of_other_parameters_is_not_taken(client, features, tmp_path, monkeypatch):
    options = {"shards": 2, "epochs": 2, "block_rows": 60}
    expected = train(features, client=client, regularization=0.01, **options)
    with monkeypatch.context() as patch:
        watch_stages(patch, "train-e001-r00-merge", RuntimeError("gone"))
        with pytest.raises(RuntimeError, match="gone"):
            train(features, client=client, regularization=0.001, scratch=tmp_path, **options)
    (left,) = tmp_path.iterdir()
    other = train(features, client=client, regularization=0.01, scratch=tmp_path, **options)
    np.testing.assert_array_equal(other.weights_, expected.weights_)
    # Nor when somebody gave it the name of this one.
    monkeypatch.setattr(training, "digest_of", lambda subject: "5")
    left.rename(tmp_path / ".training-5")
    with pytest.raises(BadInput, match="must hold checkpoints of this training, found others; remove the folder"):
        train(features, client=client, regularization=0.01, scratch=tmp_path, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"regularization": 0.0}, "regularization must be above 0, got 0.0"),
        ({"max_planes": 0}, "max_planes must be at least 1, got 0"),
        ({"epochs": 1.5}, r"epochs must be a whole number, got 1\.5"),
        ({"rank_weight": "best"}, "rank_weight must be one of uniform, reciprocal, or numbers, got best"),
        ({"patience": 0}, "patience must be at least 1, got 0"),
    ],
)
def test_train__refuses_bad_parameters_before_the_first_task(client, features, options, message):
    stages = []
    with pytest.raises(ValueError, match=message):
        train(features, client=client, progress=lambda stage, done, total: stages.append(stage), **options)
    assert stages == []


def test_train__inside_a_running_event_loop_as_in_a_notebook(features):
    """A notebook calls the library from a thread whose event loop is running, with a client of its own."""

    async def cell():
        with (
            LocalCluster(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None) as cluster,
            Client(cluster, set_as_default=False) as own,
        ):
            model = train(features, client=own, shards=2, epochs=1, block_rows=100)
            return model, own.status, own.submit(sum, [1, 2]).result()

    model, status, three = asyncio.run(cell())
    assert (status, three) == ("running", 3)
    assert model.n_categories_ == 6


@pytest.mark.parametrize("warm", [False, True])
def test_train__shards_without_a_block_merge_with_the_others(client, features, warm):
    start = train(features, client=client, shards=1, epochs=1, block_rows=60) if warm else None
    model = train(features, client=client, shards=8, epochs=2, block_rows=300, start=start)
    assert validation_error(model, features) < 0.2
