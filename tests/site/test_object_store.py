"""Lakes in an object store give what the same lake gives on this machine; what goes wrong there is one sentence."""

import hashlib
import json
import shutil
import threading
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from begun import assert_same_runs
from click.testing import CliRunner
from deltalake import DeltaTable, write_deltalake
from lakes import date_of, good_events, write_events, write_lake, write_site
from nights import day
from s3 import always, every, remove_object, serve_s3, slow, write_object

from ammrank_dask.ingest import scan
from ammrank_dask.ingest.scan import scan_files
from ammrank_dask.storage.errors import BadInput, StoreFailed
from ammrank_dask.storage.lake import files, paths
from ammrank_dask.storage.lake.files import FileSlice, read_batches, scan_file
from ammrank_dask.storage.lake.listing import LakeFile, list_days
from ammrank_dask.storage.lake.paths import RemotePath, parse_path
from ammrank_dask.storage.lake.people import read_opt_outs, read_user_list
from ammrank_dask.storage.vocabulary import GROUPS
from ammrank_dask.workflows.cli import ammrank
from ammrank_dask.workflows.session.config import load_config, write_config
from ammrank_dask.workflows.session.settings import copies_target
from ammrank_dask.workflows.stages.publishing import copy_published

pytestmark = pytest.mark.night

COLUMNS = ("user_id", "group", "category", "timestamp")


@pytest.fixture(scope="module")
def store():
    with serve_s3() as server:
        yield server


@pytest.fixture
def lake(tmp_path):
    return write_lake(tmp_path / "lake", n_days=3)


@pytest.fixture
def bucket(store, lake, request):
    """A bucket with a copy of the lake, of a name of its own."""
    name = f"lake-{abs(hash(request.node.name)) % 10**12}"
    store.make_bucket(name)
    store.copy(lake, f"{name}/lake")
    return name


def remote_site(store, bucket, path, lake, **places):
    """Return a site whose lake is in the bucket; `places` are other URLs of it."""
    named = {"events": "events", "users": "users.parquet", "taxonomy": "taxonomy.csv"}
    own = {key: store.url(f"{bucket}/lake/{name}") for key, name in named.items()}
    return write_site(path, lake, lake={**own, **places})


def run(cluster_file, name, site, *arguments, exit_code=0):
    more = ["--cluster", str(cluster_file), "--quiet"] if name not in ("verify", "status") else []
    result = CliRunner().invoke(ammrank, [name, str(site.path), *arguments, *more])
    assert result.exit_code == exit_code, result.output
    return result.output


def digest(cluster_file, site):
    return json.loads(run(cluster_file, "verify", site, "--digest", "--json"))["digest"]


def test_ingest__an_s3_lake_gives_the_digest_of_the_local_one(store, bucket, lake, cluster_file, tmp_path):
    local, remote = write_site(tmp_path / "local", lake), remote_site(store, bucket, tmp_path / "remote", lake)
    del store.requests[:]
    for site in (local, remote):
        run(cluster_file, "ingest", site, "--date", str(date_of(2)))
    # An object is fetched once, for its digest and for its rows; the copies are gone afterwards.
    fetched = [path for method, path in store.requests if method == "GET" and path.endswith("part-0.parquet")]
    assert len(fetched) <= 3 + len(set(fetched))  # and the footers that memory is estimated from
    assert not (remote.scratch / "fetched").exists()
    assert digest(cluster_file, local) == digest(cluster_file, remote)
    # A second time nothing is read again: no object of events is asked for, only listings.
    del store.requests[:]
    run(cluster_file, "ingest", remote, "--date", str(date_of(2)))
    read = [path for method, path in store.requests if method == "GET" and "date=" in path and path.endswith("parquet")]
    scanned = (remote.path / "days" / "scanned.json").read_text(encoding="utf-8")
    assert all(name["etag"] for name in json.loads(scanned)["files"])
    assert len(read) <= 3  # the footers that memory is estimated from


@pytest.mark.parametrize("fault", [slow(0.05), every(7, "503 Slow Down", "SlowDown")], ids=["slow", "failing"])
def test_ingest__slow_and_failing_requests_change_nothing(store, bucket, lake, cluster_file, tmp_path, fault):
    local, remote = write_site(tmp_path / "local", lake), remote_site(store, bucket, tmp_path / "remote", lake)
    run(cluster_file, "ingest", local, "--date", str(date_of(1)))
    with store.faults(fault):
        run(cluster_file, "ingest", remote, "--date", str(date_of(1)))
    assert digest(cluster_file, local) == digest(cluster_file, remote)


