"""Scoring on a site: who is left out, what is kept from whom, why a user got what, and what is refused."""

import datetime as dt
import json
import re
import shutil

import nights
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from click.testing import CliRunner
from damage import flip_entry, part_path
from nights import copy_world, day

from ammrank_dask.features.store import open_features
from ammrank_dask.model.saved import load_model
from ammrank_dask.scoring.qualifications import open_qualifications
from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.site.site import Site
from ammrank_dask.storage.store.runs import remove_run
from ammrank_dask.workflows.explain import command as explain_command
from ammrank_dask.workflows.operations.explain import describe_feature, explain_user
from ammrank_dask.workflows.score import command as score_command
from ammrank_dask.workflows.session.config import check_config, write_config
from ammrank_dask.workflows.session.night import Night
from ammrank_dask.workflows.stages.features import score_features, training_features
from ammrank_dask.workflows.stages.ingest import ingest
from ammrank_dask.workflows.stages.models import find_model, find_previous, keep_model, runs_in_use
from ammrank_dask.workflows.stages.nightly import nightly
from ammrank_dask.workflows.stages.score import score_users
from ammrank_dask.workflows.stages.train import train_model

pytestmark = pytest.mark.night

NIGHT = day(5)
CONFIG = {
    **nights.CONFIG,
    "score": {"k": 4},
}


def config_of(**score):
    return check_config({**CONFIG, "score": {"k": 4, **score}}, "test")


@pytest.fixture(scope="module")
def world(client, small_world, tmp_path_factory):
    """A lake, and a site after one night."""
    site = copy_world(small_world, tmp_path_factory.mktemp("world"))
    site.config_path.write_text(write_config(config_of()))
    nightly(Night(client, site, config_of(), NIGHT))
    return site


@pytest.fixture
def place(world, tmp_path):
    """A copy of the site that a test may change."""
    return copy_world(world, tmp_path)


@pytest.fixture
def fresh(world, tmp_path):
    """A site on the same lake without any night."""
    (tmp_path / "lake").symlink_to(world.path.parent / "lake")
    (tmp_path / "site").mkdir()
    return Site(tmp_path / "site")


def users_of(run):
    features = open_features(run.path)
    return {u for i in range(features.n_partitions) for u in features.partition(i).user_ids.to_arrow().to_pylist()}


def all_users(world):
    return pq.read_table(world.path.parent / "lake" / "users.parquet")["user_id"].to_pylist()


@pytest.mark.parametrize("form", ["txt", "csv", "parquet"])
def test_suppress__users_are_in_no_features_and_no_qualifications(client, world, fresh, form):
    out = all_users(world)[::3]
    path = fresh.path / f"out.{form}"
    if form == "parquet":
        pq.write_table(pa.table({"user_id": out}), path)
    else:
        path.write_text(("user_id\n" if form == "csv" else "") + "".join(f"{user}\n" for user in [*out, out[0]]))
    config = config_of(suppress=path.name)
    facts = nightly(Night(client, fresh, config, NIGHT))
    known = ingest(Night(client, fresh, config, NIGHT))
    assert users_of(score_features(Night(client, fresh, config, known.date), known)) == set(all_users(world)) - set(out)
    trained = users_of(training_features(Night(client, fresh, config, known.date), known))
    assert trained
    assert not trained & set(out)
    quals = open_qualifications(fresh.qualifications_folder(NIGHT))
    assert set(quals.to_pandas()["user_id"]) == set(all_users(world)) - set(out)
    assert facts["users"] == quals.facts["users"] == 300 - len(out)
    assert not [path for path in fresh.path.rglob("*.json*") if re.search(rf"\b{out[1]}\b", path.read_text())]


def test_suppress__an_empty_list_leaves_nobody_out(client, world, fresh):
    (fresh.path / "out.txt").write_text("\n")
    known = ingest(Night(client, fresh, config_of(), NIGHT))
    run = score_features(Night(client, fresh, config_of(suppress="out.txt"), known.date), known)
    assert users_of(run) == set(all_users(world))


def test_suppress__a_changed_list_needs_a_rebuild(client, place):
    (place.path / "out.txt").write_text(f"{all_users(place)[0]}\n")
    with pytest.raises(BadInput, match=r"were written from other input; write them again with .* --rebuild"):
        nightly(Night(client, place, config_of(suppress="out.txt"), NIGHT))
    nightly(Night(client, place, config_of(suppress="out.txt"), NIGHT), rebuild=True)
    assert open_qualifications(place.qualifications_folder(NIGHT)).facts["users"] == 299


