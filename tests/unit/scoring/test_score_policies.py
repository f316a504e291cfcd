"""Policies against full sorts: on random scores, on scores that tie, over any number of partitions and workers."""

import json
import shutil
import time
from collections import Counter
from urllib.parse import quote

import numpy as np
import psutil
import pyarrow.parquet as pq
import pytest
from distributed import Client
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from ammrank_dask.features.store import Features
from ammrank_dask.features.write import write_features
from ammrank_dask.kernels.selection import order_assigned
from ammrank_dask.model.amm_rank import AMMRank
from ammrank_dask.monitor.events import TOPIC
from ammrank_dask.scoring import policy_sample, score_partition, score_passes
from ammrank_dask.scoring.category_cutoffs import ScoreCutoffs, ScoreScratch, find_cutoffs
from ammrank_dask.scoring.delta import PreviousQualifications, compare_qualifications
from ammrank_dask.scoring.policies import POLICIES, CategoryTopN, PolicyCounts, ScoredUsers, UserTopK, share_slots
from ammrank_dask.scoring.policy_sample import sampled_rows, scale_counts
from ammrank_dask.scoring.qualifications import open_qualifications
from ammrank_dask.scoring.score import score
from ammrank_dask.scoring.score_partition import score_pieces
from ammrank_dask.scoring.score_passes import finish_qualifications, write_qualifications
from ammrank_dask.scoring.settings import ScoreSettings
from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.objects.atomic import digest_tree
from ammrank_dask.storage.store.category_files import partitions_of
from ammrank_dask.storage.store.ids import ids_from_values
from ammrank_dask.storage.store.qualification_files import written_facts
from ammrank_dask.storage.store.qualifications import CHANGES, QualificationRows
from ammrank_dask.storage.store.runs import verify_run
from ammrank_dask.storage.store.scratch_arrays import load_array
from ammrank_dask.user_hash import partition_of

CATEGORIES = ["autos", "games/..=", "<script>", "ünï", "news", "no planes"]
INTEGERS = np.array([-(2**62), -5, 0, 3, 8, 13, 21, 55, 89, 2**40])
OPEN_PARTITION, ASSIGN = Features.open_partition, CategoryTopN.assign
WITHOUT_CHANCES = tuple(name for name, policy in POLICIES.items() if not policy.needs_chances)
STRINGS = np.array(["", "a", "a/b", "B", "b", "user-1", "user-10", "user-2", "ü", "z"])


def make_scratch(folder, scores, ids, home, n_partitions):
    """Keep scores (L, n) of users in any order, each in the partition `home` says, ascending by id."""
    scratch = ScoreScratch(folder, n_partitions)
    for partition in range(n_partitions):
        rows = np.flatnonzero(home == partition)
        rows = rows[np.argsort([text_key(ids[row]) for row in rows])] if len(rows) else rows
        scratch.save(partition, scores[:, rows], ids_from_values(ids[rows]), {})
    return scratch


def text_key(user):
    return user.encode() if isinstance(user, str) else int(user)


def take_best(scores, ids, wanted):
    """Return {(user, category)} by a full sort: highest score first, then lowest id; -inf is no score."""
    taken = set()
    for category, row in enumerate(scores):
        order = sorted((-row[user], text_key(ids[user]), user) for user in range(len(ids)) if row[user] > -np.inf)
        taken |= {(user, category) for _, _, user in order[: wanted[category]]}
    return taken


