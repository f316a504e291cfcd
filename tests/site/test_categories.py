"""A taxonomy that changes: categories and nodes that come, move, get other names, become one or go."""

import shutil

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from begun import IDS, LAST, assert_same_runs, current_run, reverse, tables_of
from lakes import TAXONOMY, At, date_of, event, good_events, write_events
from lakes import write_taxonomy as write_pairs

from ammrank_dask.ingest.interest_state import InterestState
from ammrank_dask.storage.objects.atomic import read_json
from ammrank_dask.storage.store.manifests import ModelManifest, QualificationsManifest
from ammrank_dask.storage.store.registry import STATE
from ammrank_dask.workflows.stages.models import load_site_model

pytestmark = pytest.mark.night

GROWN = (*TAXONOMY, ("Sandals", "Shoes"), ("Caps", "Retail"))
"""With a node below a ranked category, and one more of these."""


def test_nightly__new_categories_pass_and_are_told(world):
    write_pairs(world.lake, GROWN)
    seen = [event(IDS[0], "pv", "Caps"), event(IDS[1], "sq", "Sandals")]
    write_events(world.lake, LAST, seen, file="new.parquet")
    facts = world.nightly()
    assert facts["new categories"] == "Caps"
    assert facts["new nodes below categories"] == "Sandals"
    assert facts["scored by the lowest prior beside them"] == "Caps"
    assert "training" not in facts
    site = world.site
    summary = read_json(site.report_folder(date_of(LAST)) / "summary.json")
    assert summary["changed_categories"] == {"new categories": ["Caps"], "new nodes below categories": ["Sandals"]}
    page = (site.report_folder(date_of(LAST)) / "report.html").read_text()
    assert "New categories: Caps." in page
    assert "Nobody has clicked Caps yet: scored by the lowest prior" in page
    clean = world.clean()
    assert_same_runs(site, clean)
    assert current_run(site, "features").manifest["config"]["categories"] == ["Caps", "Flights", "Hats", "Shoes"]


def test_nightly__a_new_category_has_the_lowest_prior_of_its_siblings(world):
    before = load_site_model(current_run(world.site, "model"))
    write_pairs(world.lake, GROWN)
    world.nightly()
    after = load_site_model(current_run(world.site, "model"))
    prior = dict(zip(before.categories_, before.basis_.prior, strict=True))
    assert after.categories_ == ["Caps", "Flights", "Hats", "Shoes"]
    assert after.basis_.prior.tolist() == [
        min(prior["Hats"], prior["Shoes"]), prior["Flights"], prior["Hats"], prior["Shoes"],
    ]  # fmt: skip
    assert after.n_planes_.tolist() == [0, *before.n_planes_]
    # Where nothing of the new category is in a row, the others score as they did.
    rows = np.random.default_rng(3).random((20, before.n_features_in_)).astype(np.float32)
    wider = np.zeros((20, after.n_features_in_), np.float32)
    wider[:, [after.columns_.index(name) for name in before.columns_]] = rows
    np.testing.assert_array_equal(after.decision_function(wider)[:, 1:], before.decision_function(rows))


def test_nightly__the_first_clicks_on_a_new_category_train(world):
    write_pairs(world.lake, GROWN)
    world.nightly()
    clicks = [event(user, "adc", "Caps", At(3 + user % 7)) for user in IDS]
    write_events(world.lake, LAST + 1, [*good_events(IDS, 2), *clicks])
    facts = world.nightly(day=LAST + 1)
    assert facts["training"] == "30 users"
    assert "new categories" not in facts
    assert "scored by the lowest prior beside them" not in facts
    model = current_run(world.site, "model")
    assert ModelManifest.of(model).new_categories == []
    assert load_site_model(model).popularity_[0] > 0
    write_events(world.lake, LAST + 2, good_events(IDS, 2))
    assert "training" not in world.nightly(day=LAST + 2)


def similar_of(facts):
    return next(check for check in facts["checks"] if check["name"] == "similar_categories")


