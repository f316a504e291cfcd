"""ROOT names all runs: late tasks, stopped holders and files of others do no harm, and nothing is used twice."""

import datetime as dt
import json
import shutil
import uuid
from dataclasses import replace

import numpy as np
import pytest
from s3 import serve_s3

from ammrank_dask.storage.errors import DamagedStore, EarlierFormat
from ammrank_dask.storage.objects.objects import Conflict
from ammrank_dask.storage.objects.posix import PosixObjects, open_objects
from ammrank_dask.storage.site.renewals import name_renewals, replace_runs, restore_root
from ammrank_dask.storage.site.root import KEPT_ROOTS, Root, move_root, put_root_back, read_root
from ammrank_dask.storage.site.site import RUN_FOLDERS, Site
from ammrank_dask.storage.store.ids import ids_from_values
from ammrank_dask.storage.store.parts import checksum_of, write_part
from ammrank_dask.storage.store.registry import STATE
from ammrank_dask.storage.store.runs import finish_run, open_run, remove_run, verify_run

DATE = dt.date(2026, 1, 5)


def arrays_of(*users):
    cells = {"cell": np.ones(len(users), np.uint16), "intensity": np.ones(len(users)), "last": np.ones(len(users), int)}
    return {**ids_from_values(np.array(users)).to_arrays(), "indptr": np.arange(len(users) + 1), **cells}


def write_state(path, *users):
    facts = write_part(path, 0, STATE, arrays_of(*users))
    return finish_run(path, STATE.kind, "abc", [facts], config={}, inputs=[])


@pytest.fixture
def site(tmp_path):
    """A site that has published a state of three users."""
    site = Site(tmp_path)
    head = site.run("state", DATE, "abc")
    site.begin([head])
    write_state(head, 1, 2, 3)
    site.publish(DATE, {"head": head})
    return site


def head_of(site):
    return site.path / site.current().runs["head"]


def forget(site):
    """Let a state without the first user take the place of the published one, and return where that was."""
    head = head_of(site)
    renewals = name_renewals(site, [head])
    write_state(renewals[head], 2, 3)
    replace_runs(site, renewals, "forget")
    return head


def test_publish__a_late_task_writes_the_same_bytes_again(site):
    write_part(head_of(site), 0, STATE, arrays_of(1, 2, 3))
    with site.exclusive():
        verify_run(head_of(site))
    assert open_run(head_of(site)).n_rows == 3


def test_replace_runs__what_a_late_task_writes_is_read_by_nobody_and_removed_by_the_next_command(site):
    before = forget(site)
    assert not before.exists()
    write_part(before, 0, STATE, arrays_of(1, 2, 3))  # it began before the users were forgotten
    assert site.unnamed() == [before]
    assert open_run(head_of(site)).n_rows == 2
    with site.exclusive():
        assert not before.exists()
        verify_run(head_of(site))


def test_discard__a_holder_that_was_stopped_before_it_removed_takes_nothing_of_its_successor(site, monkeypatch):
    stopped = []

    def stop(run):
        stopped.append(run)
        raise KeyboardInterrupt

    late = site.run("state", DATE, "def")
    site.begin([late])
    write_state(late, 4)
    with monkeypatch.context() as patch:
        patch.setattr("ammrank_dask.storage.site.site.remove_run", stop)
        with pytest.raises(KeyboardInterrupt):
            site.discard([late])
    assert stopped == [late]
    with site.exclusive():
        assert not late.exists()
        again = site.run("state", DATE, "def")  # the same content is needed again
        assert again != late
        site.begin([again])
        write_state(again, 4)
        site.publish(DATE, {"head": again})
    remove_run(stopped[0])  # the holder wakes up
    assert head_of(site) == again
    verify_run(again)


def test_place__a_key_is_not_used_again_while_it_is_in_the_trash(site):
    late = site.run("state", DATE, "def")
    site.begin([late])
    site.discard([late])
    assert site.run("state", DATE, "def").name == f"{late.name}-g2"
    for number in range(KEPT_ROOTS + 1):
        site.begin_command("of a test", number)
    assert site.run("state", DATE, "def") == late


