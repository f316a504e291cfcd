"""Another number of partitions: the same rows, without the lake, whatever happens on the way."""

import json
import shutil

import numpy as np
import pytest
from click.testing import CliRunner
from nights import CONFIG, day

from ammrank_dask.repartition import choose_rows, digest_rows
from ammrank_dask.storage.site.root import without_generation
from ammrank_dask.storage.site.site import Site
from ammrank_dask.storage.store.ids import ids_from_arrays, ids_from_values
from ammrank_dask.storage.store.registry import FEATURES, STATE, USERS
from ammrank_dask.storage.store.runs import open_run, verify_run
from ammrank_dask.user_hash import partition_of, source_partitions
from ammrank_dask.workflows.cli import ammrank
from ammrank_dask.workflows.operations import repartition as stage
from ammrank_dask.workflows.session.config import check_config, load_config
from ammrank_dask.workflows.session.night import Night
from ammrank_dask.workflows.stages.features import score_features
from ammrank_dask.workflows.stages.ingest import ingest

pytestmark = pytest.mark.night


@pytest.fixture
def run(cluster_file):
    """Run a command on a site, check its exit code, and return what it printed, or its sentence."""

    def invoke(command, site, *options, exit_code=0):
        arguments = [command, str(site.path), *map(str, options), "--cluster", str(cluster_file), "--quiet", "--json"]
        result = CliRunner().invoke(ammrank, arguments)
        assert result.exit_code == exit_code, result.output
        return json.loads(result.stdout.splitlines()[-1]) if exit_code == 0 else result.stderr

    return invoke


def rows_of(site, role, schema):
    run = open_run(site.path / site.current().runs[role])
    return [run.part(number).read(schema) for number in range(run.n_parts)]


def assert_same_arrays(mine, theirs):
    for one, other in zip(mine, theirs, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            np.testing.assert_array_equal(one[name], other[name], err_msg=name)


def runs_by_key(site):
    """Return the runs that are placed anew, by what names them in any number of partitions."""
    runs = [path for folder in stage.FOLDERS for path in site.finished_runs(folder)]
    return {without_generation(site.relative(path)): path for path in runs}


def test_repartition__twice_as_many_and_back_is_what_it_was(run, site):
    shutil.rmtree(site.path.parent / "lake")  # it is not needed
    before = {key: open_run(path).checksums for key, path in runs_by_key(site).items()}
    text = site.config_path.read_text()
    there = run("repartition", site, "--partitions", 4)
    assert (there["partitions"], there["partitions before"], there["runs"]) == (4, 2, len(before))
    assert runs_by_key(site).keys() == before.keys()
    for path in runs_by_key(site).values():
        assert open_run(path).n_parts == 4
        verify_run(path)
    head = rows_of(site, "head", STATE)
    for number, arrays in enumerate(head):
        assert set(partition_of(ids_from_arrays(arrays), 4).tolist()) <= {number}
    assert load_config(site.config_path).partitions == 4
    back = run("repartition", site, "--partitions", 2)
    assert back["digest of rows"] == there["digest of rows"]
    assert {key: open_run(path).checksums for key, path in runs_by_key(site).items()} == before
    assert site.config_path.read_text() == text
    assert run("repartition", site, "--partitions", 3)["digest of rows"] == there["digest of rows"]
    assert not site.unnamed()


def test_repartition__the_next_night_is_that_of_a_site_with_so_many_from_the_start(client, run, site, tmp_path):
    run("repartition", site, "--partitions", 4)
    facts = run("nightly", site, "--date", day(6))
    assert not {"corrected days", "changed days kept as folded"} & set(facts)
    (site.path.parent / "other").mkdir()
    other = Site(site.path.parent / "other")
    night = Night(client, other, check_config({**CONFIG, "partitions": 4}, "test"), day(6))
    ingested = ingest(night)
    other.publish(day(6), {**ingested.roles, "features": score_features(night, ingested).path})
    for role, schema in (("head", STATE), ("lag", STATE), ("users", USERS), ("features", FEATURES)):
        assert_same_arrays(rows_of(site, role, schema), rows_of(other, role, schema))
    summary = json.loads((site.report_folder(day(6)) / "summary.json").read_text())
    assert summary["drift"]["users"] == 300
    assert summary["drift"]["new_users"] == 0


def test_repartition__a_night_that_is_published_stays_as_it_is(run, site):
    """A rerun of the newest night goes through and writes nothing again; one of an earlier night has nothing to do."""
    run("nightly", site, "--date", day(6))
    run("repartition", site, "--partitions", 4)
    before = files_of_runs(site)
    assert run("nightly", site, "--date", day(5))["unchanged"] is True
    first, second = (run("nightly", site, "--date", day(6)) for _ in range(2))
    assert first["published"]
    assert "unchanged" not in first
    assert second["unchanged"] is True
    assert files_of_runs(site) == before


def test_repartition__a_report_that_is_written_again_is_what_it_was(run, site):
    path = site.report_folder(day(5)) / "summary.json"
    before = path.read_bytes()
    assert any(group["top"] for group in json.loads(before)["groups"])
    run("repartition", site, "--partitions", 3)
    run("report", site, "--date", day(5), "--rebuild")
    assert path.read_bytes() == before


def files_of_runs(site):
    """Return what tells of every file of a run whether it was written again, and the bytes of reports."""
    folders = ("days", "state", "users", "features", "models", "gates", "qualifications/date=*")
    runs = [path for folder in folders for path in site.path.glob(f"{folder}/**/*") if path.is_file()]
    reports = [path for path in site.path.glob("reports/**/*") if path.is_file()]
    return {**{path: path.stat().st_ino for path in runs}, **{path: path.read_bytes() for path in reports}}


def test_repartition__interrupted_goes_on_and_no_night_runs_before(run, site, monkeypatch):
    done, repartition_run = [], stage.repartition_run

    def die_after_three(client, run, *options, **named):
        if len(done) == 3:
            raise KeyboardInterrupt
        done.append(run.path)
        return repartition_run(client, run, *options, **named)

    with monkeypatch.context() as patch:
        patch.setattr(stage, "repartition_run", die_after_three)
        run("repartition", site, "--partitions", 4, exit_code=130)
    assert load_config(site.config_path).partitions == 2
    said = f"a change to 4 partitions is not finished; go on with `ammrank repartition {site.path} --partitions 4`"
    assert said in run("nightly", site, "--date", day(6), exit_code=65)
    assert "finish it first with" in run("repartition", site, "--partitions", 8, exit_code=65)
    ended = run("repartition", site, "--partitions", 4)
    assert ended["digest of rows"] == run("repartition", site, "--partitions", 4)["digest of rows"]
    assert {open_run(path).n_parts for folder in stage.FOLDERS for path in site.finished_runs(folder)} == {4}
    run("nightly", site, "--date", day(6))


@pytest.mark.parametrize(("partition", "n_before", "n_now"), [(5, 4, 8), (1, 8, 4), (2, 4, 6), (0, 1, 5), (3, 7, 5)])
def test_source_partitions__have_every_user_of_the_new_one(partition, n_before, n_now):
    ids = ids_from_values(np.arange(2_000))
    here = partition_of(ids, n_now) == partition
    sources = set(partition_of(ids, n_before)[here].tolist())
    assert sources == set(source_partitions(partition, n_before, n_now))


def make_state(ids, seed):
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 4, len(ids))
    n_cells = int(counts.sum())
    return {
        **ids_from_values(sorted(ids)).to_arrays(),
        "indptr": np.concatenate([[0], np.cumsum(counts)]),
        "cell": rng.integers(0, 99, n_cells).astype(np.uint16),
        "intensity": rng.random(n_cells),
        "last": rng.integers(0, 9, n_cells),
    }


