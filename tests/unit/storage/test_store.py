"""Parts and features stores: damage found before use, wide features, features of one's own."""

import contextlib
import datetime as dt
import fcntl
import itertools
import json
import os
import shutil
import threading
import time

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import scipy.sparse as sp
from damage import cut, flip_entry, part_path
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ammrank_dask.features.store import open_features
from ammrank_dask.features.write import OwnRows, write_features, write_partitions
from ammrank_dask.ingest.exchange import ExchangeBlock, read_slices, write_slices
from ammrank_dask.runtime.run_in_work import begin_runs
from ammrank_dask.storage.errors import BadInput, DamagedStore, SiteBusy
from ammrank_dask.storage.objects.atomic import digest_tree, swap_folder
from ammrank_dask.storage.site.renewals import remove_damaged
from ammrank_dask.storage.site.site import Site
from ammrank_dask.storage.store.ids import ids_from_values
from ammrank_dask.storage.store.parts import PartRef, WrittenPart, write_part
from ammrank_dask.storage.store.registry import DAY, FEATURES
from ammrank_dask.storage.store.runs import RunInWork, finish_run, open_run, verify_run
from ammrank_dask.user_hash import partition_of

DTYPES = ("int8", "uint8", "int16", "uint16", "uint32", "int64", "float32", "float64")


def day_arrays():
    return {
        "user_id": np.array([3, 9], np.int64),
        "indptr": np.array([0, 1, 3], np.int64),
        "cell": np.array([5, 0, 7], np.uint16),
        "intensity": np.array([0.5, 1.5, 2.5]),
        "last": np.array([10, 20, 30], np.int64),
    }


@pytest.fixture
def run(tmp_path):
    """A finished run of one part."""
    facts = write_part(tmp_path / "run", 0, DAY, day_arrays())
    return finish_run(tmp_path / "run", DAY.kind, "digest", [facts], config={}, inputs=[])


@pytest.mark.parametrize("values", [[3, 5, 8, 9], ["a", "bc", "d", "ef"]])
def test_user_ids__a_stretch_has_the_ids_and_their_type(values):
    ids = ids_from_values(values)
    assert ids.stretch(1, 3).to_arrow().to_pylist() == values[1:3]
    assert ids.stretch(2, 2).to_arrow().to_pylist() == []


def test_write_part__refuses_what_the_registry_does_not_know(tmp_path):
    arrays = day_arrays()
    with pytest.raises(DamagedStore, match=r"unknown arrays \['colour'\]"):
        write_part(tmp_path, 0, DAY, {**arrays, "colour": arrays["cell"]})
    with pytest.raises(DamagedStore, match="intensity must be float64, found float32"):
        write_part(tmp_path, 0, DAY, {**arrays, "intensity": arrays["intensity"].astype(np.float32)})
    with pytest.raises(DamagedStore, match="last has 2 entries, expected 3 along cell"):
        write_part(tmp_path, 0, DAY, {**arrays, "last": arrays["last"][:2]})
    with pytest.raises(DamagedStore, match="lacks"):
        write_part(tmp_path, 0, DAY, {name: a for name, a in arrays.items() if name != "cell"})
    assert list(tmp_path.iterdir()) == []


