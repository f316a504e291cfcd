"""Nights on a small site: what is published, which model scores, what happens when the past or the config changes."""

import datetime as dt
import inspect
import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from distributed import Client, LocalCluster

from ammrank_dask.simulation.simulate import simulate
from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.site.site import Site
from ammrank_dask.storage.store.runs import open_run, verify_run
from ammrank_dask.workflows.session.config import check_config
from ammrank_dask.workflows.session.night import Night
from ammrank_dask.workflows.stages.features import score_features, training_features
from ammrank_dask.workflows.stages.ingest import ingest
from ammrank_dask.workflows.stages.models import find_model
from ammrank_dask.workflows.stages.nightly import nightly
from ammrank_dask.workflows.stages.retention import INPUT_FOLDERS, prune
from ammrank_dask.workflows.stages.score import score_users
from ammrank_dask.workflows.stages.train import train_model

FIRST = dt.date(2026, 1, 5)
N_DAYS = 9
CONFIG = {
    "lake": {"events": "../lake/events", "users": "../lake/users.parquet", "taxonomy": "../lake/taxonomy.csv"},
    "label": {"days": 3, "min_categories": 1},
    "features": {"min_days": 1},
    "train": {"epochs": 1, "every_nights": 2},
    "partitions": 2,
}


def day(number):
    return FIRST + dt.timedelta(number)


def config_of(**changes):
    return check_config({**CONFIG, **changes}, "test")


@pytest.fixture(scope="module")
def client():
    with (
        LocalCluster(n_workers=1, threads_per_worker=2, processes=False, dashboard_address=None) as cluster,
        Client(cluster) as c,
    ):
        yield c


@pytest.fixture(scope="module")
def lake(client, tmp_path_factory):
    folder = tmp_path_factory.mktemp("world") / "lake"
    simulate(client, folder, truth=folder.with_name("truth"), users=300, days=N_DAYS, seed=3, start=FIRST)
    return folder


@pytest.fixture
def place(lake, tmp_path):
    shutil.copytree(lake, tmp_path / "lake")
    (tmp_path / "site").mkdir()
    return Site(tmp_path / "site")


