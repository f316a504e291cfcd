"""The tables of `python -m benchmarks real` and `safety`, from figures made by hand."""

import numpy as np
import pandas as pd
import pytest

from benchmarks.real import LOGS, collect_figures, describe_nights
from benchmarks.safety import TABLE_VARIANTS, compare_on_table, describe_pair, describe_table


def evaluation_of(errors):
    rows = {
        method: {"disagreement": {"mean": error}, "fit_seconds": 1.0, "score_seconds": 0.5, "params": {"C": 1.0}}
        for method, error in errors.items()
    }
    details = {"standard_errors": dict.fromkeys(errors, 0.0012), "tuning_checks": {name: [] for name in errors}}
    return {
        "source": {"labelled_users": 1949},
        "categories": ["a", "b"],
        "variants": {"adv": rows},
        "details": {"adv": details},
    }


def test_describe_nights__marks_the_best_of_every_column():
    found = {"2017-06-30": evaluation_of({"ease": 0.1, "lr": 0.2}), "2017-09-30": evaluation_of({"lr": 0.15})}
    assert describe_nights(LOGS["shop"], found).splitlines()[:4] == [
        "| ε_dis ± standard error | 2017-06-30 adv | 2017-09-30 adv |",
        "|---|---|---|",
        "| lr | 0.2000 ± 0.0012 | **0.1500 ± 0.0012** |",
        "| ease | **0.1000 ± 0.0012** |  |",
    ]
    figures = collect_figures(found["2017-09-30"])
    assert (figures["users"], figures["categories"]) == (1949, 2)
    assert figures["adv"]["lr"]["fit_seconds"] == 1.0


@pytest.mark.parametrize(
    ("error", "standard_error", "safe"),
    [(0.1009, 0.0, True), (0.1011, 0.0, False), (0.103, 0.0031, True), (0.103, 0.0029, False), (0.05, 0.0, True)],
)
def test_describe_pair__allows_one_percent_or_one_standard_error(error, standard_error, safe):
    row = describe_pair(error, 0.1, standard_error)
    assert row["safe"] is safe
    assert row["difference"] == pytest.approx(error - 0.1)


def test_describe_table__counts_what_is_safe():
    pair = {"world": "w", "variant": "adv", "users": 1200, "other": "lr"}
    rows = [{**pair, **describe_pair(0.09, 0.1, 0.001)}, {**pair, **describe_pair(0.12, 0.1, 0.001)}]
    kappas = [{"world": "w", "variant": "adv", "kappa": 0.01, "error": 0.1, "safe": True}]
    lines = describe_table(rows, kappas).splitlines()
    assert lines[2] == "| w | adv | 1,200 | lr | 0.0900 | 0.1000 | -0.0100 ± 0.0010 | yes |"
    assert lines[3].endswith("| +0.0200 ± 0.0010 | **no** |")
    assert lines[5].startswith("1 of 2 safe")
    assert lines[-1] == "| w | adv | 0.01 | 0.1000 | yes |"


def test_compare_on_table__learns_and_is_safe_where_nothing_can_be_learned(tmp_path, client):
    X = np.random.default_rng(0).random((80, 2))
    ranks = np.where(X[:, :1] > 0.5, [[1, 2, 3]], [[3, 2, 1]])
    pd.DataFrame(np.hstack([X, ranks]), columns=["A", "B", "L1", "L2", "L3"]).astype(
        dict.fromkeys(["L1", "L2", "L3"], int)
    ).to_csv(tmp_path / "t.csv", index=False)
    as_it_is, dealt = (
        compare_on_table(client, tmp_path / "t.csv", variant, tmp_path / "rows", 2) for variant in TABLE_VARIANTS
    )
    assert as_it_is["error"] < as_it_is["other_error"] / 2
    assert dealt["error"] == dealt["other_error"]
    assert as_it_is["safe"]
    assert dealt["safe"]
