"""Which parameters a night trains with: what the config sets, what an earlier night chose, or a choice of its own."""

import json

import pytest
from nights import config_of, day

from ammrank_dask.model.halving import Trial, Tuning
from ammrank_dask.storage.site.site import Site
from ammrank_dask.storage.site.verdicts import Verdict, write_verdict
from ammrank_dask.storage.store.runs import finish_run, open_run
from ammrank_dask.training import tune
from ammrank_dask.workflows.session.night import Night
from ammrank_dask.workflows.stages.choice import (
    BY_DEFAULT,
    BY_HAND,
    BY_NIGHT,
    Choice,
    choice_of,
    choose_parameters,
    find_choice,
)
from ammrank_dask.workflows.stages.models import MODEL_KIND
from ammrank_dask.workflows.stages.nightly import nightly
from ammrank_dask.workflows.stages.retention import models_to_keep

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
    [{"kappa": 0.3, "clickers_per_plane": 100}, {"auto_tune": False}, {"model": "amm-rank"}, {"regularization": 0.1}],
)
def test_choose_parameters__nothing_that_the_config_sets(tmp_path, train):
    champion = keep_model(Site(tmp_path), 2, BY_NIGHT, kappa=0.02, clickers_per_plane=60)
    assert choose_parameters(night_of(Site(tmp_path), 3, **train), None, champion) is None


def test_choose_parameters__only_what_the_config_leaves_open(tmp_path):
    champion = keep_model(Site(tmp_path), 2, BY_NIGHT, kappa=0.02, clickers_per_plane=60)
    chosen = choose_parameters(night_of(Site(tmp_path), 3, kappa=0.3), None, champion)
    assert chosen.parameters == {"clickers_per_plane": 60}
    assert chosen.to_text() == f"clickers_per_plane 60: as chosen on {day(2)}"


def test_choice_of__tells_the_last_rung():
    trials = [Trial(0, 3, {"kappa": 1.0}, 0.9, True), Trial(2, 9, {"kappa": 1.0}, 0.125, True)]
    tuning = Tuning({"kappa": 1.0}, trials, 0.25, 1_234)
    assert choice_of(tuning, day(1), BY_NIGHT, "because").to_text() == (
        "kappa 1: chosen anew, because, on 1,234 validation users: error 0.1250, popularity 0.2500"
    )


def model_of(site):
    return open_run(site.path / site.current().runs["model"]).manifest


def test_nightly__too_few_users_choose_nothing_and_say_so(site):
    choice = model_of(site)["facts"]["choice"]
    assert (choice["parameters"], choice["by"]) == ({}, BY_DEFAULT)
    assert choice["why"].endswith("validation users are fewer than 200; the defaults stay")
    summary = json.loads((site.report_folder(day(5)) / "summary.json").read_text())["model"]
    assert summary["choice"] == choice
    assert 0 < summary["validation_error"] < summary["popularity_error"]
    page = (site.report_folder(day(5)) / "report.html").read_text()
    assert choice["why"] in page
    assert f"popularity has {summary['popularity_error']:.4f}" in page


def test_nightly__chooses_keeps_the_choice_and_chooses_anew_after_a_worse_gate(client, empty_site, monkeypatch):
    monkeypatch.setattr(tune, "FEWEST_VALIDATION_USERS", 5)
    config = config_of(train=PLUS)
    first = nightly(Night(client, empty_site, config, day(5)))
    manifest = model_of(empty_site)
    chosen = manifest["facts"]["choice"]
    assert set(chosen["parameters"]) == {"kappa", "clickers_per_plane"}
    assert {name: manifest["config"][name] for name in chosen["parameters"]} == chosen["parameters"]
    assert f"chosen on {chosen['users']} validation users: error {chosen['error']:.4f}" in first["parameters"]
    assert chosen["why"] in (empty_site.report_folder(day(5)) / "report.html").read_text()
    second = nightly(Night(client, empty_site, config, day(6)))
    assert second["parameters"].endswith(f": as chosen on {day(5)}")
    assert model_of(empty_site)["facts"]["choice"]["parameters"] == chosen["parameters"]
    judge(empty_site, 6, False)
    third = nightly(Night(client, empty_site, config, day(7)))
    assert f"chosen anew, as the gate turned down the model of {day(6)}, on " in third["parameters"]
    assert model_of(empty_site)["facts"]["choice"]["date"] == str(day(7))