def drop_half(place, number):
    """Correct a day: half of the rows of its first file were never there."""
    folder = place.path.parent / "lake" / "events" / f"date={day(number)}"
    path = sorted(folder.glob("*.parquet"))[0]
    table = pq.read_table(path)
    pq.write_table(table.slice(0, table.num_rows // 2), path)


def summary_of(place, number):
    return json.loads((place.report_folder(day(number)) / "summary.json").read_text())


def test_nightly__publishes_every_user_and_a_report(client, place):
    facts = nightly(Night(client, place, config_of(), day(5)))
    assert facts["published"]
    current = place.current()
    assert current.date == day(5)
    assert set(current.runs) == {"head", "lag", "users", "features", "model", "qualifications", "report"}
    summary = summary_of(place, 5)
    assert summary["n_users"] == 300
    rows = pq.read_table(place.qualifications_folder(day(5)) / "by_user").num_rows
    assert rows == 300 * 10
    assert sum(category["exposure"] for category in summary["categories"]) == rows
    assert not place.scratch.exists()


def test_nightly__a_second_time_changes_nothing(client, place):
    nightly(Night(client, place, config_of(), day(5)))
    digest = place.digest()
    current = (place.path / "CURRENT").read_bytes()
    nightly(Night(client, place, config_of(), day(5)))
    assert place.digest() == digest
    assert (place.path / "CURRENT").read_bytes() == current


def test_nightly__trains_when_due_and_scores_with_the_last_model_before(client, place):
    models = []
    for number in (5, 6, 7):
        nightly(Night(client, place, config_of(), day(number)))
        models.append(open_run(place.path / place.current().runs["model"]).manifest["config"]["date"])
    assert models == [str(day(5)), str(day(5)), str(day(7))]


def test_nightly__a_back_fill_uses_no_model_of_its_future(client, place):
    nightly(Night(client, place, config_of(), day(7)))
    facts = nightly(Night(client, place, config_of(), day(5)))
    assert facts["training"].endswith("users")
    assert not facts["published"]
    assert place.current().date == day(7)


def test_nightly__an_earlier_published_night_can_be_run_again(client, place):
    for number in (5, 7, 8):
        nightly(Night(client, place, config_of(), day(number)))
    before = (place.qualifications_folder(day(5)) / "manifest.json").read_bytes()
    nightly(Night(client, place, config_of(), day(5)))
    assert (place.qualifications_folder(day(5)) / "manifest.json").read_bytes() == before
    assert place.current().date == day(8)


def test_nightly__too_little_history_publishes_features_and_says_so(client, place):
    facts = nightly(Night(client, place, config_of(), day(1)))
    assert facts["training"].startswith("none: 2 days of events are too few to train")
    assert set(place.current().runs) == {"head", "users", "features"}


def test_nightly__a_site_may_lose_its_users_table(client, place):
    nightly(Night(client, place, config_of(), day(5)))
    without = config_of(lake={**CONFIG["lake"], "users": None})
    facts = nightly(Night(client, place, without, day(6)))
    assert facts["published"]
    assert facts["training"].endswith("users")  # other columns need another model
    assert "users" not in place.current().runs


def test_nightly__more_categories_than_there_are(client, place):
    with pytest.raises(BadInput, match=r"score\.k must be between 1 and the number of categories \(50\), got 51"):
        nightly(Night(client, place, config_of(score={"k": 51}), day(5)))


def test_nightly__a_corrected_published_day_is_swapped_by_rebuild(client, place, tmp_path):
    nightly(Night(client, place, config_of(), day(5)))
    before = place.digest()
    drop_half(place, 5)
    with pytest.raises(BadInput, match=f"written from other input; .*ammrank nightly {place.path} --date .* --rebuild"):
        nightly(Night(client, place, config_of(), day(5)))
    assert place.digest() == before
    nightly(Night(client, place, config_of(), day(5)), rebuild=True)
    (tmp_path / "fresh").mkdir()
    fresh = Site(tmp_path / "fresh")
    nightly(Night(client, fresh, config_of(), day(5)))
    assert place.digest() == fresh.digest()
    assert summary_of(place, 5) == summary_of(fresh, 5)
    assert not list((place.path / "qualifications").glob(".*"))


def test_nightly__rebuild_repairs_damaged_qualifications(client, place):
    nightly(Night(client, place, config_of(), day(5)))
    digest = place.digest()
    part = place.qualifications_folder(day(5)) / "by_user" / "part-00001.parquet"
    part.write_bytes(part.read_bytes()[:-1])
    nightly(Night(client, place, config_of(), day(5)), rebuild=True)
    assert verify_run(place.qualifications_folder(day(5))) > 0
    assert place.digest() == digest


def test_stages__one_after_the_other_keep_the_model(client, place):
    config = config_of()
    known = ingest(Night(client, place, config, day(5)))
    prune(place, config, day(5), known.roles.values(), INPUT_FOLDERS)
    train_model(
        Night(client, place, config, known.date),
        known,
        training_features(Night(client, place, config, known.date), known),
    )
    features = score_features(Night(client, place, config, known.date), known)
    prune(place, config, day(5), [*known.roles.values(), features.path], (*INPUT_FOLDERS, "features"))
    model = find_model(place, day(5))
    assert (
        score_users(Night(client, place, config, known.date), known, features, model).manifest["facts"]["users"] == 300
    )


def test_nightly__days_that_came_after_the_state_was_begun_need_a_rebuild(client, place):
    early = place.path.parent / "lake" / "events" / f"date={day(0)}"
    away = place.path.parent / "away"
    shutil.move(early, away)
    nightly(Night(client, place, config_of(), day(5)))
    shutil.move(away, early)
    with pytest.raises(
        BadInput, match=f"the events of {day(0)} came after the state was begun with {day(1)}; .*--rebuild"
    ):
        nightly(Night(client, place, config_of(), day(6)))
    nightly(Night(client, place, config_of(), day(6)), rebuild=True)
    assert place.current().date == day(6)


def test_nightly__is_short_enough_to_copy():
    source = Path(inspect.getfile(nightly)).read_text(encoding="utf-8")
    assert len(source.splitlines()) < 100


def test_nightly__a_model_trained_by_hand_does_not_score_unjudged(client, place):
    nightly(Night(client, place, config_of(), day(5)))
    known = ingest(Night(client, place, config_of(), day(6)))
    hopeless = config_of(train={"epochs": 1, "every_nights": 2, "regularization": 1e6})
    by_hand = train_model(
        Night(client, place, hopeless, known.date),
        known,
        training_features(Night(client, place, hopeless, known.date), known),
    )
    facts = nightly(Night(client, place, config_of(), day(6)))
    assert facts["model"] == f"of {day(5)}"
    # Nor does it put off the training that is due.
    facts = nightly(Night(client, place, config_of(), day(7)))
    assert facts["training"].endswith("users")
    assert open_run(place.qualifications_folder(day(7))).manifest["inputs"]["model"] != by_hand.digest


def test_nightly__a_published_training_night_is_not_computed_again(client, place):
    nightly(Night(client, place, config_of(), day(5)))
    nightly(Night(client, place, config_of(), day(7)))
    digest, stages = place.digest(), []
    facts = nightly(Night(client, place, config_of(), day(7), lambda stage, done, total: stages.append(stage)))
    assert facts["model"] == f"of {day(7)}"
    assert place.digest() == digest
    assert stages == []


def test_nightly__a_taxonomy_without_common_categories_trains_from_nothing(client, place):
    nightly(Night(client, place, config_of(), day(5)))
    roots = config_of(taxonomy={"level": 1}, score={"k": 3})
    facts = nightly(Night(client, place, roots, day(6)), rebuild=True)
    assert facts["training"].endswith("users")
    model = next(path for path in place.finished_runs("models") if f"date={day(6)}" in path.name)
    assert open_run(model).manifest["inputs"]["start"] is None


def test_nightly__catching_up_a_night_in_between_leaves_later_published_ones_as_they_are(client, place):
    for number in (5, 8):
        nightly(Night(client, place, config_of(), day(number)))
    before = (place.qualifications_folder(day(8)) / "manifest.json").read_bytes()
    for number in (7, 8):  # of 7 comes a model that would put off the training of 8
        nightly(Night(client, place, config_of(), day(number)))
    assert (place.qualifications_folder(day(8)) / "manifest.json").read_bytes() == before
    assert place.current().date == day(8)


def test_nightly__what_was_scored_and_not_published_does_not_stand_in_the_way(client, place):
    nightly(Night(client, place, config_of(), day(5)))
    other = config_of(score={"k": 3})
    night = Night(client, place, other, day(6))
    known = ingest(night)
    model = open_run(place.path / place.current().runs["model"])
    score_users(night, known, score_features(night, known), model)
    assert place.current().date == day(5)
    facts = nightly(Night(client, place, config_of(), day(6)))
    assert facts["published"]
    assert pq.read_table(place.qualifications_folder(day(6)) / "by_user").num_rows == 300 * 10


@pytest.mark.parametrize("features", [{"normalize": False}, {"intensity": "raw"}])
def test_nightly__features_of_another_meaning_are_not_scored_with_the_old_model(client, place, features):
    nightly(Night(client, place, config_of(), day(5)))
    changed = config_of(features={"min_days": 1, **features})
    night = Night(client, place, changed, day(6))
    known = ingest(night)
    model = open_run(place.path / place.current().runs["model"])
    with pytest.raises(BadInput, match=r"was trained with another alpha, features.intensity or features.normalize"):
        score_users(night, known, score_features(night, known), model)
    facts = nightly(Night(client, place, changed, day(6)))
    assert facts["training"].endswith("users")
    not_compared = f"the model of {day(5)} has other categories or features and was not compared: disagreement error 0."
    assert facts["gate"].startswith(not_compared)
    trained = open_run(place.path / place.current().runs["model"])
    assert trained.manifest["config"]["date"] == str(day(6))
    assert trained.manifest["inputs"]["start"] is None


def test_nightly__without_users_to_learn_from_the_model_in_use_scores(client, place):
    nightly(Night(client, place, config_of(), day(5)))
    picky = config_of(label={"days": 3, "min_categories": 40})
    facts = nightly(Night(client, place, picky, day(7)))
    assert facts["training"].startswith("none: features at ")
    assert facts["training"].endswith("have no training user with a ranking; ingest more days")
    assert facts["model"] == f"of {day(5)}"
    assert facts["published"]
