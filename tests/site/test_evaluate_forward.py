"""`ammrank evaluate` asks forward first: lists made before the last label window, against the clicks in it."""

import json

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from nights import config_of, copy_world, day, simulate_world

from ammrank_dask.evaluation.page import render_evaluation
from ammrank_dask.features.store import open_features
from ammrank_dask.storage.site.verdicts import read_verdict
from ammrank_dask.storage.vocabulary import CLICK_GROUP
from ammrank_dask.training.forward import MEASURES, SIMPLE
from ammrank_dask.workflows.evaluate import command
from ammrank_dask.workflows.operations.evaluate import list_sources
from ammrank_dask.workflows.session.config import write_config
from ammrank_dask.workflows.session.night import Night
from ammrank_dask.workflows.stages.features import training_features
from ammrank_dask.workflows.stages.ingest import ingest
from ammrank_dask.workflows.stages.nightly import nightly

pytestmark = pytest.mark.night

LAST = 15
SOURCES = {*SIMPLE, "amm-rank-plus", "own-logit", "item-knn"}


@pytest.fixture(scope="module")
def empty(client, tmp_path_factory):
    site = simulate_world(client, tmp_path_factory.mktemp("world"), days=LAST + 1)
    site.config_path.write_text(write_config(config_of()), encoding="utf-8")
    return site


def evaluate(site, number, out, cluster_file):
    options = ["--variant", "adv", "--methods", "popularity,own-history", "--folds", 2, "--quiet"]
    arguments = [site.path, "--date", day(number), *options, "--out", out, "--cluster", cluster_file]
    done = CliRunner().invoke(command, list(map(str, arguments)))
    assert done.exit_code == 0, done.output
    return done.output, json.loads((out / "evaluation.json").read_text()), (out / "evaluation.html").read_text()


@pytest.fixture(scope="module")
def evaluated(empty, cluster_file, tmp_path_factory):
    return evaluate(empty, LAST, tmp_path_factory.mktemp("out"), cluster_file)


def test_evaluate__forward_comes_first_everywhere(evaluated):
    output, found, page = evaluated
    forward = found["forward"]
    assert set(forward["sources"]) == SOURCES
    assert (forward["reference"], forward["k"]) == ("own-history", 10)
    assert (forward["from"], forward["to"]) == (str(day(LAST - 2)), str(day(LAST)))
    assert forward["windows"] >= 2
    assert 0 < forward["users"] <= found["source"]["labelled_users"]
    for name, measures in forward["sources"].items():
        assert set(measures) == set(MEASURES)
        keys = {"mean"} if name == "own-history" else {"mean", "difference", "standard_error"}
        assert all(set(entry) == keys for entry in measures.values())
        for measure, entry in measures.items():
            reference = forward["sources"]["own-history"][measure]["mean"]
            assert entry["mean"] - entry.get("difference", 0) == pytest.approx(reference)
    lines = output.splitlines()
    assert lines[0].startswith(f"forward: lists made before {day(LAST - 2)} against the clicks from then to ")
    assert max(map(len, lines[:-1])) <= 100
    assert output.index("amm-rank-plus") < output.index("held-out users of the same window, adv: ")
    assert page.index('data-table="forward"') < page.index("Held-out users of the same window, variant adv")