@pytest.mark.parametrize(
    ("text", "message"),
    [(None, "score.suppress must name a file of user ids, found none at"), ("x1\n", "out.txt, line 1: .* found text")],
)
def test_suppress__a_file_that_cannot_be_read_is_refused(client, fresh, text, message):
    if text:
        (fresh.path / "out.txt").write_text(text)
    known = ingest(Night(client, fresh, config_of(), NIGHT))
    with pytest.raises(BadInput, match=message):
        score_features(Night(client, fresh, config_of(suppress="out.txt"), known.date), known)


def test_exclude_by_group__holds_in_rankings_and_qualifications(client, world, fresh):
    plain = open_qualifications(world.qualifications_folder(NIGHT))
    kept_out = plain.categories[plain.counts.exposure.sum(axis=1).argmax()]
    code = plain.categories.index(kept_out)
    config = config_of(exclude_by_group={"female": [kept_out]})
    nightly(Night(client, fresh, config, NIGHT))
    known = ingest(Night(client, fresh, config, NIGHT))
    features = open_features(score_features(Night(client, fresh, config, known.date), known).path)
    quals = open_qualifications(fresh.qualifications_folder(NIGHT))
    frame = quals.to_pandas()
    gender = {}
    for i in range(features.n_partitions):
        part = features.partition(i)
        gender |= dict(zip(part.user_ids.to_arrow().to_pylist(), part.gender.tolist(), strict=True))
    holders = frame[frame["category"] == kept_out]["user_id"].map(gender)
    assert not (holders == 0).any()
    assert (holders == 1).any()
    assert (frame.groupby("user_id").size() == 4).all()
    training = open_features(training_features(Night(client, fresh, config, known.date), known).path)
    usual = open_features(training_features(Night(client, fresh, config_of(), known.date), known).path)
    for i in range(training.n_partitions):
        part, before = training.partition(i), usual.partition(i)
        women = part.gender == 0
        assert not (part.rankings[women] == code).any()
        # Everything else stays: rankings of others, and of women without the category.
        rows = before.user_ids.positions_of(part.user_ids)
        assert (rows >= 0).all()
        for ranking, row, is_woman in zip(part.rankings, rows, women, strict=True):
            expected = [c for c in before.rankings[row] if c >= 0 and not (is_woman and c == code)]
            assert [c for c in ranking if c >= 0] == expected
        gone = np.setdiff1d(np.arange(len(before.user_ids)), rows)
        assert all({c for c in before.rankings[row] if c >= 0} == {code} for row in gone)


@pytest.mark.parametrize(
    ("score", "message"),
    [
        ({"k": 51}, r"score.k must be between 1 and the number of categories \(50\), got 51"),
        ({"exclude": ["Nothing"]}, "score.exclude: there is no ranked category 'Nothing'"),
        ({"exclude_by_group": {"males": []}}, "score.exclude_by_group: .* 'males'; did you mean 'male'?"),
    ],
)
def test_nightly__refuses_settings_of_score_that_do_not_fit(client, place, score, message):
    before = place.digest()
    with pytest.raises(BadInput, match=message):
        nightly(Night(client, place, config_of(**score), NIGHT + dt.timedelta(1)))
    assert place.digest() == before


def test_score_users__facts_are_there_for_the_policies_of_the_report(world):
    facts = open_qualifications(world.qualifications_folder(NIGHT)).facts
    assert set(facts["policies"]) == {"user_top_k", "category_top_n"}
    per_user, per_category = facts["policies"]["user_top_k"], facts["policies"]["category_top_n"]
    assert np.array(per_user["exposure"]).shape == (50, 4)
    assert np.array(per_category["exposure"]).shape == (50, 1)
    assert per_user["slots"] == per_category["slots"] == 300 * 4
    assert len(per_user["categories_per_user"]) == len(per_category["categories_per_user"]) == 51


def test_score_users__delta_is_against_the_night_before_and_a_back_fill_changes_nothing(client, place):
    later = NIGHT + dt.timedelta(2)
    nightly(Night(client, place, config_of(), later))
    quals = open_qualifications(place.qualifications_folder(later))
    first = open_qualifications(place.qualifications_folder(NIGHT))
    assert quals.run.manifest["inputs"]["previous"] == first.run.digest
    held = {(row.user_id, row.category) for row in first.to_pandas().itertuples(index=False)}
    for part in sorted((quals.path / "delta").iterdir()):
        for row in pq.read_table(part).to_pylist():
            pair = (row["user_id"], row["category"])
            if row["change"] != "changed":
                held.add(pair) if row["change"] == "added" else held.remove(pair)
    assert held == {(row.user_id, row.category) for row in quals.to_pandas().itertuples(index=False)}
    nightly(Night(client, place, config_of(), NIGHT + dt.timedelta(1)))
    assert find_previous(place, later).path.name == f"date={NIGHT + dt.timedelta(1)}"
    before = (quals.path / "manifest.json").read_bytes()
    nightly(Night(client, place, config_of(), later))
    assert (quals.path / "manifest.json").read_bytes() == before


