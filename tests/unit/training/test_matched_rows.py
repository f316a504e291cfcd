"""Windows of other columns and categories: rows, rankings and counts are matched by name."""

import numpy as np
import pytest

from ammrank_dask.features.write import write_features
from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.store.ids import ids_from_values
from ammrank_dask.training.driver import Windows
from ammrank_dask.training.matched_rows import match_features
from ammrank_dask.training.prepared_rows import prepare_rows
from ammrank_dask.training.train import train

NOW = ["Caps", "Flights", "Hats", "Shoes"]
THEN = ["Fax", "Flights", "Hats", "Sneakers"]
RENAMES = {"Sneakers": "Shoes"}
PLUS = {"n_centers": 4, "clickers_per_plane": 40, "shards": 2, "epochs": 1, "block_rows": 32}


def columns_of(categories, *more):
    kinds = [f"{group}:{kind}" for group in ("pv", "adc") for kind in ("intensity", "recency")]
    return [*(f"{kind}:{name}" for kind in kinds for name in categories), *more, "age:18-20"]


def write(path, X, rankings, columns, categories):
    return write_features(path, X, np.arange(len(X)), columns, rankings, categories=categories, n_partitions=2)


@pytest.fixture
def stores(tmp_path):
    """Tonight's rows, an earlier window as it was written, and as it would be with the names of now, by hand."""
    rng = np.random.default_rng(5)
    then, now = columns_of(THEN, "adc:intensity:Gone"), columns_of(NOW)
    X = np.where(rng.random((200, len(then))) < 0.5, 2 * rng.random((200, len(then))), 0)
    rankings = np.argsort(rng.random((200, 4)), axis=1)[:, :2]
    rankings[::3, 1] = -1
    # Caps are new, Fax is gone, Sneakers are Shoes: by hand.
    same = [now.index(name.replace("Sneakers", "Shoes")) for name in then if "Fax" not in name and "Gone" not in name]
    kept = [number for number, name in enumerate(then) if "Fax" not in name and "Gone" not in name]
    by_hand = np.zeros((200, len(now)))
    by_hand[:, same] = X[:, kept]
    code = {0: -1, 1: 1, 2: 2, 3: 3, -1: -1}
    rows = [[code[one] for one in row if code[one] >= 0] for row in rankings.tolist()]
    ranked = np.array([row + [-1] * (2 - len(row)) for row in rows])
    newest = np.where(rng.random((220, len(now))) < 0.5, 2 * rng.random((220, len(now))), 0)
    clicked = np.argsort(rng.random((220, 4)), axis=1)[:, :2]
    return (
        write(tmp_path / "newest", newest, clicked, now, NOW),
        write(tmp_path / "then", X, rankings, then, THEN),
        write(tmp_path / "by-hand", by_hand, ranked, now, NOW),
    )


@pytest.mark.parametrize("variant", [None, "no-pv"])
@pytest.mark.parametrize("normalize", [None, False])
def test_prepare_rows__brings_rows_to_other_columns_by_name(stores, tmp_path, variant, normalize):
    newest, then, by_hand = stores
    match = match_features(then, newest, variant, RENAMES)
    for partition in range(2):
        prepare_rows(str(then.path), partition, variant, 16, tmp_path / "a" / str(partition), normalize, True, match)
        prepare_rows(str(by_hand.path), partition, variant, 16, tmp_path / "b" / str(partition), normalize)
    files = sorted(path.relative_to(tmp_path / "b") for path in (tmp_path / "b").rglob("*") if path.is_file())
    assert files
    for file in files:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes(), file


def test_train__rows_of_other_categories_teach_as_if_they_had_those_of_now(client, stores, tmp_path):
    newest, then, by_hand = stores
    matched = train(newest, client=client, earlier=[then], renames=RENAMES, **PLUS)
    expected = train(newest, client=client, earlier=[by_hand], **PLUS)
    alone = train(newest, client=client, **PLUS)
    assert matched.digest() == expected.digest() != alone.digest()
    assert (matched.categories_, matched.columns_) == (NOW, newest.columns)