def test_init__takes_an_s3_lake(store, bucket, cluster_file, tmp_path):
    arguments = ["--lake", store.url(f"{bucket}/lake"), "--cluster", str(cluster_file), "--quiet"]
    result = CliRunner().invoke(ammrank, ["init", str(tmp_path / "new"), *arguments])
    assert result.exit_code == 0, result.output
    config = load_config(tmp_path / "new" / "ammrank.yaml")
    assert config.lake.events == store.url(f"{bucket}/lake/events")
    assert config.lake.taxonomy == store.url(f"{bucket}/lake/taxonomy.csv")


@pytest.mark.parametrize(
    ("answer", "code", "sentence"),
    [
        (("403 Forbidden", "AccessDenied"), 65, "the store refuses the credentials of this process"),
        (("400 Bad Request", "ExpiredToken"), 65, "the store refuses the credentials of this process"),
        (("500 Internal Server Error", "InternalError"), 1, "what is published is whole, run the command again"),
    ],
    ids=["no permission", "expired", "broken"],
)
def test_ingest__a_store_that_refuses(store, bucket, lake, cluster_file, tmp_path, answer, code, sentence):
    site = remote_site(store, bucket, tmp_path / "remote", lake)
    run(cluster_file, "ingest", site, "--date", str(date_of(1)))
    before = digest(cluster_file, site)
    with store.faults(always(*answer)):
        said = run(cluster_file, "ingest", site, "--date", str(date_of(2)), exit_code=code)
    assert sentence in said
    assert said.count("\n") == 1
    assert digest(cluster_file, site) == before


def test_ingest__a_bucket_that_is_not_there(store, bucket, lake, cluster_file, tmp_path):
    site = remote_site(store, bucket, tmp_path / "remote", lake, events=store.url("nowhere/events"))
    said = run(cluster_file, "ingest", site, "--date", str(date_of(1)), exit_code=65)
    assert "there is no folder of events at s3://nowhere" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("url", ["ftpx://host/lake", "s3a1://bucket/lake"])
def test_init__a_url_without_support_says_so(tmp_path, url):
    result = CliRunner().invoke(ammrank, ["init", str(tmp_path / "new"), "--lake", url])
    assert result.exit_code == 65, result.output
    assert f"there is no support for {url.partition(':')[0]}:// here" in result.stderr


def test_remote_path__a_store_of_google_that_does_not_answer():
    path = RemotePath.parse(
        "gs://anonymous@logs/events?endpoint_override=127.0.0.1:9&scheme=http&retry_limit_seconds=1"
    )
    with pytest.raises(StoreFailed, match=r"^gs://anonymous@logs/events\?.* cannot be reached \(.*google::cloud"):
        path.is_dir()


def test_parse_path__credentials_in_a_url_are_refused():
    with pytest.raises(BadInput, match="must not hold credentials; give them in the environment"):
        parse_path("s3://key:secret@bucket/lake")


def test_parse_path__a_file_url_is_a_path(tmp_path):
    assert parse_path(f"file://{tmp_path}") == tmp_path


def test_remote_path__of_a_scheme_that_only_fsspec_has():
    folder = parse_path("memory://shop/lake")
    write_object(folder / "a=1" / "x.parquet", b"abc")
    write_object(folder / "b.txt", b"first")
    assert [(path.name, path.is_dir()) for path in folder.iterdir()] == [("a=1", True), ("b.txt", False)]
    assert [str(path) for path in folder.walk()] == ["memory://shop/lake/a=1/x.parquet", "memory://shop/lake/b.txt"]
    before = (folder / "b.txt").stat()
    assert before.st_size == 5
    write_object(folder / "b.txt", b"other")
    assert (folder / "b.txt").stat() != before  # it has no time; what fsspec knows of the file tells
    with pytest.raises(FileNotFoundError):
        (folder / "c.txt").stat()