@given(
    seed=st.integers(0, 2**32 - 1), n_partitions=st.integers(1, 4), levels=st.sampled_from([1, 2, 5, 10**6]),
    texts=st.booleans(), n=st.one_of(st.none(), st.integers(1, 12)), at_once=st.sampled_from([1, 50_000]),
)  # fmt: skip
@examples(40)
def test_category_top_n__equals_a_full_sort(client, tmp_path_factory, seed, n_partitions, levels, texts, n, at_once):
    rng = np.random.default_rng(seed)
    ids = (STRINGS if texts else INTEGERS)[rng.permutation(10)[: rng.integers(0, 11)]]
    scores = (rng.integers(-levels, levels + 1, (4, len(ids))) / 7).astype(np.float32)
    scores[scores == 0] *= rng.choice([1, -1])  # -0 is 0
    scores[rng.random(scores.shape) < 0.2] = -np.inf
    home = rng.integers(0, n_partitions, len(ids))
    folder = tmp_path_factory.mktemp("scratch")
    scratch = make_scratch(folder, scores, ids, home, n_partitions)
    scored = (scores > -np.inf).sum(axis=1)
    slots = int(rng.integers(0, scored.sum() + 1))
    wanted = share_slots(scored, slots, range(4)) if n is None else np.minimum(n, scored)
    tie_order = np.array([2, 0, 3, 1], np.int32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ammrank_dask.scoring.category_cutoffs._IDS_AT_ONCE", at_once)
        plan = find_cutoffs(client, scratch, lambda found: wanted)
    assert plan.n_taken.tolist() == wanted.tolist()
    held = set()
    place = {c: i for i, c in enumerate(tie_order)}
    for partition in range(n_partitions):
        users = ScoredUsers(
            scratch.user_ids(partition), np.empty((0, 0)), np.empty((0, 0)), tie_order, scratch.bits(partition)
        )
        rows = CategoryTopN().assign(users, plan)
        names = users.user_ids.to_arrow().to_pylist()
        for row, name in enumerate(names):
            codes = rows.category[rows.indptr[row] : rows.indptr[row + 1]]
            user = ids.tolist().index(name)
            np.testing.assert_array_equal(rows.score[rows.indptr[row] : rows.indptr[row + 1]], scores[codes, user])
            assert codes.tolist() == sorted(codes, key=lambda c, user=user: (-scores[c, user], place[c]))
            held |= {(user, int(code)) for code in codes}
    assert held == take_best(scores, ids, wanted)
    shutil.rmtree(folder)


def test_find_cuts__many_ties_are_narrowed_by_samples(client, tmp_path):
    ids = np.random.default_rng(5).permutation(3000) * 11
    home = np.arange(3000) % 3
    scratch = make_scratch(tmp_path, np.zeros((2, 3000), np.float32), ids, home, 3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ammrank_dask.scoring.category_cutoffs._IDS_AT_ONCE", 20)
        plan = find_cutoffs(client, scratch, lambda found: np.array([1234, 3000]))
    assert plan.last_id[0].to_arrow().to_pylist() == [1233 * 11]
    assert 1 not in plan.last_id  # all of them are taken


@pytest.mark.parametrize(
    ("scored", "slots", "expected"),
    [
        ([9, 9, 9], 9, [3, 3, 3]),
        ([9, 9, 9], 10, [3, 3, 4]),
        ([9, 1, 9], 10, [4, 1, 5]),
        ([0, 0, 0], 5, [0, 0, 0]),
        ([2, 2, 2], 7, [2, 2, 2]),
        ([4, 4, 4], 0, [0, 0, 0]),
    ],
)
def test_share_slots__by_hand(scored, slots, expected):
    assert share_slots(np.array(scored), slots, [2, 0, 1]).tolist() == expected


def test_user_top_k__leaves_out_what_is_not_there():
    codes = np.array([[1, 0], [2, -1], [-1, -1]], np.int32)
    scores = np.where(codes < 0, -np.inf, 1.5).astype(np.float32)
    rows = UserTopK().assign(ScoredUsers(ids_from_values([3, 5, 9]), codes, scores, np.arange(3)))
    assert rows.indptr.tolist() == [0, 2, 3, 3]
    assert rows.category.tolist() == [1, 0, 2]
    assert rows.rank.tolist() == [1, 2, 1]
    counts = UserTopK().count(rows, 3, 2)
    assert counts.exposure.tolist() == [[0, 1], [1, 0], [1, 0]]
    assert counts.categories_per_user.tolist() == [1, 1, 1, 0]
    assert counts.slots == 3


def make_model(rng, *, whole=False):
    model = AMMRank()
    plane_category = np.array([0, 0, 1, 2, 2, 3, 4], np.int32)
    weights = rng.integers(-1, 2, (4, 7)) if whole else rng.standard_normal((4, 7))
    model.set_planes(weights.astype(np.float32), plane_category, np.array([5, 3, 9, 1, 3, 2]), n_steps=1)
    return model


def make_features(path, rng, *, n_users=200, n_partitions=3, whole=False, texts=False, categories=CATEGORIES):
    X = rng.integers(0, 2, (n_users, 3)) if whole else rng.random((n_users, 3))
    ids = np.array([f"u{i * 7 % n_users:04d}" for i in range(n_users)]) if texts else np.arange(n_users) * 13 - 700
    return write_features(path, X, ids, ["pv:a", "pv:b", "pv:c"], categories=categories, n_partitions=n_partitions)


def all_scores(model, features):
    """Return ids and scores of all users, by id."""
    parts = [features.partition(i) for i in range(features.n_partitions)]
    ids = [user for part in parts for user in part.user_ids.to_arrow().to_pylist()]
    scores = np.concatenate([model.decision_function(part.X) for part in parts])
    order = sorted(range(len(ids)), key=lambda i: text_key(ids[i]))
    return [ids[i] for i in order], scores[order]


@pytest.mark.parametrize("texts", [False, True])
@pytest.mark.parametrize("whole", [False, True])
def test_score__category_top_n_is_the_head_of_every_category(client, tmp_path, whole, texts):
    rng = np.random.default_rng(8)
    model, features = make_model(rng, whole=whole), make_features(tmp_path / "f", rng, whole=whole, texts=texts)
    ids, scores = all_scores(model, features)
    quals = score(model, features, tmp_path / "quals", client=client, k=2, policy="category_top_n")
    # 200 users × 2 slots over the five categories that have scores.
    expected = take_best(scores.T, np.array(ids), [80, 80, 80, 80, 80, 0])
    frame = quals.to_pandas()
    found = {(ids.index(u), CATEGORIES.index(c)) for u, c in zip(frame["user_id"], frame["category"], strict=True)}
    assert len(frame) == 400
    assert found == expected
    assert quals.facts["policies"]["category_top_n"]["n"] == 80
    assert quals.facts["policies"]["category_top_n"]["exposure"] == [[80]] * 5 + [[0]]
    per_user = Counter(frame["user_id"])
    assert quals.counts.categories_per_user.tolist() == [
        sum(per_user.get(user, 0) == n for user in ids) for n in range(7)
    ]
    ranks = frame.groupby("user_id")["rank"].apply(list)
    assert all(found == list(range(1, len(found) + 1)) for found in ranks)
    given_n = score(model, features, tmp_path / "n", client=client, k=2, policy="category_top_n", n=7)
    assert given_n.facts["policies"]["category_top_n"]["slots"] == 35


@pytest.mark.parametrize("k", [1, 5, 6])
def test_score__user_top_k_gives_every_user_exactly_k(client, tmp_path, k):
    rng = np.random.default_rng(2)
    model, features = make_model(rng, whole=True), make_features(tmp_path / "f", rng, whole=True)
    quals = score(model, features, tmp_path / "quals", client=client, k=k)
    counts = Counter(quals.to_pandas()["user_id"])
    assert set(counts.values()) == {k}
    assert len(counts) == 200
    assert quals.counts.slots == 200 * k
    # The category without planes comes last, without a score.
    last = quals.to_pandas().query("category == 'no planes'")
    assert last["rank"].tolist() == ([6] * 200 if k == 6 else [])
    assert np.isneginf(last["score"]).all()


@pytest.mark.parametrize("policy", WITHOUT_CHANCES)
def test_score__by_category_is_by_user_in_another_order(client, tmp_path, policy):
    rng = np.random.default_rng(4)
    model, features = make_model(rng, whole=True), make_features(tmp_path / "f", rng, whole=True)
    quals = score(model, features, tmp_path / "quals", client=client, k=3, policy=policy)
    by_user = {(row.user_id, row.category, row.rank, row.score) for row in quals.to_pandas().itertuples(index=False)}
    by_category = set()
    folders = sorted((quals.path / "by_category").iterdir())
    names = {f"category={quote(name, safe='')}": name for name in CATEGORIES}
    assert "no planes" not in {names[folder.name] for folder in folders}
    for folder in folders:
        for part in sorted(folder.iterdir()):
            rows = pq.read_table(part, partitioning=None).to_pylist()
            assert rows
            keys = [(-row["score"], row["user_id"]) for row in rows]
            assert keys == sorted(keys)
            by_category |= {(row["user_id"], names[folder.name], row["rank"], row["score"]) for row in rows}
    assert by_category == by_user


def test_score__a_category_longer_than_a_file_name_has_a_short_folder_in_the_manifest(client, tmp_path):
    # 33 characters of three bytes are 297 when quoted; two names that differ only at their end stay apart, and a name
    # that is as long as a folder may be keeps its own.
    long = "日" * 33
    fits = "x" * (255 - len("category="))
    names = sorted([long, long + "本", "x" + fits, fits, "news", "autos"])
    rng = np.random.default_rng(4)
    model, features = make_model(rng), make_features(tmp_path / "f", rng, categories=names)
    quals = score(model, features, tmp_path / "quals", client=client, k=4)
    short = quals.run.manifest["config"]["short_folders"]
    assert sorted(short.values()) == sorted([long, long + "本", "x" + fits])
    assert all(len(folder) < 150 for folder in short)
    by_user = quals.to_pandas()
    folders = list((quals.path / "by_category").iterdir())
    names_of = {f"category={quote(name, safe='')}": name for name in ("autos", "news", fits)} | short
    users = {
        names_of[folder.name]: set(pq.read_table(folder, partitioning=None)["user_id"].to_pylist())
        for folder in folders
    }
    assert users == {name: set(rows["user_id"]) for name, rows in by_user.groupby("category", observed=True)}
    verify_run(quals.path)


def held_by(quals):
    """Return rank and score of every pair of a user and a category."""
    return {(row.user_id, row.category): (row.rank, row.score) for row in quals.to_pandas().itertuples(index=False)}


def test_score__by_category_has_few_files_of_ranges_of_partitions(client, tmp_path, monkeypatch):
    rng = np.random.default_rng(4)
    model = make_model(rng, whole=True)
    features = make_features(tmp_path / "f", rng, n_users=300, n_partitions=6, whole=True)
    digests = []
    for rows_of_file, n_files in ((10**6, 1), (60, 3), (1, 6)):
        monkeypatch.setattr("ammrank_dask.scoring.by_category.ROWS_OF_FILE", rows_of_file)
        quals = score(model, features, tmp_path / f"quals-{rows_of_file}", client=client, k=3)
        folder = quals.path / "by_category" / "category=news"
        parts = sorted(folder.iterdir())
        rows = []
        for part in parts:
            table = pq.read_table(part, partitioning=None).to_pandas()
            assert len(table) >= min(rows_of_file, 1) or part == parts[-1]
            keys = list(zip(-table["score"], table["user_id"], strict=True))
            assert keys == sorted(keys)
            users = ids_from_values(table["user_id"].tolist())
            assert set(partition_of(users, 6)) <= set(partitions_of(part.name))
            rows += table.itertuples(index=False, name=None)
        digests.append(sorted(rows))
        covered = [partition for part in parts for partition in partitions_of(part.name)]
        assert covered == sorted(set(covered))
        assert len(parts) <= n_files
        verify_run(quals.path)
    assert digests[0] == digests[1] == digests[2]
    held = {(u, r, s) for (u, c), (r, s) in held_by(quals).items() if c == "news"}
    assert {(u, r, s) for u, s, r in digests[0]} == held


def test_score__delta_leads_from_one_night_to_the_next(client, tmp_path):
    rng = np.random.default_rng(6)
    model = make_model(rng)
    before = make_features(tmp_path / "before", rng, n_users=150, n_partitions=2)
    after = make_features(tmp_path / "after", rng, n_users=170, n_partitions=3)
    first = score(model, before, tmp_path / "first", client=client, k=2)
    second = score(model, after, tmp_path / "second", client=client, k=2, previous=first, exclude=["autos"])
    held = held_by(first)
    rows = [row for part in sorted((first.path / "delta").iterdir()) for row in pq.read_table(part).to_pylist()]
    assert {(row["user_id"], row["category"]): (row["rank"], row["score"]) for row in rows} == held
    assert {row["change"] for row in rows} == {"added"}
    seen = set()
    for part in sorted((second.path / "delta").iterdir()):
        rows = pq.read_table(part).to_pylist()
        assert [row["user_id"] for row in rows] == sorted(row["user_id"] for row in rows)
        for row in rows:
            pair, now = (row["user_id"], row["category"]), (row["rank"], row["score"])
            seen.add(row["change"])
            if row["change"] == "removed":
                assert now == (None, None)
                del held[pair]
            else:
                assert (row["change"] == "changed") == (pair in held)
                assert held.get(pair) != now
                held[pair] = now
    assert seen == {"added", "changed", "removed"}
    assert held == held_by(second)
    # The same partitions on both sides.
    third = score(model, after, tmp_path / "third", client=client, k=2, previous=second, exclude=["autos"])
    assert all(pq.read_table(part).num_rows == 0 for part in (third.path / "delta").iterdir())


def test_compare_qualifications__a_category_that_is_gone_is_removed_by_name(client, tmp_path):
    rng = np.random.default_rng(6)
    first = score(
        make_model(rng), make_features(tmp_path / "f", rng, n_partitions=1), tmp_path / "first", client=client, k=1
    )
    previous = PreviousQualifications.of(first.run)
    users = ids_from_values([10**6])
    rows = QualificationRows(users, np.array([0, 1]), np.array([1], np.int32), np.zeros(1, np.float32))
    changes = compare_qualifications(rows, ["brand new", "news"], previous, 0, 1)
    rows = zip(changes.row_ids.to_arrow().to_pylist(), changes.codes, changes.change, strict=True)
    found = {(user, changes.names[code], CHANGES[change]) for user, code, change in rows}
    frame = first.to_pandas()
    gone = {(u, c, "removed") for u, c in zip(frame["user_id"], frame["category"], strict=True)}
    assert found == gone | {(10**6, "news", "added")}


def test_compare_qualifications__who_was_forgotten_has_a_row_without_a_category(client, tmp_path):
    rng = np.random.default_rng(6)
    features = make_features(tmp_path / "f", rng, n_partitions=1)
    first = score(make_model(rng), features, tmp_path / "first", client=client, k=1)
    nobody = QualificationRows(ids_from_values([7]), np.array([0, 0]), np.empty(0, np.int32), np.empty(0, np.float32))
    changes = compare_qualifications(
        nobody, list(first.categories), PreviousQualifications.of(first.run), 0, 1, ids_from_values([5, 10**6])
    )
    stones = np.flatnonzero(changes.change == CHANGES.index("forgotten"))
    assert changes.row_ids.take(stones).to_arrow().to_pylist() == [5, 10**6]
    assert (changes.codes[stones].tolist(), changes.row[stones].tolist()) == ([-1, -1], [-1, -1])


def test_score__limits_hold_under_both_policies(client, tmp_path):
    rng = np.random.default_rng(9)
    model, features = make_model(rng), make_features(tmp_path / "f", rng)
    _, scores = all_scores(model, features)
    lowest = float(np.median(scores[:, :5]))
    limits = {"min_score": lowest, "exclude": ["news"], "exclude_by_group": {"unknown-age": ["autos"]}}
    allowed = (scores >= lowest) & ~np.isin(np.arange(6), [0, 4])
    slots = np.minimum(allowed.sum(axis=1), 2).sum()
    for policy in WITHOUT_CHANCES:
        quals = score(model, features, tmp_path / policy, client=client, k=2, policy=policy, **limits)
        frame = quals.to_pandas()
        assert not set(frame["category"]) & {"news", "autos", "no planes"}
        assert frame["score"].min() >= np.float32(lowest)
        assert len(frame) == slots
        assert quals.counts.categories_per_user.sum() == 200
        # A user who may hold nothing is in no file and is counted.
        assert quals.counts.categories_per_user[0] == 200 - frame["user_id"].nunique()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"exclude": ["auto"]}, "exclude: there is no ranked category 'auto'; did you mean 'autos'?"),
        ({"exclude": ["§"]}, r"known ones are 'autos', 'games/\.\.=', '<script>', 'ünï', 'news', …"),
        ({"exclude_by_group": {"13-18": ["autos"]}}, "no group of users '13-18'; did you mean '13-17'?"),
        ({"exclude_by_group": {"male": ["newz"]}}, "exclude_by_group.male: .* 'newz'; did you mean 'news'?"),
        ({"policy": "top"}, "policies are user_top_k, category_top_n, balanced, got top"),
        ({"n": 0}, "n must be at least 1, got 0"),
        ({"k": 0}, r"k must be between 1 and n_categories \(6\), got 0"),
        ({"k": 7}, r"k must be between 1 and n_categories \(6\), got 7"),
        ({"k": 2.5}, r"k must be a whole number, got 2\.5"),
        ({"k": None}, "k must be a whole number, got None"),
        ({"n": "3"}, "n must be a whole number, got '3'"),
        ({"min_score": "a"}, "min_score must be finite, got 'a'"),
        ({"min_chance": "a"}, "min_chance must be between 0 and 1, got 'a'"),
    ],
)
def test_score__refuses_what_does_not_fit(client, tmp_path, options, message):
    rng = np.random.default_rng(9)
    features = make_features(tmp_path / "f", rng, n_users=5)
    with pytest.raises(BadInput, match=message):
        score(make_model(rng), features, tmp_path / "quals", client=client, **{"k": 2, **options})
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


