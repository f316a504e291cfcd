"""The balanced policy in the nightly: what a site writes, what it says, and what it refuses."""

import json
import re

import numpy as np
import pandas as pd
import pytest
from markupsafe import escape
from nights import config_of, copy_world, day

from ammrank_dask.scoring.qualifications import open_qualifications
from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.site.site import Site
from ammrank_dask.workflows.operations.explain import describe_entry, explain_user
from ammrank_dask.workflows.session.night import Night
from ammrank_dask.workflows.stages.nightly import nightly

pytestmark = pytest.mark.night

FEW = {"min_users": 10}
BALANCED = {"k": 4, "policy": "balanced"}


@pytest.fixture(scope="module")
def world(client, small_world, tmp_path_factory):
    """A site after a balanced night; nobody changes it."""
    site = copy_world(small_world, tmp_path_factory.mktemp("balanced"))
    nightly(Night(client, site, config_of(gate=FEW, score=BALANCED), day(5)))
    return site


def summary_of(site, number):
    return json.loads((site.report_folder(day(number)) / "summary.json").read_text())


def test_nightly__balanced_starves_nobody_and_says_what_it_costs(world):
    quals = open_qualifications(world.qualifications_folder(day(5)))
    assert set(quals.to_pandas().groupby("user_id").size()) == {4}
    summary = summary_of(world, 5)
    measures = summary["policies"]["balanced"]
    assert (measures["starved_users"], measures["overexposed_users"], measures["starved_categories"]) == (0, 0, 0)
    assert summary["policies"]["user_top_k"]["starved_categories"] > 0
    assert -1e-9 <= measures["gap"] <= 1e-3
    assert measures["expected_clicks"] <= summary["policies"]["user_top_k"]["expected_clicks"] * 1.5
    for row in summary["categories"]:
        assert row["floor"] <= row["exposure"] <= row["cap"]
        assert row["floor"] >= 1
    prices = np.array([row["price"] for row in summary["categories"]])
    assert (prices != 0).any()
    assert measures["gap"] == quals.facts["policies"]["balanced"]["gap"]
    page = (world.report_folder(day(5)) / "report.html").read_text()
    assert "duality gap" in page
    assert "expected clicks: sum of click probabilities" in page
    assert (world.report_folder(day(5)) / "exposure.csv").read_text().splitlines()[0].endswith("price,floor,cap,psi")


def test_nightly__balanced_is_the_same_bytes_elsewhere(world, two_processes, tmp_path):
    (tmp_path / "lake").symlink_to(world.path.parent / "lake")
    (tmp_path / "site").mkdir()
    other = Site(tmp_path / "site")
    nightly(Night(two_processes, other, config_of(gate=FEW, score=BALANCED), day(5)))
    assert other.digest() == world.digest()


def test_nightly__prices_of_the_night_before_start_the_next(client, world, tmp_path):
    site = copy_world(world, tmp_path)
    nightly(Night(client, site, config_of(gate=FEW, score=BALANCED), day(6)))
    first, second = (summary_of(site, number)["policies"]["balanced"] for number in (5, 6))
    assert second["starved_categories"] == 0
    assert second["gap"] <= 1e-3
    assert second["passes"] <= first["passes"]


def test_nightly__a_category_nobody_may_hold_is_not_starved(client, world, tmp_path):
    (tmp_path / "lake").symlink_to(world.path.parent / "lake")
    (tmp_path / "site").mkdir()
    site = Site(tmp_path / "site")
    name = summary_of(world, 5)["categories"][0]["category"]
    nightly(Night(client, site, config_of(gate=FEW, score={**BALANCED, "exclude": [name]}), day(5)))
    summary = summary_of(site, 5)
    (row,) = [row for row in summary["categories"] if row["category"] == name]
    assert row["exposure"] == row["floor"] == row["cap"] == 0
    assert not any(measures["starved"] for measures in row["policies"].values())
    assert summary["policies"]["balanced"]["starved_categories"] == 0


@pytest.mark.parametrize(
    ("balanced", "message"),
    [
        ({"floor": 3.0, "cap": 2.0}, "score.balanced: floor must be at least 0 and at most cap, got floor 3 and cap 2"),
        ({"floors": {"nws": 5}}, "score.balanced: floors: there is no ranked category 'nws'; known ones are "),
    ],
)
def test_nightly__bounds_that_make_no_sense_are_refused_before_anything_is_computed(
    client, small_world, tmp_path, balanced, message
):
    site = copy_world(small_world, tmp_path)
    with pytest.raises(BadInput, match=re.escape(message)):
        nightly(Night(client, site, config_of(gate=FEW, score={**BALANCED, "balanced": balanced}), day(1)))
    assert not site.finished_runs("features")


