"""A taxonomy that changes: categories and nodes that come, move, get other names, become one or go."""

import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from lakes import TAXONOMY, At, date_of, event, event_folder, good_events, write_events, write_lake, write_site
from lakes import write_taxonomy as write_pairs

from ammrank_dask.ingest.interest_state import InterestState
from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.site.site import Site
from ammrank_dask.storage.store.atomic import read_json
from ammrank_dask.storage.store.manifests import ModelManifest, QualificationsManifest
from ammrank_dask.storage.store.registry import FEATURES, STATE
from ammrank_dask.storage.store.runs import open_run
from ammrank_dask.workflows.session.config import load_config
from ammrank_dask.workflows.session.night import Night
from ammrank_dask.workflows.stages.models import load_site_model
from ammrank_dask.workflows.stages.nightly import nightly

LAST = 5
IDS = list(range(101, 131))
CONFIG = {"features": {"min_days": 1}, "train": {"shards": 1, "epochs": 1}, "score": {"k": 2}}
GROWN = (*TAXONOMY, ("Sandals", "Shoes"), ("Caps", "Retail"))
"""With a node below a ranked category, and one more of these."""


@pytest.fixture(scope="module")
def begun(client, tmp_path_factory):
    """A world whose nights up to the last but one are published; the events of the last one are there."""
    world = tmp_path_factory.mktemp("world")
    lake = write_lake(world / "lake", n_days=LAST + 1, ids=IDS, repeat=2)
    site = write_site(world / "site", lake, **CONFIG)
    site.config_path.write_text(site.config_path.read_text().replace(str(lake), "../lake"))
    nightly(Night(client, site, load_config(site.config_path), date_of(LAST - 1)))
    return world


@pytest.fixture
def world(begun, tmp_path):
    shutil.copytree(begun, tmp_path / "world")
    return tmp_path / "world"


def run(client, world, day=LAST, **settings):
    site = Site(world / "site")
    if settings:
        site.config_path.write_text(yaml.safe_dump({**yaml.safe_load(site.config_path.read_text()), **settings}))
    return nightly(Night(client, site, load_config(site.config_path), date_of(day)))


def run_clean(client, world, **settings):
    """Run the last night on a new site with the lake as it is now; return the site."""
    clean = write_site(world / "clean", world / "lake", **CONFIG, **settings)
    nightly(Night(client, clean, load_config(clean.config_path), date_of(LAST)))
    return clean


def current(site, role):
    return open_run(site.path / site.current().runs[role])


def rows_of(site, role, schema):
    run = current(site, role)
    return [run.part(number).read(schema) for number in range(run.n_parts)]


def assert_same_parts(one, other, role, schema):
    for mine, theirs in zip(rows_of(one, role, schema), rows_of(other, role, schema), strict=True):
        assert mine.keys() == theirs.keys()
        for name in mine:
            np.testing.assert_array_equal(mine[name], theirs[name], err_msg=name)


def test_nightly__new_categories_pass_and_are_told(client, world):
    write_pairs(world / "lake", GROWN)
    seen = [event(IDS[0], "pv", "Caps"), event(IDS[1], "sq", "Sandals")]
    write_events(world / "lake", LAST, seen, file="new.parquet")
    facts = run(client, world)
    assert facts["new categories"] == "Caps"
    assert facts["new nodes below categories"] == "Sandals"
    assert facts["scored by the lowest prior beside them"] == "Caps"
    assert "training" not in facts
    site = Site(world / "site")
    summary = read_json(site.report_folder(date_of(LAST)) / "summary.json")
    assert summary["changed_categories"] == {"new categories": ["Caps"], "new nodes below categories": ["Sandals"]}
    page = (site.report_folder(date_of(LAST)) / "report.html").read_text()
    assert "New categories: Caps." in page
    assert "Nobody has clicked Caps yet: scored by the lowest prior" in page
    clean = run_clean(client, world)
    assert_same_parts(site, clean, "head", STATE)
    assert_same_parts(site, clean, "features", FEATURES)
    assert current(site, "features").manifest["config"]["categories"] == ["Caps", "Flights", "Hats", "Shoes"]


def test_nightly__a_new_category_has_the_lowest_prior_of_its_siblings(client, world):
    before = load_site_model(current(Site(world / "site"), "model"))
    write_pairs(world / "lake", GROWN)
    run(client, world)
    after = load_site_model(current(Site(world / "site"), "model"))
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


def test_nightly__the_first_clicks_on_a_new_category_train(client, world):
    write_pairs(world / "lake", GROWN)
    run(client, world)
    clicks = [event(user, "adc", "Caps", At(3 + user % 7)) for user in IDS]
    write_events(world / "lake", LAST + 1, [*good_events(IDS, 2), *clicks])
    facts = run(client, world, day=LAST + 1)
    assert facts["training"] == "30 users"
    assert "new categories" not in facts
    assert "scored by the lowest prior beside them" not in facts
    model = current(Site(world / "site"), "model")
    assert ModelManifest.of(model).new_categories == []
    assert load_site_model(model).popularity_[0] > 0
    write_events(world / "lake", LAST + 2, good_events(IDS, 2))
    assert "training" not in run(client, world, day=LAST + 2)