def test_nightly__similar_categories_are_warned_of_and_published(world):
    decomposed = "Fli\u0301ghts"
    write_pairs(world.lake, (*TAXONOMY, ("hats ", "Retail"), ("Fl\u00edghts", "Travel")))
    write_events(world.lake, LAST, [event(IDS[0], "pv", decomposed)], file="unknown.parquet")
    facts = world.nightly(publish={"hold": ["used_share"]})
    check = similar_of(facts)
    assert (check["status"], check["value"]) == ("warn", 2)
    assert check["what"].endswith(": 'Fli\\u0301ghts' and 'Fl\\xedghts', 'Hats' and 'hats '")
    assert world.site.is_published(date_of(LAST))
    page = (world.site.report_folder(date_of(LAST)) / "report.html").read_text()
    assert "&#39;Hats&#39; and &#39;hats &#39;" in page


def test_nightly__names_that_categories_makes_one_are_not_warned_of(world):
    write_pairs(world.lake, (*TAXONOMY, ("hats ", "Retail")))
    facts = world.nightly(categories={"hats ": "Hats"})
    assert (similar_of(facts)["status"], similar_of(facts)["value"]) == ("ok", 0)
    summary = read_json(world.site.report_folder(date_of(LAST)) / "summary.json")
    assert "similar_categories" not in summary["input"]


def test_nightly__a_renamed_category_keeps_its_past(world):
    renames = {"Hats": "Accessories"}
    facts = world.nightly(categories=renames)
    assert facts["renamed categories"] == "Hats is Accessories"
    assert next(check["value"] for check in facts["checks"] if check["name"] == "click_shares") == 0
    assert "new categories" not in facts
    assert "training" not in facts
    site, clean = world.site, world.clean(categories=renames)
    assert_same_runs(site, clean)
    assert QualificationsManifest.of(current_run(site, "qualifications")).categories == [
        "Accessories",
        "Flights",
        "Shoes",
    ]
    before = tables_of(site, date_of(LAST - 1))
    facts = world.nightly(day=LAST - 1)  # the night before again: it is of the categories of then
    assert (facts["unchanged"], facts["categories"].partition(";")[0]) == (True, "those of then")
    assert tables_of(site, date_of(LAST - 1)) == before


def test_nightly__opt_outs_may_have_the_former_name(world):
    (world.path / "pairs.csv").write_text(f"{IDS[0]},Hats\n{IDS[1]},Accessories\n")
    world.nightly(categories={"Hats": "Accessories"}, score={"opt_out": "../pairs.csv"})
    rows = pq.read_table(world.site.qualifications_folder(date_of(LAST)) / "by_user").to_pylist()
    holders = {row["user_id"] for row in rows if row["category"] == "Accessories"}
    assert holders
    assert not holders & set(IDS[:2])


def test_nightly__the_lake_may_have_the_new_name_already(world):
    write_pairs(world.lake, [(name.replace("Hats", "Accessories"), parent) for name, parent in TAXONOMY])
    days = f"that concerns its {LAST} days, from {date_of(0)} to {date_of(LAST - 1)}"
    world.refused(
        rf"'Hats' was a category, which the taxonomy no longer has; {days}; say under categories what became of it,"
        r" \{Hats: NEW NAME\}, or null to count it no more, or rebuild with `"
    )
    world.nightly(categories={"Hats": "Accessories"})
    assert_same_runs(world.site, world.clean(categories={"Hats": "Accessories"}), "head")