def test_read_batches__an_object_that_changes_while_it_is_read_is_refused(store, bucket):
    path = store.path(f"{bucket}/lake/events/date={date_of(0)}/part-0.parquet")
    file = scan_file(str(path), path.name, COLUMNS)
    batches = read_batches(FileSlice(file, (0,)), COLUMNS, ())
    next(batches)
    data = bytearray(path.read_bytes())
    data[10] ^= 1  # the same size, in the same second: only the ETag tells
    write_object(path, bytes(data))
    with pytest.raises(BadInput, match="changed while it was read; run the command again when it is complete"):
        list(batches)


def when(is_time, act):
    """Return a fault that acts once, on the first request of an object of events for which it is time."""
    lock, acted = threading.Lock(), []

    def look(method, path):
        with lock:
            if acted or not path.endswith(".parquet") or "date=" not in path or not is_time(method, path):
                return None
            acted.append(path)
        act()
        return None

    return look


def test_ingest__an_object_that_changes_while_it_is_read_loses_nothing(
    store, bucket, lake, cluster_file, tmp_path, monkeypatch
):
    monkeypatch.setattr(scan, "BYTES_KEPT", 0)  # an object that is too large is fetched a second time for its rows
    local, remote = write_site(tmp_path / "local", lake), remote_site(store, bucket, tmp_path / "remote", lake)
    run(cluster_file, "ingest", remote, "--date", str(date_of(1)))
    before = digest(cluster_file, remote)
    changed = write_events(lake, 2, good_events(repeat=5)).read_bytes()
    path = store.path(f"{bucket}/lake/events/date={date_of(2)}/part-0.parquet")
    scanned = remote.path / "days" / "scanned.json"
    with store.faults(when(lambda *_: str(date_of(2)) in scanned.read_text(), lambda: write_object(path, changed))):
        said = run(cluster_file, "ingest", remote, "--date", str(date_of(2)), exit_code=65)
    assert "changed while it was read; run the command again when it is complete" in said
    assert said.count("\n") == 1
    assert digest(cluster_file, remote) == before
    for site in (local, remote):
        run(cluster_file, "ingest", site, "--date", str(date_of(2)))
    assert digest(cluster_file, remote) == digest(cluster_file, local)


def test_ingest__an_object_that_vanishes_before_it_is_read_loses_nothing(store, bucket, lake, cluster_file, tmp_path):
    local, remote = write_site(tmp_path / "local", lake), remote_site(store, bucket, tmp_path / "remote", lake)
    run(cluster_file, "ingest", remote, "--date", str(date_of(1)))
    before = digest(cluster_file, remote)
    compacted = write_events(lake, 2, good_events(repeat=12), file="compacted.parquet")
    (compacted.parent / "part-0.parquet").unlink()
    folder = store.path(f"{bucket}/lake/events/date={date_of(2)}")

    def compact():
        write_object(folder / compacted.name, compacted.read_bytes())
        remove_object(folder / "part-0.parquet")

    opened = []

    def is_opened_again(method, path):
        """The footer is looked at first, for an estimate of memory; then the lake is listed, and the object scanned."""
        opened.append((method, path))
        return opened.count(("HEAD", path)) == 2

    with store.faults(when(is_opened_again, compact)):
        said = run(cluster_file, "ingest", remote, "--date", str(date_of(2)), exit_code=65)
    assert "part-0.parquet" in said
    assert "is gone since the lake was listed (compacted, or cleaned by its writer); run the command again" in said
    assert said.count("\n") == 1
    assert digest(cluster_file, remote) == before
    for site in (local, remote):
        run(cluster_file, "ingest", site, "--date", str(date_of(2)))
    assert digest(cluster_file, remote) == digest(cluster_file, local)