def test_nightly__a_renamed_category_keeps_its_past(client, world):
    renames = {"Hats": "Accessories"}
    facts = run(client, world, categories=renames)
    assert facts["renamed categories"] == "Hats is Accessories"
    assert "new categories" not in facts
    assert "training" not in facts
    site, clean = Site(world / "site"), run_clean(client, world, categories=renames)
    assert_same_parts(site, clean, "head", STATE)
    assert_same_parts(site, clean, "features", FEATURES)
    assert QualificationsManifest.of(current(site, "qualifications")).categories == ["Accessories", "Flights", "Shoes"]


def test_nightly__the_lake_may_have_the_new_name_already(client, world):
    write_pairs(world / "lake", [(name.replace("Hats", "Accessories"), parent) for name, parent in TAXONOMY])
    with pytest.raises(
        BadInput, match=r"'Hats' was a category, .* under categories what became of it, \{Hats: NEW NAME\}"
    ):
        run(client, world)
    run(client, world, categories={"Hats": "Accessories"})
    assert_same_parts(Site(world / "site"), run_clean(client, world, categories={"Hats": "Accessories"}), "head", STATE)


def test_nightly__merged_categories_add_up(client, world):
    merged = {"Hats": "Shoes"}
    run(client, world, categories=merged)
    site, clean = Site(world / "site"), run_clean(client, world, categories=merged)
    for mine, theirs in zip(rows_of(site, "head", STATE), rows_of(clean, "head", STATE), strict=True):
        one, other = InterestState.from_arrays(mine), InterestState.from_arrays(theirs)
        for name in ("indptr", "cell", "last"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
        np.testing.assert_allclose(one.intensity, other.intensity, rtol=1e-12)
    model = load_site_model(current(site, "model"))
    assert model.categories_ == ["Flights", "Shoes"]
    assert model.basis_.prior.shape == (2,)


def test_nightly__a_category_may_be_counted_no_more(client, world):
    facts = run(client, world, categories={"Flights": None})
    assert facts["categories counted no more"] == "Flights"
    site = Site(world / "site")
    assert_same_parts(site, run_clean(client, world, categories={"Flights": None}), "head", STATE)
    table = pq.read_table(site.qualifications_folder(date_of(LAST)) / "by_user")
    assert set(table["category"].to_pylist()) == {"Hats", "Shoes"}


def test_nightly__a_moved_node_is_refused_with_its_days(client, world):
    pairs = [(name, "Hats" if name == "Boots" else parent) for name, parent in TAXONOMY]
    write_pairs(world / "lake", pairs)
    days = f"concerns its 5 days, from {date_of(0)} to {date_of(LAST - 1)}; rebuild with `ammrank ingest"
    with pytest.raises(BadInput, match=f"'Boots' counted for 'Shoes' and counts for 'Hats' now; that {days}"):
        run(client, world)
    assert Site(world / "site").current().date == date_of(LAST - 1)


def test_nightly__a_compacted_day_is_known_after_a_category_came(client, world):
    write_pairs(world / "lake", GROWN)
    folder = event_folder(world / "lake", 1)
    table = pa.concat_tables(pq.read_table(path, partitioning=None) for path in sorted(folder.iterdir()))
    shutil.rmtree(folder)
    folder.mkdir()
    pq.write_table(table.slice(0, table.num_rows), folder / "compacted.parquet", row_group_size=7)
    facts = run(client, world)
    assert "corrected days" not in facts
    write_events(world / "lake", LAST + 1, good_events(IDS, 2))
    assert "corrected days" not in run(client, world, day=LAST + 1)


def test_nightly__a_corrected_day_is_counted_with_the_taxonomy_of_now(client, world):
    write_pairs(world / "lake", GROWN)
    write_events(world / "lake", LAST - 1, [event(IDS[0], "pv", "Caps")], file="late.parquet")
    assert run(client, world)["corrected days"] == str(date_of(LAST - 1))
    assert_same_parts(Site(world / "site"), run_clean(client, world), "head", STATE)


@pytest.mark.parametrize(
    ("renames", "sentence"),
    [
        ({"Hats": "Shoes", "Shoes": "Hats"}, "categories: Hats -> Shoes -> Hats is a cycle"),
        ({"Hats": "Hats"}, "categories: Hats -> Hats is a cycle"),
        ({"Nothing": "Nowhere"}, "categories: 'Nothing' became 'Nowhere', which .* does not have"),
    ],
)
def test_nightly__renames_that_lead_nowhere_are_refused(client, world, renames, sentence):
    with pytest.raises(BadInput, match=sentence):
        run(client, world, categories=renames)
