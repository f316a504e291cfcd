"""Chances on a site: from whom they are learnt, when they are learnt again, and what a night says about them."""

import datetime as dt
import re

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from nights import config_of, copy_world, day

from ammrank_dask.features.build import build_features
from ammrank_dask.features.store import open_features
from ammrank_dask.model.saved import load_model
from ammrank_dask.scoring.chances import load_chances
from ammrank_dask.scoring.learn_chances import clicked_table
from ammrank_dask.scoring.qualifications import open_qualifications
from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.site.site import Site
from ammrank_dask.storage.store.ids import ids_from_values
from ammrank_dask.storage.store.runs import open_run
from ammrank_dask.user_hash import split_of
from ammrank_dask.workflows.operations.explain import describe_entry, explain_user
from ammrank_dask.workflows.session.night import Night
from ammrank_dask.workflows.stages.features import plan_chance_features
from ammrank_dask.workflows.stages.ingest import ingest
from ammrank_dask.workflows.stages.nightly import nightly

pytestmark = pytest.mark.night

FEW = {"min_users": 10}
"""The small world has 300 users: 28 to learn chances from, 21 to measure them on."""


@pytest.fixture(scope="module")
def world(client, small_world, tmp_path_factory):
    """A site after a night with chances; nobody changes it."""
    site = copy_world(small_world, tmp_path_factory.mktemp("chances"))
    nightly(Night(client, site, config_of(gate=FEW), day(5)))
    return site


@pytest.fixture
def site(world, tmp_path):
    return copy_world(world, tmp_path)


def chances_run(site):
    return open_run(site.path / site.current().runs["chances"])


def clicks_of_window(site, first, last):
    """Return who clicked what from the first to the last day, from the lake itself."""
    lake = site.path.parent / "lake"
    days = [lake / "events" / f"date={first + dt.timedelta(n)}" for n in range((last - first).days + 1)]
    events = pd.concat([pq.read_table(folder).to_pandas() for folder in days])
    parents = pd.read_csv(lake / "taxonomy.csv", keep_default_na=False).set_index("category")["parent"].to_dict()

    def ranked(name):
        chain = [name]
        while parents[chain[-1]]:
            chain.append(parents[chain[-1]])
        return chain[-2] if len(chain) > 1 else None

    clicks = events[events["group"] == "adc"]
    named = {name: ranked(name) for name in clicks["category"].unique()}
    pairs = {(user, named[name]) for user, name in zip(clicks["user_id"], clicks["category"], strict=True)}
    return {(user, name) for user, name in pairs if name is not None}


def test_chance_features__are_of_all_held_out_users_with_what_they_clicked(client, site):
    night = Night(client, site, config_of(), day(5))
    ingested = ingest(night)
    features = open_features(build_features(client, plan_chance_features(night, ingested), click_group="adc").path)
    everybody = ids_from_values(pq.read_table(site.path.parent / "lake" / "users.parquet")["user_id"]).sort_unique()
    held_out = set(everybody.take(np.flatnonzero(split_of(everybody) > 0)).to_arrow().to_pylist())
    truth = clicks_of_window(site, day(3), day(5))
    users, silent = set(), 0
    for number in range(features.n_partitions):
        part = features.partition(number)
        ids = part.user_ids.to_arrow().to_pylist()
        users |= set(ids)
        clicked = clicked_table(part.rankings, len(features.categories))
        expected = [[(user, name) in truth for name in features.categories] for user in ids]
        np.testing.assert_array_equal(clicked, expected)
        silent += int((~clicked.any(axis=1)).sum())
    assert users == held_out
    assert silent > 0  # most users click little, and that is what chances must know