def test_move__of_two_that_publish_at_once_one_gives_up(site):
    other = Site(site.path)

    def change(root):
        other.begin([site.path / "state" / "other"])
        return root.begin(["state/mine"])

    with pytest.raises(Conflict, match="ROOT was written by another run meanwhile, found another one; run it again"):
        site.move(change)
    assert site.root().building == ("state/other",)


def test_renewals__of_a_run_in_work_is_another_run(site):
    late = site.run("state", DATE, "def")
    site.begin([late])
    write_state(late, 4)
    assert name_renewals(site, [late]) == {late: late.with_name(f"{late.name}-g2")} == name_renewals(site, [late])
    assert late in site.finished_runs("state")


@pytest.mark.parametrize("how", ["crash before ROOT", "crash after ROOT"])
def test_replace_runs__is_one_write_of_root(site, monkeypatch, how):
    before, number = head_of(site), site.root().number
    target = {"crash before ROOT": "move_root", "crash after ROOT": "remove_run"}[how]

    def die(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(f"ammrank_dask.storage.site.site.{target}", die)
        with pytest.raises(KeyboardInterrupt):
            forget(site)
    is_done = how == "crash after ROOT"
    with site.exclusive():
        assert (head_of(site) == before) is not is_done
        assert open_run(head_of(site)).n_rows == (2 if is_done else 3)
        assert before.exists() is not is_done
    assert site.root().number == number + (2 if is_done else 0)  # the new run is named before it is written


def test_exclusive__files_of_others_stay(site):
    notes = []
    for folder in (*RUN_FOLDERS, "qualifications", "qualifications/runs", "roots", "."):
        for name in ("notes.txt", "date=2026-01-05", f"{DATE}-of mine", ".hidden"):
            note = site.path / folder / name / "note"
            note.parent.mkdir(parents=True)
            note.touch()
            notes.append(note)
    shutil.copytree(head_of(site), site.path / "state" / f"date={DATE}-fff")
    with site.exclusive():
        pass
    assert all(note.exists() for note in notes)
    assert not (site.path / "state" / f"date={DATE}-fff").exists()


def test_exclusive__nothing_is_removed_without_a_whole_root(site):
    unnamed = site.path / "state" / f"date={DATE}-fff"
    shutil.copytree(head_of(site), unnamed)
    (site.path / "ROOT").write_text("{")
    with site.exclusive():
        assert unnamed.exists()
    assert restore_root(site)
    with site.exclusive():
        assert not unnamed.exists()


def test_root__is_read_back_as_it_was():
    root = Root(
        DATE, {"head": "state/a"}, (DATE,), ("state/a",), ("state/b",), {"qualifications/date=1": ("q", 7)},
        {"state/c": (3, "")}, {"repartition": 4}, 9,
    )  # fmt: skip
    assert Root.decode(None, root.encode()) == root
    assert Root.decode(None, root.encode()).number == 9


def test_root__of_a_development_version_is_named(tmp_path):
    content = json.loads(Root(number=3).encode())
    del content["trash"], content["checksum"]
    data = json.dumps({**content, "checksum": checksum_of(content)}).encode()
    with pytest.raises(EarlierFormat, match=r"ROOT has no trash: a development version before 0\.3\.0 wrote it"):
        Root.decode(tmp_path / "ROOT", data)


@pytest.fixture(scope="module")
def server():
    with serve_s3() as running:
        running.make_bucket("sites")
        yield running


@pytest.fixture
def bucket(server):
    return open_objects(server.url(f"sites/{uuid.uuid4().hex}"))


@pytest.fixture(params=["posix", "bucket"])
def objects(request, tmp_path):
    """An empty store of each kind."""
    return PosixObjects(tmp_path / "site") if request.param == "posix" else request.getfixturevalue("bucket")


def publish(objects, *days):
    """Publish one night after the other."""
    for day in days:
        root, tag = read_root(objects)
        move_root(objects, replace(root or Root(), date=DATE.replace(day=day)), tag)


def published(objects):
    return read_root(objects)[0].date.day


def roots(objects):
    return [one.key for one in objects.list("roots/")]


def test_move_root__the_last_contents_are_kept(objects):
    assert read_root(objects) == (None, None)
    publish(objects, *range(1, 6))
    assert published(objects) == 5
    assert objects.get("roots/000005.json")[0] == objects.get("ROOT")[0]
    assert objects.get("roots/000004.json")[0] != objects.get("ROOT")[0]
    for _ in range(KEPT_ROOTS):
        publish(objects, 6)
    assert roots(objects) == [f"roots/{number:06d}.json" for number in range(6, 6 + KEPT_ROOTS)]
    assert len(read_root(objects)[0].writes) == KEPT_ROOTS


def test_move_root__the_slower_of_two_changes_nothing(objects):
    publish(objects, 1)
    root, tag = read_root(objects)
    publish(objects, 2)
    with pytest.raises(Conflict, match=f"{objects}/ROOT was written by another run meanwhile, found another one; run"):
        move_root(objects, replace(root, date=DATE), tag)
    assert published(objects) == 2
    assert len(roots(objects)) == 2


def test_move_root__a_content_of_a_crash_is_no_conflict(objects):
    publish(objects, 1)
    objects.put("roots/000002.json", [b"begun"])
    publish(objects, 2)
    assert read_root(objects)[0].number == 3


@pytest.mark.parametrize("how", ["damaged", "lost"])
def test_put_root_back__gives_the_newest_whole_content(objects, how):
    publish(objects, 1, 2, 3)
    objects.put("roots/000003.json", [b"{"])
    if how == "damaged":
        objects.put("ROOT", [b"{"])
    else:
        objects.delete(["ROOT"])
    said = "is not the JSON that was written" if how == "damaged" else "is missing"
    copy = "`cp .*/roots/000002.json .*/ROOT`" if isinstance(objects, PosixObjects) else "a copy of s3://.* to s3://"
    with pytest.raises(DamagedStore, match=f"{objects}/ROOT {said}; its newest whole content is put back by {copy}"):
        read_root(objects)
    assert put_root_back(objects)
    assert published(objects) == 2
    publish(objects, 4)
    assert published(objects) == 4


def test_put_root_back__without_a_whole_content(objects):
    publish(objects, 1)
    for key in ("ROOT", "roots/000001.json"):
        objects.put(key, [b"{"])
    with pytest.raises(DamagedStore, match="ROOT is not the JSON that was written; make it again with `ammrank night"):
        read_root(objects)
    assert not put_root_back(objects)
    assert read_root(objects) == (None, None)


@pytest.mark.parametrize(
    ("version", "error", "sentence"),
    [
        (b'{"format": 2}', EarlierFormat, "CURRENT has format 2 of an earlier version, this one reads 0.3.0"),
        (b"{", DamagedStore, "CURRENT is not the JSON that was written; make it again"),
    ],
)
def test_read_root__names_the_site_of_another_version(objects, version, error, sentence):
    objects.put("CURRENT", [version])
    with pytest.raises(error, match=sentence):
        read_root(objects)


LOST = [("500 Internal Server Error", "InternalError"), ("409 Conflict", "ConditionalRequestConflict")]


@pytest.mark.parametrize("answer", LOST, ids=["500", "409"])
@pytest.mark.parametrize("others", [0, 1, 3])
def test_move_root__a_write_is_one_whose_answer_was_lost_while_others_went_on(server, bucket, answer, others):
    publish(bucket, 1)
    left = [others]

    def lose_once(method, path):
        if method != "PUT" or not path.endswith("/ROOT") or not left:
            return None
        publish(bucket, *range(10, 10 + left.pop()))
        return answer

    with server.losses(lose_once):
        publish(bucket, 2)
    assert published(bucket) == (9 + others if others else 2)
    assert read_root(bucket)[0].number == 2 + others


@pytest.mark.parametrize("answer", LOST, ids=["500", "409"])
def test_move_root__a_request_that_was_refused_is_made_again(server, bucket, answer):
    publish(bucket, 1)
    seen = []

    def refuse_first(method, path):
        seen.append((method, path))
        return answer if method == "PUT" and seen.count((method, path)) == 1 else None

    with server.faults(refuse_first):
        publish(bucket, 2)
    assert published(bucket) == 2
    assert len(roots(bucket)) == 2