def test_score_users__delta_is_against_the_last_published_night(client, place, monkeypatch):
    def fail(*args, **options):
        raise BadInput("no report")

    with monkeypatch.context() as patched:
        patched.setattr("ammrank_dask.workflows.stages.nightly.write_night_report", fail)
        with pytest.raises(BadInput, match="no report"):
            nightly(Night(client, place, config_of(), NIGHT + dt.timedelta(1)))
    assert place.qualifications_folder(NIGHT + dt.timedelta(1)).is_dir()
    later = NIGHT + dt.timedelta(2)
    nightly(Night(client, place, config_of(), later))
    first, second = (open_qualifications(place.qualifications_folder(night)) for night in (NIGHT, later))
    assert second.run.manifest["inputs"]["previous"] == first.run.digest
    summary = json.loads((place.report_folder(later) / "summary.json").read_text())
    assert summary["drift"]["date"] == str(NIGHT)
    assert place.published_nights() == [NIGHT, later]


def test_runs_in_use__a_damaged_old_night_keeps_all_models(client, place, caplog):
    (model,) = runs_in_use(place, "models", "model")
    other = model.with_name("date=2026-01-02-abc")
    shutil.copytree(model, other)
    old = place.qualifications_folder(NIGHT - dt.timedelta(3))
    old.mkdir()
    (old / "manifest.json").write_text("{")
    place.move(lambda root: root.keep([place.relative(other), place.relative(old)]))
    with caplog.at_level("WARNING"):
        assert sorted(runs_in_use(place, "models", "model")) == [other, model]
    assert "all models are kept: " in caplog.text


def test_score_users__a_model_of_another_taxonomy_is_refused(client, place):
    known = ingest(Night(client, place, config_of(), NIGHT))
    model = find_model(place, NIGHT)
    features = score_features(Night(client, place, config_of(), known.date), known)
    remove_run(place.qualifications_folder(NIGHT))
    broken = load_model(model.path)
    broken.categories_ = [f"other {i}" for i in range(50)]
    written = model.manifest
    model = keep_model(
        place, model.path, model.digest, broken,
        config=written["config"], inputs=written["inputs"], counts=written["facts"],
    )  # fmt: skip
    with pytest.raises(BadInput, match=r"the model must rank the categories of the features .*; train again"):
        score_users(Night(client, place, config_of(), known.date), known, features, model)
    assert not place.qualifications_folder(NIGHT).exists()


def test_score_users__features_with_a_bad_checksum_are_refused(client, place):
    known = ingest(Night(client, place, config_of(), NIGHT))
    features = score_features(Night(client, place, config_of(), known.date), known)
    flip_entry(part_path(features.path, 0), "X/data/c/0")
    remove_run(place.qualifications_folder(NIGHT))
    with pytest.raises(
        BadInput, match=r"is not what was written \(checksum differs\); make it again with `ammrank nightly"
    ):
        score_users(Night(client, place, config_of(), known.date), known, features, find_model(place, NIGHT))