def test_ingest__a_snapshot_that_vanishes_while_it_is_read_loses_nothing(
    store, bucket, lake, cluster_file, tmp_path, monkeypatch
):
    monkeypatch.setattr(scan, "BYTES_KEPT", 0)  # as of a large table: what was scanned is fetched again
    table, endpoint = (
        f"s3://{bucket}/delta",
        {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{store.port}", "AWS_ALLOW_HTTP": "true"},
    )
    for date, of_day in list_days(lake / "events", "date").items():
        rows = pq.read_table(of_day.files()[0], partitioning=None)
        rows = rows.append_column("date", [[date] * rows.num_rows])
        for half in (rows.slice(0, 100), rows.slice(100)):
            write_deltalake(table, half, partition_by=["date"], mode="append", storage_options=endpoint)
    plain = write_site(tmp_path / "plain", lake)
    remote = remote_site(store, bucket, tmp_path / "remote", lake, events=store.url(f"{bucket}/delta"))
    run(cluster_file, "ingest", remote, "--date", str(date_of(1)))
    before = digest(cluster_file, remote)

    def compact_and_clean():
        delta = DeltaTable(table, storage_options=endpoint)
        delta.optimize.compact()
        delta.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)

    scanned = remote.path / "days" / "scanned.json"
    with store.faults(when(lambda *_: str(date_of(2)) in scanned.read_text(), compact_and_clean)):
        said = run(cluster_file, "ingest", remote, "--date", str(date_of(2)), exit_code=65)
    assert "is gone since the lake was listed (compacted, or cleaned by its writer); run the command again" in said
    assert said.count("\n") == 1
    assert digest(cluster_file, remote) == before
    for site in (plain, remote):
        run(cluster_file, "ingest", site, "--date", str(date_of(2)))
    assert_same_runs(remote, plain, "head")


def test_scan_file__keeps_a_copy_that_is_read_whatever_becomes_of_the_object(store, bucket, tmp_path):
    path = store.path(f"{bucket}/lake/events/date={date_of(0)}/part-0.parquet")
    data = path.read_bytes()
    file = scan_file(str(path), path.name, COLUMNS, {}, (1, 2), tmp_path / "copies")
    assert (file.size, file.mtime_ns, file.digest) == (len(data), 2, hashlib.sha256(data).hexdigest())
    assert [copy.read_bytes() for copy in (tmp_path / "copies").iterdir()] == [data]
    write_object(path, b"something else")
    ((_, table),) = read_batches(FileSlice(file, (0,)), COLUMNS, (), tmp_path / "copies")
    assert table.equals(pq.read_table(pa.BufferReader(data), columns=list(COLUMNS)))
    with pytest.raises(BadInput, match="changed while it was read"):  # without the copy, the object is asked
        list(read_batches(FileSlice(file, (0,)), COLUMNS, ()))


def test_scan_file__an_object_that_changes_between_two_requests_is_refused(store, bucket, tmp_path, monkeypatch):
    path = store.path(f"{bucket}/lake/events/date={date_of(0)}/part-0.parquet")
    monkeypatch.setattr(paths, "READ_BYTES", 1 << 10)
    monkeypatch.setattr(files, "READ_BYTES", 1 << 10)
    data = bytearray(path.read_bytes())
    data[10] ^= 1
    n_read = 0

    def change(method, name):
        nonlocal n_read
        n_read += method == "GET"
        if n_read == 2:
            n_read += 1
            write_object(path, bytes(data))

    with store.faults(change), pytest.raises(BadInput, match="changed while it was read; run the command again"):
        scan_file(str(path), path.name, COLUMNS, {}, (1, 2), tmp_path / "copies")


def test_scan_files__copies_are_bounded_and_the_last_files_have_them(
    store, bucket, lake, client, tmp_path, monkeypatch
):
    paths = [store.path(f"{bucket}/lake/events/date={date_of(number)}/part-0.parquet") for number in range(3)]
    sizes = [len(path.read_bytes()) for path in paths]
    monkeypatch.setattr(scan, "BYTES_KEPT", sizes[1] + sizes[2])
    found = scan_files(client, [LakeFile(path, path.name) for path in paths], COLUMNS, {}, fetched=tmp_path / "copies")
    assert [file.path for file in found] == [str(path) for path in paths]
    assert {copy.name for copy in (tmp_path / "copies").iterdir()} == {file.digest for file in found[1:]}


def test_scan_file__an_object_that_vanished_is_named(store, bucket):
    path = store.path(f"{bucket}/lake/events/date={date_of(0)}/part-0.parquet")
    remove_object(path)
    with pytest.raises(BadInput, match="is gone since the lake was listed"):
        scan_file(str(path), path.name, COLUMNS)


