"""Scoring on a cluster: what is written for every user, and what is refused."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import reference_ranking
from sklearn.exceptions import NotFittedError

from ammrank_dask.features.eligibility import Eligibility
from ammrank_dask.features.store import Features
from ammrank_dask.features.write import write_features
from ammrank_dask.model.amm_rank import AMMRank
from ammrank_dask.model.plane_panels import top_categories
from ammrank_dask.report.summary import exposure_report
from ammrank_dask.scoring.score import score
from ammrank_dask.scoring.score_partition import score_pieces
from ammrank_dask.storage.errors import BadInput, DamagedStore
from ammrank_dask.storage.objects import atomic
from ammrank_dask.storage.store.runs import finish_run
from ammrank_dask.training.train import train

CATEGORIES = ["autos", "games / <b>", "garten & haus", "news"]


COLUMNS = [f"pv:intensity:{name}" for name in CATEGORIES] + ["adv:intensity:autos", "age:18-20"]


def make_features(path, ids, *, n_partitions=3, has_rankings=True, **options):
    """Write features in which users click what they look at; the first thirty are cold."""
    rng = np.random.default_rng(12)
    n = len(ids)
    X = np.where(rng.random((n, 6)) < 0.6, rng.random((n, 6)), 0)
    X[:30, :5] = 0
    X[:30, 5] = 1
    X[30:, 0] += 0.01  # nobody else is cold
    rankings = np.argsort(-X[:, :4], axis=1)[:, :2]
    rankings[rng.random(n) < 0.2] = -1
    names = {"columns": COLUMNS, "categories": CATEGORIES, **options}
    return write_features(
        path, X, ids, names["columns"], rankings if has_rankings else None, categories=names["categories"],
        n_partitions=n_partitions,
    )  # fmt: skip


@pytest.fixture
def features(tmp_path):
    return make_features(tmp_path / "features", np.arange(100, 400))


def test_train__refuses_features_without_rankings(client, tmp_path):
    with pytest.raises(BadInput, match="must have rankings to train on, found none"):
        train(make_features(tmp_path / "f", np.arange(40), has_rankings=False), client=client)


@pytest.mark.parametrize("ids", [np.arange(100, 400), np.array([f"u{i:03d}" for i in range(300)])])
def test_score__writes_the_top_k_of_every_user(client, tmp_path, ids):
    features = make_features(tmp_path / "features", ids)
    model = train(features, client=client, model="amm-rank", variant="no-adv")
    quals = score(model, features, tmp_path / "quals", client=client, k=3)
    assert sorted(p.name for p in quals.path.iterdir()) == ["by_category", "by_user", "delta", "manifest.json"]
    parts = ["part-00000.parquet", "part-00001.parquet", "part-00002.parquet"]
    assert sorted(p.name for p in (quals.path / "by_user").iterdir()) == parts
    seen = []
    for i, path in enumerate(quals.parts):
        part = features.partition(i, variant="no-adv")
        scores = reference_ranking.score_rows(part.X.toarray(), model.weights_, model.plane_category_, 1.0, 4)
        codes, best = reference_ranking.top_k(scores, model.tie_order_, 3)
        table = pq.read_table(path)
        assert table.schema.field("rank").type == pa.int16()
        assert table.schema.field("score").type == pa.float32()
        assert pa.types.is_dictionary(table.schema.field("category").type)
        users = part.user_ids.to_arrow().to_pylist()
        assert users == sorted(users)
        assert table["user_id"].to_pylist() == np.repeat(users, 3).tolist()
        assert table["rank"].to_pylist() == [1, 2, 3] * len(users)
        assert table["category"].to_pylist() == [CATEGORIES[c] for c in codes.ravel()]
        np.testing.assert_allclose(table["score"].to_numpy(), best.ravel(), rtol=1e-4, atol=1e-5)
        seen += users
    assert sorted(seen) == ids.tolist()
    assert (quals.facts["users"], quals.facts["cold_users"]) == (300, 30)
    np.testing.assert_array_equal(quals.counts.categories_per_user, [0, 0, 0, 300, 0])


@pytest.mark.parametrize("values_at_once", [1, 40, 10**9], ids=["a row", "some rows", "all rows"])
def test_score_pieces__does_not_depend_on_the_pieces(features, monkeypatch, values_at_once):
    monkeypatch.setattr("ammrank_dask.features.csr.VALUES_AT_ONCE", values_at_once)
    model = AMMRank(bias=1.0)
    n_weights = len(COLUMNS) - 1 + 1  # without the column of ad views, with the bias
    weights = np.random.default_rng(2).standard_normal((n_weights, 6)).astype(np.float32)
    model.set_planes(weights, np.array([0, 0, 1, 2, 2, 3], np.int32), np.array([4, 3, 2, 1]), n_steps=1)
    part = features.partition(1, variant="no-adv")
    n = len(part.user_ids)
    limits = Eligibility(exclude_by_group={"female": frozenset({1})}).filter(4, np.zeros(n, np.int8), np.arange(n) % 2)
    pieces = [rows for rows, _, _ in features.open_partition(1, variant="no-adv").pieces()]
    assert [piece.start for piece in pieces] == [0, *(piece.stop for piece in pieces[:-1])]
    assert pieces[-1].stop == n
    assert (len(pieces) == n) == (values_at_once == 1)
    assert (len(pieces) == 1) == (values_at_once == 10**9)
    opened = features.open_partition(1, variant="no-adv")
    scored = score_pieces(opened, model.panels(), 3, limits, keep_all=True)
    expected = top_categories(part.X, model.panels(), 3, limits, keep_all=True)
    for found, wanted in zip((scored.codes, scored.scores, scored.everything), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(scored.activity, part.n_event_features)


def test_score__rerun_and_fewer_partitions_leave_the_right_files(client, features, tmp_path):
    model = train(features, client=client)
    model.save(tmp_path / "model")
    first = score(model, features, tmp_path / "quals", client=client, k=2)
    contents = [path.read_bytes() for path in first.parts]
    again = score(tmp_path / "model", features, tmp_path / "quals", client=client, k=2)
    assert [path.read_bytes() for path in again.parts] == contents
    fewer = make_features(tmp_path / "fewer", np.arange(100, 400), n_partitions=2)
    quals = score(model, fewer, tmp_path / "quals", client=client, k=2)
    assert sorted((quals.path / "by_user").iterdir()) == quals.parts
    assert len(quals.to_pandas()) == 600


def test_score__the_disk_begins_to_take_every_file_before_the_end(client, features, tmp_path, monkeypatch):
    begun = []
    monkeypatch.setattr(atomic, "begin_sync", begun.append)
    model = train(features, client=client)
    quals = score(model, features, tmp_path / "quals", client=client, k=2)
    names = sorted(Path(*path.parts[len(tmp_path.parts) + 1 :]).as_posix() for path in begun)
    assert names == sorted(quals.run.files)


def test_qualifications__to_pandas_of_some_users(client, features, tmp_path):
    quals = score(train(features, client=client), features, tmp_path / "quals", client=client, k=2)
    everyone = quals.to_pandas()
    assert everyone["user_id"].tolist() == np.repeat(np.arange(100, 400), 2).tolist()
    assert everyone["rank"].tolist() == [1, 2] * 300
    some = quals.to_pandas(users=[399, 100])
    assert some["user_id"].tolist() == [100, 100, 399, 399]
    assert some["category"].tolist() == everyone["category"].iloc[[0, 1, -2, -1]].tolist()
    assert len(quals.to_pandas(users=[])) == 0
    with pytest.raises(BadInput, match="ids of these qualifications are of type int64, got string; convert them"):
        quals.to_pandas(users=["399"])


@pytest.mark.parametrize("column", ["category", "rank", "score"])
def test_qualifications__a_damaged_page_is_named(client, features, tmp_path, column):
    quals = score(train(features, client=client), features, tmp_path / "quals", client=client, k=2)
    path = quals.parts[1]
    group = pq.read_metadata(path).row_group(0)
    chunk = next(c for c in map(group.column, range(group.num_columns)) if c.path_in_schema == column)
    data = bytearray(path.read_bytes())
    data[chunk.data_page_offset + chunk.total_compressed_size // 2] ^= 1
    path.write_bytes(bytes(data))
    reads = [quals.to_pandas, lambda: quals.to_pandas(users=[100])]
    if column != "score":  # it is not counted
        reads.append(lambda: exposure_report(quals, client=client))
    for read in reads:
        with pytest.raises(DamagedStore, match=rf"{path} is not what was written \(.*CRC.*\); make it again with"):
            read()


def test_score__refuses_a_model_of_other_features(client, features, tmp_path):
    model = train(features, client=client)
    ids = np.arange(40)
    renamed = make_features(tmp_path / "renamed", ids, categories=["other", *CATEGORIES[1:]])
    with pytest.raises(BadInput, match=r"must rank the categories of the features at .*, found other ones"):
        score(model, renamed, tmp_path / "quals", client=client, k=2)
    moved = make_features(tmp_path / "moved", ids, columns=[*COLUMNS[3::-1], *COLUMNS[4:]])
    with pytest.raises(BadInput, match=r"must be trained on the columns of the features at .*, found other ones"):
        score(model, moved, tmp_path / "quals", client=client, k=2)
    with pytest.raises(BadInput, match=r"\(variant None in the model, no-adv asked for\)"):
        score(model, features, tmp_path / "quals", client=client, k=2, variant="no-adv")
    own = AMMRank(n_categories=4).fit(np.ones((1, 3)), np.array([[0]]))
    with pytest.raises(BadInput, match="must have the model's 3 columns, found 6"):
        score(own, features, tmp_path / "quals", client=client, k=2)
    with pytest.raises(BadInput, match=r"k must be between 1 and n_categories \(4\), got 5"):
        score(model, features, tmp_path / "quals", client=client, k=5)
    with pytest.raises(NotFittedError, match="not fitted yet"):
        score(AMMRank(), features, tmp_path / "quals", client=client, k=2)
    assert not (tmp_path / "quals").exists()


def test_score__failed_task_leaves_nothing_at_the_place(client, features, tmp_path, monkeypatch):
    model = train(features, client=client)

    def fail(self, index, **options):
        raise BadInput("the disk is gone")

    monkeypatch.setattr(Features, "open_partition", fail)
    with pytest.raises(BadInput, match="the disk is gone"):
        score(model, features, tmp_path / "quals", client=client, k=2)
    assert not (tmp_path / "quals").exists()


@pytest.mark.parametrize("is_whole", [False, True], ids=["before the manifest", "after it"])
def test_score__a_crash_at_the_end_leaves_no_work_in_what_the_next_try_publishes(
    client, features, tmp_path, monkeypatch, is_whole
):
    model = train(features, client=client)

    def crash(*args, **options):
        if is_whole:
            finish_run(*args, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr("ammrank_dask.scoring.score_passes.finish_run", crash)
    with pytest.raises(KeyboardInterrupt):
        score(model, features, tmp_path / "quals", client=client, k=2)
    monkeypatch.undo()
    quals = score(model, features, tmp_path / "quals", client=client, k=2)
    found = {path.relative_to(quals.path).as_posix() for path in quals.path.rglob("*") if path.is_file()}
    assert found == {"manifest.json", *quals.run.manifest["files"]}
    assert len(quals.to_pandas()) == 600


def test_exposure_report__counts_what_score_counted(client, features, tmp_path):
    quals = score(train(features, client=client), features, tmp_path / "quals", client=client, k=2)
    report = exposure_report(quals, client=client)
    np.testing.assert_array_equal(report[["rank_1", "rank_2"]], quals.counts.exposure)
    holders = quals.to_pandas().groupby("category", observed=False)["user_id"].nunique()
    assert dict(zip(report["category"], report["exposure"], strict=True)) == holders.to_dict()
    assert report["exposure_share"].sum() == pytest.approx(1.0)
    assert report["rank_1"].sum() == 300