def test_score__without_a_model_says_what_to_run(client, fresh):
    fresh.config_path.write_text(write_config(config_of()))
    kwargs = {"n_workers": 1, "host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}
    cluster = {"version": 1, "class": "distributed.LocalCluster", "kwargs": kwargs}
    (fresh.path / "cluster.yaml").write_text(yaml.safe_dump(cluster))
    done = CliRunner().invoke(score_command, [str(fresh.path), "--date", str(NIGHT), "--quiet"])
    assert done.exit_code == 65
    assert "has no model up to 2026-01-10; run `ammrank train" in done.output


def test_explain_user__adds_up_to_the_published_score(world):
    quals = open_qualifications(world.qualifications_folder(NIGHT))
    for user in all_users(world)[:5]:
        found = explain_user(world, None, str(user), n_features=3)
        frame = quals.to_pandas(users=[user])
        assert [entry["category"] for entry in found["categories"]] == frame["category"].tolist()
        assert [entry["rank"] for entry in found["categories"]] == [1, 2, 3, 4]
        for entry, score in zip(found["categories"], frame["score"], strict=True):
            named = sum(part["contribution"] for part in [*entry["features"], *entry["own"]])
            unnamed = entry["other_features"] + entry["memberships"] + entry["prior"] + entry["constant"]
            assert len(entry["features"]) <= 3
            assert named + unnamed == pytest.approx(score, abs=1e-4)
            assert entry["score"] == pytest.approx(score)
            assert 1 <= entry["plane"] <= entry["planes"]
    assert len(explain_user(world, NIGHT, str(all_users(world)[0]), k=2)["categories"]) == 2


def test_explain__prints_text_or_json(world):
    user = str(all_users(world)[0])
    text = CliRunner().invoke(explain_command, [str(world.path), "--user", user])
    assert CliRunner().invoke(explain_command, [str(world.path), "--user-file", "-"], input=user).output == text.output
    assert CliRunner().invoke(explain_command, [str(world.path), "--any"]).output.count("\n") > 10
    assert text.exit_code == 0, text.output
    head = "night of 2026-01-10, user_top_k, model of 2026-01-10\na score is the sum of its lines; in counts of events,"
    assert text.output.startswith(head)
    categories = re.split(r"\n\n", text.output)[1:]
    assert len(categories) == 4
    for category in categories:
        score = float(re.search(r"^ ?\d+\. .*: score ([+-][\d.]+)", category)[1])
        lines = re.findall(r"^    ([+-]\d+\.\d{3})  (.+)$", category, re.MULTILINE)
        assert sum(float(value) for value, _ in lines) == pytest.approx(score, abs=0.01)
        words = [what for _, what in lines]
        assert words[0] == "how often all users click it"
        assert words[-1] == "everything else"
        own = [what.partition(": ")[0] for what in words if what.startswith("own ")]
        assert len(own) == len(set(own)) <= 5  # one line per event group
    assert re.search(r"  own (ad views|page views|searches): \d+\.\d, the last \d+\.\d days ago", text.output)
    found = CliRunner().invoke(explain_command, [str(world.path), "--user", user, "--json", "-k", "1"])
    content = json.loads(found.output)
    assert set(content) == {"date", "policy", "model", "categories"}
    assert len(content["categories"]) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--user", "999999999"], "the night of 2026-01-10 has no user with that id; check the id"),
        (["--user", "nobody-1"], "user ids of this site are 64-bit integers, found another text after --user"),
        (["--user", "1", "--date", "2026-01-08"], "2026-01-08 was not scored; run `ammrank score"),
    ],
)
def test_explain__refuses_what_is_not_there_and_echoes_no_id(world, arguments, message):
    done = CliRunner().invoke(explain_command, [str(world.path), *arguments])
    assert done.exit_code == 65
    assert message in done.output
    assert arguments[1] not in done.output.replace("2026-01-10", "").replace("64-bit", "") or arguments[1] == "1"


def test_explain__any_user_of_a_night_without_lists(client, place):
    night = Night(client, place, config_of(min_score=1e9), NIGHT)
    known = ingest(night)
    lists = score_users(night, known, score_features(night, known), find_model(place, NIGHT), rebuild=True)
    place.name_lists(lists.path, NIGHT)
    done = CliRunner().invoke(explain_command, [str(place.path), "--any"])
    assert done.exit_code == 65
    assert "no user of the night of 2026-01-10 holds a category; there is nothing to explain" in done.output


def test_explain__nothing_published_or_features_gone(client, place, tmp_path):
    with pytest.raises(BadInput, match="has nothing published yet; run `ammrank nightly"):
        explain_user(Site(tmp_path), None, "1")
    nightly(Night(client, place, config_of(), NIGHT + dt.timedelta(1)))
    with pytest.raises(BadInput, match="the features from which 2026-01-10 was scored are not kept any more"):
        explain_user(place, NIGHT, str(all_users(place)[0]))


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("olc:intensity:a:b", np.log1p(2.0), "sponsored link clicks in a:b: 2.0, older ones count less"),
        ("own:recency:x", 0.5, "own events in x: the last 1.0 days ago"),
        ("age:65+", 1.0, "age 65+"),
        ("gender:male", 1.0, "gender male"),
        ("plain", 3.0, "plain"),
    ],
)
def test_describe_feature__in_words(column, value, words):
    assert describe_feature(column, value, {"intensity": "log1p", "alpha": 0.5}) == words


def test_train_model__still_learns_with_limits(client, fresh, world):
    category = open_qualifications(world.qualifications_folder(NIGHT)).categories[0]
    config = config_of(exclude_by_group={"13-17": [category], "unknown-age": [category]})
    known = ingest(Night(client, fresh, config, NIGHT))
    assert (
        train_model(
            Night(client, fresh, config, known.date),
            known,
            training_features(Night(client, fresh, config, known.date), known),
        ).manifest["facts"]["planes"]
        > 0
    )