def test_list_days__a_delta_table_in_a_bucket(store, bucket, lake, cluster_file, tmp_path):
    events = lake / "delta"
    for date, of_day in list_days(lake / "events", "date").items():
        rows = pq.read_table(of_day.files()[0], partitioning=None)
        write_deltalake(
            events, rows.append_column("date", [[date] * rows.num_rows]), partition_by=["date"], mode="append"
        )
    store.copy(events, f"{bucket}/delta")
    days = list_days(store.path(f"{bucket}/delta"), "date")
    assert list(days) == [date_of(0), date_of(1), date_of(2)]
    assert days[date_of(0)].version == 2
    gone = days[date_of(1)].files()[0]
    assert isinstance(gone, RemotePath)
    remove_object(gone)
    with pytest.raises(BadInput, match=f"names {gone.name}, which is not there; restore the file, or repair the log"):
        list_days(store.path(f"{bucket}/delta"), "date")


def test_read_user_list__from_a_bucket(store, bucket):
    listed, pairs = store.path(f"{bucket}/ids.txt"), store.path(f"{bucket}/pairs.csv")
    write_object(listed, b"user_id\n3\n1\n")
    write_object(pairs, b"user_id,category\n1,Shoes\n")
    assert read_user_list(listed, "int64").to_arrow().to_pylist() == [1, 3]
    assert read_opt_outs(pairs, "int64", ["Hats", "Shoes"]).code.tolist() == [1]
    with (
        store.faults(always("403 Forbidden", "AccessDenied")),
        pytest.raises(BadInput, match="refuses the credentials"),
    ):
        read_user_list(listed, "int64")
    with store.faults(always("500 Oops", "InternalError")), pytest.raises(StoreFailed, match="cannot be reached"):
        read_user_list(listed, "int64")


def test_ingest__a_compacted_day_in_a_bucket_is_known_by_its_rows(store, bucket, lake, cluster_file, tmp_path):
    site = remote_site(store, bucket, tmp_path / "remote", lake)
    run(cluster_file, "ingest", site, "--date", str(date_of(2)))
    before = digest(cluster_file, site)
    events = good_events(repeat=12)
    folder = f"{bucket}/lake/events/date={date_of(0)}"
    shutil.rmtree(lake / "events")
    for number, half in enumerate((events[100:], events[:100])):
        file = write_events(lake, 0, half, file=f"half-{number}.parquet")
        write_object(store.path(f"{folder}/{file.name}"), file.read_bytes())
    remove_object(store.path(f"{folder}/part-0.parquet"))
    run(cluster_file, "ingest", site, "--date", str(date_of(2)))
    assert digest(cluster_file, site) == before


def with_target(config, url):
    return config.model_copy(update={"publish": config.publish.model_copy(update={"to": url})})


@pytest.fixture
def copied(store, site, request):
    """A published site whose nights are copied to a bucket of its own, and the path of the copies."""
    name = f"out-{abs(hash(request.node.name)) % 10**12}"
    store.make_bucket(name)
    config = with_target(load_config(site.config_path), store.url(f"{name}/nights"))
    return site, config, store.path(f"{name}/nights")


def local_files(site, date):
    """Return the files of a night that consumers read, by their name in a copy."""
    run, report = site.qualifications_folder(date), site.report_folder(date)
    files = {path.relative_to(run).as_posix(): path for path in run.glob("*/**/*.parquet")}
    return files | {f"report/{name}": report / name for name in ("exposure.csv", "report.html", "summary.json")}


def test_copy_published__all_files_and_then_the_pointer(store, copied):
    site, config, target = copied
    del store.requests[:]
    copy_published(site, config, day(5))
    pointer = json.loads((target / "CURRENT").read_bytes())
    assert pointer["date"] == str(day(5))
    folder = target / pointer["folder"]
    expected = {name: path.read_bytes() for name, path in local_files(site, day(5)).items()}
    assert {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.walk()} == expected
    assert pointer["files"] == len(expected)
    assert pointer["bytes"] == sum(map(len, expected.values()))
    written = [path for method, path in store.requests if method in ("PUT", "POST")]
    assert written[-1].endswith("/CURRENT")
    assert not any(path.endswith("/CURRENT") for path in written[:-1])
    # A second time nothing is written.
    del store.requests[:]
    copy_published(site, config, day(5))
    assert [request for request in store.requests if request[0] in ("PUT", "POST", "DELETE")] == []


