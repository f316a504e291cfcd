"""`ammrank export`, and the page that says how others read a night."""

import csv
import io
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import fastavro
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from lakes import replace_by
from nights import day

from ammrank_dask.features.store import open_features
from ammrank_dask.storage.store.exports import export_lists
from ammrank_dask.storage.store.parts import checksum_file
from ammrank_dask.storage.store.qualifications import QualificationPart
from ammrank_dask.workflows.cli import ammrank

PAGE = Path(__file__).parents[2] / "docs" / "consumers.md"


def export(*args):
    return CliRunner().invoke(ammrank, ["export", *map(str, args)])


def explain(*args):
    return CliRunner().invoke(ammrank, ["explain", "--any", *map(str, args)])


def by_user(site):
    return pd.read_parquet(site.qualifications_folder(day(5)) / "by_user")


def test_export__jsonl_has_every_list_in_the_order_of_ranks(published_world):
    result = export(published_world.path, "--date", day(5))
    assert result.exit_code == 0
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    kept = by_user(published_world)
    assert len(lines) == kept.user_id.nunique() == 300
    for line, (user, rows) in zip(lines, kept.groupby("user_id", sort=False), strict=True):
        assert line["user_id"] == user
        assert line["categories"] == rows.sort_values("rank").category.tolist()
        np.testing.assert_array_equal(np.float32(line["scores"]), rows.sort_values("rank").score)


def test_export__tells_who_is_cold(published_world):
    features = open_features(published_world.path / published_world.current().runs["features"])
    parts = [features.partition(number) for number in range(features.n_partitions)]
    activity = {
        user: n for part in parts for user, n in zip(part.user_ids.to_pandas(), part.n_event_features, strict=True)
    }
    lines = [json.loads(line) for line in export(published_world.path).stdout.splitlines()]
    assert {line["user_id"]: line["cold"] for line in lines} == {user: n == 0 for user, n in activity.items()}
    assert {line["cold"] for line in lines} == {False, True}