@pytest.mark.parametrize("ids", [list(range(40)), [f"ü{number}" for number in range(40)]])
def test_choose_rows__of_all_partitions_are_all_rows(ids):
    state = make_state(ids, 1)
    parts = [choose_rows(STATE, [state], number, 3) for number in range(3)]
    assert sum(digest_rows(STATE, part) for part in parts) % 2**64 == digest_rows(STATE, state)
    assert_same_arrays([choose_rows(STATE, parts, 0, 1)], [state])


def test_digest_rows__tells_a_value_a_place_and_a_user():
    state = make_state(list(range(40)), 1)
    digest = digest_rows(STATE, state)
    first, second = np.flatnonzero(np.diff(state["cell"].astype(int)) != 0)[0] + np.arange(2)
    swapped = state["cell"].copy()
    swapped[[first, second]] = swapped[[second, first]]
    ids = state["user_id"].copy()
    ids[-1] += 1
    one_up = state["intensity"].copy()
    one_up[3] = np.nextafter(one_up[3], 2)
    for other in ({"cell": swapped}, {"user_id": ids}, {"intensity": one_up}):
        assert digest_rows(STATE, {**state, **other}) != digest


@pytest.mark.parametrize("text", ["{partitions: 2, lake: {users: null}}\n", "partitions: 0x2\n"])
def test_change_partitions__a_config_that_it_cannot_change_is_refused(tmp_path, text):
    (tmp_path / "ammrank.yaml").write_text(text)
    with pytest.raises(stage.BadInput, match="must have partitions on a line of its own"):
        stage.change_partitions(tmp_path / "ammrank.yaml", 4)


def test_change_partitions__a_config_without_it_gets_it(tmp_path):
    (tmp_path / "ammrank.yaml").write_text("alpha: 0.9  # of ours\n")
    assert stage.change_partitions(tmp_path / "ammrank.yaml", 4) == "alpha: 0.9  # of ours\npartitions: 4\n"
