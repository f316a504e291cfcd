"""The balanced policy from features to qualifications: with limits, after a kill, on any number of workers."""

import numpy as np
import pytest
from chance_world import CATEGORIES, CLICKS, all_chances, make_features
from distributed import Client
from reference_balanced import best_assignment

from ammrank_dask.features.write import write_features
from ammrank_dask.report.exposure import starved
from ammrank_dask.scoring import score_passes
from ammrank_dask.scoring.chances import fit_chances
from ammrank_dask.scoring.exposure_bounds import exposure_bounds
from ammrank_dask.scoring.learn_chances import check_reliability, clicked_table, learn_chances
from ammrank_dask.scoring.score import score
from ammrank_dask.scoring.score_passes import last_prices, write_qualifications
from ammrank_dask.scoring.settings import ScoreSettings
from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.objects.atomic import digest_tree
from ammrank_dask.user_hash import split_of


def test_learn_chances__come_true_for_gate_users(client, tmp_path, model):
    features = make_features(tmp_path / "f", model, 40_000)
    sums = check_reliability(client, learn_chances(model, features, client=client), model, features)
    assert sums.n_unreliable() == 0
    assert sums.brier < sums.base_brier
    in_gate = sum(int((split_of(features.partition(i).user_ids) == 2).sum()) for i in range(4))
    assert sums.n_cells == 6 * in_gate


def test_score__balanced_hands_out_the_best_there_is(client, tmp_path, model, features, chances):
    quals = score(
        model, features, tmp_path / "quals", client=client, k=2, policy="balanced", chances=chances, floor=0.9, cap=1.1
    )
    frame = quals.to_pandas()
    ids, table = all_chances(model, features, chances)
    bounds = exposure_bounds(CATEGORIES, CLICKS, np.full(6, 6000), 12_000, floor=0.9, cap=1.1)
    n_users = frame["category"].value_counts().reindex(CATEGORIES, fill_value=0).to_numpy()
    assert bounds.n_outside(n_users) == 0
    assert set(frame.groupby("user_id").size()) == {2}
    assert len(frame) == 12_000
    facts = quals.run.manifest["facts"]["policies"]["balanced"]
    assert -1e-9 <= facts["gap"] <= 1e-3
    row_of = {user: row for row, user in enumerate(ids)}
    value = table[frame["user_id"].map(row_of), frame["category"].map(CATEGORIES.index)].sum(dtype=np.float64)
    assert value == pytest.approx(facts["expected_clicks"])
    assert value >= 0.999 * best_assignment(table, bounds.floor, bounds.cap, 2)
    ordered = frame.sort_values(["user_id", "rank"])
    first, second = (ordered[ordered["rank"] == rank]["score"].to_numpy() for rank in (1, 2))
    assert (first >= second).all()


def test_score__balanced_starves_nobody_by_default(client, tmp_path, model, features, chances):
    quals = score(model, features, tmp_path / "quals", client=client, k=1, policy="balanced", chances=chances)
    n_users = quals.to_pandas()["category"].value_counts().reindex(CATEGORIES, fill_value=0).to_numpy()
    assert not starved(n_users, CLICKS, 0.25).any()
    assert quals.counts.categories_per_user[0] == 0


def test_score__balanced_respects_limits(client, tmp_path, model, features, chances):
    quals = score(
        model, features, tmp_path / "quals", client=client, k=2, policy="balanced", chances=chances, exclude=["news"],
        floor=0.1, cap=9, floors={"ünï": 700}, caps={"autos": 0.05},
    )  # fmt: skip
    n_users = quals.to_pandas()["category"].value_counts()
    assert n_users["news"] == 0
    assert n_users["ünï"] >= 700
    assert n_users["autos"] <= 600