def flip_a_bit(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(bytes(data))


DAMAGES = {
    "flipped": (flip_a_bit, r"is not what was written \(checksum differs\)"),
    "cut": (cut, r"is not what was written \(checksum differs\)"),
    "empty": (lambda path: path.write_bytes(b""), r"is not what was written \(checksum differs\)"),
    "longer": (lambda path: path.write_bytes(path.read_bytes() + b"x"), r"is not what was written \(checksum diff.*\)"),
    "missing": (os.unlink, "is missing"),
}


@pytest.mark.parametrize(("damage", "phrase"), DAMAGES.values(), ids=DAMAGES)
def test_read_part__names_what_is_damaged_as_verify_run_does(run, damage, phrase):
    path = part_path(run.path, 0)
    damage(path)
    for read in (lambda: run.part(0).read(DAY), lambda: verify_run(run.path)):
        with pytest.raises(DamagedStore, match=f"{path} {phrase}; make it again with `ammrank nightly SITE"):
            read()


def test_read_part__finds_parts_that_were_exchanged(tmp_path):
    path = tmp_path / "run"
    facts = [
        write_part(path, partition, DAY, {**day_arrays(), "user_id": np.array([partition, 9], np.int64)})
        for partition in range(2)
    ]
    run = finish_run(path, DAY.kind, "digest", facts, config={}, inputs=[])
    one, other = (part_path(path, partition) for partition in range(2))
    one.rename(path / "spare")
    other.rename(one)
    (path / "spare").rename(other)
    for read in (lambda: run.part(0).read(DAY), lambda: verify_run(path)):
        with pytest.raises(DamagedStore, match=r"00000\.arrow is not what was written .*; make it again"):
            read()


def feature_arrays():
    return {
        "user_id": np.array([3, 9], np.int64),
        "X/data": np.array([0.5, 1.5, 2.5], np.float32),
        "X/indices": np.array([1, 0, 1], np.uint16),
        "X/indptr": np.array([0, 1, 3]),
        "age_bucket": np.array([-1, 3], np.int8),
        "gender": np.array([0, -1], np.int8),
    }


@pytest.fixture
def features_run(tmp_path):
    """A finished run of two parts that are groups."""
    facts = []
    for partition in range(2):
        arrays = {**feature_arrays(), "user_id": np.array([partition, 9], np.int64)}
        attributes = {"X": {"shape": [2, 2]}}
        facts.append(write_part(tmp_path / "run", partition, FEATURES, arrays, group_attributes=attributes))
    return finish_run(tmp_path / "run", FEATURES.kind, "digest", facts, config={}, inputs=[])


@pytest.mark.parametrize("name", ["X/data/c/0", "user_id/c/0", "gender/zarr.json", "X/zarr.json", "zarr.json"])
@pytest.mark.parametrize(("damage", "phrase"), DAMAGES.values(), ids=DAMAGES)
def test_read_part__names_the_damaged_file_of_a_group(features_run, name, damage, phrase):
    path = part_path(features_run.path, 0) / name
    damage(path)
    reads = [lambda: verify_run(features_run.path)]
    if name != "X/zarr.json":
        reads.append(lambda: features_run.part(0).read(FEATURES))
    for read in reads:
        with pytest.raises(DamagedStore, match=f"{path} {phrase}; make it again with `ammrank nightly SITE"):
            read()


def test_read_part__finds_a_chunk_of_another_partition_whose_own_checksum_is_right(features_run):
    one, other = (part_path(features_run.path, number) / "user_id/c/0" for number in range(2))
    one.write_bytes(other.read_bytes())
    for read in (lambda: features_run.part(0).read(FEATURES), lambda: verify_run(features_run.path)):
        with pytest.raises(DamagedStore, match=rf"{one} is not what was written \(checksum differs\)"):
            read()


def test_read_part__reads_what_is_sound_beside_what_is_damaged(features_run):
    flip_entry(part_path(features_run.path, 0), "X/data/c/0")
    with pytest.raises(DamagedStore, match="X/data/c/0 is not what was written"):
        features_run.part(0).read(FEATURES)
    assert features_run.part(0).read(FEATURES, ["user_id"])["user_id"].tolist() == [0, 9]


def test_verify_run__finds_a_file_too_many_in_a_group(features_run):
    (part_path(features_run.path, 0) / "gender" / "c" / "1").write_bytes(b"x")
    with pytest.raises(BadInput, match="gender/c/1 was not written by this package; remove it"):
        verify_run(features_run.path)


def test_open_run__refuses_another_format_and_unfinished_runs(run):
    manifest = run.path / "manifest.json"
    content = json.loads(manifest.read_text())
    for version, remedy in (
        (2, "make it again with `ammrank nightly SITE"),
        ("0.9.0", "use the version that wrote it"),
    ):
        manifest.write_text(json.dumps({**content, "format": version}))
        with pytest.raises(BadInput, match=rf"has format {version}.* reads 0\.3\.0; {remedy}"):
            open_run(run.path)
    manifest.write_text("[]")
    with pytest.raises(DamagedStore, match="is not the JSON that was written"):
        open_run(run.path)
    manifest.unlink()
    with pytest.raises(BadInput, match=r"is not a finished run: it has no manifest\.json"):
        open_run(run.path)


@pytest.mark.parametrize(
    ("damage", "phrase"),
    [
        (cut, "is not the JSON that was written"),
        (lambda path: path.write_text('{"format": "0.3.0"}'), "is not the JSON that was written"),
        (lambda path: path.write_text(path.read_text().replace('"rows": 2', '"rows": 3')), "is not what was written"),
    ],
    ids=["cut", "other JSON", "another number"],
)
def test_open_run__names_a_damaged_manifest(run, damage, phrase):
    path = run.path / "manifest.json"
    before = path.read_bytes()
    damage(path)
    assert path.read_bytes() != before
    for read in (open_run, verify_run):
        with pytest.raises(DamagedStore, match=f"{path} {phrase}"):
            read(run.path)


def published_site(folder):
    """Return a site with a run of each kind that ingest makes, of which two are published."""
    site = Site(folder)
    date = dt.date(2026, 1, 5)
    runs = {"days": site.day_run(date, "a"), "state": site.run("state", date, "b"), "users": site.users_run("c")}
    site.begin(runs.values())
    for name, path in runs.items():
        facts = write_part(path, 0, DAY, day_arrays())
        finish_run(path, DAY.kind, name, [facts], config={}, inputs=[])
    site.publish(date, {"head": runs["state"], "users": runs["users"]})
    return site, runs


@pytest.mark.parametrize(
    "damage", [cut, lambda path: path.write_text('{"format": "0.3.0"}')], ids=["cut", "other JSON"]
)
def test_current__damaged_is_named_and_put_back(tmp_path, damage):
    site, _ = published_site(tmp_path)
    path, before = tmp_path / "ROOT", site.current()
    damage(path)
    copy = f"put back by `cp {tmp_path}/roots/000002.json {path}`"
    with pytest.raises(DamagedStore, match=f"{path} is not the JSON that was written.*{copy}"):
        site.current()
    assert remove_damaged(site) == [path]
    assert site.current() == before


def test_current__lost_is_no_new_site(tmp_path):
    site, _ = published_site(tmp_path)
    (tmp_path / "ROOT").unlink()
    with pytest.raises(DamagedStore, match=f"{tmp_path}/ROOT is missing; its newest whole content is put back by `cp"):
        site.current()
    shutil.copy(tmp_path / "roots" / "000002.json", tmp_path / "ROOT")
    assert site.current().date == dt.date(2026, 1, 5)


def test_current__damaged_without_a_whole_content_is_made_again(tmp_path):
    site, _ = published_site(tmp_path)
    for path in (tmp_path / "ROOT", *(tmp_path / "roots").iterdir()):
        cut(path)
    with pytest.raises(
        DamagedStore, match="ROOT is not the JSON that was written; make it again with `ammrank nightly"
    ):
        site.current()
    assert remove_damaged(site) == [tmp_path / "ROOT"]
    assert site.current() is None


def test_publish__keeps_the_last_contents_and_no_two_alike(tmp_path):
    site, runs = published_site(tmp_path)
    for number in range(60):
        for _ in range(2):
            site.publish(dt.date(2026, 1, 6) + dt.timedelta(number), {"head": runs["state"], "users": runs["users"]})
    names = sorted(path.name for path in (tmp_path / "roots").iterdir())
    assert names == [f"{number:06d}.json" for number in range(13, 63)]
    assert (tmp_path / "roots" / "000062.json").read_bytes() == (tmp_path / "ROOT").read_bytes()


def test_current__of_a_later_version_is_left_alone(tmp_path):
    site, _ = published_site(tmp_path)
    path = tmp_path / "ROOT"
    write_format(path, "0.4.0")
    for look in (site.current, lambda: remove_damaged(site)):
        with pytest.raises(BadInput, match=r"ROOT has format 0\.4\.0, this version reads 0\.3\.0; use the version"):
            look()
    assert path.exists()


def test_remove_damaged__takes_what_an_earlier_version_wrote(tmp_path):
    site, runs = published_site(tmp_path)
    shutil.rmtree(tmp_path / "roots")
    (tmp_path / "ROOT").rename(tmp_path / "CURRENT")
    write_format(runs["state"] / "manifest.json", 1)
    for look in (site.current, lambda: open_run(runs["state"])):
        with pytest.raises(DamagedStore, match=r"has format \d of an earlier version, this one reads 0\.3\.0; make it"):
            look()
    assert remove_damaged(site) == [runs["state"], tmp_path / "ROOT"]
    assert site.current() is None


def write_format(path, version):
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": version}))


@pytest.mark.parametrize("folder", ["days", "state", "users"])
@pytest.mark.parametrize("name", ["part-00000.arrow", "manifest.json"])
def test_remove_damaged__takes_the_damaged_run_and_no_other(tmp_path, folder, name):
    site, runs = published_site(tmp_path)
    assert remove_damaged(site) == []
    cut(runs[folder] / name)
    assert remove_damaged(site) == [runs[folder]]
    assert {role for role, path in runs.items() if path.exists()} == {"days", "state", "users"} - {folder}


def interrupt(path, *written):
    """Write parts of a run of two in an attempt that is interrupted."""
    with contextlib.suppress(KeyboardInterrupt), RunInWork(path, 2) as run:
        for number in written:
            run.add(number, WrittenPart(write_part(path, number, DAY, day_arrays()), {"kept": 3 + number}))
        raise KeyboardInterrupt


def test_run_in_work__an_interrupted_attempt_names_what_it_wrote(tmp_path):
    interrupt(tmp_path, 1)
    run = RunInWork(tmp_path, 2)
    assert (list(run.named), run.todo) == ([1], [0])
    run.add(0, WrittenPart(write_part(tmp_path, 0, DAY, day_arrays()), {"kept": 3}))
    assert run.counts == [{"kept": 3}, {"kept": 4}]
    finish_run(tmp_path, DAY.kind, "digest", run.parts, config={}, inputs=[])
    assert {path.name for path in tmp_path.iterdir()} == {"manifest.json", "part-00000.arrow", "part-00001.arrow"}
    assert verify_run(tmp_path) > 0


def test_run_in_work__sweeps_what_a_crash_left_and_removes_what_is_not_kept(tmp_path):
    interrupt(tmp_path, 0, 1)
    (tmp_path / ".tmp-part-00001.arrow-abc").touch()
    run = RunInWork(tmp_path, 2)
    assert not list(tmp_path.glob(".tmp-*"))
    run.keep({1})
    assert (run.todo, part_path(tmp_path, 0).exists(), part_path(tmp_path, 1).exists()) == ([0], False, True)


def test_run_in_work__is_saved_while_it_goes_on_and_not_after_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr("ammrank_dask.storage.store.runs.SECONDS_BETWEEN_SAVES", -1.0)
    with RunInWork(tmp_path, 1) as run:
        run.add(0, WrittenPart(write_part(tmp_path, 0, DAY, day_arrays())))
        assert RunInWork(tmp_path, 1).todo == []
        finish_run(tmp_path, DAY.kind, "digest", run.parts, config={}, inputs=[])
    assert not (tmp_path / "manifest.open.json").exists()


@pytest.mark.parametrize("damage", [cut, lambda path: path.write_text("{}"), flip_entry, os.unlink])
def test_run_in_work__begins_anew_without_a_whole_list(tmp_path, damage):
    interrupt(tmp_path, 0, 1)
    damage(tmp_path / "manifest.open.json")
    run = RunInWork(tmp_path, 2)
    run.keep(run.named)
    assert run.todo == [0, 1]
    assert not part_path(tmp_path, 0).exists()


def test_begin_runs__keeps_the_parts_whose_bytes_tasks_find_as_they_were(client, tmp_path):
    for name in "abc":
        interrupt(tmp_path / name, 0, 1)
    flip_entry(part_path(tmp_path / "a", 0))
    part_path(tmp_path / "b", 1).unlink()
    runs = begin_runs(client, [tmp_path / name for name in "abcd"], 2)
    assert [run.todo for run in runs] == [[0], [1], [], [0, 1]]


def test_finish_run__sweeps_what_a_killed_worker_left_at_any_depth(tmp_path):
    path = tmp_path / "run"
    (path / "by_user" / ".tmp-folder").mkdir(parents=True)
    (path / "by_user" / ".tmp-folder" / "inside").touch()
    (path / "by_user" / ".tmp-part-00000.parquet-12").touch()
    (path / ".tmp-top").touch()
    (path / "by_user" / "part-00000.parquet").touch()
    finish_run(path, "qualifications", "digest", [], config={}, inputs=[], files={"by_user/part-00000.parquet": [0, 0]})
    assert {entry.relative_to(path).as_posix() for entry in path.rglob("*")} == {
        "by_user", "by_user/part-00000.parquet", "manifest.json",
    }  # fmt: skip
    assert verify_run(path) == 0


@pytest.mark.parametrize("name", ["extra.parquet", "by_user/.tmp-part", "part-00007/zarr.json", "part-00007.arrow"])
def test_verify_run__finds_a_file_that_the_manifest_does_not_list(run, name):
    (run.path / name).parent.mkdir(exist_ok=True)
    (run.path / name).touch()
    with pytest.raises(
        DamagedStore,
        match=f"{name} is not in the manifest of its run; make it again with `ammrank nightly SITE",
    ):
        verify_run(run.path)


def test_write_part__twice_gives_the_same_bytes(tmp_path):
    first = write_part(tmp_path / "a", 0, DAY, day_arrays())
    second = write_part(tmp_path / "b", 0, DAY, day_arrays())
    assert first == second
    assert (first.rows, first.nnz) == (2, 3)
    written = [(tmp_path / name / "part-00000.arrow").read_bytes() for name in "ab"]
    assert written[0] == written[1]


def test_read_part__empty_parts_are_legal(tmp_path):
    arrays = {name: array[:0] for name, array in day_arrays().items()} | {"indptr": np.zeros(1, np.int64)}
    found = PartRef(tmp_path, 0, write_part(tmp_path, 0, DAY, arrays).checksum).read(DAY)
    assert {name: len(array) for name, array in found.items()} == {name: len(a) for name, a in arrays.items()}


def test_exchange__gives_every_partition_its_rows_in_file_order(tmp_path):
    starts = np.array([0, 2, 2, 3])
    for number in range(2):
        sections = {
            "user": (np.array([1, 2, 3], np.int64) + 10 * number, starts),
            "cell": (np.array([7, 8, 9], np.uint16), starts),
        }
        write_slices(tmp_path / str(number), 3, [sections])
    found = read_slices([tmp_path / "0", tmp_path / "1"], 0, 3)
    assert [part["user"].tolist() for part in found] == [[1, 2], [11, 12]]
    assert [len(part["cell"]) for part in read_slices([tmp_path / "0"], 1, 3)] == [0]
    assert read_slices([tmp_path / "1"], 2, 3)[0]["user"].tolist() == [13]
    assert "age" not in found[0]
    assert found.joined["user"].tolist() == [1, 2, 11, 12]


def test_exchange__batches_of_one_file_stay_apart(tmp_path):
    starts = np.array([0, 2, 2, 3])
    cells = np.array([7, 8, 9], np.uint16), starts
    batches = [{"user": (np.array([1, 2, 3], np.int64) + 10 * n, starts), "cell": cells} for n in range(3)]
    write_slices(tmp_path / "both", 3, batches)
    found = read_slices([tmp_path / "both", tmp_path / "both"], 2, 3)
    assert [{name: values.tolist() for name, values in part.items()} for part in found] == 2 * [
        {"user": [3], "cell": [9]}, {"user": [13], "cell": [9]}, {"user": [23], "cell": [9]}
    ]  # fmt: skip
    write_slices(tmp_path / "none", 3, [])
    assert read_slices([tmp_path / "none"], 0, 3) == []


def test_read_slices__files_of_any_length_are_joined(tmp_path):
    lengths = [3, 0, 1000, 1, 70]
    paths = [tmp_path / str(number) for number in range(len(lengths))]
    for path, n in zip(paths, lengths, strict=True):
        write_slices(path, 1, [{"row": (np.arange(n), np.array([0, n]))}])
    found = read_slices(paths, 0, 1)
    assert [part["row"].tolist() for part in found] == [list(range(n)) for n in lengths]
    assert found.joined["row"].tolist() == [row for n in lengths for row in range(n)]


def test_write_features__wide_rows_come_back(tmp_path):
    rng = np.random.default_rng(0)
    X = sp.random(300, 200_000, density=1e-4, format="csr", dtype=np.float32, random_state=rng)
    columns = [f"c{i}" for i in range(200_000)]
    ids = rng.permutation(300) * 7
    features = write_features(tmp_path / "f", X, ids, columns, n_partitions=4)
    assert features.n_columns() == 200_000
    position = {user: row for row, user in enumerate(ids.tolist())}
    n_seen = 0
    for partition in range(4):
        part = features.partition(partition, normalize=False)
        rows = [position[user] for user in part.user_ids.to_arrow().to_pylist()]
        n_seen += len(rows)
        assert (X[rows] != part.X).nnz == 0
        assert (np.diff(part.user_ids.values) > 0).all()
    assert n_seen == 300


def test_write_features__rankings_and_string_ids_come_back(tmp_path):
    X = np.array([[1.0, 0.0], [3.0, 4.0], [0.0, 0.0]])
    rankings = np.array([[2, 0], [1, -1], [-1, -1]])
    features = write_features(
        tmp_path / "f", X, ["b", "a", "ü"], ["own", "pv:intensity:A"], rankings, categories=["x", "y", "z"]
    )
    part = features.partition(0)
    assert part.user_ids.to_arrow().to_pylist() == ["a", "b", "ü"]
    assert part.X.toarray().tolist() == pytest.approx(np.array([[0.6, 0.8], [1, 0], [0, 0]]))
    assert part.rankings.tolist() == [[1, -1], [2, 0], [-1, -1]]
    assert part.n_event_features.tolist() == [2, 1, 0]
    assert features.partition(0, variant="no-pv").X.toarray().tolist() == [[1], [1], [0]]
    frame = open_features(features.path).to_pandas(users=["ü", "b", "nobody"])
    assert frame.index.tolist() == ["b", "ü"]
    assert frame.to_numpy().tolist() == [[1, 0], [0, 0]]
    assert len(features.to_pandas()) == 3


def test_write_partitions__makes_the_bytes_of_the_whole_matrix(tmp_path):
    X = sp.random(50, 20, 0.3, format="csr", dtype=np.float32, random_state=1)
    rankings = np.tile([[1, 0, -1], [-1, -1, -1]], (25, 1))
    names, ids = [f"c{i}" for i in range(20)], ids_from_values(np.arange(50) * 3)
    write_features(tmp_path / "whole", X, np.arange(50) * 3, names, rankings, n_partitions=4)
    home = partition_of(ids, 4)
    rows = (np.flatnonzero(home == partition) for partition in range(4))
    partitions = (OwnRows(ids.take(own), X[own], rankings[own]) for own in rows)
    pieces = write_partitions(tmp_path / "pieces", partitions, names, ["0", "1"]).run
    whole = open_features(tmp_path / "whole").run
    assert pieces.manifest["digest"] == whole.manifest["digest"]
    assert [part.checksum for part in pieces.parts] == [part.checksum for part in whole.parts]


def test_write_features__replaces_an_earlier_store(tmp_path):
    write_features(tmp_path / "f", np.eye(3), [1, 2, 3], ["a", "b", "c"], n_partitions=3)
    features = write_features(tmp_path / "f", np.eye(2), [1, 2], ["a", "b"])
    assert features.n_partitions == 1
    assert verify_run(features.path) > 0
    assert sorted(p.name for p in features.path.glob("part-*")) == ["part-00000"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"X": np.ones((2, 3))}, r"X must be \(users, columns\) = \(2, 2\), got \(2, 3\)"),
        ({"X": np.array([[np.nan, 1], [1, 1]])}, "X must be finite"),
        ({"user_ids": [1, 1]}, "user ids must be distinct, found 1 duplicates"),
        ({"user_ids": [1.5, 2.5]}, "user ids must be int64 or string, found double"),
        ({"user_ids": [1, "a"]}, "user ids must be a list of values of one type, integers or strings"),
        ({"user_ids": 7}, "user ids must be a list of values of one type, integers or strings"),
        ({"X": [["a", "b"]] * 2}, "X must be a matrix of numbers, found other values"),
        ({"columns": [0, 1]}, "columns must be names, got 0; convert them to text"),
        ({"columns": ["a", "a"]}, "columns must be distinct, found 'a' more than once"),
        (
            {"rankings": np.array([[0, 1], [1, 1]])},
            "rankings must name a category once per row, found one twice in row 1",
        ),
        ({"rankings": np.array([[0], [1]]), "categories": ["a", "a"]}, "categories must be distinct, found 'a' more"),
        ({"n_partitions": 2.5}, r"n_partitions must be a whole number, got 2\.5"),
        ({"n_partitions": 0}, "n_partitions must be at least 1, got 0"),
        ({"user_ids": pd.array([1, None], dtype="Int64")}, "user ids must not be null"),
        ({"rankings": np.array([[0], [5]]), "categories": ["a", "b"]}, "codes from 0 to 1, or -1, got 0 to 5"),
        ({"rankings": np.array([[0.0], [1.0]])}, r"rankings must be integers of shape \(2, m\)"),
    ],
)
def test_write_features__refuses_what_cannot_be_stored(tmp_path, change, message):
    given_ = {"X": np.eye(2), "user_ids": [1, 2], "columns": ["a", "b"], **change}
    with pytest.raises(BadInput, match=message):
        write_features(tmp_path / "f", **given_)