def test_export__a_dash_is_standard_output(published_world, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = export(published_world.path, "--out", "-")
    assert result.exit_code == 0
    assert result.stdout == export(published_world.path).stdout
    assert not list(tmp_path.iterdir())
    assert export(published_world.path, "--out", "-", "--json").exit_code == 2


def test_export__csv_has_the_same_lists_as_jsonl(published_world):
    rows = list(csv.DictReader(io.StringIO(export(published_world.path, "--format", "csv").stdout)))
    lines = [json.loads(line) for line in export(published_world.path).stdout.splitlines()]
    assert [{name: json.loads(cell) for name, cell in row.items()} for row in rows] == lines


def test_export__to_a_file_says_where_and_again_gives_the_same_bytes(published_world, tmp_path):
    out = tmp_path / "lists.csv"
    result = export(published_world.path, "--format", "csv", "--out", out, "--json")
    assert json.loads(result.stdout) == {"date": str(day(5)), "users": 300, "file": str(out)}
    first = out.read_bytes()
    assert export(published_world.path, "--format", "csv", "--out", out).exit_code == 0
    assert out.read_bytes() == first
    assert [path.name for path in tmp_path.iterdir()] == ["lists.csv"]


def test_export__does_not_put_a_file_in_the_place_of_a_pipe_or_a_device(published_world, tmp_path):
    out = tmp_path / "lists"
    for kind in ("fifo", "/dev/zero"):
        out.touch()
        found = replace_by(out, kind)
        for result in (export(published_world.path, "--out", out), explain(published_world.path, "--html", out)):
            assert result.exit_code == 65
            assert result.stderr == f"ammrank: {out} must be a regular file, found a {found}; replace or remove it\n"
        assert not out.is_file()
        out.unlink()


def test_export__writes_to_where_a_link_leads(published_world, tmp_path):
    """`/dev/stdout` is such a link, and root could replace it."""
    (tmp_path / "kept").mkdir()
    out, kept = tmp_path / "out", tmp_path / "kept" / "lists"
    kept.touch()
    out.symlink_to("kept/lists")
    assert export(published_world.path, "--out", out).exit_code == 0
    assert out.is_symlink()
    assert kept.read_text() == export(published_world.path).stdout
    assert explain(published_world.path, "--html", out).exit_code == 0
    assert out.is_symlink()
    assert kept.read_text().lower().startswith("<!doctype html>")


def test_export__refuses_what_is_not_there(published_world, empty_site, tmp_path):
    cases = [
        ([published_world.path, "--date", day(4)], 65, f"the night of {day(4)} is not published at"),
        ([empty_site.path], 65, "no lists are published at"),
        ([published_world.path, "--out", tmp_path / "no" / "file"], 65, "--out must be in a folder that exists"),
        ([published_world.path, "--json"], 2, "--json needs --out"),
        ([published_world.path, "--format", "xml"], 2, "'xml' is not one of 'jsonl', 'csv'"),
        ([published_world.path, "--format", "avro"], 2, "avro is not written by this command; docs/consumers.md has a"),
        (
            [published_world.path, "--format", "redis"],
            2,
            "redis is not written by this command; docs/consumers.md has a",
        ),
    ]
    for args, code, sentence in cases:
        result = export(*args)
        assert (result.exit_code, sentence in result.stderr) == (code, True), result.stderr


def test_export__of_a_damaged_file_stops_and_leaves_none(site, tmp_path):
    part = site.qualifications_folder(day(5)) / "by_user" / "part-00001.parquet"
    part.write_bytes(part.read_bytes()[:-1])
    out = tmp_path / "lists.jsonl"
    result = export(site.path, "--out", out)
    assert result.exit_code == 65
    assert "is not what was written" in result.stderr
    assert not out.exists()


@pytest.fixture
def odd_part(tmp_path):
    """A file with ids, names and values that need quoting."""
    table = pa.table(
        {
            "user_id": pa.array(['a"b', 'a"b', "ü,\n"], pa.large_string()),
            "rank": pa.array([1, 2, 1], pa.int16()),
            "category": pa.array(['x "y"', "z,w/ß", "z,w/ß"]).dictionary_encode(),
            "score": pa.array([0.1, -np.inf, 1e-9], pa.float32()),
            "cold": pa.array([True, True, False]),
        }
    )
    pq.write_table(table, tmp_path / "part.parquet")
    size, checksum = checksum_file(tmp_path / "part.parquet")
    return QualificationPart(tmp_path, "part.parquet", (size, checksum))


def exported(part, form):
    return b"".join(chunk for chunk, _ in export_lists([part], form))


def test_export_lists__quotes_and_writes_a_flag_once(odd_part):
    lines = [json.loads(line) for line in exported(odd_part, "jsonl").splitlines()]
    assert lines == [
        {"user_id": 'a"b', "categories": ['x "y"', "z,w/ß"], "scores": [0.1, None], "cold": True},
        {"user_id": "ü,\n", "categories": ["z,w/ß"], "scores": [1e-9], "cold": False},
    ]
    text = exported(odd_part, "csv").decode()
    assert text.startswith("user_id,categories,scores,cold\n")
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["user_id"] for row in rows] == ['a"b', "ü,\n"]
    assert [json.loads(row["categories"]) for row in rows] == [line["categories"] for line in lines]
    assert [row["cold"] for row in rows] == ["true", "false"]


def test_export_lists__string_ids_in_csv_are_no_formulas(tmp_path):
    ids = ["=1+1", "+1", "-1", "@a", "\tb", "plain", "a=b"]
    table = pa.table(
        {
            "user_id": pa.array(ids, pa.large_string()),
            "rank": pa.array([1] * len(ids), pa.int16()),
            "category": pa.array(["x"] * len(ids)).dictionary_encode(),
            "score": pa.array([-0.5] * len(ids), pa.float32()),
        }
    )
    pq.write_table(table, tmp_path / "part.parquet")
    part = QualificationPart(tmp_path, "part.parquet", checksum_file(tmp_path / "part.parquet"))
    rows = list(csv.DictReader(io.StringIO(exported(part, "csv").decode())))
    assert [row["user_id"] for row in rows] == ["'=1+1", "'+1", "'-1", "'@a", "'\tb", "plain", "a=b"]
    assert {row["scores"] for row in rows} == {"[-0.5]"}
    raw = b"".join(chunk for chunk, _ in export_lists([part], "csv", escape_formulas=False)).decode()
    assert [row["user_id"] for row in csv.DictReader(io.StringIO(raw))] == ids
    assert [json.loads(line)["user_id"] for line in exported(part, "jsonl").splitlines()] == ids


