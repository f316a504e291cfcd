"""Forgetting: the users are gone from every store, all others are as they were, and they stay away."""

import dataclasses
import itertools
import json
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import zarr
from click.testing import CliRunner
from damage import flip_entry, part_path
from lakes import At, date_of, event, good_events, write_events, write_lake, write_site

from ammrank_dask.forget import Reach
from ammrank_dask.storage.errors import BadInput, DamagedStore
from ammrank_dask.storage.lake.people import read_user_list
from ammrank_dask.storage.objects.atomic import bytes_below
from ammrank_dask.storage.site import forgotten
from ammrank_dask.storage.site.forgotten import NamedUsers, add_forgotten, drop_rows, drop_users, load_forgotten
from ammrank_dask.storage.store.ids import ids_from_values
from ammrank_dask.storage.store.registry import FEATURES, STATE
from ammrank_dask.storage.store.runs import open_run, verify_run
from ammrank_dask.user_hash import partition_of
from ammrank_dask.workflows import forget as command
from ammrank_dask.workflows.cli import ammrank
from ammrank_dask.workflows.operations import forget as stage
from ammrank_dask.workflows.operations.forget import forget_users
from ammrank_dask.workflows.session.config import load_config
from ammrank_dask.workflows.session.night import Night
from ammrank_dask.workflows.stages.ingest import ingest
from ammrank_dask.workflows.stages.nightly import nightly

pytestmark = pytest.mark.night

N_DAYS = 7
NUMBERS = list(range(101, 131))
NAMES = [f"ü/{number}=<b>" for number in range(101, 131)]
CONFIG = {
    "features": {"min_days": 1},
    "train": {"shards": 1, "epochs": 1, "every_nights": 3},
    "score": {"k": 2},
    "quarantine": {"max_share": 0.5},
}


COMMAND = """
import json, sys
from ammrank_dask.workflows.cli import ammrank
try:
    ammrank()
finally:
    print(json.dumps(sorted({"distributed", "numba"} & set(sys.modules))), file=sys.stderr)
"""


@pytest.fixture(scope="module", params=["integers", "strings"])
def begun(request, client, tmp_path_factory):
    """A site with two published nights, in which every user is in every store, quarantine included."""
    ids = NUMBERS if request.param == "integers" else NAMES
    types = {} if request.param == "integers" else {"user_id": pa.string()}
    world = tmp_path_factory.mktemp("world")
    lake = write_lake(world / "lake", n_days=N_DAYS, ids=ids, repeat=1, **types)
    for day in range(N_DAYS):
        bad = [event(user, category="Unheard of", timestamp=At(2)) for user in ids]
        write_events(lake, day, good_events(ids), **types)
        write_events(lake, day, bad, file="part-1.parquet", **types)
    site = write_site(world / "site", lake, **CONFIG)
    for day in (4, 5):
        nightly(Night(client, site, load_config(site.config_path), date_of(day)))
    return site, ids


@pytest.fixture
def place(begun, tmp_path):
    site, ids = begun
    shutil.copytree(site.path, tmp_path / "site")
    return type(site)(tmp_path / "site"), ids


def found_users(site):
    """Return the ids in every store, read without our own readers, by the first folder of the store."""
    found = {}
    for path in site.path.rglob("*.parquet"):
        table = pq.read_table(path, partitioning=None)
        if "change" in table.column_names:  # what tells of a forgotten user is to be there
            table = table.filter(pc.not_equal(table["change"].cast(pa.string()), "forgotten"))
        if "tombstones" in path.parts:
            continue
        column = table.column("user_id")
        found.setdefault(path.relative_to(site.path).parts[0], set()).update(str(value) for value in column.to_pylist())
    for path in site.path.rglob("part-*"):
        users = set()
        if path.suffix == ".arrow":
            table = pa.ipc.open_file(path).read_all()
            users.update(map(str, table["user_id"].to_pylist() if "user_id" in table.column_names else ()))
        elif path.is_dir() and not path.suffix:
            group = zarr.open_group(path, mode="r")
            if "user_id" in group:
                users.update(str(value) for value in group["user_id"][:])
            else:
                data, starts = group["user_id_bytes"][:].tobytes(), group["user_id_offsets"][:]
                users.update(data[a:b].decode() for a, b in itertools.pairwise(starts))
        if users:
            found.setdefault(path.relative_to(site.path).parts[0], set()).update(users)
    return found


