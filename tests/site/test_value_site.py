"""Values on a site: lists by value, what the night after shows of them, and guarantees with days."""

import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest
from nights import config_of, copy_world, day

from ammrank_dask.evaluation.backtest import MEASURES
from ammrank_dask.scoring.qualifications import open_qualifications
from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.objects.atomic import read_json
from ammrank_dask.storage.site.reports import PAGE, SUMMARY
from ammrank_dask.workflows.operations.backtest import run_backtest
from ammrank_dask.workflows.session.night import Night
from ammrank_dask.workflows.stages.nightly import nightly

pytestmark = pytest.mark.night

FEW = {"min_users": 10}
BY_VALUE = {"k": 3, "values": "values.csv", "objective": "value"}


@pytest.fixture(scope="module")
def by_clicks(client, small_world, tmp_path_factory):
    """A site after a night by clicks, in which values are only counted; nobody changes it."""
    site = copy_world(small_world, tmp_path_factory.mktemp("value"))
    nightly(Night(client, site, config_of(gate=FEW, score={"k": 3}), day(5)))
    return site


@pytest.fixture
def site(by_clicks, tmp_path):
    site = copy_world(by_clicks, tmp_path)
    names = open_qualifications(site.qualifications_folder(day(5))).categories
    values = 10.0 ** np.random.default_rng(2).uniform(-2, 0, len(names))
    rows = [f'"{name}",{value},' for name, value in zip(names, values.tolist(), strict=True)]
    rows += [f'"{names[0]}",5.0,female', f'"{names[1]}",0,18-20']
    (site.path / "values.csv").write_text("category,value (EUR),group\n" + "\n".join(rows) + "\n", encoding="utf-8")
    return site


def test_nightly__lists_by_value_and_what_they_were_worth(client, site):
    policies = {"policies": ["user_top_k", "category_top_n", "balanced"]}
    config = config_of(gate=FEW, score=BY_VALUE, report=policies)
    by_clicks = open_qualifications(site.qualifications_folder(day(5))).to_pandas()
    nightly(Night(client, site, config, day(5)), rebuild=True)
    quals = open_qualifications(site.qualifications_folder(day(5)))
    frame, names = quals.to_pandas(), quals.categories
    assert "value" not in by_clicks
    assert frame["user_id"].nunique() == by_clicks["user_id"].nunique()
    people = pq.read_table(site.path.parent / "lake" / "users.parquet").to_pandas().set_index("user_id")
    women = frame[(frame["category"] == names[0]) & (frame["user_id"].map(people["gender"]) == "female")]
    np.testing.assert_allclose(women["value"], 5 * women["chance"], rtol=1e-6)
    assert len(women) > 10
    ordered = frame.sort_values(["user_id", "value"], ascending=[True, False], kind="stable")
    assert (ordered["rank"].to_numpy() == frame["rank"].to_numpy()).all()
    summary = read_json(site.report_folder(day(5)) / SUMMARY)
    assert summary["value"] == {"objective": "value", "currency": "EUR"}
    expected = {name: found["expected_value"] for name, found in summary["policies"].items()}
    assert expected["user_top_k"] == pytest.approx(frame["value"].sum(), rel=1e-6)
    assert expected["balanced"] < expected["user_top_k"]
    assert all("expected_value" in entry for entry in summary["fairness"]["floors"])
    page = (site.report_folder(day(5)) / PAGE).read_text(encoding="utf-8")
    assert "expected value: click probability × value, EUR" in page
    assert "What fairness costs in expected value" in page
    nightly(Night(client, site, config, day(8)))
    outcome = read_json(site.report_folder(day(8)) / SUMMARY)["outcome"]
    assert outcome["expected_value"] == pytest.approx(frame["value"].sum(), rel=1e-6)
    assert 0 < outcome["value"] < 5 * outcome["clicked"]
    assert "the clicks were worth" in (site.report_folder(day(8)) / PAGE).read_text(encoding="utf-8")


def test_nightly__leaves_out_the_price_of_fairness_with_many_categories(client, site, monkeypatch):
    monkeypatch.setattr("ammrank_dask.workflows.stages.report.MOST_CATEGORIES", 1)
    nightly(Night(client, site, config_of(gate=FEW, score=BY_VALUE), day(5)), rebuild=True)
    assert read_json(site.report_folder(day(5)) / SUMMARY)["fairness"] is None
    assert "What fairness costs" not in (site.report_folder(day(5)) / PAGE).read_text(encoding="utf-8")