def test_copy_published__a_crash_leaves_the_old_pointer_and_a_rerun_completes(store, copied):
    site, config, target = copied
    write_object(target / "CURRENT", b'{"date": "2000-01-01"}\n')
    n_written, most = 0, len(local_files(site, day(5))) // 2

    def refuse_after_some(method, path):
        nonlocal n_written
        n_written += method in ("PUT", "POST")
        return ("403 Forbidden", "AccessDenied") if n_written > most and method in ("PUT", "POST") else None

    with store.faults(refuse_after_some), pytest.raises(BadInput, match="the store refuses the credentials"):
        copy_published(site, config, day(5))
    assert json.loads((target / "CURRENT").read_bytes()) == {"date": "2000-01-01"}
    before = {path.key for path in target.walk()}
    assert 1 < len(before) < len(local_files(site, day(5)))
    del store.requests[:]
    copy_published(site, config, day(5))
    written = {path.lstrip("/") for method, path in store.requests if method == "PUT"}
    bucket = target.store.removeprefix("s3://")
    assert not {key for key in before if f"{bucket}/{key}" in written and not key.endswith("CURRENT")}
    assert json.loads((target / "CURRENT").read_bytes())["date"] == str(day(5))


def test_nightly__copies_to_the_bucket_and_a_failed_copy_leaves_the_night_published(store, copied, cluster_file):
    site, config, target = copied
    copy_published(site, config, day(5))
    site.config_path.write_text(write_config(config), encoding="utf-8")
    n_written = 0

    def refuse_after_some(method, path):
        nonlocal n_written
        n_written += method in ("PUT", "POST")
        return ("403 Forbidden", "AccessDenied") if n_written > 9 else None

    with store.faults(refuse_after_some):
        said = run(cluster_file, "nightly", site, "--date", str(day(6)), exit_code=65)
    assert "the store refuses the credentials of this process" in said
    assert said.count("\n") == 1
    assert site.current().date == day(6)
    assert json.loads((target / "CURRENT").read_bytes())["date"] == str(day(5))
    run(cluster_file, "nightly", site, "--date", str(day(6)))
    pointer = json.loads((target / "CURRENT").read_bytes())
    assert (pointer["date"], pointer["files"]) == (str(day(6)), len(local_files(site, day(6))))


def test_check__tries_the_bucket_that_nights_are_copied_to(store, copied, cluster_file):
    site, config, target = copied
    bucket = target.store.removeprefix("s3://")
    for name, exit_code, line in (
        (bucket, 0, "yes  copies to publish.to"),
        ("not-there", 1, "no   copies to publish.to: there is no bucket s3://not-there; correct the URL"),
    ):
        site.config_path.write_text(write_config(with_target(config, store.url(f"{name}/nights"))), encoding="utf-8")
        done = CliRunner().invoke(ammrank, ["check", str(site.path), "--cluster", str(cluster_file)])
        assert done.exit_code == exit_code, done.output
        assert line in done.stdout
    assert target.walk() == []


def test_forget__a_list_in_the_bucket_and_users_are_gone_from_the_copies(store, copied, cluster_file):
    site, config, target = copied
    site.config_path.write_text(write_config(config), encoding="utf-8")
    copy_published(site, config, day(5))
    first = json.loads((target / "CURRENT").read_bytes())["folder"]
    gone = pq.read_table(min((site.qualifications_folder(day(5)) / "by_user").iterdir()))["user_id"][0].as_py()
    listed = target.parent / "gone.txt"
    write_object(listed, f"{gone}\n".encode())
    told = json.loads(run(cluster_file, "forget", site, "--users", str(listed), "--json"))
    assert told["copies made again"] == 1
    folder = json.loads((target / "CURRENT").read_bytes())["folder"]
    assert folder != first
    assert (target / first).walk() == []
    users = [pq.read_table(path.open())["user_id"].to_pylist() for path in (target / folder / "by_user").walk()]
    left = {user for of_file in users for user in of_file}
    assert left
    assert gone not in left


def test_copy_published__what_is_not_a_copy_is_left_alone(site, tmp_path):
    config = with_target(load_config(site.config_path), str(tmp_path / "copies"))
    others = [
        "date=backup/a.txt",
        "date=2025-99-01/a.txt",
        "date=2025-01-01/a.parquet",
        "date=2025-01-01/hour=1/a.parquet",
    ]
    for name in others:
        (tmp_path / "copies" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "copies" / name).write_text("of others")
    old = tmp_path / "copies" / "date=2025-01-01" / f"{7:016x}"
    old.mkdir()
    (old / "a.parquet").write_text("a copy of a night that is no longer kept")
    copy_published(site, config, day(5))
    assert not old.exists()
    assert all((tmp_path / "copies" / name).is_file() for name in others)