def test_nightly__keeps_chances_and_measures_them(world):
    run = chances_run(world)
    facts = run.manifest["facts"]
    everybody = ids_from_values(pq.read_table(world.path.parent / "lake" / "users.parquet")["user_id"])
    split = split_of(everybody)
    assert (facts["users"], facts["gate_users"]) == ((split == 1).sum(), (split == 2).sum())
    assert facts["cells"] == facts["gate_users"] * 50
    assert len(facts["reliability"]) == 20
    assert sum(row["cells"] for row in facts["reliability"]) == facts["cells"]
    assert sum(row["cells"] for row in facts["activity"]) == facts["cells"]
    assert facts["unreliable_bins"] <= facts["unreliable_bins_by_cells"]
    with_cells = [row for row in facts["reliability"] if row["cells"]]  # equal chances are in one bin
    assert all(row["error"] > 0 and row["cell_error"] > 0 for row in with_cells)
    assert sum(row["error"] for row in with_cells) > sum(row["cell_error"] for row in with_cells)
    assert 0 < facts["brier"] < 0.25
    assert facts["base_log_loss"] > 0
    assert load_chances(run).n_categories == 50
    assert run.manifest["inputs"]["model"] == open_run(world.path / world.current().runs["model"]).digest


def assert_short_history_is_told(site, facts):
    """The night of day 6 has chances of the night before, learnt with days 0 to 2."""
    assert facts["chances"].endswith("; learnt with 3 days of history where tonight has 7")
    (check,) = [check for check in facts["checks"] if check["name"] == "short_history"]
    assert (check["status"], check["limit"]) == ("warn", 0.6)
    assert check["value"] == pytest.approx((1 - 0.995**3) / (1 - 0.995**7))
    sentence = "history behind click probabilities: 3 days, tonight has 7 (share after decay)"
    assert check["what"] == sentence
    page = (site.report_folder(day(6)) / "report.html").read_text()
    assert "They were learned with 3 days of history where the night has 7." in page
    assert re.search(r"without that they would predict [\d,]+ clicked pairs for 49 of these users", page)


def test_nightly__brings_chances_to_the_features_of_the_night(client, world):
    run, truth = chances_run(world), clicks_of_window(world, day(3), day(5))
    features = open_features(world.path / world.current().runs["features"])
    chances, model = load_chances(run), load_model(world.path / world.current().runs["model"])
    held_out, expected = set(), 0.0
    for number in range(features.n_partitions):
        part = features.partition(number, normalize=False)
        rows = np.flatnonzero(split_of(part.user_ids) > 0)
        held_out |= set(part.user_ids.take(rows).to_arrow().to_pylist())
        for row, scores in zip(rows, model.decision_function(part.X[rows]), strict=True):
            expected += chances.apply(scores, np.arange(50), np.full(50, part.n_event_features[row])).sum()
    clicked = len({pair for pair in truth if pair[0] in held_out})
    carried = run.manifest["facts"]["carried"]
    assert (carried["users"], carried["clicked"]) == (len(held_out), clicked)
    assert expected == pytest.approx(clicked, rel=1e-3)
    assert carried["expected"] > 1.1 * clicked


def test_nightly__learns_chances_with_the_model_and_keeps_them_until_the_next(client, site):
    first = chances_run(site).digest
    facts = nightly(Night(client, site, config_of(gate=FEW), day(6)))
    assert chances_run(site).digest == first
    assert_short_history_is_told(site, facts)
    assert facts["chances"].startswith(f"of {day(5)}, ")
    facts = nightly(Night(client, site, config_of(gate=FEW), day(7)))
    assert chances_run(site).digest != first
    assert facts["chances"].startswith(f"of {day(7)}, ")
    # Those of published nights stay, and a rerun of one finds them.
    assert len(site.finished_runs("chances")) == 2
    manifest = (site.qualifications_folder(day(5)) / "manifest.json").read_bytes()
    nightly(Night(client, site, config_of(gate=FEW), day(5)))
    assert (site.qualifications_folder(day(5)) / "manifest.json").read_bytes() == manifest