def test_nightly__merged_categories_add_up(world):
    merged = {"Hats": "Shoes"}
    world.nightly(categories=merged)
    site, clean = world.site, world.clean(categories=merged)
    heads = [current_run(of, "head") for of in (site, clean)]
    for partition in range(heads[0].n_parts):
        one, other = (InterestState.from_arrays(head.part(partition).read(STATE)) for head in heads)
        for name in ("indptr", "cell", "last"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
        # Sums that were rounded apart are added: what a merge cannot give are the last bits. A rebuild can.
        np.testing.assert_allclose(one.intensity, other.intensity, rtol=1e-14)
    model = load_site_model(current_run(site, "model"))
    assert model.categories_ == ["Flights", "Shoes"]
    assert model.basis_.prior.shape == (2,)
    world.nightly("--rebuild")
    assert_same_runs(site, clean)


def test_nightly__a_category_may_be_counted_no_more(world):
    facts = world.nightly(categories={"Flights": None})
    assert facts["categories counted no more"] == "Flights"
    site = world.site
    assert_same_runs(site, world.clean(categories={"Flights": None}), "head")
    table = pq.read_table(site.qualifications_folder(date_of(LAST)) / "by_user")
    assert set(table["category"].to_pylist()) == {"Hats", "Shoes"}


def test_nightly__a_moved_node_is_refused_with_its_days(world):
    pairs = [(name, "Hats" if name == "Boots" else parent) for name, parent in TAXONOMY]
    write_pairs(world.lake, pairs)
    days = f"concerns its 6 days, from {date_of(0)} to {date_of(LAST - 1)}; rebuild with `ammrank ingest"
    world.refused(f"'Boots' counted for 'Shoes' and counts for 'Hats' now; that {days}")


def test_nightly__a_compacted_day_is_known_after_a_category_came(world):
    write_pairs(world.lake, GROWN)
    world.rewrite(1, reverse)
    facts = world.nightly()
    assert "corrected days" not in facts
    write_events(world.lake, LAST + 1, good_events(IDS, 2))
    assert "corrected days" not in world.nightly(day=LAST + 1)


def test_nightly__a_corrected_day_is_counted_with_the_taxonomy_of_now(world):
    write_pairs(world.lake, GROWN)
    write_events(world.lake, LAST - 1, [event(IDS[0], "pv", "Caps")], file="late.parquet")
    assert world.nightly()["corrected days"] == str(date_of(LAST - 1))
    assert_same_runs(world.site, world.clean(), "head")


def test_nightly__a_correction_of_many_rows_of_a_new_category_is_no_garbage(world):
    write_pairs(world.lake, GROWN)
    write_events(world.lake, LAST - 1, [event(user, "pv", "Caps") for user in IDS], file="late.parquet")
    assert world.nightly()["corrected days"] == str(date_of(LAST - 1))
    assert_same_runs(world.site, world.clean(), "head")


def test_nightly__a_user_who_was_forgotten_after_a_category_came_may_leave_the_lake(world):
    write_pairs(world.lake, GROWN)
    world.nightly()
    (world.path / "users.txt").write_text(f"{IDS[0]}")
    world.run("forget", "--users", world.path / "users.txt")
    for day in range(LAST + 1):
        world.rewrite(day, lambda table: table.filter(pc.not_equal(table["user_id"], IDS[0])))
    write_events(world.lake, LAST + 1, good_events(IDS[1:], 2))
    facts = world.nightly(day=LAST + 1)
    assert not {"corrected days", "changed days kept as folded"} & set(facts)
    assert_same_runs(world.site, world.clean(day=LAST + 1), "head")


def test_nightly__the_past_of_the_lake_may_have_the_new_name(world):
    """Renamed in the taxonomy, in the config and in all files, in the same night."""
    write_pairs(world.lake, [(name.replace("Hats", "Accessories"), parent) for name, parent in TAXONOMY])
    for day in range(LAST + 1):
        world.rewrite(
            day,
            lambda table: table.set_column(
                2, "category", pc.replace_substring(table["category"], "Hats", "Accessories")
            ),
        )
    facts = world.nightly(categories={"Hats": "Accessories"})
    assert not {"corrected days", "changed days kept as folded"} & set(facts)
    assert_same_runs(world.site, world.clean(categories={"Hats": "Accessories"}))


@pytest.mark.parametrize(
    ("renames", "sentence"),
    [
        ({"Hats": "Shoes", "Shoes": "Hats"}, "categories: Hats -> Shoes -> Hats is a cycle"),
        ({"Hats": "Hats"}, "categories: Hats -> Hats is a cycle"),
        ({"Nothing": "Nowhere"}, "categories: 'Nothing' became 'Nowhere', which .* does not have"),
    ],
)
def test_nightly__renames_that_lead_nowhere_are_refused(world, renames, sentence):
    world.refused(sentence, categories=renames)


def test_nightly__taxonomies_are_kept_while_something_names_them(world):
    folder = world.site.path / "taxonomies"
    (first,) = folder.iterdir()
    (folder / f"{'0' * 16}.json").write_text("{}")  # of a night that ended before it counted anything
    write_pairs(world.lake, GROWN)
    world.nightly()
    second = {current_run(world.site, "head").manifest["config"]["taxonomy"]}
    assert {path.stem for path in folder.iterdir()} == {first.stem} | second
    # When the days that were counted with the first one are gone, as `keep_days` does it, nothing names it.
    shutil.rmtree(world.site.path / "days")
    world.nightly("--rebuild")
    assert {path.stem for path in folder.iterdir()} == second
