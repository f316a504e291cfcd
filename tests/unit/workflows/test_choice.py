"""Which parameters a night trains with: what the config sets, what an earlier night chose, or a choice of its own."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
from nights import config_of, copy_world, day

from ammrank_dask.model.halving import Trial, Tuning
from ammrank_dask.storage.errors import TooFewUsers
from ammrank_dask.storage.site.site import Site
from ammrank_dask.storage.site.verdicts import Verdict, write_verdict
from ammrank_dask.storage.store.runs import finish_run, open_run
from ammrank_dask.training import fits, tune
from ammrank_dask.training.fits import FitTrial
from ammrank_dask.workflows.session.night import Night
from ammrank_dask.workflows.stages import choice
from ammrank_dask.workflows.stages.choice import (
    BY_DEFAULT,
    BY_HAND,
    BY_NIGHT,
    Choice,
    choice_of,
    choose_parameters,
    find_choice,
    training_parameters,
)
from ammrank_dask.workflows.stages.features import training_features
from ammrank_dask.workflows.stages.ingest import ingest
from ammrank_dask.workflows.stages.models import MODEL_KIND
from ammrank_dask.workflows.stages.nightly import nightly
from ammrank_dask.workflows.stages.retention import models_to_keep
from ammrank_dask.workflows.stages.train import train_model

PLUS = {"epochs": 1, "every_nights": 1}


def keep_model(site, number, by, **parameters):
    """Keep a model without parts that was trained with a choice of its own date."""
    path = site.run("models", day(number), f"{by}{number}")
    path.mkdir(parents=True)
    choice = Choice(parameters, str(day(number)), by, "by hand").to_json()
    return finish_run(
        path, MODEL_KIND, f"{by}{number}", 0, config={"date": str(day(number))}, inputs={}, counts={"choice": choice}
    )


def night_of(site, number, **train):
    return Night(None, site, config_of(train={**PLUS, **train}), day(number))


def judge(site, number, accepted, challenger="new"):
    write_verdict(site, day(number), Verdict(challenger, "old", accepted, {"accepted": accepted}), {})


def test_find_choice__that_of_the_model_in_use_until_the_gate_turns_one_down(tmp_path):
    site = Site(tmp_path)
    champion = keep_model(site, 2, BY_NIGHT, kappa=0.02)
    assert find_choice(night_of(site, 3), None) == (None, None)
    found, reason = find_choice(night_of(site, 3), champion)
    assert (found.parameters, reason) == ({"kappa": 0.02}, None)
    judge(site, 4, True)
    judge(site, 6, False)
    assert find_choice(night_of(site, 6), champion)[0] == found  # the verdict of the night itself is not known before
    assert find_choice(night_of(site, 7), champion) == (None, f"as the gate turned down the model of {day(6)}")
    judge(site, 7, True)
    assert find_choice(night_of(site, 8), champion)[0] == found


def test_find_choice__a_later_tuning_by_hand_counts_and_is_kept(tmp_path):
    site = Site(tmp_path)
    champion = keep_model(site, 2, BY_NIGHT, kappa=0.02)
    hand = keep_model(site, 3, BY_HAND, kappa=0.1)
    assert find_choice(night_of(site, 2), champion)[0].parameters == {"kappa": 0.02}
    assert find_choice(night_of(site, 4), champion)[0].parameters == {"kappa": 0.1}
    judge(site, 3, False)  # another model: the tuning came after it
    assert find_choice(night_of(site, 4), champion)[0].parameters == {"kappa": 0.1}
    judge(site, 3, False, hand.digest)
    assert find_choice(night_of(site, 4), champion) == (None, f"as the gate turned down the model of {day(3)}")
    judge(site, 5, False)
    assert find_choice(night_of(site, 6), champion)[0] is None
    assert models_to_keep(site, config_of(), day(4)) == [hand.path]
    assert models_to_keep(site, config_of(retention={"models": 1}), day(4)) == []


def test_find_choice__a_default_for_lack_of_users_is_none(tmp_path):
    champion = keep_model(Site(tmp_path), 2, BY_DEFAULT)
    assert find_choice(night_of(Site(tmp_path), 3), champion) == (None, None)


@pytest.mark.parametrize(
    "train",
    [
        {"kappa": 0.3, "clickers_per_plane": 100, "fit": "usual"},
        {"auto_tune": False},
        {"model": "amm-rank"},
        {"regularization": 0.1},
    ],
)
def test_choose_parameters__nothing_that_the_config_sets(tmp_path, train):
    champion = keep_model(Site(tmp_path), 2, BY_NIGHT, kappa=0.02, clickers_per_plane=60)
    assert choose_parameters(night_of(Site(tmp_path), 3, **train), None, champion) is None


def test_choose_parameters__only_what_the_config_leaves_open(tmp_path):
    champion = keep_model(Site(tmp_path), 2, BY_NIGHT, kappa=0.02, clickers_per_plane=60)
    chosen = choose_parameters(night_of(Site(tmp_path), 3, kappa=0.3, fit="usual"), None, champion)
    assert chosen.parameters == {"clickers_per_plane": 60}
    assert chosen.to_text() == f"clickers_per_plane 60: as chosen on {day(2)}"


class FitTrials:
    """Trials of fits whose outcome is given; what they were asked for is kept."""

    def __init__(self, monkeypatch):
        self.fit, self.asked = "usual", []
        monkeypatch.setattr(choice, "try_fits", self)
        monkeypatch.setattr(choice, "open_features", lambda path: path)

    def __call__(self, client, features, *, parameters, fixed, **options):
        self.asked.append((parameters, fixed))
        if self.fit is None:
            raise TooFewUsers("40 validation users are fewer than 50")
        return FitTrial(self.fit, {"usual": 0.25, self.fit: 0.125}, 321)


@pytest.fixture
def trials(monkeypatch):
    return FitTrials(monkeypatch)


def features_of(n_rows, digest="features"):
    return SimpleNamespace(digest=digest, path="features", n_rows=n_rows)


def keep_choice(site, number, chosen):
    """Keep a model trained with a choice."""
    path = site.run("models", day(number), f"m{number}")
    path.mkdir(parents=True)
    config = {"date": str(day(number))}
    return finish_run(path, MODEL_KIND, f"m{number}", 0, config=config, inputs={}, counts={"choice": chosen.to_json()})


def test_choose_parameters__the_fit_that_an_earlier_version_did_not_choose(tmp_path, trials):
    site = Site(tmp_path)
    champion = keep_model(site, 2, BY_HAND, kappa=0.02, clickers_per_plane=60)
    night = Night(None, site, config_of(train={}), day(4))
    usual = choose_parameters(night, features_of(100, "a"), champion)
    assert usual.parameters == {"kappa": 0.02, "clickers_per_plane": 60, "fit": "usual"}
    assert (usual.date, usual.by, usual.changes_model(day(4))) == (str(day(2)), BY_HAND, False)
    trials.fit = "closer"
    closer = choose_parameters(night, features_of(100, "b"), champion)
    assert (closer.date, closer.by, closer.changes_model(day(4))) == (str(day(4)), BY_NIGHT, True)
    assert closer.to_text() == (
        f"kappa 0.02, clickers_per_plane 60, fit closer: as chosen on {day(2)}; rows are followed closer than usual,"
        " on 321 validation users: error usual 0.2500, closer 0.1250"
    )
    assert (closer.fits, closer.labelled) == ({"usual": 0.25, "closer": 0.125}, 100)
    parameters, fixed = trials.asked[-1]
    assert ({name: parameters[name] for name in ("kappa", "clickers_per_plane", "epochs")}, fixed) == (
        {"kappa": 0.02, "clickers_per_plane": 60, "epochs": 5},
        [],
    )
    trained = training_parameters(night.config, closer)
    assert [trained[name] for name in ("kappa", "clickers_per_plane", "epochs")] == [0.004, 60, 20]
    assert not {"pace", "fit"} & set(trained)


def test_choose_parameters__a_fit_is_kept_until_there_are_twice_as_many_users(tmp_path, trials):
    site, night = Site(tmp_path), Night(None, Site(tmp_path), config_of(train={}), day(4))
    parameters = {"kappa": 0.02, "clickers_per_plane": 60, "fit": "looser"}
    looser = Choice(parameters, str(day(2)), BY_NIGHT, "tried", fits={"usual": 0.5, "looser": 0.25}, labelled=100)
    champion = keep_choice(site, 2, looser)
    kept = choose_parameters(night, features_of(200), champion)
    assert kept == replace(looser, why=f"as chosen on {day(2)}")
    assert not trials.asked
    grown = choose_parameters(night, features_of(201), champion)
    assert (grown.parameters["fit"], grown.date, grown.labelled) == ("usual", str(day(2)), 201)
    # The usual fit stays, however many users there are.
    champion = keep_choice(site, 3, grown)
    assert choose_parameters(night, features_of(10_000), champion).parameters == grown.parameters
    assert len(trials.asked) == 1


def test_choose_parameters__a_fit_without_users_enough_for_a_grid(tmp_path, trials, monkeypatch):
    def refuse(*args, **options):
        raise TooFewUsers("150 validation users are fewer than 200")

    monkeypatch.setattr(choice, "tune", refuse)
    site, night = Site(tmp_path), Night(None, Site(tmp_path), config_of(train={}), day(4))
    usual = choose_parameters(night, features_of(100, "a"), None)
    assert (usual.parameters, usual.by, usual.changes_model(day(4))) == ({"fit": "usual"}, BY_NIGHT, False)
    trials.fit = "closer"
    chosen = choose_parameters(night, features_of(100, "b"), None)
    assert (chosen.parameters, chosen.by, chosen.changes_model(day(4))) == ({"fit": "closer"}, BY_NIGHT, True)
    assert chosen.why == (
        "of kappa and planes nothing was chosen, 150 validation users are fewer than 200; the defaults stay;"
        " rows are followed closer than usual, on 321 validation users: error usual 0.2500, closer 0.1250"
    )
    trained = training_parameters(night.config, chosen)
    assert (trained["kappa"], trained["epochs"]) == (0.001, 20)
    later = choose_parameters(replace(night, date=day(5)), features_of(100, "c"), keep_choice(site, 4, chosen))
    assert later.to_text() == f"fit closer: as chosen on {day(4)}"
    trials.fit = None
    neither = choose_parameters(night, features_of(100, "d"), None)
    assert (neither.parameters, neither.by) == ({}, BY_DEFAULT)
    assert neither.why == "nothing was chosen, 150 validation users are fewer than 200; the defaults stay"
    fixed = Night(None, site, config_of(train={"kappa": 0.3, "clickers_per_plane": 100}), day(4))
    assert choose_parameters(fixed, features_of(100, "e"), None).to_text() == (
        "nothing was chosen, 40 validation users are fewer than 50; the usual fit stays"
    )


def test_choose_parameters__a_trial_of_fits_is_made_once(tmp_path, trials):
    champion = keep_model(Site(tmp_path), 2, BY_NIGHT, kappa=0.02, clickers_per_plane=60)
    trials.fit = "looser"
    night = Night(None, Site(tmp_path), config_of(train={}), day(4))
    first = choose_parameters(night, features_of(100), champion)
    assert choose_parameters(night, features_of(100), champion) == first
    assert len(trials.asked) == 1


@pytest.mark.parametrize(
    ("train", "fit", "trained"),
    [
        ({}, "closer", {"kappa": 0.001, "epochs": 20}),
        ({}, "looser", {"kappa": None, "epochs": 5, "pace": 1 / 3}),
        ({"kappa": 0.3}, "closer", {"kappa": 0.3, "epochs": 20}),
        ({"epochs": 7}, "closer", {"kappa": 0.001, "epochs": 7}),
        ({"epochs": 5, "fit": None}, "closer", {"kappa": 0.001, "epochs": 5}),
        ({"epochs": 5}, "closer", {"kappa": 0.001, "epochs": 20}),  # as an earlier version wrote it
        ({"kappa": 0.3, "epochs": 7}, "looser", {"kappa": 0.3, "epochs": 7, "pace": 1 / 3}),
        ({"fit": "looser"}, "closer", {"kappa": None, "epochs": 5, "pace": 1 / 3}),
        ({"model": "amm-rank"}, None, {"epochs": 5, "pace": None}),
    ],
)
def test_training_parameters__what_the_config_sets_stays(train, fit, trained):
    chosen = None if fit is None else Choice({"fit": fit}, str(day(2)), BY_NIGHT, "tried")
    parameters = training_parameters(config_of(train=train), chosen)
    assert {name: parameters.get(name) for name in trained} == trained


def test_choice_of__tells_the_last_rung():
    trials = [Trial(0, 3, {"kappa": 1.0}, 0.9, True), Trial(2, 9, {"kappa": 1.0}, 0.125, True)]
    tuning = Tuning({"kappa": 1.0}, trials, 0.25, 1_234)
    assert choice_of(tuning, day(1), BY_NIGHT, "because").to_text() == (
        "kappa 1: chosen anew, because, on 1,234 validation users: error 0.1250, popularity 0.2500"
    )


def model_of(site):
    return open_run(site.path / site.current().runs["model"]).manifest


def test_nightly__too_few_users_choose_nothing_and_say_so(site):
    chosen = model_of(site)["facts"]["choice"]
    assert (chosen["parameters"], chosen["by"]) == ({}, BY_DEFAULT)
    assert chosen["why"].endswith("validation users are fewer than 200; the defaults stay")
    summary = json.loads((site.report_folder(day(5)) / "summary.json").read_text())["model"]
    assert summary["choice"] == chosen
    assert 0 < summary["validation_error"] < summary["popularity_error"]
    page = (site.report_folder(day(5)) / "report.html").read_text()
    assert chosen["why"] in page
    assert f"popularity has {summary['popularity_error']:.4f}" in page


def test_nightly__chooses_keeps_the_choice_and_chooses_anew_after_a_worse_gate(client, empty_site, monkeypatch):
    monkeypatch.setattr(tune, "FEWEST_VALIDATION_USERS", 5)
    config = config_of(train=PLUS)
    first = nightly(Night(client, empty_site, config, day(5)))
    manifest = model_of(empty_site)
    chosen = manifest["facts"]["choice"]
    assert set(chosen["parameters"]) == {"kappa", "clickers_per_plane"}
    tuned = {name: chosen["parameters"][name] for name in ("kappa", "clickers_per_plane")}
    assert {name: manifest["config"][name] for name in tuned} == tuned
    assert f"chosen on {chosen['users']} validation users: error {chosen['error']:.4f}" in first["parameters"]
    assert chosen["why"] in (empty_site.report_folder(day(5)) / "report.html").read_text()
    second = nightly(Night(client, empty_site, config, day(6)))
    assert second["parameters"].endswith(f": as chosen on {day(5)}")
    assert model_of(empty_site)["facts"]["choice"]["parameters"] == chosen["parameters"]
    judge(empty_site, 6, False)
    third = nightly(Night(client, empty_site, config, day(7)))
    assert f"chosen anew, as the gate turned down the model of {day(6)}, on " in third["parameters"]
    assert model_of(empty_site)["facts"]["choice"]["date"] == str(day(7))


def test_nightly__trains_with_the_fit_that_was_chosen_and_tells_it(client, two_processes, empty_site, monkeypatch):
    monkeypatch.setattr(fits, "FEWEST_USERS", 5)
    monkeypatch.setattr(fits, "prefer_usual", lambda errors: "closer")
    other = copy_world(empty_site, empty_site.path.parent / "other")
    config = config_of(train={"shards": 2, "every_nights": 1, "rounds_per_epoch": 1})
    facts = nightly(Night(client, empty_site, config, day(5)))
    manifest = model_of(empty_site)
    chosen = manifest["facts"]["choice"]
    assert chosen["parameters"] == {"fit": "closer"}
    assert set(chosen["fits"]) == {"usual", "closer", "looser"}
    assert (manifest["config"]["kappa"], manifest["config"]["epochs"]) == (0.001, 20)
    assert len(manifest["facts"]["training"]["epochs"]) == 20
    assert facts["parameters"] == f"fit closer: {chosen['why']}"
    errors = ", ".join(f"{fit} {chosen['fits'][fit]:.4f}" for fit in ("usual", "closer", "looser"))
    told = f"rows are followed closer than usual, on {chosen['users']} validation users: error {errors}"
    assert chosen["why"].endswith(f"fewer than 200; the defaults stay; {told}")
    summary = json.loads((empty_site.report_folder(day(5)) / "summary.json").read_text())["model"]
    assert (summary["parameters"]["epochs"], summary["parameters"]["kappa"]) == (20, 0.001)
    assert f"fit closer: {chosen['why']}" in (empty_site.report_folder(day(5)) / "report.html").read_text()
    elsewhere = Night(two_processes, other, config, day(5))
    ingested = ingest(elsewhere)
    again = train_model(elsewhere, ingested, training_features(elsewhere, ingested)).manifest
    assert (again["digest"], again["parts"]) == (manifest["digest"], manifest["parts"])
    assert again["facts"]["choice"] == chosen
    # The next training begins with the planes of this one, and as closely.
    second = nightly(Night(client, empty_site, config, day(6)))
    assert second["parameters"] == f"fit closer: as chosen on {day(5)}"
    assert model_of(empty_site)["inputs"]["start"] == manifest["digest"]