STORES = {"days", "state", "users", "features", "windows", "qualifications", "quarantine"}


def write_list(path, ids):
    path.write_text("user_id\n" + "".join(f"{user}\n" for user in ids), encoding="utf-8")
    return path


def test_forget_users__are_gone_everywhere_and_all_others_stay(client, place, tmp_path):
    site, ids = place
    gone, others = ids[3:6], {str(user) for user in ids} - {str(user) for user in ids[3:6]}
    before = found_users(site)
    assert set(before) == STORES
    assert all({str(user) for user in gone} <= users for users in before.values())
    rows_before = pq.read_table(site.qualifications_folder(date_of(5)) / "by_user")
    left_by_a_kill = site.path / "evaluations" / "date=2026-01-05" / ".rows-0" / "adv"
    left_by_a_kill.mkdir(parents=True)
    work_of_backtests = site.path / "backtests" / ".work"
    (work_of_backtests / "0" / "features").mkdir(parents=True)
    facts = forget_users(client, site, write_list(tmp_path / "list.txt", gone))
    assert facts["rows left"] == 0
    assert facts["rows removed"] > 0
    assert facts["files with them"] > 0
    assert not work_of_backtests.exists()
    after = found_users(site)
    assert set(after) == STORES
    for store, users in after.items():
        assert users & others == before[store] & others
        assert not users & {str(user) for user in gone}
    for run in site.kept_runs():
        verify_run(run)
    keep = pc.invert(pc.is_in(rows_before.column("user_id"), pa.array(gone, rows_before.schema.field("user_id").type)))
    rows_after = pq.read_table(site.qualifications_folder(date_of(5)) / "by_user")
    assert rows_after.to_pylist() == rows_before.filter(keep).to_pylist()
    assert not list(site.path.rglob(".tmp-*"))
    assert not left_by_a_kill.parent.exists()
    for path in site.path.rglob("*"):
        if path.is_file() and path.suffix in (".json", ".jsonl", ".csv", ".html"):
            text = path.read_text(encoding="utf-8")
            assert not any(f'"{user}"' in text for user in gone), path


def test_forget_users__are_gone_from_lists_that_a_rebuild_replaced(client, place, tmp_path):
    site, ids = place
    night = Night(client, site, load_config(site.config_path), date_of(5))
    before = site.qualifications_folder(night.date).stat().st_ino
    score = night.config.score.model_copy(update={"k": 1})
    nightly(dataclasses.replace(night, config=night.config.model_copy(update={"score": score})), rebuild=True)
    (replaced,) = (site.path / "qualifications" / "runs").iterdir()
    assert replaced.stat().st_ino == before
    forget_users(client, site, write_list(tmp_path / "list.txt", ids[3:6]))
    assert not replaced.exists()
    assert str(ids[3]) not in found_users(site)["qualifications"]


def test_forget_users__stay_away_and_the_night_equals_one_that_never_knew_them(client, place, tmp_path):
    site, ids = place
    gone = ids[:2]
    forget_users(client, site, write_list(tmp_path / "list.txt", gone))
    nightly(Night(client, site, load_config(site.config_path), date_of(6)))
    for store, users in found_users(site).items():
        assert not users & {str(user) for user in gone}, store
    # Whoever applies the delta is told to remove them; nothing else is said of them.
    delta = pq.read_table(site.qualifications_folder(date_of(6)) / "delta")
    told = delta.filter(pc.equal(delta["change"].cast(pa.string()), "forgotten"))
    assert sorted(told["user_id"].to_pylist()) == gone
    assert told["category"].null_count == told["rank"].null_count == told["score"].null_count == len(gone)
    verify_run(site.qualifications_folder(date_of(6)))
    # From scratch, with the list in force from the first day on, the states are the same.
    fresh = type(site)(tmp_path / "fresh")
    fresh.path.mkdir()
    for name in ("ammrank.yaml", ".forget-key", "forgotten.json"):
        shutil.copy2(site.path / name, fresh.path / name)
    known = ingest(Night(client, fresh, load_config(site.config_path), date_of(6)))
    ours = site.path / site.current().runs["head"]
    assert known.head.path.name == ours.name
    for part in sorted(ours.glob("part-*.json")):
        assert part.read_bytes() == (known.head.path / part.name).read_bytes()


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(bytes(data))


def holder_of(folder, user):
    """Return the table of a folder that has a user, and one that has not."""
    has = {path: user in pq.read_table(path).column("user_id").to_pylist() for path in sorted(folder.glob("*.parquet"))}
    return next(path for path in has if has[path]), next(path for path in has if not has[path])