def test_nightly__chance_is_in_the_files_and_explained(world):
    quals = open_qualifications(world.qualifications_folder(day(5)))
    frame = quals.to_pandas()
    assert ((frame["chance"] > 0) & (frame["chance"] < 1)).all()
    assert quals.counts.expected == pytest.approx(frame["chance"].sum(), rel=1e-5)
    user = frame["user_id"].iloc[0]
    explained = explain_user(world, None, str(user))["categories"]
    assert [entry["chance"] for entry in explained] == frame[frame["user_id"] == user]["chance"].tolist()
    assert re.search(r"score [+-]\d+\.\d+, click probability [\d.e-]+ %$", describe_entry(explained[0])[0])


def test_nightly__opt_outs_are_kept_and_unknown_users_said(client, small_world, tmp_path):
    site = copy_world(small_world, tmp_path)
    nightly(Night(client, site, config_of(), day(5)))
    before = open_qualifications(site.qualifications_folder(day(5))).to_pandas()
    user, category = before["user_id"].iloc[0], before["category"].iloc[0]
    path = site.path / "out.csv"
    path.write_text(f"user_id,category\n{user},{category}\n17,{category}\n")
    config = config_of(score={"opt_out": "out.csv"})
    with pytest.raises(BadInput, match="were written from other input"):
        nightly(Night(client, site, config, day(5)))
    facts = nightly(Night(client, site, config, day(5)), rebuild=True)
    assert facts["opt-outs"] == "of 1 user of score.opt_out nothing is known here; the pairs count for nothing"
    after = open_qualifications(site.qualifications_folder(day(5))).to_pandas()
    assert category not in set(after[after["user_id"] == user]["category"])
    assert len(after) == len(before)
    assert after[after["user_id"] != user].equals(before[before["user_id"] != user])
    path.write_text(f"{user},nowhere\n")
    with pytest.raises(BadInput, match=r"out\.csv, line 1: there is no ranked category 'nowhere'; known ones are "):
        nightly(Night(client, site, config, day(5)))
    path.unlink()
    with pytest.raises(BadInput, match=r"score\.opt_out must name a file of pairs, found none at"):
        nightly(Night(client, site, config, day(5)))


def test_nightly__min_chance_without_chances_is_refused(client, small_world, tmp_path):
    site = copy_world(small_world, tmp_path)
    sentence = (
        "score.min_chance needs click probabilities, and there are none: 28 validation users are fewer than the 100"
        " that click probabilities need; set it to null"
    )
    with pytest.raises(BadInput, match=re.escape(sentence)):
        nightly(Night(client, site, config_of(score={"min_chance": 0.01}), day(5)))


def test_nightly__too_few_held_out_users_have_no_chances_and_it_says_so(client, small_world, tmp_path):
    site = copy_world(small_world, tmp_path)
    facts = nightly(Night(client, site, config_of(), day(5)))
    assert facts["chances"] == "none: 28 validation users are fewer than the 100 that click probabilities need"
    assert "chances" not in site.current().runs
    assert not site.finished_runs("chances")


def test_nightly__chances_are_the_same_bytes_elsewhere(world, elsewhere, tmp_path):
    (tmp_path / "lake").symlink_to(world.path.parent / "lake")
    (tmp_path / "site").mkdir()
    other = Site(tmp_path / "site")
    nightly(Night(elsewhere, other, config_of(gate=FEW), day(5)))
    assert other.current().runs == world.current().runs
    assert other.digest() == world.digest()


def test_load_chances__are_what_was_learnt(client, world):
    run = chances_run(world)
    chances = load_chances(run)
    model = load_model(world.path / world.current().runs["model"])
    features = open_features(world.path / world.current().runs["features"])
    part = features.partition(0, variant=model.variant_, normalize=model.normalize_rows)
    scores = model.decision_function(part.X)[:, 7]
    order = np.argsort(scores)
    chance = chances.apply(scores, np.full(len(scores), 7), np.zeros(len(scores)))
    assert (np.diff(chance[order])[np.diff(scores[order]) > 0] > 0).all()
    assert ((chance > 0) & (chance < 1)).all()
