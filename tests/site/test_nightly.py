"""Nights on a small site: what is published, which model scores, what happens when the past or the config changes."""

import json
import shutil

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from nights import LAKE, config_of, day

from ammrank_dask.monitor.performance import PERFORMANCE_PAGE
from ammrank_dask.scoring.qualifications import open_qualifications
from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.site.site import Site
from ammrank_dask.storage.store.runs import open_run, verify_run
from ammrank_dask.workflows.nightly import command
from ammrank_dask.workflows.session.config import load_config, write_config
from ammrank_dask.workflows.session.night import Night
from ammrank_dask.workflows.stages.features import score_features, training_features
from ammrank_dask.workflows.stages.ingest import ingest
from ammrank_dask.workflows.stages.models import find_model
from ammrank_dask.workflows.stages.nightly import nightly
from ammrank_dask.workflows.stages.publishing import INPUT_FOLDERS, prune
from ammrank_dask.workflows.stages.score import score_users
from ammrank_dask.workflows.stages.train import train_model


def drop_half(site, number):
    """Correct a day: half of the rows of its first file were never there."""
    folder = site.path.parent / "lake" / "events" / f"date={day(number)}"
    path = sorted(folder.glob("*.parquet"))[0]
    table = pq.read_table(path)
    pq.write_table(table.slice(0, table.num_rows // 2), path)


def summary_of(site, number):
    return json.loads((site.report_folder(day(number)) / "summary.json").read_text())


@pytest.mark.usefixtures("drawn_performance")
def test_nightly__publishes_every_user_and_a_report(client, empty_site):
    facts = nightly(Night(client, empty_site, config_of(), day(5)))
    assert facts["published"]
    current = empty_site.current()
    assert current.date == day(5)
    assert set(current.runs) == {"head", "lag", "users", "features", "model", "qualifications", "report"}
    summary = summary_of(empty_site, 5)
    assert summary["n_users"] == 300
    rows = pq.read_table(empty_site.qualifications_folder(day(5)) / "by_user").num_rows
    assert rows == 300 * 10
    assert sum(category["exposure"] for category in summary["categories"]) == rows
    assert f'href="{PERFORMANCE_PAGE}"' in (empty_site.report_folder(day(5)) / "report.html").read_text()
    assert "bokeh" in (empty_site.report_folder(day(5)) / PERFORMANCE_PAGE).read_text()
    assert not empty_site.scratch.exists()


def test_nightly__a_second_time_changes_nothing(client, site):
    digest = site.digest()
    current = (site.path / "ROOT").read_bytes()
    nightly(Night(client, site, config_of(), day(5)))
    assert site.digest() == digest
    assert (site.path / "ROOT").read_bytes() == current


def test_nightly__the_command_again_starts_no_cluster(client, empty_site, monkeypatch):
    empty_site.config_path.write_text(write_config(config_of()))
    nightly(Night(client, empty_site, load_config(empty_site.config_path), day(5)))
    record = (empty_site.run_folder(day(5)) / "run.json").read_bytes()

    opened = []

    def refuse(*_, **__):
        opened.append(True)
        raise BadInput("a cluster was opened")

    monkeypatch.setattr("ammrank_dask.workflows.cluster.open.open_cluster", refuse)
    done = CliRunner().invoke(command, [str(empty_site.path), "--date", str(day(5)), "--json", "--quiet"])
    assert done.exit_code == 0, done.output
    facts = json.loads(done.output)
    assert (facts["unchanged"], facts["published"], facts["users"]) == (True, True, 300)
    assert opened == []
    assert (empty_site.run_folder(day(5)) / "run.json").read_bytes() == record
    # What was corrected since is input again, and so is everything with --rebuild.
    done = CliRunner().invoke(command, [str(empty_site.path), "--date", str(day(5)), "--rebuild"])
    assert (done.exit_code, len(opened)) == (65, 1)
    drop_half(empty_site, 5)
    done = CliRunner().invoke(command, [str(empty_site.path), "--date", str(day(5))])
    assert (done.exit_code, len(opened)) == (65, 2)


@pytest.mark.night
def test_nightly__trains_when_due_and_scores_with_the_last_model_before(client, site):
    models = [open_run(site.path / site.current().runs["model"]).manifest["config"]["date"]]
    for number in (6, 7):
        nightly(Night(client, site, config_of(), day(number)))
        models.append(open_run(site.path / site.current().runs["model"]).manifest["config"]["date"])
    assert models == [str(day(5)), str(day(5)), str(day(7))]


@pytest.mark.night
def test_nightly__a_back_fill_uses_no_model_of_its_future(client, empty_site):
    nightly(Night(client, empty_site, config_of(), day(7)))
    facts = nightly(Night(client, empty_site, config_of(), day(5)))
    assert facts["training"].endswith("users")
    assert not facts["published"]
    assert empty_site.current().date == day(7)


@pytest.mark.night
def test_nightly__an_earlier_published_night_can_be_run_again(client, site):
    for number in (7, 8):
        nightly(Night(client, site, config_of(), day(number)))
    before = (site.qualifications_folder(day(5)) / "manifest.json").read_bytes()
    nightly(Night(client, site, config_of(), day(5)))
    assert (site.qualifications_folder(day(5)) / "manifest.json").read_bytes() == before
    assert site.current().date == day(8)


def test_nightly__too_little_history_publishes_features_and_says_so(client, empty_site):
    facts = nightly(Night(client, empty_site, config_of(), day(1)))
    assert facts["training"].startswith("none: 2 days of events are too few to train")
    assert set(empty_site.current().runs) == {"head", "users", "features"}


def test_nightly__a_site_may_lose_its_users_table(client, site):
    without = config_of(lake={**LAKE, "users": None})
    facts = nightly(Night(client, site, without, day(6)))
    assert facts["published"]
    assert facts["training"].endswith("users")  # other columns need another model
    assert "users" not in site.current().runs


def test_nightly__more_categories_than_there_are(client, site):
    with pytest.raises(BadInput, match=r"score\.k must be between 1 and the number of categories \(50\), got 51"):
        nightly(Night(client, site, config_of(score={"k": 51}), day(6)))


def test_nightly__a_published_night_with_other_settings_names_them(client, site):
    before = site.digest()
    changed = config_of(score={"k": 2, "min_score": -5.0})
    with pytest.raises(
        BadInput, match=rf"of {day(5)} were written with another score\.k, score\.min_score; .*--rebuild"
    ):
        nightly(Night(client, site, changed, day(5)))
    assert site.digest() == before


@pytest.mark.night
def test_nightly__a_corrected_published_day_is_swapped_by_rebuild(client, site, tmp_path):
    before = site.digest()
    drop_half(site, 5)
    with pytest.raises(BadInput, match=f"written from other input; .*ammrank nightly {site.path} --date .* --rebuild"):
        nightly(Night(client, site, config_of(), day(5)))
    assert site.digest() == before
    nightly(Night(client, site, config_of(), day(5)), rebuild=True)
    (tmp_path / "fresh").mkdir()
    fresh = Site(tmp_path / "fresh")
    nightly(Night(client, fresh, config_of(), day(5)))
    assert site.digest() == fresh.digest()
    assert summary_of(site, 5) == summary_of(fresh, 5)
    # For whoever is reading it, until the next night.
    (replaced,) = (site.path / "qualifications" / "runs").iterdir()
    assert replaced.name.startswith(f"{day(5)}-")


def test_nightly__rebuild_repairs_damaged_qualifications(client, site):
    digest = site.digest()
    part = site.qualifications_folder(day(5)) / "by_user" / "part-00001.parquet"
    part.write_bytes(part.read_bytes()[:-1])
    nightly(Night(client, site, config_of(), day(5)), rebuild=True)
    assert verify_run(site.qualifications_folder(day(5))) > 0
    assert site.digest() == digest


def test_stages__one_after_the_other_keep_the_model(client, empty_site):
    config = config_of()
    known = ingest(Night(client, empty_site, config, day(5)))
    prune(empty_site, config, day(5), known.roles.values(), INPUT_FOLDERS)
    train_model(
        Night(client, empty_site, config, known.date),
        known,
        training_features(Night(client, empty_site, config, known.date), known),
    )
    features = score_features(Night(client, empty_site, config, known.date), known)
    prune(empty_site, config, day(5), [*known.roles.values(), features.path], (*INPUT_FOLDERS, "features"))
    model = find_model(empty_site, day(5))
    assert (
        score_users(Night(client, empty_site, config, known.date), known, features, model).manifest["facts"]["users"]
        == 300
    )


@pytest.mark.night
def test_nightly__days_that_came_after_the_state_was_begun_need_a_rebuild(client, empty_site):
    early = empty_site.path.parent / "lake" / "events" / f"date={day(0)}"
    away = empty_site.path.parent / "away"
    shutil.move(early, away)
    nightly(Night(client, empty_site, config_of(), day(5)))
    shutil.move(away, early)
    with pytest.raises(
        BadInput, match=f"the events of {day(0)} came after the state was begun with {day(1)}; .*--rebuild"
    ):
        nightly(Night(client, empty_site, config_of(), day(6)))
    nightly(Night(client, empty_site, config_of(), day(6)), rebuild=True)
    assert empty_site.current().date == day(6)


@pytest.mark.night
def test_nightly__a_model_trained_by_hand_does_not_score_unjudged(client, site):
    known = ingest(Night(client, site, config_of(), day(6)))
    hopeless = config_of(train={"epochs": 1, "every_nights": 2, "regularization": 1e6})
    by_hand = train_model(
        Night(client, site, hopeless, known.date),
        known,
        training_features(Night(client, site, hopeless, known.date), known),
    )
    facts = nightly(Night(client, site, config_of(), day(6)))
    assert facts["model"] == f"of {day(5)}"
    # Nor does it put off the training that is due.
    facts = nightly(Night(client, site, config_of(), day(7)))
    assert facts["training"].endswith("users")
    assert open_run(site.qualifications_folder(day(7))).manifest["inputs"]["model"] != by_hand.digest


def test_nightly__a_published_training_night_is_not_computed_again(client, site):
    nightly(Night(client, site, config_of(), day(7)))
    digest, stages = site.digest(), []
    facts = nightly(Night(client, site, config_of(), day(7), lambda stage, done, total: stages.append(stage)))
    assert facts["model"] == f"of {day(7)}"
    assert site.digest() == digest
    assert stages == []


@pytest.mark.night
def test_nightly__a_taxonomy_without_common_categories_trains_from_nothing(client, site):
    roots = config_of(taxonomy={"level": 1}, score={"k": 3})
    facts = nightly(Night(client, site, roots, day(6)), rebuild=True)
    assert facts["training"].endswith("users")
    model = next(path for path in site.finished_runs("models") if f"date={day(6)}" in path.name)
    assert open_run(model).manifest["inputs"]["start"] is None


@pytest.mark.night
def test_nightly__catching_up_a_night_in_between_leaves_later_published_ones_as_they_are(client, site):
    nightly(Night(client, site, config_of(), day(8)))
    before = (site.qualifications_folder(day(8)) / "manifest.json").read_bytes()
    for number in (7, 8):  # of 7 comes a model that would put off the training of 8
        nightly(Night(client, site, config_of(), day(number)))
    assert (site.qualifications_folder(day(8)) / "manifest.json").read_bytes() == before
    assert site.current().date == day(8)


def test_nightly__what_was_scored_and_not_published_does_not_stand_in_the_way(client, site):
    other = config_of(score={"k": 3})
    night = Night(client, site, other, day(6))
    known = ingest(night)
    model = open_run(site.path / site.current().runs["model"])
    score_users(night, known, score_features(night, known), model)
    assert site.current().date == day(5)
    facts = nightly(Night(client, site, config_of(), day(6)))
    assert facts["published"]
    assert pq.read_table(site.qualifications_folder(day(6)) / "by_user").num_rows == 300 * 10


@pytest.mark.parametrize("features", [{"normalize": False}, {"intensity": "raw"}])
def test_nightly__features_of_another_meaning_are_not_scored_with_the_old_model(client, site, features):
    changed = config_of(features={"min_days": 1, **features})
    night = Night(client, site, changed, day(6))
    known = ingest(night)
    model = open_run(site.path / site.current().runs["model"])
    with pytest.raises(BadInput, match=r"was trained with another alpha, features.intensity or features.normalize"):
        score_users(night, known, score_features(night, known), model)
    facts = nightly(Night(client, site, changed, day(6)))
    assert facts["training"].endswith("users")
    not_compared = f"the model of {day(5)} has other categories or features and was not compared"
    assert facts["gate"] == f"{not_compared}: 8 gate users are fewer than gate.min_users 100; nothing was decided"
    trained = open_run(site.path / site.current().runs["model"])
    assert trained.manifest["config"]["date"] == str(day(6))
    assert trained.manifest["inputs"]["start"] is None


def test_nightly__without_users_to_learn_from_the_model_in_use_scores(client, site):
    picky = config_of(label={"days": 3, "min_categories": 40})
    facts = nightly(Night(client, site, picky, day(7)))
    assert facts["training"].startswith("none: features at ")
    assert facts["training"].endswith("have no training user with a ranking; ingest more days")
    assert facts["model"] == f"of {day(5)}"
    assert facts["published"]


def test_nightly__a_further_night_writes_few_files_and_names_every_run(client, site):
    def files():
        return {(path, path.stat().st_ino) for path in site.path.rglob("*") if path.is_file()}

    before = files()
    nightly(Night(client, site, config_of(), day(6)))
    n_categories = len(open_qualifications(site.qualifications_folder(day(6))).categories)
    assert len(files() - before) <= 21 * 2 + n_categories + 60
    assert not site.unnamed()
    assert {site.relative(run) for run in site.kept_runs()} == set(site.root().kept)