@pytest.mark.parametrize("begun", ["integers"], indirect=True)
def test_forget_users__what_was_damaged_before_is_still_found(client, place, tmp_path):
    site, ids = place
    features = site.path / site.current().runs["features"]
    user = str(ids[3])
    with_user = next(
        number for number in range(2) if user in map(str, open_run(features).part(number).read(FEATURES)["user_id"])
    )
    other = part_path(features, 1 - with_user)
    unrelated = {
        features / "columns.json": lambda: flip(features / "columns.json"),
        other / "zarr.json": lambda: flip_entry(other, "zarr.json"),
    }
    for harm in unrelated.values():
        harm()
    forget_users(client, site, write_list(tmp_path / "list.txt", ids[3:4]))
    renewed = site.path / site.current().runs["features"]
    mends = {
        renewed / "columns.json": lambda: flip(renewed / "columns.json"),
        part_path(renewed, 1 - with_user) / "zarr.json": lambda: flip_entry(
            part_path(renewed, 1 - with_user), "zarr.json"
        ),
    }
    for path, mend in reversed(mends.items()):
        with pytest.raises(DamagedStore, match=rf"{path} is not what was written \(checksum differs\)"):
            verify_run(renewed)
        mend()
    verify_run(renewed)
    assert user not in found_users(site)["features"]


@pytest.mark.parametrize("begun", ["integers"], indirect=True)
@pytest.mark.parametrize("where", ["table with the user", "state", "attributes of features", "attributes of a matrix"])
def test_forget_users__refuses_to_write_what_is_damaged_again(client, place, tmp_path, where):
    site, ids = place
    head = site.path / site.current().runs["head"]
    with_user, _ = holder_of(site.qualifications_folder(date_of(5)) / "by_user", ids[3])
    number = next(n for n in range(2) if ids[3] in open_run(head).part(n).read(STATE)["user_id"])
    features = part_path(site.path / site.current().runs["features"], number)
    victim, harm = {
        "table with the user": (with_user, lambda: flip(with_user)),
        "state": (part_path(head, number), lambda: flip_entry(part_path(head, number))),
        "attributes of features": (features / "zarr.json", lambda: flip_entry(features, "zarr.json")),
        "attributes of a matrix": (features / "X/zarr.json", lambda: flip_entry(features, "X/zarr.json")),
    }[where]
    harm()
    run = {"table with the user": victim.parents[1], "state": head}.get(where, features.parent)
    before = (run / "manifest.json").read_bytes()
    listed = write_list(tmp_path / "list.txt", ids[3:4])
    with pytest.raises(DamagedStore, match=rf"{victim} is not what was written \(checksum differs\); make it again"):
        forget_users(client, site, listed)
    assert (run / "manifest.json").read_bytes() == before
    harm()
    assert forget_users(client, site, listed)["rows left"] == 0


@pytest.mark.parametrize("begun", ["integers"], indirect=True)
def test_forget_users__goes_on_after_a_crash(client, place, tmp_path):
    site, ids = place
    listed = write_list(tmp_path / "list.txt", ids[:3])
    # As a crash leaves it: a run under a temporary name, one that is no longer named, and half a run.
    head = site.path / site.current().runs["head"]
    shutil.copytree(head, head.with_name(f".tmp-{head.name}-abc"))
    shutil.copytree(head, head.with_name(f"{head.name}-g7"))
    (site.path / "qualifications" / "runs" / "2026-01-11-abc").mkdir(parents=True)
    # As a killed worker leaves it: a table under a temporary name inside a run that was published.
    table = site.qualifications_folder(date_of(5)) / "by_user" / "part-00000.parquet"
    shutil.copy(table, table.with_name(f".tmp-{table.name}-abc"))
    add_forgotten(site.path, ids_from_values(ids[:3]))
    forget_users(client, site, listed)
    assert not list(site.path.rglob(".tmp-*"))
    assert not site.unnamed()
    again = forget_users(client, site, listed)
    assert (again["rows removed"], again["on the list"]) == (0, 3)


def inodes_of_parts(site):
    """Return what tells whether a file was written again, by its path in the first generation of its run."""
    parts = [path for path in site.path.rglob("part-*") if "models" not in path.parts and path.is_file()]
    return {Path(re.sub(r"-g\d+(?=/)", "", str(path))): path.stat().st_ino for path in parts}