def test_nightly__estimates_value_of_a_night_that_explored(client, site):
    score = {**BY_VALUE, "explore": 0.3, "balanced": {"floor": 1.0}}
    config = config_of(gate=FEW, score=score)
    nightly(Night(client, site, config, day(5)), rebuild=True)
    nightly(Night(client, site, config, day(8)))
    earned = read_json(site.report_folder(day(8)) / SUMMARY)["earned"]["policies"]["user_top_k"]
    assert earned["value_low"] <= earned["value"] <= earned["value_high"]
    assert "by inverse propensity, 95 % interval" in (site.report_folder(day(8)) / PAGE).read_text(encoding="utf-8")


def test_nightly__a_guarantee_holds_on_its_days(client, site):
    before = open_qualifications(site.qualifications_folder(day(5))).to_pandas()
    expected = before.groupby("category", observed=True)["chance"].sum()
    name, clicks = expected.idxmax(), int(0.9 * expected.max())  # fewer than if all users have it
    floors = {name: f"{clicks} clicks from {day(5)} to {day(5)}"}
    config = config_of(gate=FEW, score={**BY_VALUE, "policy": "balanced", "balanced": {"floor": 0.0, "floors": floors}})
    nightly(Night(client, site, config, day(5)), rebuild=True)
    frame = open_qualifications(site.qualifications_folder(day(5))).to_pandas()
    assert frame["chance"][frame["category"] == name].sum() >= clicks * (1 - 1e-6)
    page = (site.report_folder(day(5)) / PAGE).read_text(encoding="utf-8")
    assert f"Guaranteed clicks: {name} " in page
    nightly(Night(client, site, config, day(6)))
    assert "click_floor" not in open_qualifications(site.qualifications_folder(day(6))).manifest.policies["balanced"]


def test_nightly__the_audience_and_what_rules_removed_are_in_the_report(client, site):
    users = open_qualifications(site.qualifications_folder(day(5))).to_pandas()["category"].value_counts()
    least = int(users[users > 0].min()) + 1
    config = config_of(
        gate=FEW, score={"k": 3, "min_audience": least, "exclude_by_group": {"female": [users.index[0]]}}
    )
    nightly(Night(client, site, config, day(5)), rebuild=True)
    quals = open_qualifications(site.qualifications_folder(day(5)))
    after = quals.to_pandas()["category"].value_counts()
    assert not ((after > 0) & (after < least)).any()
    page = (site.report_folder(day(5)) / PAGE).read_text(encoding="utf-8")
    assert "What rules of the config removed" in page
    assert "pairs kept apart by age or gender" in page


def test_run_backtest__has_the_value_of_all_methods(client, site):
    config = config_of(gate=FEW, score=BY_VALUE)
    found = run_backtest(site, config, [day(5)], 1, lambda: (client, lambda *_: None))
    values = {name: means["value"] for name, means in found["means"].items()}
    assert set(found["means"]["policy"]) >= {*MEASURES, "value"}
    assert min(values.values()) >= 0
    assert values["policy"] > 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("category,value\nHat,1\n", "there is no ranked category 'Hat'"),
        (None, "score.values must name a table of category,value, found none at"),
    ],
)
def test_nightly__refuses_a_table_that_it_cannot_use(client, site, text, message):
    path = site.path / "values.csv"
    path.unlink() if text is None else path.write_text(text, encoding="utf-8")
    with pytest.raises(BadInput, match=message):
        nightly(Night(client, site, config_of(gate=FEW, score=BY_VALUE), day(6)))


def test_nightly__the_objective_needs_values_and_chances(client, site, small_world, tmp_path):
    with pytest.raises(BadInput, match=r"score.objective: value needs score.values, found null; name the table"):
        nightly(Night(client, site, config_of(gate=FEW, score={"objective": "value"}), day(6)))
    fresh = copy_world(small_world, tmp_path / "fresh")  # no night before has click probabilities
    shutil.copy(site.path / "values.csv", fresh.path)
    few = config_of(gate={"min_users": 10_000}, score=BY_VALUE)
    with pytest.raises(
        BadInput, match=r"score.objective: value needs click probabilities, and there are none: .* clicks"
    ):
        nightly(Night(client, fresh, few, day(5)))
    floors = {"policy": "balanced", "balanced": {"floors": {open_qualifications(
        site.qualifications_folder(day(5))).categories[0]: "5 clicks"}}}  # fmt: skip
    with pytest.raises(BadInput, match=r"is in clicks, which needs click probabilities, and there are none: "):
        nightly(Night(client, fresh, config_of(gate={"min_users": 10_000}, score=floors), day(5)))