def blocks_of_page(language, section="", *, date=None):
    """Return the blocks of the page in a language, or of a section of it, for a night of the tests."""
    page = PAGE.read_text(encoding="utf-8").replace("2026-05-04", str(date))
    start = page.index(f"## {section}\n") if section else 0
    stop = page.find("\n## ", start + 1) if section else len(page)
    return re.findall(rf"^```({language})\n(.*?)^```", page[start:stop], re.DOTALL | re.MULTILINE)


def beside(world, tmp_path):
    """Return a folder in which `site` is a published site, as the page has it."""
    (tmp_path / "site").symlink_to(world.path)
    return tmp_path


def test_page_of_consumers__avro_has_every_list(published_world, tmp_path, monkeypatch):
    monkeypatch.chdir(beside(published_world, tmp_path))
    [(_, block)] = blocks_of_page("python", "Avro", date=day(5))
    exec(block, {})
    with open("lists.avro", "rb") as file:
        records = list(fastavro.reader(file))
    lines = [json.loads(line) for line in export(published_world.path).stdout.splitlines()]
    assert [record["user_id"] for record in records] == [line["user_id"] for line in lines]
    for record, line in zip(records, lines, strict=True):
        assert record["category"] == line["categories"]
        np.testing.assert_array_equal(np.float32(record["score"]), np.float32(line["scores"]))


def redis_commands(world, tmp_path):
    """Return what the program of the page prints."""
    [(_, block)] = blocks_of_page("python", "Redis", date=day(5))
    command = [sys.executable, "-c", block]
    return subprocess.run(command, cwd=beside(world, tmp_path), capture_output=True, check=True).stdout


def parse_commands(data):
    """Return the commands of a stream in the protocol of Redis: arrays of bulk strings and nothing else."""
    stream, commands = io.BytesIO(data), []
    while head := stream.readline():
        assert head[:1] == b"*"
        words = []
        for _ in range(int(head[1:])):
            size = stream.readline()
            assert size[:1] == b"$"
            words.append(stream.read(int(size[1:])).decode())
            assert stream.read(2) == b"\r\n"
        commands.append(words)
    return commands


def test_page_of_consumers__redis_gets_a_key_a_user_and_the_date_last(published_world, tmp_path):
    commands = parse_commands(redis_commands(published_world, tmp_path))
    lines = [json.loads(line) for line in export(published_world.path).stdout.splitlines()]
    assert commands[-1] == ["SET", "ammrank:date", str(day(5))]
    assert [(*words[:2], json.loads(words[2]), *words[3:]) for words in commands[:-1]] == [
        ("SET", f"ammrank:user:{line['user_id']}", line["categories"], "EX", "259200") for line in lines
    ]


@pytest.mark.system
def test_page_of_consumers__redis_takes_all_of_it(published_world, tmp_path):
    socket = tmp_path / "redis.sock"
    server = [shutil.which("redis-server"), "--port", "0", "--unixsocket", str(socket), "--save", ""]
    assert server[0], "Redis must be installed for this test"
    commands = redis_commands(published_world, tmp_path)
    line = json.loads(export(published_world.path).stdout.splitlines()[7])

    def ask(*words, **options):
        done = subprocess.run(["redis-cli", "-s", str(socket), *words], capture_output=True, check=True, **options)
        return done.stdout.decode().rstrip("\n")

    with subprocess.Popen(server, stdout=subprocess.DEVNULL, cwd=tmp_path) as process:
        try:
            while not socket.exists():
                assert process.poll() is None
                time.sleep(0.05)
            assert "errors: 0, replies: 301" in ask("--pipe", input=commands)
            assert ask("GET", "ammrank:date") == str(day(5))
            assert json.loads(ask("GET", f"ammrank:user:{line['user_id']}")) == line["categories"]
            assert 0 < int(ask("TTL", f"ammrank:user:{line['user_id']}")) <= 259200
            assert ask("DBSIZE") == "301"
        finally:
            process.terminate()


def test_page_of_consumers__lines_run(site, monkeypatch, capsys):
    """Everything the page shows but Spark's lines, on a site of the tests."""
    blocks = blocks_of_page("python|sh", date=day(5))
    assert [language for language, _ in blocks] == ["python", "python", "sh", *["python"] * 4]
    monkeypatch.chdir(site.path.parent)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    for language, block in blocks:
        if language == "sh":
            subprocess.run(block, shell=True, check=True)
        else:
            exec(block, {})
    best = json.loads(Path("lists.jsonl").read_text().splitlines()[0])
    assert best["categories"][0] in capsys.readouterr().out