def test_train__users_who_are_left_out_have_no_rows_in_any_window(client, stores, tmp_path):
    newest, then, _ = stores
    gone = np.arange(0, 200, 3)
    without = []
    for number, each in enumerate((newest, then)):
        parts = [each.partition(i, normalize=False) for i in range(each.n_partitions)]
        ids = np.concatenate([part.user_ids.to_arrays()["user_id"] for part in parts])
        kept = ~np.isin(ids, gone)
        X = np.concatenate([part.X.toarray() for part in parts])[kept]
        rankings = np.concatenate([part.rankings for part in parts])[kept]
        path = tmp_path / f"without-{number}"
        options = {"categories": each.categories, "n_partitions": 2}
        without.append(write_features(path, X, ids[kept], each.columns, rankings, **options))
    model = train(newest, client=client, earlier=[then], renames=RENAMES, left_out=ids_from_values(gone), **PLUS)
    expected = train(without[0], client=client, earlier=[without[1]], renames=RENAMES, **PLUS)
    assert model.digest() == expected.digest()


def test_train__of_many_rows_partitions_are_left_out(client, stores, tmp_path):
    newest, _, then = stores
    halves = []
    for name, each, partition in (("newest-half", newest, 0), ("then-half", then, 1)):
        part = each.partition(partition, normalize=False)
        ids = part.user_ids.to_arrays()["user_id"]
        options = {"categories": NOW, "n_partitions": 2}
        halves.append(write_features(tmp_path / name, part.X, ids, each.columns, part.rankings, **options))
    expected = train(halves[0], client=client, earlier=[halves[1]], **PLUS)
    sampled = train(newest, client=client, earlier=[then], max_rows=220, **PLUS)
    of_all = train(newest, client=client, earlier=[then], **PLUS)
    assert sampled.digest() == expected.digest() != of_all.digest()


def test_partitions__windows_take_turns(stores):
    newest, then, by_hand = stores  # of 220, 200 and 200 rows
    windows = Windows((then, by_hand))
    chosen = {n: [(each.path.name, part) for each, part in windows.partitions(newest, n)] for n in (1, 100, 420, 620)}
    assert chosen[420] == [("newest", 0), ("then", 1), ("by-hand", 0)]
    assert chosen[1] == chosen[100] == chosen[420]  # one at least of each
    assert len(chosen[620]) == 6


def test_train__the_model_has_the_categories_of_tonight(client, stores):
    newest, then, by_hand = stores
    model = train(then, client=client, tonight=newest, renames=RENAMES, **PLUS)
    assert model.digest() == train(by_hand, client=client, tonight=newest, **PLUS).digest()
    assert (model.categories_, model.columns_) == (NOW, newest.columns)


def test_match_features__none_for_the_same_names(stores):
    newest, _, by_hand = stores
    assert match_features(by_hand, newest, None, RENAMES) is None


def test_match_features__of_two_that_became_one_only_one_counts(stores):
    newest, then, _ = stores
    match = match_features(then, newest, None, {"Sneakers": "Hats"})
    assert match.categories.tolist() == [-1, 1, 2, -1]


def test_popularity__counts_are_brought_to_the_categories_of_now(stores, monkeypatch):
    newest, then, by_hand = stores
    counts = {  # Fax, Flights, Hats and Sneakers; Caps, Flights, Hats and Shoes
        then.path: [[9, 8, 3, 2, 1], [20, 18, 6, 4, 2], [30, 20, 9, 5, 3]],
        by_hand.path: [[9, 0, 3, 2, 1], [20, 0, 6, 4, 2], [30, 0, 9, 5, 3]],
        newest.path: [[9, 4, 3, 2, 1], [20, 8, 6, 4, 2], [30, 9, 9, 5, 3]],
    }
    for each in stores:
        each.run.manifest["config"]["clickers"] = counts[each.path]
    matched = Windows((then,), None, RENAMES).popularity(newest, None)
    expected = Windows((by_hand,)).popularity(newest, None)
    np.testing.assert_array_equal(matched.scores, expected.scores)
    assert matched.clicks.tolist() == [4, 3, 2, 1]


def test_train__refuses_windows_with_nothing_in_common(client, stores, tmp_path):
    newest, _, _ = stores
    X, rankings = np.ones((40, 2)), np.zeros((40, 1), int)
    other = write(tmp_path / "other", X, rankings, ["x", "age:18-20"], ["Cars"])
    with pytest.raises(BadInput, match=r"must share categories with .*newest, found none in common; leave them out"):
        train(newest, client=client, earlier=[other], **PLUS)
    other = write(tmp_path / "columns", X, rankings, ["x", "y"], ["Hats"])
    with pytest.raises(BadInput, match=r"must share columns with .*newest, found none in common; leave them out"):
        train(newest, client=client, earlier=[other], **PLUS)