@pytest.mark.parametrize("begun", ["integers"], indirect=True)
def test_forget_users__touches_only_the_partitions_of_the_users(client, place, tmp_path):
    site, ids = place
    listed = write_list(tmp_path / "list.txt", ids[3:4])
    (partition,) = partition_of(ids_from_values(ids[3:4]), 2)
    night = site.qualifications_folder(date_of(5))
    before = inodes_of_parts(site)
    held = set(pq.read_table(night / "by_user", filters=[("user_id", "=", ids[3])])["category"].to_pylist())
    forget_users(client, site, listed)
    replaced = {path for path, inode in inodes_of_parts(site).items() if before[path] != inode}
    assert night / "by_user" / f"part-{partition:05d}.parquet" in replaced
    other = f"part-{1 - partition:05d}"
    assert not any(path.is_file() and path.stem == other for path in replaced)
    changed = {path.parent.name for path in replaced if path.parent.parent == night / "by_category"}
    assert changed == {f"category={category}" for category in held}


@pytest.mark.parametrize("begun", ["integers"], indirect=True)
@pytest.mark.parametrize("stop", ["before ROOT", "before any rename", "before any removal", "before a manifest"])
def test_forget_users__stopped_while_runs_are_replaced(client, place, tmp_path, monkeypatch, stop):
    site, ids = place
    gone = {str(user) for user in ids[:3]}

    class Killed(BaseException):
        pass

    def die(*args, **options):
        raise Killed

    targets = {
        "before ROOT": "site.renewals.replace",
        "before any rename": "site.site.swap_folder",
        "before any removal": "site.site.remove_run",
    }
    with monkeypatch.context() as patched:
        if stop in targets:
            patched.setattr(f"ammrank_dask.storage.{targets[stop]}", die)
        else:
            patched.setattr("ammrank_dask.forget.rewrite_manifest", die)
        with pytest.raises(Killed):
            forget_users(client, site, write_list(tmp_path / "list.txt", ids[:3]))
    # The next run of any command mends what was begun: every night is whole.
    with site.exclusive():
        for run in site.kept_runs():
            verify_run(run)
    # Another list: those of the interrupted command are forgotten, too.
    with site.exclusive():
        facts = forget_users(client, site, write_list(tmp_path / "other.txt", ids[5:6]))
    assert facts["rows left"] == 0
    assert not any(users & (gone | {str(ids[5])}) for users in found_users(site).values())
    tombstones = pq.read_table(site.path / "tombstones" / f"date={date_of(5)}.parquet")["user_id"].to_pylist()
    assert tombstones == [*ids[:3], ids[5]]
    assert not site.unfinished("forget")
    assert not site.unnamed()
    for run in site.kept_runs():
        verify_run(run)