def test_evaluate__popularity_knows_nothing_of_the_last_window(client, empty, evaluated):
    _, found, _ = evaluated
    night = Night(client, empty, config_of(), day(LAST))
    with empty.exclusive():
        features = open_features(training_features(night, ingest(night)).path)
    clicks = pd.read_parquet(empty.path.with_name("lake") / "events", filters=[("group", "==", CLICK_GROUP)])
    clicks["date"] = pd.to_datetime(clicks["date"].astype(str))
    clicks["category"] = ["/".join(name.split("/")[:2]) for name in clicks["category"]]

    def users_by_category(times, first, last):
        some = clicks[(times >= pd.Timestamp(day(first))) & (clicks["date"] <= pd.Timestamp(day(last)))]
        return some.drop_duplicates(["user_id", "category"])

    # What is popular goes by the time of a click, what is clicked in the window by the day it came with.
    before = users_by_category(clicks["timestamp"].dt.tz_localize(None), LAST - 5, LAST - 3)["category"].value_counts()
    order = sorted(features.categories, key=lambda name: (-before.get(name, 0), features.categories.index(name)))
    asked = [
        part.user_ids.to_pandas()[(part.n_event_features > 0) & (part.rankings >= 0).any(axis=1)]
        for part in (features.partition(number) for number in range(features.n_partitions))
    ]
    users = set(np.concatenate(asked).tolist())
    after = users_by_category(clicks["date"], LAST - 2, LAST)
    after = after[after["user_id"].isin(users)]
    popularity = found["forward"]["sources"]["popularity"]
    assert found["forward"]["users"] == len(users)
    assert popularity["hits"]["mean"] == pytest.approx(after["category"].isin(order[:10]).sum() / len(users))
    assert popularity["precision_1"]["mean"] == pytest.approx((after["category"] == order[0]).sum() / len(users))


def test_evaluate__the_model_is_that_of_the_gate(client, empty, cluster_file, tmp_path):
    site = copy_world(empty, tmp_path)
    config = config_of(gate={"forward": True, "min_users": 1})
    site.config_path.write_text(write_config(config), encoding="utf-8")
    nightly(Night(client, site, config, day(LAST)))
    gate = read_verdict(site, day(LAST)).facts["forward"]
    forward = evaluate(site, LAST, tmp_path / "out", cluster_file)[1]["forward"]
    assert gate["users"] == forward["users"]
    assert forward["reference"] == "own-history"
    for source, name in (("model", "amm-rank-plus"), ("own-history", "own-history"), ("popularity", "popularity")):
        for measure in ("hits", "ndcg"):
            assert gate["sources"][source][measure] == forward["sources"][name][measure]["mean"]
    versus = gate["sources"]["own-history"]
    assert forward["sources"]["amm-rank-plus"]["hits"]["difference"] == pytest.approx(versus["gain"])
    assert forward["sources"]["amm-rank-plus"]["hits"]["standard_error"] == pytest.approx(versus["standard_error"])


def test_evaluate__without_an_earlier_window_a_sentence_says_so(empty, cluster_file, tmp_path):
    output, found, page = evaluate(copy_world(empty, tmp_path), 5, tmp_path / "out", cluster_file)
    reason = (
        "nothing was tried on clicks that are later than all that was learned; that takes an earlier label window of 20"
        " users or more: 12 days of events, train.model amm-rank-plus and train.windows above 1"
    )
    assert found["forward"] == {"reason": reason}
    assert " ".join(output.split()).startswith(f"forward: {reason} held-out users of the same window, adv: ")
    assert f"<p>N{reason[1:]}.</p>" in page
    assert 'data-table="forward"' not in page
    assert "Held-out users of the same window, variant adv" in page


def test_list_sources__by_hand():
    own = {"hits": {"mean": 1.0}, "ndcg": {"mean": 0.5}, "precision_1": {"mean": 0.25}, "disagreement": {"mean": 0.2}}
    model = {name: {"mean": 0.5, "difference": -0.0625, "standard_error": 0.03125} for name in own}
    forward = {
        "from": "2026-01-18", "to": "2026-01-20", "users": 1234, "k": 10, "reference": "own-history", "windows": 2,
        "sources": {"own-history": own, "amm-rank-plus": model},
    }  # fmt: skip
    assert list_sources(forward) == [
        "forward: lists made before 2026-01-18 against the clicks from then to 2026-01-20",
        "  of all 1,234 users with history; beside each measure its difference from",
        "  own-history and ± its standard error, paired by user",
        "  source         hits@10             NDCG@10             ε_dis",
        "  own-history    1.000               0.500               0.2000",
        "  amm-rank-plus  0.500 -0.062±0.031  0.500 -0.062±0.031  0.5000 -0.0625±0.0312",
    ]
    assert list_sources(None) == []


def test_render_evaluation__names_of_sources_are_escaped(evaluated):
    text = json.dumps(evaluated[1]).replace("item-knn", "<script>")
    assert "<script>" not in render_evaluation(json.loads(text))
