"""Readers of qualifications are told what is published, and are not cut off by a rebuild."""

import pytest
from nights import config_of, day

from ammrank_dask.storage.errors import HeldBack
from ammrank_dask.storage.store.runs import open_run, verify_run
from ammrank_dask.workflows.session.night import Night
from ammrank_dask.workflows.stages.nightly import nightly

pytestmark = pytest.mark.night


def latest(site):
    return (site.path / "qualifications" / "LATEST").read_text()


def is_marked(site, number):
    return (site.qualifications_folder(day(number)) / "_SUCCESS").is_file()


def test_publish__marks_the_night_and_names_the_latest(client, site):
    assert is_marked(site, 5)
    assert latest(site) == f"date={day(5)}\n"
    verify_run(site.qualifications_folder(day(5)))
    held = config_of(publish={"hold": ["starved_categories"]}, report={"thresholds": {"starved_categories": 0.0}})
    with pytest.raises(HeldBack, match="on hold for starved_categories"):
        nightly(Night(client, site, held, day(6)))
    assert not is_marked(site, 6)
    assert latest(site) == f"date={day(5)}\n"
    nightly(Night(client, site, config_of(), day(6)))
    assert is_marked(site, 6)
    assert latest(site) == f"date={day(6)}\n"


def test_exclusive__marks_what_a_crash_left_unmarked(site):
    (site.qualifications_folder(day(5)) / "_SUCCESS").unlink()
    (site.path / "qualifications" / "LATEST").write_text("date=2020-01-01\n")
    with site.exclusive():
        pass
    assert is_marked(site, 5)
    assert latest(site) == f"date={day(5)}\n"


def test_nightly__what_a_rebuild_replaces_stays_until_the_next_night(client, site):
    folder = site.qualifications_folder(day(5))
    before = open_run(folder).digest
    reading = (folder / "by_user" / "part-00000.parquet").read_bytes()
    nightly(Night(client, site, config_of(score={"k": 3}), day(5)), rebuild=True)
    assert is_marked(site, 5)
    (replaced,) = (site.path / "qualifications" / "runs").glob(f"{day(5)}-*")
    assert open_run(replaced).digest == before
    assert (replaced / "by_user" / "part-00000.parquet").read_bytes() == reading
    nightly(Night(client, site, config_of(score={"k": 3}), day(6)))
    assert not list((site.path / "qualifications" / "runs").iterdir())
