"""The work area of backtests: its config, what it shares with the site, and that there is one at a time."""

import pytest
from nights import config_of, day

from ammrank_dask.storage.errors import SiteBusy
from ammrank_dask.storage.site.site import Site
from ammrank_dask.storage.store.runs import finish_run
from ammrank_dask.workflows.session.config import Config
from ammrank_dask.workflows.stages.work_area import open_work, own_config, remove_work


def test_own_config__only_paths_and_commands_differ(tmp_path):
    given = config_of(
        lake={"events": "../lake/events", "users": "/people.parquet", "taxonomy": None, "past": "keep"},
        score={"suppress": "../none.txt", "opt_out": "opt.csv"},
        notify={"on_success": "mail"},
    )
    own = own_config(Site(tmp_path / "site"), given)
    changed = {
        "lake": {"events": str(tmp_path / "lake" / "events")},
        "score": {"suppress": str(tmp_path / "none.txt"), "opt_out": str(tmp_path / "site" / "opt.csv")},
        "notify": {"on_success": None},
        "publish": {"hold": []},
    }
    expected = given.model_dump()
    for section, values in changed.items():
        expected[section] |= values
    assert own.model_dump() == expected
    assert Config.model_validate(own.model_dump()) == own


def test_config__every_key_that_names_a_file_is_known():
    """A new key that names a file must be made absolute too: the descriptions tell which do."""
    named = {
        f"{section}.{name}"
        for section in ("lake", "score")
        for name, field in type(getattr(Config(), section)).model_fields.items()
        if (field.description or "").startswith(("file", "folder", "category,parent"))
    }
    assert named == {"lake.events", "lake.users", "lake.taxonomy", "score.suppress", "score.opt_out"}


def test_open_work__shares_days_and_removes_other_work(tmp_path):
    site = Site(tmp_path / "site")
    run = site.day_run(day(1), "abc")
    site.begin([run])
    run.mkdir(parents=True)
    finish_run(run, "day", "abc", [], config={}, inputs={}, counts={})
    with open_work(site, config_of(), day(4), 7) as first:
        shared = first.day_run(day(1), "abc") / "manifest.json"
        assert shared.samefile(run / "manifest.json")
        with pytest.raises(SiteBusy, match="another run holds"), open_work(site, config_of(), day(4), 7):
            pass
    with open_work(site, config_of(), day(4), 7) as again:
        assert again == first
    with open_work(site, config_of(), day(4), 8) as other:
        assert other != first
        assert not first.path.exists()
    assert (run / "manifest.json").is_file()
    remove_work(site)
    assert not other.path.parent.exists()
    remove_work(site)