def test_nightly__floors_that_cannot_be_met_are_refused_with_the_numbers(client, world, tmp_path):
    site = copy_world(world, tmp_path)
    name = summary_of(site, 5)["categories"][0]["category"]
    for floors, message in (
        ({name: 301}, f"the floor of {name!r} is 301 users and only 300 may hold it, 1 too few; lower it to 300"),
        (
            {row["category"]: 30 for row in summary_of(site, 5)["categories"]},
            "the floors sum to 1500 users and there are 1200 slots",
        ),
    ):
        config = config_of(gate=FEW, score={**BALANCED, "balanced": {"floors": floors}})
        with pytest.raises(BadInput, match=re.escape(message)):
            nightly(Night(client, site, config, day(6)))


def test_nightly__balanced_without_chances_is_refused(client, small_world, tmp_path):
    site = copy_world(small_world, tmp_path)
    sentence = (
        "score.policy: balanced needs click probabilities, and there are none: 28 validation users are fewer than the"
        " 100 that click probabilities need; set it to user_top_k"
    )
    with pytest.raises(BadInput, match=re.escape(sentence)):
        nightly(Night(client, site, config_of(score=BALANCED), day(5)))


def test_nightly__balanced_beside_another_policy_only_where_there_are_chances(client, small_world, tmp_path):
    site = copy_world(small_world, tmp_path)
    nightly(Night(client, site, config_of(report={"policies": ["balanced"]}), day(5)))
    assert list(summary_of(site, 5)["policies"]) == ["user_top_k"]


def test_nightly__explores_and_tells_how_probable_it_was(client, small_world, tmp_path):
    site = copy_world(small_world, tmp_path)
    config = config_of(gate=FEW, score={**BALANCED, "explore": 0.1})
    facts = nightly(Night(client, site, config, day(5)))
    quals = open_qualifications(site.qualifications_folder(day(5)))
    frame, summary = quals.to_pandas(), summary_of(site, 5)
    drawn, explored = frame[frame["propensity"] < 1], summary["explored"]
    assert len(drawn) == explored["slots"] == 120
    assert explored["expected_clicks"] == pytest.approx(drawn["chance"].sum(), rel=1e-5)
    assert set(drawn["category"]) <= set(explored["categories"])
    assert summary["policies"]["balanced"]["starved_categories"] == 0
    assert summary["earned"] is None
    page = (site.report_folder(day(5)) / "report.html").read_text()
    n_below = len(explored["categories"])
    below = "1 category" if n_below == 1 else f"{n_below} categories"
    what = f"120 slots drawn from {below} that users' own best leave below {'its' if n_below == 1 else 'their'} floor"
    assert facts["exploration"] == explored["what"] == what
    assert escape(what) in page
    user = drawn["user_id"].iloc[0]
    lines = [line for entry in explain_user(site, day(5), str(user))["categories"] for line in describe_entry(entry)]
    assert any(f"drawn by exploration with probability {drawn['propensity'].iloc[0]:.2g}" in line for line in lines)

    nightly(Night(client, site, config, day(8)))
    earned = summary_of(site, 8)["earned"]
    assert (earned["date"], earned["nights"], earned["policy"]) == (str(day(5)), 3, "balanced")
    days = [pd.read_parquet(tmp_path / "lake" / "events" / f"date={day(number)}") for number in (6, 7, 8)]
    events = pd.concat(days)
    clicks = events[events["group"] == "adc"]
    ranked = clicks["category"].str.split("/").str[:2].str.join("/")
    pairs = set(zip(clicks["user_id"], ranked, strict=True))
    is_clicked = np.array([pair in pairs for pair in zip(frame["user_id"], frame["category"], strict=True)])
    for name, support in quals.facts["explored"]["support"].items():
        own = frame["held_by"].str.split().map(lambda names, name=name: name in names).to_numpy(bool)
        surprise = ((is_clicked - frame["chance"]) / frame["inclusion"])[own]
        by_user = surprise.groupby(frame["user_id"][own]).sum().reindex(frame["user_id"].unique(), fill_value=0.0)
        found = earned["policies"][name]
        assert found["clicks"] == pytest.approx(support["expected_clicks"] + by_user.sum(), rel=1e-5)
        assert found["error"] == pytest.approx(by_user.std() * np.sqrt(len(by_user)), rel=1e-5)
        assert found["clicked"] == is_clicked[own].sum()
    assert earned["policies"]["balanced"]["supported"] == earned["policies"]["balanced"]["slots"] == 1200
    page = (site.report_folder(day(8)) / "report.html").read_text()
    assert f"would have earned, {day(5)}" in page
    assert f"{earned['policies']['balanced']['low']:,.0f} to {earned['policies']['balanced']['high']:,.0f}" in page


@pytest.mark.parametrize("explore", [-0.01, 0.6])
def test_config__refuses_to_explore_more_than_half(explore):
    with pytest.raises(BadInput, match=rf"score\.explore: Input should be .* than or equal to 0.*, got {explore}"):
        config_of(score={"explore": explore})
