"""The gate: a new model scores only when the held-out users rank no worse with it."""

import json
import shutil
from dataclasses import replace

import nights
import numpy as np
import pytest
import scipy.sparse as sp
from nights import day, simulate_world

from ammrank_dask import AMMRank
from ammrank_dask.features.store import open_features
from ammrank_dask.features.write import write_features
from ammrank_dask.model.metrics import disagreement_error, top_k_metrics
from ammrank_dask.scoring.qualifications import open_qualifications
from ammrank_dask.storage.site.site import Site
from ammrank_dask.storage.site.verdicts import Verdict, read_verdict, rejected_models, verdict_runs, write_verdict
from ammrank_dask.storage.store.ids import ids_from_values
from ammrank_dask.storage.store.runs import finish_run, open_run, verify_run
from ammrank_dask.training.forward import describe_forward
from ammrank_dask.training.gate import NOBODY, GateResult, compare_models, is_no_worse, measure_model
from ammrank_dask.user_hash import split_of
from ammrank_dask.workflows.operations.status import describe_site
from ammrank_dask.workflows.session.config import check_config
from ammrank_dask.workflows.session.night import Night
from ammrank_dask.workflows.stages.models import find_forward, find_model, find_verdict
from ammrank_dask.workflows.stages.nightly import nightly

CONFIG = {
    **nights.CONFIG,
    "train": {"epochs": 5, "every_nights": 2, "kappa": 50.0},
    "gate": {"min_users": 1, "forward": False},
}
TERRIBLE = {"epochs": 1, "every_nights": 2, "regularization": 1e6, "warm_start": False}


@pytest.fixture(scope="module")
def lake(client, tmp_path_factory):
    return simulate_world(client, tmp_path_factory.mktemp("world"), users=800).path.with_name("lake")


@pytest.fixture(scope="module")
def begun(client, lake):
    """A site whose night 5 trained the first model."""
    site = Site(lake.parent / "begun")
    site.path.mkdir()
    nightly(Night(client, site, check_config(CONFIG, "test"), day(5)))
    return site.path


@pytest.fixture
def place(begun, lake, tmp_path):
    (tmp_path / "lake").symlink_to(lake)
    shutil.copytree(begun, tmp_path / "site")
    return Site(tmp_path / "site")


def one_plane_model(weights):
    """Return a model with one plane per category and no bias."""
    model = AMMRank(bias=0.0, n_categories=len(weights))
    n = len(weights)
    with_bias = np.vstack([np.array(weights, np.float32).T, np.zeros((1, n), np.float32)])
    model.set_planes(with_bias, np.arange(n), np.ones(n, np.int64), n_steps=1)
    return model


def test_measure_block__by_hand():
    # Scores are the features themselves: (3, 2, 1) and (1, 2, 3).
    model = one_plane_model(np.eye(3))
    X = sp.csr_matrix(np.array([[3.0, 2.0, 1.0], [1.0, 2.0, 3.0], [1.0, 1.0, 1.0]], np.float32))
    rankings = np.array([[0, 2], [0, -1], [-1, -1]])
    # Row 0: pairs 0≻1, 0≻2, 2≻1, of which the last is wrong: 1/3. Row 1: 0≻1, 0≻2, both wrong. Row 2: no ranking.
    # At 2: row 0 has {0, 1}, one of two relevant; row 1 has {2, 1}, none.
    found = measure_model(model, X, rankings, k=2)
    assert found.n_users == 2
    assert found.error == pytest.approx((1 / 3 + 1) / 2)
    assert found.precision == pytest.approx((0.5 + 0.0) / 2)


def test_measure_block__nobody_to_measure():
    model = one_plane_model(np.eye(2))
    assert measure_model(model, sp.csr_matrix((1, 2), dtype=np.float32), np.array([[-1]]), k=1) == NOBODY
    assert measure_model(model, sp.csr_matrix((0, 2), dtype=np.float32), np.empty((0, 0), np.int32), k=1) == NOBODY


def test_measures__add_up_by_users():
    total = NOBODY + GateResult(1, 0.1, 0.4) + GateResult(3, 0.5, 0.8) + NOBODY
    assert total.n_users == 4
    assert total.error == pytest.approx(0.4)
    assert total.precision == pytest.approx(0.7)