def test_features__partition_out_of_range(tmp_path):
    features = write_features(tmp_path / "f", np.eye(2), [1, 2], ["a", "b"])
    with pytest.raises(BadInput, match="partition must be between 0 and 0, got 1"):
        features.partition(1)


def test_features__damage_is_named_by_the_reader(tmp_path):
    features = write_features(tmp_path / "f", np.eye(2), [1, 2], ["a", "b"])
    flip_entry(part_path(features.path, 0), "X/data/c/0")
    with pytest.raises(DamagedStore, match="X/data/c/0 is not what was written"):
        features.partition(0)
    flip_a_bit(features.path / "columns.json")
    with pytest.raises(DamagedStore, match=r"columns\.json is not what was written"):
        _ = open_features(features.path).columns
    assert FEATURES.kind == "features"


def test_write_features__leaves_other_folders_alone(tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "manifest.json").write_text("{}")
    with pytest.raises(BadInput, match="thesis is not a features store and would be overwritten"):
        write_features(tmp_path / "thesis", np.eye(2), [1, 2], ["a", "b"])
    assert (tmp_path / "thesis" / "manifest.json").read_text() == "{}"


def test_write_features__keeps_the_earlier_store_when_it_fails(tmp_path, monkeypatch):
    import ammrank_dask.features.write as module

    write_features(tmp_path / "f", np.eye(2), [1, 2], ["a", "b"])

    def fail(*args, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "write_part", fail)
    with pytest.raises(OSError, match="No space left"):
        write_features(tmp_path / "f", np.ones((2, 2)), [1, 2], ["a", "b"])
    assert open_features(tmp_path / "f").partition(0).X.toarray().tolist() == [[1, 0], [0, 1]]