def test_score_settings__numbers_of_numpy_are_plain_ones():
    settings = ScoreSettings(k=np.int32(3), n=np.int64(4))
    assert json.dumps(settings.to_json()) == json.dumps(ScoreSettings(k=3, n=4).to_json())


def test_score__refuses_a_folder_of_something_else(client, tmp_path):
    rng = np.random.default_rng(9)
    features = make_features(tmp_path / "f", rng, n_users=5)
    (tmp_path / "quals").mkdir()
    (tmp_path / "quals" / "mine.txt").write_text("mine")
    with pytest.raises(BadInput, match="is not a finished run"):
        score(make_model(rng), features, tmp_path / "quals", client=client, k=2)
    assert (tmp_path / "quals" / "mine.txt").read_text() == "mine"


@pytest.fixture(scope="module")
def one_thread():
    """A cluster that does one task after the other."""
    with Client(processes=False, n_workers=1, threads_per_worker=1, dashboard_address=None, memory_limit=0) as client:
        yield client


def test_write_qualifications__goes_on_where_it_stopped(one_thread, tmp_path, monkeypatch):
    client = one_thread
    rng = np.random.default_rng(3)
    model, features = make_model(rng), make_features(tmp_path / "f", rng)
    monkeypatch.setattr(score_passes, "USERS_OF_TASK", 1)  # a task for every partition
    for policy in WITHOUT_CHANCES:
        settings = ScoreSettings(k=2, policy=policy, also=WITHOUT_CHANCES)
        whole = tmp_path / f"whole-{policy}"
        counts = write_qualifications(client, model, features, whole, settings)
        finish_qualifications(whole, "d", features, settings, counts, inputs={})
        again = tmp_path / f"again-{policy}"
        read = []

        def read_until_full(self, index, *, variant=None, normalize=None, read=read):
            if read:
                raise OSError(28, "No space left on device")
            read.append(index)
            return OPEN_PARTITION(self, index, variant=variant, normalize=normalize)

        with monkeypatch.context() as patch:
            patch.setattr(Features, "open_partition", read_until_full)
            with pytest.raises(OSError, match="No space left"):
                write_qualifications(client, model, features, again, settings)
        reread = []

        def read_again(self, index, *, variant=None, normalize=None, reread=reread):
            reread.append(index)
            return OPEN_PARTITION(self, index, variant=variant, normalize=normalize)

        with monkeypatch.context() as patch:
            patch.setattr(Features, "open_partition", read_again)
            counts = write_qualifications(client, model, features, again, settings)
        assert sorted(read + reread) == [0, 1, 2]
        finish_qualifications(again, "d", features, settings, counts, inputs={})
        assert digest_tree(whole, ["."]) == digest_tree(again, ["."])