@pytest.mark.parametrize("begun", ["integers"], indirect=True)
def test_forget__little_work_is_done_by_threads_of_the_command(client, place, tmp_path):
    site, ids = place
    on_cluster = type(site)(tmp_path / "on-cluster")
    shutil.copytree(site.path, on_cluster.path)
    listed = write_list(tmp_path / "list.txt", ids[:2])
    forget_users(client, on_cluster, listed)
    arguments = ["forget", str(site.path), "--users", str(listed), "--json", "--verbose"]
    # In a process of its own: neither Dask nor a compiler is loaded, and the folder has no cluster file.
    done = subprocess.run([sys.executable, "-c", COMMAND, *arguments], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    said = [json.loads(line) for line in done.stderr.splitlines()]
    assert [line["tasks"] for line in said[:-2]] == [
        "forget",
        "forget-lists",
        "forget-lists",
        "forget-tables",
        "forget-scan",
    ]
    assert said[-2]["stage"] == "forget"
    assert said[-1] == []
    assert json.loads(done.stdout)["rows left"] == 0
    assert not any(users & {str(user) for user in ids[:2]} for users in found_users(site).values())
    assert bytes_of_runs(site) == bytes_of_runs(on_cluster)


def bytes_of_runs(site):
    """Return all files of all runs, by their path below the site."""
    files = [path for run in site.kept_runs() for path in run.rglob("*") if path.is_file()]
    return {path.relative_to(site.path): path.read_bytes() for path in files}


@pytest.mark.parametrize("begun", ["integers"], indirect=True)
def test_forget__a_cluster_that_is_named_does_the_work(place, cluster_file, tmp_path, monkeypatch):
    site, ids = place
    addresses = []

    def forget(client, *arguments, **options):
        addresses.append(client.scheduler.address)
        return forget_users(client, *arguments, **options)

    monkeypatch.setattr(command, "forget_users", forget)
    listed = write_list(tmp_path / "list.txt", ids[:2])
    arguments = ["forget", str(site.path), "--users", str(listed), "--cluster", str(cluster_file), "--quiet"]
    result = CliRunner().invoke(ammrank, arguments)
    assert result.exit_code == 0, result.output
    assert [f"address: {address}" in cluster_file.read_text() for address in addresses] == [True]


@pytest.mark.parametrize("begun", ["integers"], indirect=True)
def test_is_small__by_the_bytes_that_can_hold_the_users(place, tmp_path, monkeypatch):
    site, ids = place
    listed = write_list(tmp_path / "list.txt", ids[:1])
    home = int(partition_of(ids_from_values(ids[:1]), 2)[0])
    parts = [path for path in site.path.glob(f"*/**/part-{home:05d}*") if "models" not in path.parts]
    shared = [path for path in site.path.rglob("by_category/*/part-00000-00001.parquet")]
    # Of three categories a user holds two.
    own, by_category = ([path for path in parts if ("by_category" in path.parts) == is_by] for is_by in (False, True))
    n_bytes = sum(bytes_below(path) if path.is_dir() else path.stat().st_size for path in own)
    n_bytes += sum(int(path.stat().st_size * 2 / 3) for path in {*by_category, *shared})
    for most, expected in ((n_bytes, True), (n_bytes - 1, False)):
        monkeypatch.setattr(stage, "SMALL", most)
        assert stage.is_small(site, listed) is expected
    assert sum(Reach(None).count_bytes(open_run(path)) for path in site.kept_runs()) > n_bytes


@pytest.mark.parametrize("begun", ["integers"], indirect=True)
def test_forget_users__the_list_holds_no_id_and_needs_its_key(client, place, tmp_path):
    site, ids = place
    forget_users(client, site, write_list(tmp_path / "list.txt", ids[:2]))
    text = (site.path / "forgotten.json").read_text()
    assert len(json.loads(text)["hashes"]) == 2
    # As words of their own: the digits of a short id may well be somewhere in a hash.
    assert not any(re.search(rf"\b{re.escape(str(user))}\b", text) for user in ids[:2])
    for name in ("forgotten.json", ".forget-key"):
        assert stat.S_IMODE((site.path / name).stat().st_mode) == 0o600
    (site.path / ".forget-key").unlink()
    with pytest.raises(DamagedStore, match=r"\.forget-key, the key of .*forgotten.json, is missing or cut"):
        nightly(Night(client, site, load_config(site.config_path), date_of(6)))


def test_load_forgotten__not_what_was_written(tmp_path):
    assert load_forgotten(None) is None
    assert load_forgotten(tmp_path) is None
    (tmp_path / "forgotten.json").write_text("{}")
    with pytest.raises(DamagedStore, match="is not the JSON that was written; put it back from a copy"):
        load_forgotten(tmp_path)


def test_forget_list__another_key_gives_other_hashes(tmp_path):
    ids = ids_from_values([1, 2, 3])
    lists = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        lists.append(add_forgotten(tmp_path / name, ids_from_values([2])))
    assert lists[0].is_on(ids).tolist() == lists[1].is_on(ids).tolist() == [False, True, False]
    assert lists[0].hashes.isdisjoint(lists[1].hashes)
    assert lists[0].texts_on(pa.array([None, "2", ""])).tolist() == [False, True, False]


def test_drop_users__by_hand():
    arrays = {
        "user_id": np.array([5, 7, 9]),
        "indptr": np.array([0, 2, 2, 3]),
        "cell": np.array([1, 4, 0], np.uint16),
        "intensity": np.array([0.5, 0.25, 1.0]),
        "last": np.array([10, 20, 30]),
    }
    left = drop_users(STATE, arrays, np.array([True, False, False]))
    assert {name: array.tolist() for name, array in left.items()} == {
        "user_id": [7, 9],
        "indptr": [0, 0, 1],
        "cell": [0],
        "intensity": [1.0],
        "last": [30],
    }
    arrays = {
        "user_id_offsets": np.array([0, 1, 3]),
        "user_id_bytes": np.frombuffer(b"abb", np.uint8),
        "X/indptr": np.array([0, 1, 3]),
        "X/indices": np.array([2, 0, 1], np.uint16),
        "X/data": np.array([1, 2, 3], np.float32),
        "age_bucket": np.array([0, 1], np.int8),
        "gender": np.array([-1, 1], np.int8),
        "ranking/indptr": np.array([0, 2, 3]),
        "ranking/category": np.array([2, 1, 0], np.uint16),
        "ranking/intensity": np.array([2.0, 1.0, 0.5]),
    }
    left = drop_users(FEATURES, arrays, np.array([False, True]))
    assert left["user_id_bytes"].tobytes() == b"a"
    assert left["X/indices"].tolist() == [2]
    assert left["ranking/category"].tolist() == [2, 1]
    assert drop_users(FEATURES, arrays, np.array([False, False])).keys() == arrays.keys()


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("list.txt", "user_id\n\n", "has no user ids; write one per line"),
        ("list.txt", "7\nseven\n", "line 2: user ids of this site are 64-bit integers, found text"),
        ("list.txt", "99999999999999999999", "line 1: user ids of this site are 64-bit integers"),
        ("list.txt", "7\n12_3\n", "line 2: user ids of this site are 64-bit integers, found text"),
        ("list.txt", "+5", "line 1: user ids of this site are 64-bit integers, found text"),
        ("list.txt", "٣", "line 1: user ids of this site are 64-bit integers, found text"),
        ("list.parquet", "no parquet", "give a parquet file of user ids"),
        (None, None, "give a text file with one user id per line"),
    ],
)
def test_read_user_list__what_is_wrong_with_it(tmp_path, name, content, said):
    path = tmp_path / (name or "missing")
    if content is not None:
        path.write_text(content, encoding="utf-8")
    with pytest.raises(BadInput, match=said) as caught:
        read_user_list(path, "int64")
    assert not any(text in str(caught.value) for text in ("seven", "12_3"))