@pytest.mark.night
@pytest.mark.parametrize(
    ("error", "precision", "expected"),
    [(0.2, 0.5, True), (0.22, 0.45, True), (0.221, 0.5, False), (0.2, 0.449, False), (0.1, 0.4, False)],
)
def test_is_no_worse__up_to_the_tolerance_in_both_measures(error, precision, expected):
    champion = GateResult(50, 0.2, 0.5)
    assert is_no_worse(GateResult(50, error, precision), champion, tolerance=0.1) is expected


@pytest.mark.parametrize("n_partitions", [1, 3])
def test_compare_models__only_gate_users_count(client, tmp_path, n_partitions):
    rng = np.random.default_rng(5)
    n, n_categories = 600, 4
    X = rng.normal(size=(n, n_categories)).astype(np.float32)
    rankings = np.argsort(-(X + rng.normal(size=X.shape)), axis=1)[:, :2]
    ids = np.arange(1000, 1000 + n)
    write_features(tmp_path / "features", X, ids, list("abcd"), rankings, n_partitions=n_partitions, normalize=False)
    models = {"champion": np.eye(4), "challenger": np.eye(4)[[1, 0, 3, 2]]}
    for name, weights in models.items():
        one_plane_model(weights).save(tmp_path / name)
    results = compare_models(
        client, open_features(tmp_path / "features"), {name: tmp_path / name for name in models}, k=2
    )
    held_out = split_of(ids_from_values(ids)) == 2
    assert 20 < held_out.sum() < 120
    expected_scores = {name: X @ weights.T for name, weights in models.items()}
    expected_scores["popularity"] = np.tile(np.ones(n_categories), (n, 1))  # the models count one click a category
    assert list(results) == ["champion", "challenger", "popularity"]
    for name, measures in results.items():
        scores = expected_scores[name][held_out]
        assert measures.n_users == held_out.sum()
        assert measures.error == pytest.approx(disagreement_error(scores, rankings[held_out]), rel=1e-9)
        expected = top_k_metrics(scores, rankings[held_out], k=2)["precision"][1]
        assert measures.precision == pytest.approx(expected, rel=1e-9)


def test_write_verdict__replaces_the_one_of_its_date(tmp_path):
    site = Site(tmp_path)
    write_verdict(site, day(0), Verdict("new", "old", False, {"accepted": False}), {"k": 1})
    assert rejected_models(site) == {"new"}
    write_verdict(site, day(0), Verdict("newer", "old", True, {"accepted": True}), {"k": 1})
    assert rejected_models(site) == set()
    assert read_verdict(site, day(0)).challenger == "newer"
    assert read_verdict(site, day(1)) is None
    assert list((tmp_path / "gates").iterdir()) == verdict_runs(site, day(0))


def model_of_night(place):
    return open_run(place.path / place.current().runs["model"]).manifest["config"]["date"]


def test_nightly__a_worse_model_is_kept_and_does_not_score(client, place):
    worse = check_config({**CONFIG, "train": TERRIBLE}, "test")
    before = place.root()
    facts = nightly(Night(client, place, worse, day(7)))
    assert facts["gate"].startswith(f"the model of {day(5)} stays: disagreement error 0.")
    assert facts["model"] == f"of {day(5)}"
    assert model_of_night(place) == str(day(5))
    verdict = read_verdict(place, day(7))
    assert not verdict.accepted
    assert verdict.facts["challenger"]["disagreement_error"] > verdict.facts["champion"]["disagreement_error"]
    assert verify_run(*verdict_runs(place, day(7))) == 0
    folder = place.report_folder(day(7))
    assert json.loads((folder / "summary.json").read_text())["gate"]["accepted"] is False
    assert f"the model of {day(5)} stays: disagreement error" in (folder / "report.html").read_text()
    # A night that died between training and the verdict decides alike.
    digest, written = place.digest(), (verdict_runs(place, day(7))[0] / "manifest.json").read_bytes()
    shutil.rmtree(place.path / "gates")
    trained = [key for key in place.root().kept if key.startswith(f"models/date={day(7)}")]
    place.move(lambda root: replace(before, building=tuple(trained)))
    nightly(Night(client, place, worse, day(7)))
    assert place.digest() == digest
    assert (verdict_runs(place, day(7))[0] / "manifest.json").read_bytes() == written
    # The challenger is kept, and the next night neither trains again nor scores with it.
    assert verdict.challenger in {open_run(path).digest for path in place.finished_runs("models")}
    assert find_model(place, day(7)).digest == verdict.champion
    facts = nightly(Night(client, place, worse, day(8)))
    assert "training" not in facts
    assert model_of_night(place) == str(day(5))