def test_copy_published__into_a_folder(site, tmp_path):
    config = with_target(load_config(site.config_path), str(tmp_path / "out"))
    copy_published(site, config, day(5))
    folder = tmp_path / "out" / json.loads((tmp_path / "out" / "CURRENT").read_text())["folder"]
    expected = {name: path.read_bytes() for name, path in local_files(site, day(5)).items()}
    assert {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()} == expected
    inside = with_target(config, "copies")
    with pytest.raises(BadInput, match=r"publish\.to must not be inside the site, got copies"):
        copy_published(site, inside, day(5))


@pytest.mark.parametrize("command", ["nightly", "publish"])
@pytest.mark.parametrize(
    ("to", "inside"),
    [
        ("copies", "the site"),
        ("LINK/copies", "the site"),
        ("../lake/events", "lake.events"),
        ("LINK/../lake/events/c", "lake.events"),
    ],
)
def test_copies_target__inside_is_refused_before_anything_is_computed(
    site, tmp_path, cluster_file, command, to, inside
):
    (tmp_path / "link").symlink_to(site.path)
    to = to.replace("LINK", str(tmp_path / "link"))
    site.config_path.write_text(write_config(with_target(load_config(site.config_path), to)))
    more = ["--cluster", str(cluster_file)] if command == "nightly" else ["--anyway"]
    done = CliRunner().invoke(ammrank, [command, str(site.path), "--date", str(day(6)), *more])
    assert done.exit_code == 65
    assert f"publish.to must not be inside {inside}, got {to}; name another folder or a URL" in done.stderr
    assert site.current().date == day(5)
    assert not site.run_folder(day(6)).exists()
    assert not list(site.path.glob(f"days/date={day(6)}"))


def test_copies_target__a_file_is_refused(site, tmp_path):
    (tmp_path / "file").touch()
    config = with_target(load_config(site.config_path), "../file")
    with pytest.raises(BadInput, match=r"publish\.to must be a folder or a URL, got the file \.\./file; name another"):
        copies_target(site, config)


ODD_GROUPS = ["page view", "100%", "s/q", "a=b&c+d", "ü#?", "adc"]
"""Names of groups as nobody should give them: each is a folder of the table, quoted by whoever wrote it."""


def write_odd_table(target, lake, **options):
    """Write the events of a lake as a Delta Lake table whose folders have the odd names of groups."""
    for date, of_day in list_days(lake / "events", "date").items():
        rows = pq.read_table(of_day.files()[0], partitioning=None).to_pandas()
        rows["date"], rows["group"] = date, rows["group"].map(dict(zip(GROUPS, ODD_GROUPS, strict=True)))
        table = pa.Table.from_pandas(rows, preserve_index=False)
        write_deltalake(target, table, partition_by=["date", "group"], mode="append", **options)


@pytest.mark.parametrize("is_copied", [True, False], ids=["copied", "written there"])
def test_ingest__a_delta_table_with_odd_names_in_a_bucket(store, bucket, lake, cluster_file, tmp_path, is_copied):
    name = "delta table=ü#1"
    if is_copied:
        write_odd_table(lake / name, lake)
        store.copy(lake / name, f"{bucket}/{name}")
    else:
        endpoint = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{store.port}", "AWS_ALLOW_HTTP": "true"}
        write_odd_table(f"s3://{bucket}/{quote(name)}", lake, storage_options=endpoint)
        for path in store.path(f"{bucket}/{name}").walk():
            target = lake / path.key
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    groups = {group: [odd] for group, odd in zip(GROUPS, ODD_GROUPS, strict=True)}
    plain = write_site(tmp_path / "plain", lake, groups={group: [group] for group in GROUPS})
    local = write_site(tmp_path / "local", lake, groups=groups, lake={"events": str(lake / name)})
    remote = write_site(tmp_path / "remote", lake, groups=groups, lake={"events": store.url(f"{bucket}/{name}")})
    for site in (plain, local, remote):
        run(cluster_file, "ingest", site, "--date", str(date_of(2)))
    assert digest(cluster_file, remote) == digest(cluster_file, local)
    assert_same_runs(local, plain, "head")