def test_score__balanced_is_the_same_on_any_number_of_workers_and_after_a_kill(
    client, tmp_path, model, features, chances, monkeypatch
):
    options = {"k": 2, "policy": "balanced", "chances": chances, "floor": 0.8, "cap": 1.2}
    score(model, features, tmp_path / "one", client=client, **options)
    with Client(processes=False, n_workers=3, threads_per_worker=1, dashboard_address=None, memory_limit=0) as three:
        score(model, features, tmp_path / "three", client=three, **options)
    apply = score_passes.apply_policy

    def dies(*arguments):
        if 2 in arguments[-1]:
            raise OSError("killed")
        return apply(*arguments)

    monkeypatch.setattr(score_passes, "USERS_OF_TASK", 1)
    monkeypatch.setattr(score_passes, "apply_policy", dies)
    with pytest.raises(OSError, match="killed"):
        score(model, features, tmp_path / "killed", client=client, **options)
    monkeypatch.setattr(score_passes, "apply_policy", apply)
    score(model, features, tmp_path / "killed", client=client, **options)
    assert len({digest_tree(tmp_path / name, ["."]) for name in ("one", "three", "killed")}) == 1


def test_score__prices_of_the_night_before_start_the_next(client, tmp_path, model, features, chances):
    options = {"k": 2, "policy": "balanced", "chances": chances, "floor": 0.8, "cap": 1.2}
    first = score(model, features, tmp_path / "first", client=client, **options)
    second = score(model, features, tmp_path / "second", client=client, previous=first, **options)
    one, two = (quals.run.manifest["facts"]["policies"]["balanced"] for quals in (first, second))
    assert two["expected_clicks"] == pytest.approx(one["expected_clicks"], rel=1e-6)
    assert last_prices(first, ["news", "brand new"]).tolist() == [one["prices"][4], 0.0]
    assert last_prices(first, ["news"], "value") is None


def test_score_settings__bounds_are_in_the_digest_of_balanced_runs_only():
    assert "floor" not in ScoreSettings().to_json()
    assert ScoreSettings(also=("balanced",), floor=0.3).to_json()["floor"] == 0.3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"chances": None}, r"policy balanced needs chances, got none; learn them with `learn_chances`"),
        (
            {"floors": {"ünï": 7000}},
            r"the floor of 'ünï' is 7000 users and only 6000 may hold it, 1000 too few",
        ),
        ({"floors": {"nws": 1}}, r"floors: there is no ranked category 'nws'"),
        ({"cap": 0.5}, r"the caps sum to \d+ users and there are 12000 slots to fill; raise cap or lower k"),
    ],
)
def test_score__refuses_bounds_that_cannot_be(client, tmp_path, model, features, chances, options, message):
    with pytest.raises(BadInput, match=message):
        score(
            model,
            features,
            tmp_path / "q",
            client=client,
            **{"k": 2, "policy": "balanced", "chances": chances} | options,
        )


def test_check_chances__refuses_those_of_other_categories(client, tmp_path, model, features):
    rng = np.random.default_rng(0)
    other = fit_chances(rng.normal(size=(50, 3)), rng.random((50, 3)) < 0.3, np.zeros(50))
    with pytest.raises(BadInput, match=r"chances must be of the 6 categories of the features at .*, got 3; learn them"):
        write_qualifications(client, model, features, tmp_path / "q", ScoreSettings(k=1), chances=other)


def test_learn_chances__refuses_what_has_no_clicks(client, tmp_path, model, features):
    bare = write_features(tmp_path / "f", np.ones((9, 4)), np.arange(9), ["a", "b", "c", "d"], categories=CATEGORIES)
    with pytest.raises(
        BadInput, match=r"click probabilities are learned from clicks, and the features at .* have no rankings"
    ):
        learn_chances(model, bare, client=client)
    with pytest.raises(BadInput, match=r"splits are train, validation, gate, got test"):
        learn_chances(model, features, client=client, split="test")


def test_clicked_table__marks_codes():
    assert clicked_table(np.array([[1, -1], [-1, -1], [0, 2]]), 3).tolist() == [
        [False, True, False], [False, False, False], [True, False, True],
    ]  # fmt: skip