def test_score_partitions__what_came_before_a_failure_is_written(one_thread, tmp_path, monkeypatch):
    rng = np.random.default_rng(3)
    model, features, settings = make_model(rng), make_features(tmp_path / "f", rng), ScoreSettings(k=2)
    scored = []

    def fail_at_the_second(*arguments, **options):
        if scored:
            raise OSError(28, "No space left on device")
        scored.append(0)
        return score_pieces(*arguments, **options)

    monkeypatch.setattr(score_partition, "score_pieces", fail_at_the_second)
    with pytest.raises(OSError, match="No space left"):  # all three are one task
        write_qualifications(one_thread, model, features, tmp_path / "run", settings)
    assert [written_facts(tmp_path / "run", partition) is not None for partition in range(3)] == [True, False, False]
    # The third, which was open already, is closed.
    assert [file.path for file in psutil.Process().open_files() if file.path.startswith(str(tmp_path))] == []


def test_written_facts__of_what_an_earlier_version_wrote_are_none(client, tmp_path):
    rng = np.random.default_rng(3)
    write_qualifications(client, make_model(rng), make_features(tmp_path / "f", rng), tmp_path, ScoreSettings(k=2))
    assert written_facts(tmp_path, 0)["users"] > 0
    path = tmp_path / ".work" / "part-00000.json"
    listed = json.loads(path.read_text())
    for other in ({"format": 1}, {}):
        path.write_text(json.dumps({name: value for name, value in listed.items() if name != "format"} | other))
        assert written_facts(tmp_path, 0) is None
    assert written_facts(tmp_path, 1) is not None