@pytest.mark.night
@pytest.mark.parametrize(
    ("gate", "said"),
    [
        ({"min_users": 1, "tolerance": 1.0}, "passed: disagreement error"),
        ({"min_users": 10_000}, "gate users are fewer than gate.min_users 10000; nothing was decided"),
    ],
)
def test_nightly__a_model_that_is_not_found_worse_takes_over(client, place, gate, said):
    facts = nightly(Night(client, place, check_config({**CONFIG, "gate": gate}, "test"), day(7)))
    assert said in facts["gate"]
    assert model_of_night(place) == str(day(7))


@pytest.mark.night
def test_nightly__a_model_of_other_columns_is_not_compared(client, place):
    without = check_config({**CONFIG, "lake": {**CONFIG["lake"], "users": None}}, "test")
    # As an earlier try leaves it that had something to compare: it is not the verdict of this night.
    stale = {"accepted": True, "reason": "stale", "champion": {}, "challenger": {}, "settings": {}}
    write_verdict(place, day(6), Verdict("challenger", "champion", True, stale), {})
    facts = nightly(Night(client, place, without, day(6)))
    not_compared = f"the model of {day(5)} has other categories or features and was not compared: disagreement error 0."
    assert facts["gate"].startswith(not_compared)
    assert "popularity 0." in facts["gate"]
    assert json.loads((place.report_folder(day(6)) / "summary.json").read_text())["gate"]["reason"] == facts["gate"]
    assert describe_site(place, without, day(6))["gate"] == facts["gate"]
    assert model_of_night(place) == str(day(6))


def first_night(client, lake, tmp_path, **settings):
    (tmp_path / "lake").symlink_to(lake)
    site = Site(tmp_path / "site")
    site.path.mkdir()
    return site, nightly(Night(client, site, check_config({**CONFIG, **settings}, "test"), day(5)))


@pytest.mark.night
def test_nightly__a_first_model_is_told_beside_popularity(place):
    verdict = read_verdict(place, day(5))
    assert verdict.accepted
    assert verdict.champion is None
    assert verdict.facts["reason"].startswith("no model before it: disagreement error 0.")
    assert verdict.facts["challenger"]["disagreement_error"] < verdict.facts["popularity"]["disagreement_error"]


@pytest.mark.night
def test_nightly__a_first_model_that_is_worse_than_popularity_does_not_score(client, lake, tmp_path):
    site, facts = first_night(client, lake, tmp_path, train=TERRIBLE)
    assert facts["gate"].startswith("turned down: disagreement error 0.")
    assert "is not below that of popularity, 0." in facts["gate"]
    assert facts["gate"].endswith("; popularity scores instead")
    verdict = read_verdict(site, day(5))
    assert not verdict.accepted
    assert find_model(site, day(5)).digest == verdict.chosen != verdict.challenger
    # Everybody gets the ten categories that most training users clicked.
    categories = open_qualifications(site.qualifications_folder(day(5))).to_pandas().groupby("rank")["category"]
    assert (categories.nunique() == 1).all()
    report = (site.report_folder(day(5)) / "report.html").read_text()
    assert "a new model was not promoted" in report
    assert "popularity scores instead" in report
    # The next training does not begin with it, and is let through when it is better.
    facts = nightly(Night(client, site, check_config(CONFIG, "test"), day(7)))
    assert facts["gate"].startswith("passed: disagreement error 0.")


@pytest.mark.parametrize(("accepted", "chosen"), [(True, "new"), (False, "old")])
def test_find_verdict__only_of_the_model_that_scored(tmp_path, accepted, chosen):
    site = Site(tmp_path)
    assert find_verdict(site, day(5), chosen) is None
    write_verdict(site, day(5), Verdict("new", "old", accepted, {"accepted": accepted}), {})
    assert find_verdict(site, day(5), chosen).accepted is accepted
    assert find_verdict(site, day(5), "another") is None
    assert find_verdict(site, day(5), "new" if chosen == "old" else "old") is None