def test_features__a_variant_leaves_out_a_group_wherever_its_columns_stand(tmp_path):
    columns = ["adv:intensity:a", "pv:intensity:a", "adv:intensity:b"]
    features = write_features(tmp_path / "f", np.ones((1, 3)), [1], columns)
    assert features.columns_of("no-adv") == ["pv:intensity:a"]


@pytest.fixture
def block(tmp_path):
    """A block of one file with two partitions."""
    block = ExchangeBlock(tmp_path, 0)
    sections = {
        "user": (np.arange(3), np.array([0, 2, 3])),
        "cell": (np.arange(3, dtype=np.uint16), np.array([0, 2, 3])),
    }
    checksum = write_slices(block.slice_path(0), 2, [sections])
    assert not block.is_whole(2)
    block.finish([checksum], {"rows": 3})
    assert block.is_whole(2)
    return block


@pytest.mark.parametrize("suffix", [".arrow", ".index"])
@pytest.mark.parametrize("size", [0, 4, 16, 55, None])
def test_exchange__a_file_cut_by_a_crash_is_not_read(block, suffix, size):
    path = block.slice_path(0).with_suffix(suffix)
    if size is None:
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:size])
    assert not block.is_whole(2)
    with pytest.raises(DamagedStore, match=r"block-00000-000\.arrow is not what was written; run the command again"):
        read_slices([block.slice_path(0)], 1, 2)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_exchange__a_flipped_bit_is_found_before_arrow_reads_it(block, data):
    path = block.slice_path(0).with_suffix(data.draw(st.sampled_from([".arrow", ".index"])))
    whole = path.read_bytes()
    damaged = bytearray(whole)
    bit = data.draw(st.integers(0, 8 * len(whole) - 1))
    damaged[bit // 8] ^= 1 << bit % 8
    path.write_bytes(damaged)
    rows = []
    for partition in range(2):
        with contextlib.suppress(DamagedStore):
            rows.append(read_slices([block.slice_path(0)], partition, 2).joined["user"].tolist())
    path.write_bytes(whole)
    assert all(found in ([0, 1], [2]) for found in rows)
    # Behind all batches is a directory for other programs, which no partition reads.
    start, size = np.frombuffer(block.slice_path(0).with_suffix(".index").read_bytes(), np.int64)[3:5]
    assert len(rows) < 2 or (path.suffix == ".arrow" and bit // 8 >= start + size)


def test_exchange__pyarrow_reads_the_slices(block):
    file = pa.ipc.open_file(block.slice_path(0))
    assert file.num_record_batches == 2
    assert file.get_batch(0).to_pylist() == [{"user": [0, 1], "cell": [0, 1]}]


def test_swap_folder__exchanges_two_names(tmp_path):
    for name in ("new", "old"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "content").write_text(name)
    swap_folder(tmp_path / "new", tmp_path / "old")
    assert (tmp_path / "old" / "content").read_text() == "new"
    assert (tmp_path / "new" / "content").read_text() == "old"
    swap_folder(tmp_path / "new", tmp_path / "third")
    assert not (tmp_path / "new").exists()


def crash_at(monkeypatch, number):
    """Let the rename with this number, from 1, be the one before which the process dies; no exchange of names."""
    real, count = os.rename, itertools.count(1)

    def rename(*places):
        if next(count) == number:
            raise KeyboardInterrupt
        real(*places)

    monkeypatch.setattr("ammrank_dask.storage.objects.atomic.exchange_names", lambda *places: False)
    monkeypatch.setattr(os, "rename", rename)


@pytest.mark.parametrize("number", [1, 2, 3, 4])
@pytest.mark.parametrize("is_first", [False, True])
def test_name_lists__a_crash_between_the_renames_is_made_up_for(tmp_path, monkeypatch, number, is_first):
    site, date = Site(tmp_path), dt.date(2026, 1, 5)
    for digest in [*["a"][is_first:], "b"]:
        lists = site.lists_in_work(date, digest)
        site.begin([lists])
        finish_run(lists, "qualifications", digest, [], config={}, inputs={})
        if digest == "b":
            crash_at(monkeypatch, number)
        with contextlib.suppress(KeyboardInterrupt):
            site.name_lists(lists, date)
    monkeypatch.undo()
    with site.exclusive():
        assert open_run(site.qualifications_folder(date)).digest == "b"
    assert {path.name for path in (tmp_path / "qualifications").iterdir()} <= {f"date={date}", "runs"}
    assert not list((tmp_path / "qualifications").glob("runs/*"))


def test_exclusive__waits_for_who_only_looks(tmp_path):
    site = Site(tmp_path)
    (tmp_path / ".lock").touch()
    looking = os.open(tmp_path / ".lock", os.O_RDONLY)
    fcntl.flock(looking, fcntl.LOCK_SH)
    closing = threading.Timer(0.4, os.close, [looking])
    closing.start()
    with site.exclusive():
        assert site.is_held()
    closing.join()
    assert not site.is_held()


def test_exclusive__gives_up_on_another_run(tmp_path):
    begin = time.monotonic()
    with (
        Site(tmp_path).exclusive(),
        pytest.raises(SiteBusy, match=f"another run holds {tmp_path}; wait for it or stop it"),
        Site(tmp_path).exclusive(),
    ):
        pass
    assert time.monotonic() - begin < 120


def test_is_held__who_may_not_look_is_told_no(tmp_path):
    site = Site(tmp_path)
    with site.exclusive():
        (tmp_path / ".lock").chmod(0)
        user = os.geteuid()
        if user == 0:
            os.seteuid(65534)
        try:
            assert not site.is_held()
        finally:
            os.seteuid(user)
        (tmp_path / ".lock").chmod(0o600)
        assert site.is_held()


def test_swap_folder__after_a_crash_the_next_try_ends_well(tmp_path, monkeypatch):
    for name in ("building", "final"):
        (tmp_path / name).mkdir()
    (tmp_path / "building" / "new").touch()
    crash_at(monkeypatch, 2)
    with pytest.raises(KeyboardInterrupt):
        swap_folder(tmp_path / "building", tmp_path / "final")
    monkeypatch.undo()
    swap_folder(tmp_path / "building", tmp_path / "final")
    assert {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")} == {"final", "final/new"}


def test_swap_folder__says_what_is_wrong_beside_a_file_system_that_cannot_exchange(tmp_path):
    (tmp_path / "final").mkdir()
    with pytest.raises(FileNotFoundError, match="No such file or directory"):
        swap_folder(tmp_path / "missing", tmp_path / "final")
    assert (tmp_path / "final").is_dir()


def test_digest_tree__marks_count_as_if_they_were_there(tmp_path):
    (tmp_path / "night").mkdir()
    (tmp_path / "night" / "part").write_text("a")
    mark = tmp_path / "night" / "_SUCCESS"
    before = digest_tree(tmp_path, ["night"], [mark])
    mark.touch()
    assert digest_tree(tmp_path, ["night"], [mark]) == before == digest_tree(tmp_path, ["night"])