def test_write_qualifications__what_a_late_policy_wrote_is_not_written_again(client, tmp_path, monkeypatch):
    rng = np.random.default_rng(3)
    model, features = make_model(rng), make_features(tmp_path / "f", rng)
    settings = ScoreSettings(k=2, policy="category_top_n")
    run = tmp_path / "run"
    first = write_qualifications(client, model, features, run, settings)
    held = []

    def assign(self, users, plan):
        held.append(len(users.user_ids))
        return ASSIGN(self, users, plan)

    monkeypatch.setattr(CategoryTopN, "assign", assign)
    (run / ".work" / "part-00001.json").unlink()
    again = write_qualifications(client, model, features, run, settings)
    assert held == [features.run.manifest["parts"][1]["rows"]]
    assert again.to_json() == first.to_json()


@pytest.fixture
def half_is_kept(monkeypatch):
    monkeypatch.setattr(policy_sample, "SAMPLE_CELLS", 100 * len(CATEGORIES))  # of 200 users


def test_write_qualifications__a_policy_only_shown_is_counted_on_a_sample(client, tmp_path, half_is_kept):
    rng = np.random.default_rng(8)
    model, features = make_model(rng), make_features(tmp_path / "f", rng)
    ids, scores = all_scores(model, features)
    sample = sampled_rows(ids_from_values(ids), 0.5)
    assert 70 < len(sample) < 130
    run, settings = tmp_path / "run", ScoreSettings(k=2, also=("category_top_n",))
    found = write_qualifications(client, model, features, run, settings)
    n_slots = round(400 * len(sample) / 200)  # as many for each user as the policy in force has
    wanted = [n_slots // 5 + (place < n_slots % 5) for place in range(5)]
    order = [code for code in model.panels().tie_order if code != 5]
    by_code = dict(zip(order, wanted, strict=True)) | {5: 0}
    taken = take_best(scores[sample].T, np.array(ids)[sample], [by_code[code] for code in range(6)])
    per_user = Counter(user for user, _ in taken)
    expected = PolicyCounts(
        np.array([[by_code[code]] for code in range(6)]),
        np.array([sum(per_user[user] == n for user in range(len(sample))) for n in range(7)]),
    )
    shown = found.policies["category_top_n"]
    assert shown.categories_per_user.tolist() == scale_counts(expected, 200).categories_per_user.tolist()
    assert (shown.slots, int(shown.categories_per_user.sum())) == (400, 200)
    assert abs(shown.exposure.ravel() - [80, 80, 80, 80, 80, 0]).max() <= 1
    assert found.policy_facts["category_top_n"]["sampled_users"] == len(sample)
    assert abs(found.policy_facts["category_top_n"]["n"] - 80) <= 1
    kept = [load_array(path, "scores").shape[1] for path in sorted((run / ".work").glob("scores-*"))]
    assert sum(kept) == len(sample)
    again = write_qualifications(client, model, features, run, settings)
    assert again.to_json() == found.to_json()


def test_write_qualifications__what_is_in_force_is_never_a_sample(client, tmp_path, half_is_kept):
    rng = np.random.default_rng(8)
    model, features = make_model(rng), make_features(tmp_path / "f", rng)
    settings = ScoreSettings(k=2, policy="category_top_n", n=7)
    found = write_qualifications(client, model, features, tmp_path / "run", settings)
    assert found.policies["category_top_n"].slots == 35
    assert "sampled_users" not in found.policy_facts["category_top_n"]


def test_write_qualifications__a_damaged_part_is_made_again(client, tmp_path):
    rng = np.random.default_rng(3)
    model, features, settings = make_model(rng), make_features(tmp_path / "f", rng), ScoreSettings(k=2)
    run = tmp_path / "run"
    write_qualifications(client, model, features, run, settings)
    part = run / "by_user" / "part-00001.parquet"
    part.write_bytes(part.read_bytes()[:-1])
    counts = write_qualifications(client, model, features, run, settings)
    finish_qualifications(run, "d", features, settings, counts, inputs={})
    assert verify_run(run) > 0
    assert not (run / ".work").exists()
    config = json.loads((run / "manifest.json").read_text())["config"]
    assert (config["k"], config["policy"], config["partitions"]) == (2, "user_top_k", 3)


def told_exposures(client, since):
    """Return the exposure events that came since a time."""
    return [event for when, event in client.get_events(TOPIC) if when >= since and event["kind"] == "exposure"]


@pytest.mark.parametrize(
    ("policy", "also"),
    [
        ("user_top_k", ()),
        ("user_top_k", ("category_top_n",)),
        ("category_top_n", ()),
        ("category_top_n", ("user_top_k",)),
    ],
)
def test_write_qualifications__shows_the_exposure_of_the_policy_in_force(client, tmp_path, policy, also):
    rng = np.random.default_rng(3)
    model, features = make_model(rng), make_features(tmp_path / "f", rng)
    settings, run = ScoreSettings(k=2, policy=policy, also=also, n=7), tmp_path / "run"
    # First from nothing, then with one part missing, then with none: the night shows all of its users each time.
    for removed in ([], [1], []):
        for partition in removed:
            (run / ".work" / f"part-{partition:05d}.json").unlink()
        started = time.time()
        write_qualifications(client, model, features, run, settings, clicks=[1, 0, 0, 0, 0, 0], starved_below=0.125)
        held = Counter(
            name for part in sorted((run / "by_user").iterdir()) for name in pq.read_table(part)["category"].to_pylist()
        )
        *early, last = told_exposures(client, started)
        assert last["counts"] == [held[name] for name in CATEGORIES]
        assert (last["users"], last["users_total"], last["starved_below"]) == (200, 200, 0.125)
        assert all(0 < event["users"] <= 200 for event in early)


@pytest.mark.parametrize("policy", WITHOUT_CHANCES)
def test_score__same_bytes_on_any_number_of_workers(client, three_workers, tmp_path, policy):
    rng = np.random.default_rng(1)
    model = make_model(rng, whole=True)
    features = make_features(tmp_path / "f", rng, whole=True, n_partitions=5)
    digests = set()
    for n_workers, workers in ((1, client), (3, three_workers)):
        quals = score(model, features, tmp_path / str(n_workers), client=workers, k=2, policy=policy)
        digests.add(digest_tree(quals.path, ["."]))
    assert len(digests) == 1
    assert open_qualifications(tmp_path / "1").run.digest == quals.run.digest


def test_cuts__a_category_that_wants_nobody_takes_nobody():
    cutoffs = ScoreCutoffs(np.array([0xFFFFFFFF], np.uint32), {}, np.array([0]))
    bits = np.array([[np.inf, 1.0]], np.float32).view(np.uint32)
    users = ScoredUsers(ids_from_values([1, 2]), np.empty((2, 0)), np.empty((2, 0)), np.array([0], np.int32), bits)
    assert CategoryTopN().assign(users, cutoffs).indptr.tolist() == [0, 0, 0]


@given(seed=st.integers(0, 2**32 - 1), levels=st.sampled_from([1, 2, 10**6]))
@examples(40)
def test_order_assigned__equals_a_sort(seed, levels):
    rng = np.random.default_rng(seed)
    n, n_categories, k = 6, 5, 3
    scores = (rng.integers(-levels, levels + 1, (n_categories, n)) / 7).astype(np.float32)
    scores[rng.random(scores.shape) < 0.1] = -np.inf
    codes = np.argsort(rng.random((n, n_categories)), axis=1)[:, :k].astype(np.int32)
    codes[rng.random(codes.shape) < 0.2] = -1
    position = rng.permutation(n_categories)
    indptr = np.concatenate([[0], np.cumsum((codes >= 0).sum(axis=1))])
    out_code, out_bits = np.empty(indptr[-1], np.int32), np.empty(indptr[-1], np.uint32)
    order_assigned(codes, scores.view(np.uint32), position, indptr, out_code, out_bits)
    for user in range(n):
        expected = sorted((-scores[code, user], position[code], code) for code in codes[user] if code >= 0)
        own = slice(indptr[user], indptr[user + 1])
        assert out_code[own].tolist() == [code for _, _, code in expected]
        assert out_bits[own].view(np.float32).tolist() == [-score for score, _, _ in expected]


def test_write_qualifications__no_policy_beside_the_one_in_force_needs_no_sample(client, tmp_path, half_is_kept):
    rng = np.random.default_rng(8)
    model, features = make_model(rng), make_features(tmp_path / "f", rng)
    found = write_qualifications(client, model, features, tmp_path / "run", ScoreSettings(k=2))
    assert list(found.policies) == ["user_top_k"]
    assert (found.n_users, found.policies["user_top_k"].slots) == (200, 400)