def test_find_forward__of_the_last_verdict_that_chose_the_model_or_what_it_was_brought_from(tmp_path):
    site = Site(tmp_path)

    def judge(number, chosen, forward):
        facts = {"accepted": True, "chosen": chosen, "forward": forward}
        write_verdict(site, day(number), Verdict(f"challenger {number}", None, True, facts), {})

    def keep(number, digest, **inputs):
        path = site.run("models", day(number), digest)
        site.begin([path])
        path.mkdir(parents=True)
        config = {"date": str(day(number))}
        return finish_run(path, "model", digest, [], config=config, inputs=inputs, counts={"users": 1, "planes": 0})

    judge(1, "a" * 64, {"source": "model"})
    judge(3, "a" * 64, {"source": "own-history"})
    judge(5, "b" * 64, None)
    first = keep(1, "a" * 64)
    brought = keep(4, "c" * 64, brought_from=first.digest)
    again = keep(5, "d" * 64, brought_from=brought.digest)
    assert find_forward(site, day(0), first) is None
    assert find_forward(site, day(2), first) == {"date": str(day(1)), "source": "model"}
    for model in (first, brought, again):
        assert find_forward(site, day(6), model) == {"date": str(day(3)), "source": "own-history"}
    assert find_forward(site, day(6), keep(5, "b" * 64)) is None  # judged without a comparison
    assert find_forward(site, day(6), keep(6, "e" * 64)) is None  # made by hand
    assert find_forward(site, day(6), None) is None


def forward_facts(source, own_hits, gain, error, reason="x scores: why it does"):
    own = {"hits": own_hits, "ndcg": 0.5, "gain": gain, "standard_error": error}
    sources = {"model": {"hits": own_hits + gain, "ndcg": 0.6}, "own-history": own}
    return {"date": "2026-01-31", "source": source, "reason": reason, "users": 2051, "k": 10, "sources": sources}


def beside(source, others):
    facts = forward_facts(source, 5.5, 0.25, 0.02)
    return {**facts, "sources": facts["sources"] | others}


@pytest.mark.parametrize(
    ("forward", "sentence"),
    [
        (
            forward_facts("model", 5.75, 0.17, 0.02),
            "Lists come from the model: in the label window to 2026-01-31 lists of a model that had not seen it had"
            " 5.92 of 10 clicked, own history 5.75 (+0.17 ± 0.02, 2,051 users).",
        ),
        (
            forward_facts("own-history", 5.75, -0.05, 0.004),
            "Lists come from own history: in the label window to 2026-01-31 lists of a model that had not seen it had"
            " 5.700 of 10 clicked, own history 5.750 (-0.050 ± 0.004, 2,051 users).",
        ),
        (
            forward_facts("own-history", 5.75, 0.01, 0.02),
            "Lists come from own history: in the label window to 2026-01-31 lists of a model that had not seen it had"
            " 5.76 of 10 clicked, own history 5.75 (+0.01 ± 0.02, 2,051 users; it must be ahead by more than that"
            " error).",
        ),
        (
            forward_facts("own-history", 5.0, 1.0, 0.1, "own history scores: 12 users to try a model on, 100 needed"),
            "Lists come from own history: 12 users to try a model on, 100 needed (training of 2026-01-31).",
        ),
        (
            {"date": "2026-01-31", "source": "model", "reason": "the model scores: the features have no own column"},
            "Lists come from the model: the features have no own column (training of 2026-01-31).",
        ),
        (
            {
                **beside("popularity", {"popularity": {"hits": 5.9, "gain": -0.15, "standard_error": 0.02}}),
                "beside": "popularity",
            },
            "Lists come from popularity: in the label window to 2026-01-31 lists of a model that had not seen it had"
            " 5.75 of 10 clicked, popularity 5.90 (-0.15 ± 0.02, 2,051 users).",
        ),
        (
            {
                **forward_facts("popularity", 5.5, 0.1, 0.02, "popularity scores: no model yet"),
                "beside": "popularity",
                "sources": {"own-history": {"hits": 5.5}, "popularity": {"hits": 5.6}},
            },
            "Lists come from popularity: no model yet (training of 2026-01-31).",
        ),
        (
            beside("champion", {"champion": {"hits": 5.95, "gain": -0.2, "standard_error": 0.05}}),
            "Lists come from the model in use before: in the label window to 2026-01-31 lists of a model that had not"
            " seen it had 5.75 of 10 clicked, the model in use before 5.95 (-0.20 ± 0.05, 2,051 users).",
        ),
        (
            beside("model", {"published": {"hits": 5.6}}),
            "Lists come from the model: in the label window to 2026-01-31 lists of a model that had not seen it had"
            " 5.75 of 10 clicked, own history 5.50 (+0.25 ± 0.02, 2,051 users; the lists that were published before it"
            " had 5.60).",
        ),
    ],
)
def test_describe_forward__says_who_won_or_why_nobody_did(forward, sentence):
    assert describe_forward(forward) == sentence