def test_read_user_list__parquet_and_text(tmp_path):
    pq.write_table(pa.table({"user_id": [3, 1, 3], "other": [0, 0, 0]}), tmp_path / "list.parquet")
    assert read_user_list(tmp_path / "list.parquet", "int64").to_arrow().to_pylist() == [1, 3]
    assert read_user_list(tmp_path / "list.parquet", "string").to_arrow().to_pylist() == ["1", "3"]
    (tmp_path / "list.txt").write_text("b \n\nä\n", encoding="utf-8")
    assert read_user_list(tmp_path / "list.txt", "string").to_arrow().to_pylist() == ["b", "ä"]
    pq.write_table(pa.table({"a": [1], "b": [2]}), tmp_path / "two.parquet")
    with pytest.raises(BadInput, match="must have a column user_id, found a, b"):
        read_user_list(tmp_path / "two.parquet", "int64")


@pytest.mark.parametrize("dropped", [[0], [9], [3, 4, 7], range(10), range(0, 10, 2), []], ids=str)
def test_drop_rows__as_a_filter_does_it(dropped, monkeypatch):
    names = pa.array(["b", "a", "b", "c", "b", "a", "c", "b", "b", "a"]).dictionary_encode()
    table = pa.table({"user_id": range(10), "category": names, "score": [None, *range(9)]})
    mask = np.isin(np.arange(10), list(dropped))
    expected = table.filter(pa.array(~mask))
    for n_rows in (1, 100):
        monkeypatch.setattr(forgotten, "_ROWS_OF_STRETCH", n_rows)
        left = drop_rows(table, mask)
        assert left.equals(expected)
        assert [column.num_chunks for column in left.columns] == [column.num_chunks for column in expected.columns]


@pytest.mark.parametrize("n_users", [1, 3, 1000])
def test_named_users__are_told_from_all_others(n_users):
    rng = np.random.default_rng(n_users)
    numbers = np.concatenate([np.arange(-500, 500), rng.integers(-(2**63), 2**63 - 1, 20_000)])
    chosen = np.unique(rng.choice(numbers, n_users))
    who, wanted = NamedUsers(ids_from_values(chosen)), set(chosen.tolist())
    expected = [number in wanted for number in numbers.tolist()]
    assert who.rows_on(pa.chunked_array([numbers[:7], numbers[7:]])).tolist() == expected
    assert who.is_on(ids_from_values(numbers)).tolist() == expected
    texts = NamedUsers(ids_from_values(sorted(map(str, wanted))))
    assert texts.rows_on(pa.chunked_array([pa.array(map(str, numbers.tolist()))])).tolist() == expected
