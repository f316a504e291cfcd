"""Flip a byte or take away a file in each kind of store: it is found before it is used, and what is published stays."""

import shutil
from pathlib import Path

import nights
import pytest
from click.testing import CliRunner
from nights import day

from ammrank_dask.storage.errors import BadInput, DamagedStore
from ammrank_dask.storage.objects.atomic import write_text
from ammrank_dask.storage.site.site import Site
from ammrank_dask.storage.site.verdicts import read_verdict, verdict_runs
from ammrank_dask.storage.store.runs import open_run
from ammrank_dask.workflows.session.config import check_config, load_config, write_config
from ammrank_dask.workflows.session.night import Night
from ammrank_dask.workflows.stages.models import load_site_model
from ammrank_dask.workflows.stages.nightly import nightly
from ammrank_dask.workflows.verify import command as verify

pytestmark = pytest.mark.night

CONFIG = {
    **nights.CONFIG,
    "train": {"epochs": 1, "every_nights": 1},
    "gate": {"min_users": 1},
}


@pytest.fixture(scope="module")
def begun(client, small_world, tmp_path_factory):
    """A site with two published nights, the second of which compared two models."""
    place = Site(tmp_path_factory.mktemp("damaged") / "site")
    place.path.mkdir()
    lake = small_world.path.parent / "lake"
    names = {"events": "events", "users": "users.parquet", "taxonomy": "taxonomy.csv"}
    config = {**CONFIG, "lake": {key: str(lake / name) for key, name in names.items()}}
    write_text(place.config_path, write_config(check_config(config, "test")))
    for number in (4, 5):
        nightly(Night(client, place, load_config(place.config_path), day(number)))
    return place


@pytest.fixture
def place(begun, tmp_path):
    shutil.copytree(begun.path, tmp_path / "site")
    return Site(tmp_path / "site")


def run_of(place, role):
    return place.path / place.current().runs[role]


STORES = {
    "partial of a day": lambda place: min((place.path / "days" / f"date={day(4)}").glob("*/part-*.arrow")),
    "state": lambda place: run_of(place, "head") / "part-00000.arrow",
    "lag state": lambda place: run_of(place, "lag") / "part-00001.arrow",
    "users": lambda place: run_of(place, "users") / "part-00000.arrow",
    "features": lambda place: run_of(place, "features") / "part-00000" / "X" / "data" / "c" / "0",
    "attributes of the features": lambda place: run_of(place, "features") / "part-00000" / "zarr.json",
    "columns of the features": lambda place: run_of(place, "features") / "columns.json",
    "manifest": lambda place: run_of(place, "head") / "manifest.json",
    "model": lambda place: run_of(place, "model") / "arrays.npz",
    "attributes of the model": lambda place: run_of(place, "model") / "model.json",
    "verdict": lambda place: verdict_runs(place, day(5))[0] / "manifest.json",
    "qualifications by user": lambda place: run_of(place, "qualifications") / "by_user" / "part-00000.parquet",
    "qualifications by category": lambda place: min((run_of(place, "qualifications") / "by_category").glob("*/*")),
    "figures of the report": lambda place: run_of(place, "report") / "summary.json",
    "table of the report": lambda place: run_of(place, "report") / "exposure.csv",
    "page of the report": lambda place: run_of(place, "report") / "report.html",
    "checksums of the report": lambda place: run_of(place, "report") / "checksums.json",
    "report of the night before": lambda place: place.report_folder(day(4)) / "summary.json",
    "changes": lambda place: run_of(place, "qualifications") / "delta" / "part-00001.parquet",
}
USED_NEXT_NIGHT = (
    "partial of a day",
    "state",
    "users",
    "model",
    "attributes of the model",
    "manifest",
    "qualifications by user",
)


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(bytes(data))


@pytest.mark.parametrize(
    ("store", "harm"),
    # A verdict that is not whole is no verdict: its manifest can only be flipped.
    [(store, harm) for store in STORES for harm in ("flipped", "removed") if (store, harm) != ("verdict", "removed")],
)
def test_verify__finds_damage_in_every_kind_of_store(place, store, harm):
    victim = STORES[store](place)
    {"flipped": flip, "removed": Path.unlink}[harm](victim)
    done = CliRunner().invoke(verify, [str(place.path)])
    assert done.exit_code == 65, done.output
    assert str(victim.parent.relative_to(place.path)).split("/")[0] in done.output


def test_verify__a_verdict_without_manifest_is_none_and_the_gate_decides_again(client, place):
    before = read_verdict(place, day(5))
    STORES["verdict"](place).unlink()
    assert CliRunner().invoke(verify, [str(place.path)]).exit_code == 0
    assert read_verdict(place, day(5)) is None
    nightly(Night(client, place, load_config(place.config_path), day(5)), rebuild=True)
    assert read_verdict(place, day(5)) == before


def test_verify__names_a_run_that_root_does_not(place):
    head = run_of(place, "head")
    late = head.with_name(f"{head.name}-g7")
    shutil.copytree(head, late)
    done = CliRunner().invoke(verify, [str(place.path)])
    assert done.exit_code == 65
    assert f"{late} is not named by ROOT; the next command that locks the site removes it" in done.output
    with place.exclusive():
        pass
    assert CliRunner().invoke(verify, [str(place.path)]).exit_code == 0


def test_verify__a_report_that_is_gone_is_named(place):
    shutil.rmtree(run_of(place, "report"))
    done = CliRunner().invoke(verify, [str(place.path)])
    assert done.exit_code == 65
    assert (
        f"{run_of(place, 'report') / 'checksums.json'} is missing; make it again with `ammrank report`" in done.output
    )


@pytest.mark.parametrize(("role", "name"), [("report", "exposure.csv"), ("report", "summary.json"), ("head", ".")])
def test_digest__never_leaves_out_what_is_missing(place, role, name):
    missing = run_of(place, role) / name
    if missing.is_dir():
        shutil.rmtree(missing)
    else:
        missing.unlink()
    command = f"`ammrank nightly {place.path} --date {place.current().date} --rebuild`"
    with pytest.raises(DamagedStore, match=f"{missing} is published and missing; make it again with {command}"):
        place.digest()


@pytest.mark.parametrize("store", USED_NEXT_NIGHT)
def test_nightly__refuses_damaged_input_and_leaves_what_is_published(client, place, store):
    published = place.current()
    flip(STORES[store](place))
    with pytest.raises(
        (DamagedStore, BadInput),
        match=r"make it again with `ammrank nightly|train it again|not the JSON that was",
    ):
        nightly(Night(client, place, load_config(place.config_path), day(6)))
    assert place.current() == published


def test_nightly__rebuild_repairs_and_ends_with_the_bytes_of_a_sound_site(client, begun, place, tmp_path):
    sound = Site(tmp_path / "sound")
    shutil.copytree(begun.path, sound.path)
    config = load_config(place.config_path)
    nightly(Night(client, sound, config, day(6)))
    for store in ("partial of a day", "state", "users"):
        flip(STORES[store](place))
    nightly(Night(client, place, config, day(6)), rebuild=True)
    assert place.digest() == sound.digest()
    assert CliRunner().invoke(verify, [str(place.path)]).exit_code == 0


def test_load_site_model__refuses_a_sound_model_of_another_run(place):
    own = open_run(run_of(place, "model"))
    other = next(path for path in place.finished_runs("models") if path != own.path)
    load_site_model(own)
    for name in own.files:
        shutil.copyfile(other / name, own.path / name)
    with pytest.raises(
        DamagedStore, match=r"arrays\.npz is not what was written \(checksum differs\); make it again with"
    ):
        load_site_model(own)
