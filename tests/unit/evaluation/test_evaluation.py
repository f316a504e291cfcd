"""`ammrank evaluate` on a table and on a site: what it writes, whom it deals where, and what it refuses."""

import csv
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from ammrank_dask.evaluation.charts import cost_chart, style_methods
from ammrank_dask.evaluation.compare import (
    compare_methods,
    prepare_features,
    prepare_table_rows,
    run_fold,
    settings_beyond,
)
from ammrank_dask.evaluation.folds import RESAMPLING_SALT, DenseBlocks, activity_bounds, deal_users, prepare_table
from ammrank_dask.evaluation.measures import COUNTERS
from ammrank_dask.evaluation.page import describe_choice, render_evaluation
from ammrank_dask.evaluation.summary import describe_checks, describe_details
from ammrank_dask.features.write import write_features
from ammrank_dask.methods.registry import (
    METHODS,
    Setting,
    build_method,
    grid_of,
    load_method,
    method_label,
    resolve_methods,
)
from ammrank_dask.model.rows import rankings_from_ranks
from ammrank_dask.report.svg import nice_range
from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.lake.rank_tables import read_rank_table
from ammrank_dask.storage.store.ids import ids_from_values
from ammrank_dask.storage.store.scratch_arrays import load_array
from ammrank_dask.user_hash import split_of
from ammrank_dask.workflows.cli import ammrank
from ammrank_dask.workflows.operations.evaluate import describe_evaluation

pytestmark = pytest.mark.night

METHOD_KEYS = {
    "disagreement", "kendall_tau", "precision", "recall", "f1", "fit_seconds", "score_seconds", "params",
}  # fmt: skip
POPULAR = '''
"""Rank by how often a category was clicked."""
import numpy as np
from ammrank_dask.methods.base import Method

class Popular(Method):
    method = "popular"

    def __init__(self, *, n_categories=None):
        self.n_categories = n_categories

    def learn(self, blocks, n_categories):
        self.share_ = self.popularity_ / max(1, self.popularity_.sum())

    def score(self, X):
        return np.tile(self.share_, (X.shape[0], 1))
'''


def write_table(path, rows, header):
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)
    return path


def draw_table(path, n=60, *, partial=False, seed=0):
    """Two features that decide an order of three labels, one constant one; some ranks empty when partial."""
    rng = np.random.default_rng([11, seed])
    rows = []
    for a, b in rng.random((n, 2)):
        order = np.argsort([-a, -b, -0.5])
        ranks = [0, 0, 0]
        for place, label in enumerate(order):
            ranks[label] = place + 1
        if partial:
            ranks = [rank if rank < 3 else "" for rank in ranks]
        rows.append([a, b, 7, *ranks])
    return write_table(path, rows, ["A", "B", "same", "L1", "L2", "L3"])


def run(*arguments):
    return CliRunner().invoke(ammrank, ["evaluate", *map(str, arguments)])


def evaluate_json(out):
    return json.loads((Path(out) / "evaluation.json").read_text())


def two_settings(method, *rows, **options):
    """The first and the middle setting of a grid."""
    grid = grid_of(method, *rows, **options)
    return [grid[0], grid[len(grid) // 2]] if len(grid) > 2 else grid


@pytest.fixture(scope="module", params=[two_settings, pytest.param(grid_of, marks=pytest.mark.long)])
def grid(request):
    """The settings among which held-out users choose: two of each method, and with time all of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ammrank_dask.evaluation.compare.grid_of", request.param)
        yield request.param


@pytest.fixture(scope="module")
def table_result(tmp_path_factory, cluster_file, grid):
    folder = tmp_path_factory.mktemp("table")
    table = draw_table(folder / "t.csv")
    result = run("--table", table, "--out", folder / "out", "--cluster", cluster_file, "--quiet")
    assert result.exit_code == 0, result.output
    return folder / "out", result.output


def test_evaluate_table__json_has_the_keys_of_every_method(table_result):
    out, _ = table_result
    found = evaluate_json(out)["variants"]
    assert list(found) == ["table"]
    assert set(found["table"]) == set(METHODS)
    for method, row in found["table"].items():
        assert set(row) == METHOD_KEYS, method
        assert set(row["disagreement"]) == {"mean", "std", "folds"}
        assert len(row["disagreement"]["folds"]) == 5
        assert row["disagreement"]["mean"] == pytest.approx(np.mean(row["disagreement"]["folds"]))
        assert row["disagreement"]["std"] == pytest.approx(np.std(row["disagreement"]["folds"]))
        assert all(len(row[name]) == 10 for name in ("precision", "recall", "f1"))
        # Complete rankings: every label is relevant, so precision at 1 is 1, and at 10 only three places are filled.
        assert row["precision"][0] == 1
        assert row["precision"][9] == pytest.approx(0.3)
        assert -1 <= row["kendall_tau"] <= 1
    for method in ("amm-rank", "amm-rank-plus"):
        assert found["table"][method]["kendall_tau"] > 0.7 > found["table"]["central-mal"]["kendall_tau"]
    assert found["table"]["popularity"]["kendall_tau"] < 0.7


def test_evaluate_table__writes_csv_and_a_page_without_scratch(table_result):
    out, output = table_result
    assert sorted(path.name for path in out.iterdir()) == ["evaluation.csv", "evaluation.html", "evaluation.json"]
    with open(out / "evaluation.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["method"] for row in rows] == list(METHODS)
    assert float(rows[-1]["disagreement"]) == pytest.approx(
        evaluate_json(out)["variants"]["table"]["amm-rank-plus"]["disagreement"]["mean"]
    )
    page = (out / "evaluation.html").read_text()
    for chart in ("errors", "error-against-cost", "precision-at-k", "recall-at-k", "f1-at-k", "clicks"):
        assert f'data-chart="{chart}"' in page
    assert "same" in page  # the constant feature is named
    assert "amm-rank" in output
    assert "evaluation.html" in output


def test_render_evaluation__no_two_lines_look_the_same(table_result):
    """Also with many methods of one's own; those of the package differ by their colour alone."""
    found = evaluate_json(table_result[0])
    methods, details = found["variants"]["table"], found["details"]["table"]
    own = [f"own-{number}" for number in range(40)]
    for name in own:
        methods[name] = methods["lr"]
        for facts in (details["intervals"], details["fitted"], details["slices"], details["ndcg"]):
            facts[name] = facts["lr"]
    page = render_evaluation(found)
    drawn = re.search('data-chart="f1-at-k".*?</svg>', page, re.DOTALL).group()
    lines = re.findall(r'<polyline [^>]*class="curve (m\d+)"(?: stroke-dasharray="([^"]+)")?>', drawn)
    assert len(lines) == len(set(lines)) == len(METHODS) + len(own)
    styled = set(re.findall(r"\.curve\.(m\d+) \{ stroke: var\(--m\d+\); \}", page))
    assert {color for color, _ in lines} == styled
    assert len({color for color, _ in lines[: len(METHODS)]}) == len(METHODS)


def test_evaluate_table__the_columns_stand_below_their_names(table_result):
    _, output = table_result
    lines = output.splitlines()
    head = next(number for number, line in enumerate(lines) if line.split()[:1] == ["method"])
    rows = lines[head : head + 1 + len(METHODS)]
    assert [row.split()[0] for row in rows[1:]] == list(METHODS)
    assert len({len(row) for row in rows}) == 1
    assert len({row.index(row.split()[1]) + len(row.split()[1]) for row in rows}) == 1


def test_describe_evaluation__lines_fit_a_terminal():
    row = {
        "disagreement": {"mean": 0.1}, "kendall_tau": None, "precision": [0.5, 0.25, 0.125] + [0.0] * 7,
        "fit_seconds": 1.0, "score_seconds": 1.0,
    }  # fmt: skip
    policy = {"expected_clicks": 200.0, "starved_categories": 7}
    floors = [{"floor": floor / 4, "expected_clicks": 190.0, "starved_categories": 0, "gap": 0.0} for floor in range(5)]
    fairness = {"method": "amm-rank-plus", "users": 9, "policies": {"user_top_k": policy}, "floors": floors}
    check = {"fold": 1, "settings": 20, "best": 0.18, "popularity": 0.15, "beats_popularity": False}
    details = {
        "users": 10,
        "intervals": {"amm-rank-plus": {"disagreement": [0.1, 0.2]}},
        "best_others": {"amm-rank-plus": {"method": "lr", "disagreement": -0.0123, "standard_error": 0.0045}},
        "tuning_checks": {"amm-rank-plus": [check] * 5},
        "fairness": fairness,
    }
    variants = {"adv": {"amm-rank-plus": row}}
    evaluation = {"variants": variants, "details": {"adv": details}, "folds": 5, "floor": None, "forward": None}
    lines = describe_evaluation({**evaluation, "categories": ["a", "b", "c"]})
    assert max(map(len, lines)) <= 80
    assert lines[1:3] == [
        "  method          ε_dis  95 % interval  vs. best other  prec@1  prec@3  fit s",
        "  amm-rank-plus  0.1000  0.1000–0.2000  -0.0123±0.0045   0.500   0.125   1.00",
    ]
    assert lines[-6:] == [
        "  price of fairness (amm-rank-plus): user_top_k 7 starved",
        *(f"    floor {floor}: -5.00 %, 0 starved" for floor in ("0", "0.25", "0.5", "0.75", "1")),
    ]
    assert "(0.1800 against 0.1500)" in " ".join(" ".join(lines).split())


def test_evaluate_table__says_what_was_tried(table_result, grid):
    found = evaluate_json(table_result[0])
    details, rows = found["details"]["table"], found["variants"]["table"]
    assert details["tuning"]["central-mal"] == details["tuning_checks"]["central-mal"] == []
    for method in ("lr", "pw-lr", "amm-rank", "ib-mal", "amm-rank-plus"):
        first = [trial for trial in details["tuning"][method] if trial["fold"] == 1]
        settings = grid(method, is_table=True)
        assert [trial["params"] for trial in first[: len(settings)]] == settings
        check = details["tuning_checks"][method][0]
        assert (check["fold"], check["settings"]) == (1, len(first))
        assert check["best"] == min(trial["disagreement"] for trial in first) < check["popularity"]
        assert check["beats_popularity"]
        assert rows[method]["params"] == min(first, key=lambda trial: trial["disagreement"])["params"]
    assert set(details["best_others"]) == set(METHODS)
    errors = {method: row["disagreement"]["mean"] for method, row in rows.items()}
    best, second = sorted(errors, key=errors.get)[:2]
    versus = details["best_others"][best]
    assert versus["method"] == second
    assert versus["disagreement"] == pytest.approx(errors[best] - errors[second])
    assert versus["standard_error"] > 0
    assert details["best_others"]["central-mal"]["method"] == best
    assert set(details["differences"]) == set(METHODS) - {"amm-rank-plus"}
    low, high = details["differences"]["central-mal"]["interval"]
    assert 0 < low < details["differences"]["central-mal"]["disagreement"] < high


def test_evaluate_table__partial_rankings_have_no_tau(tmp_path, cluster_file):
    table = draw_table(tmp_path / "t.csv", partial=True)
    result = run(
        "--table", table, "--out", tmp_path / "o", "--methods", "lr,central-mal", "--folds", 3, "--quiet",
        "--cluster", cluster_file,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    found = evaluate_json(tmp_path / "o")["variants"]["table"]
    assert set(found) == {"lr", "central-mal"}
    assert found["lr"]["kendall_tau"] is None
    assert len(found["lr"]["disagreement"]["folds"]) == 3


def test_evaluate_table__a_method_of_ones_own_in_one_file(tmp_path, cluster_file):
    table = draw_table(tmp_path / "t.csv")
    (tmp_path / "popular.py").write_text(POPULAR)
    result = run(
        "--table", table, "--out", tmp_path / "o", "--methods", f"central-mal,{tmp_path / 'popular.py'}", "--quiet",
        "--cluster", cluster_file,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    found = evaluate_json(tmp_path / "o")["variants"]["table"]
    assert set(found) == {"central-mal", "popular"}
    # All labels are ranked everywhere, so popularity knows nothing: every pair is a tie.
    assert found["popular"]["disagreement"]["mean"] == 0.5


def test_adding_a_method__the_documented_file_runs(tmp_path, cluster_file):
    text = (Path(__file__).parents[3] / "docs" / "adding-a-method.md").read_text(encoding="utf-8")
    (tmp_path / "nearest_center.py").write_text(text.split("```python\n")[1].split("```")[0])
    result = run(
        "--table", draw_table(tmp_path / "t.csv", partial=True), "--out", tmp_path / "o", "--quiet",
        "--methods", f"central-mal,{tmp_path / 'nearest_center.py'}", "--cluster", cluster_file,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    found = evaluate_json(tmp_path / "o")
    errors = {name: row["disagreement"]["mean"] for name, row in found["variants"]["table"].items()}
    assert errors["nearest-center"] < errors["central-mal"]
    tried = {trial["params"]["smoothing"] for trial in found["details"]["table"]["tuning"]["nearest-center"]}
    assert tried == {1.0, 100.0}


BAD_TABLES = {
    "no label": (["A", "B"], [[1, 2], [3, 4]], "must have label columns L1, L2, …, found only A, B"),
    "no features": (["L1", "L2"], [[1, 2], [2, 1]], "must have a feature column beside L1, L2, found none"),
    "empty ranks": (["A", "L1", "L2"], [[1, "", ""], [2, "", ""]], "must have ranks in L1, L2, found only empty ones"),
    "one label": (["A", "L1"], [[1, 1], [2, 1]], "at least two label columns to rank, found only L1"),
    "constant": (
        ["A", "B", "L1", "L2"], [[5, 1, 1, 2], [5, 1, 2, 1]] * 5,
        "must have a feature that varies, found constant values in A, B",
    ),
    "text": (
        ["A", "B", "L1", "L2"], [[1, 2, 1, 2], [1, "blue", 2, 1]],
        "feature column B of .* must hold finite numbers, found 'blue' in row 2; encode or drop",
    ),
    "missing": (["A", "L1", "L2"], [[1, 1, 2], ["", 2, 1]], "feature column A .* found no value in row 2"),
    "bad rank": (["A", "L1", "L2"], [[1, 1, 2], [2, 0.5, 1]], "ranks in column L1 .* found 0.5 in row 2"),
    "text rank": (["A", "L1", "L2"], [[1, "first", 2]], "column L1 .* whole numbers from 1.* 'first' in row 1"),
    "all tied": (["A", "L1", "L2"], [[1, 1, 1], [2, 2, 2]], "must prefer one label over another in some row"),
    "few rows": (
        ["A", "L1", "L2"], [[1, 1, 2], [2, 2, 1], [3, 1, 2]],
        r"at least as many ranked rows as folds \(5\), found 3",
    ),
    "empty file": ([], [], "must be a CSV file with a header"),
    "name twice": (["A", "L1", "L2", "L1"], [[1, 1, 2, 1]] * 6, "must name every column once, found L1 more than once"),
    "long row": (
        ["A", "L1", "L2"], [[1, 1, 2], [2, 2, 1, ""]],
        r"no more values in a row than its header has names \(3\), found 4 in line 3",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_TABLES)
def test_evaluate_table__bad_input_is_one_sentence(case, tmp_path, cluster_file):
    header, rows, message = BAD_TABLES[case]
    table = write_table(tmp_path / "t.csv", rows, header)
    if not header:
        table.write_text("")
    result = run("--table", table, "--out", tmp_path / "o", "--cluster", cluster_file, "--quiet")
    assert result.exit_code == 65, result.output
    assert result.output.startswith("ammrank: ")
    assert len(result.output.strip().splitlines()) == 1
    assert re.search(message, result.output), result.output
    assert not (tmp_path / "o" / "evaluation.json").exists()


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        ("lrr", "there is no method 'lrr' or FILE.py; did you mean lr"),
        ("svm", f"there is no method 'svm' or FILE.py; known ones are {', '.join(METHODS)}"),
        ("lr,lr", "every method must be named once, found lr more than once"),
        ("nowhere.py", "nowhere.py must be a file that defines a method, found none there"),
    ],
)
def test_evaluate__unknown_methods_are_refused(methods, message, tmp_path):
    result = run("--table", draw_table(tmp_path / "t.csv"), "--methods", methods)
    assert result.exit_code == 65
    assert re.search(message, result.output), result.output


def test_evaluate__missing_table_and_missing_site_are_refused(tmp_path):
    result = run("--table", tmp_path / "none.csv")
    assert result.exit_code == 65
    assert "cannot read" in result.output
    result = run(tmp_path / "site")
    assert result.exit_code == 65
    assert "there is no config" in result.output
    assert run().exit_code == 2
    assert run(tmp_path, "--table", tmp_path / "t.csv").exit_code == 2


def test_load_method__refuses_files_without_a_method(tmp_path):
    empty, broken, unnamed = (tmp_path / f"{name}.py" for name in ("empty", "broken", "unnamed"))
    empty.write_text("x = 1\n")
    broken.write_text("import nothing_of_that_name\n")
    unnamed.write_text(POPULAR.replace('    method = "popular"\n', ""))
    with pytest.raises(BadInput, match=r"must define one subclass of .*Method, found 0"):
        load_method(str(empty))
    with pytest.raises(BadInput, match="cannot be loaded: ModuleNotFoundError"):
        load_method(str(broken))
    with pytest.raises(BadInput, match="must say its name"):
        load_method(str(unnamed))
    assert resolve_methods([]) == list(METHODS)
    assert [method_label(name) for name in METHODS] == list(METHODS)


def test_grid_of__lambda_follows_the_pairs_where_the_loss_sums_them():
    def values(method, mean_pairs):
        return sorted({params["regularization"] for params in grid_of(method, mean_pairs)})

    # 9,700 pairs are 19 times as many as the grid was made for: 30, the nearest of 1, 3, 10, 30, …
    assert values("amm-rank", 9_700) == [0.003, 0.03, 0.09, 0.3, 0.9]
    assert values("amm-rank", 10) == values("amm-rank", 500) == values("amm", 9_700) == [1e-4, 1e-3, 3e-3, 1e-2, 3e-2]
    assert grid_of("lr", 9_700) == grid_of("lr")
    assert grid_of("amm-rank-plus", 9_700) == [{}]
    # On a table one plain model, and κ alone is chosen: grids and trees took ten minutes for 2,500 rows.
    assert [set(params) for params in grid_of("amm-rank-plus", is_table=True)] == [{"kappa"}] * 4


def test_settings_beyond__continue_the_edge_that_was_best():
    grid = [{"C": 1.0, "m": 1}, {"C": 1.0, "m": 2}, {"C": 2.0, "m": 1}, {"C": 2.0, "m": 2}, {"C": 8.0, "m": 1}]
    tried = list(zip(grid, [0.5, 0.4, 0.3, 0.2, 0.1], strict=True))
    assert settings_beyond(tried, ["C"]) == [{"C": 32.0, "m": 1}]
    assert settings_beyond([*tried, ({"C": 32.0, "m": 1}, 0.2)], ["C"]) == []
    lowest = list(zip(grid, [0.5, 0.1, 0.3, 0.2, 0.1], strict=True))
    assert settings_beyond(lowest, ["C"]) == [{"C": 0.5, "m": 2}]
    assert settings_beyond(tried, []) == settings_beyond(tried, ["other"]) == []
    assert settings_beyond([({"C": 1.0}, math.nan)], ["C"]) == []


ROLLED = """
import numpy as np
from ammrank_dask.methods.base import Method

class Rolled(Method):
    method = "rolled"
    grid = ({"x": 1.0}, {"x": 10.0})
    widens = ("x",)

    def __init__(self, *, x=1.0):
        self.x = x

    def learn(self, blocks, n_categories):
        self.scores_ = np.roll([3.0, 2.0, 1.0, 0.0], round(abs(np.log10(self.x) - 2)))

    def score(self, X):
        return np.tile(self.scores_, (X.shape[0], 1))
"""


def test_compare_methods__widens_a_grid_and_says_that_nothing_beats_popularity(tmp_path, client):
    (tmp_path / "rolled.py").write_text(ROLLED)
    rankings = np.tile(np.array([0, 1], np.int32), (40, 1))
    rows = prepare_table_rows(np.ones((40, 1)), rankings, np.zeros((40, 2), bool), 4, tmp_path, n_folds=2)
    methods = resolve_methods([str(tmp_path / "rolled.py")])
    result = compare_methods(client, rows, methods, count_exposure=False)["rolled"]
    # Of the 5 pairs of a row one place of the roll turns 3 round, two places 4.
    expected = [({"x": 1.0}, 0.8), ({"x": 10.0}, 0.6), ({"x": 100.0}, 0.0), ({"x": 1000.0}, 0.6)]
    assert result.tried == [[(params, pytest.approx(error)) for params, error in expected]] * 2
    assert [fold.params for fold in result.folds] == [{"x": 100.0}] * 2
    assert result.popularity == [0.0, 0.0]
    checks = describe_details({"rolled": result}, rows, list("abcd"), np.ones(4))["tuning_checks"]
    assert [check["beats_popularity"] for check in checks["rolled"]] == [False, False]
    assert describe_checks(checks) == [
        "rolled: none of 4 settings is better than popularity on the tuning users of 2 of 2 folds"
        " (0.0000 against 0.0000)"
    ]


def test_build_method__scales_the_regularization_of_planes_with_the_rows():
    tuned = {"regularization": 0.01, "max_planes": 5}
    model = build_method("amm-rank", tuned, Setting(80_000, 50, tuned_rows=20_000))
    assert model.regularization == pytest.approx(0.005)
    assert model.epochs == 12
    assert build_method("amm", tuned, Setting(1000, 50)).get_params()["epochs"] == 100
    assert build_method("ag-mal", {}, Setting(10, 3, ((1, 2),))).get_params()["group_columns"] == ((1, 2),)
    assert build_method("lr", {"C": 3.0}, Setting(10, 3, tuned_rows=5)).get_params()["C"] == 3.0


@pytest.mark.parametrize(("n_rows", "epochs"), [(9_999, 5), (10_000, 2)])
def test_build_method__amm_rank_plus_has_the_epochs_and_the_pace_of_a_night(n_rows, epochs):
    model = build_method("amm-rank-plus", {}, Setting(n_rows, 50))
    assert (model.epochs, model.pace, model.kappa) == (epochs, 0.5, 0.005)
    assert build_method("amm-rank-plus", {"epochs": 1}, Setting(n_rows, 50)).epochs == 1


@pytest.mark.parametrize("n_rows", [5, 6, 9])
def test_compare_methods__a_table_of_hardly_more_rows_than_folds(tmp_path, client, n_rows):
    X = np.random.default_rng(1).normal(size=(n_rows, 2))
    rankings, tied = rankings_from_ranks(np.argsort(np.argsort(X @ np.eye(2, 3) + [0, 0, 0.1], axis=1), axis=1) + 1)
    rows = prepare_table_rows(X, rankings, tied, 3, tmp_path / "rows")
    found = compare_methods(client, rows, ["central-mal", "lr", "amm-rank"], count_exposure=False)
    assert all(result.measures.n_users == n_rows for result in found.values())
    # Without rows to check them on, the first parameters of the grid are taken.
    if n_rows == 5:
        assert found["lr"].params == grid_of("lr")[0]


def test_prepare_table__large_values_that_differ_by_little_are_told_apart(tmp_path):
    seconds = 1.7e9 + np.arange(40.0)
    ranks = np.where((np.arange(40) % 2 == 0)[:, None], [1, 2], [2, 1])
    rows = prepare_table_rows(seconds[:, None], *rankings_from_ranks(ranks), 2, tmp_path / "rows")
    train, _ = rows.standardized(rows.training(0), rows.test(0))
    assert len(np.unique(train[0][0])) == train.n_rows == 32


def test_build_method__knows_the_categories_also_where_the_constructor_does_not(tmp_path):
    own = tmp_path / "own.py"
    own.write_text(
        "import numpy as np\nfrom ammrank_dask.methods.base import Method\n\n"
        "class Own(Method):\n    method = 'own'\n"
        "    def learn(self, blocks, n_categories):\n        self.n = n_categories\n"
        "    def score(self, X):\n        return np.zeros((X.shape[0], self.n))\n"
    )
    model = build_method(str(own), {}, Setting(3, 7))
    model.fit_blocks([(np.eye(3), np.array([[0], [1], [2]]))])
    assert model.decision_function(np.eye(3)).shape == (3, 7)


@pytest.mark.parametrize(
    ("returns", "said"),
    [("np.full((X.shape[0], 3), np.nan)", "must return numbers, got NaN"),
     ("np.zeros((X.shape[0], 2))", r"must return \(3, 3\), got \(3, 2\)")],
)  # fmt: skip
def test_method__scores_that_no_measure_could_use_are_refused(tmp_path, returns, said):
    own = tmp_path / "own.py"
    own.write_text(
        "import numpy as np\nfrom ammrank_dask.methods.base import Method\n\n"
        "class Own(Method):\n    method = 'own'\n"
        "    def learn(self, blocks, n_categories):\n        pass\n"
        f"    def score(self, X):\n        return {returns}\n"
    )
    model = build_method(str(own), {}, Setting(3, 3))
    model.fit_blocks([(np.eye(3), np.array([[0], [1], [2]]))])
    with pytest.raises(ValueError, match=said):
        model.decision_function(np.eye(3))


def test_deal_users__folds_are_even_and_apart_from_the_splits_of_training():
    ids = ids_from_values(np.arange(20_000))
    piece = deal_users(ids, 5, 0.2)
    counts = np.bincount(piece, minlength=12)
    assert counts[[1, 3, 5, 7, 9]].sum() == 0
    np.testing.assert_allclose(counts[[0, 2, 4, 6, 8]], 3200, rtol=0.06)
    assert counts[10] == pytest.approx(3000, rel=0.06)
    assert counts[11] == pytest.approx(1000, rel=0.1)
    # Of the users of a fold, as many are in each split as of all users.
    shares = [np.mean(split_of(ids)[piece == 2 * fold] == 0) for fold in range(5)]
    np.testing.assert_allclose(shares, 0.8, atol=0.03)
    np.testing.assert_array_equal(deal_users(ids.take(np.arange(50)), 5, 0.2), piece[:50])


def test_activity_bounds__cut_users_into_tenths():
    assert activity_bounds([np.array([0, *[1] * 10]), np.array([0])]) == (2, 3, 4, 5, 6, 7, 8, 9, 10)
    assert activity_bounds([]) == ()


def table_rows(tmp_path, n=40, n_folds=4):
    rng = np.random.default_rng(0)
    X = rng.normal(5, 3, (n, 3))
    X[:, 1] = 4.0
    ranks = np.argsort(np.argsort(-X[:, [0, 2, 1]], axis=1), axis=1) + 1
    rankings, tied = rankings_from_ranks(ranks)
    return X, prepare_table_rows(X, rankings, tied, 3, tmp_path / "rows", n_folds=n_folds)


def test_rows__every_row_is_tested_once_and_never_trained_on_in_its_fold(tmp_path):
    X, rows = table_rows(tmp_path)
    seen = []
    for fold in range(4):
        test = np.concatenate([rows.test(fold)[i][0].toarray() for i in range(len(rows.test(fold)))])
        train = np.concatenate([rows.training(fold)[i][0].toarray() for i in range(len(rows.training(fold)))])
        tried, checked = (part.n_rows for part in rows.tuning(fold))
        assert len(test) == 10
        assert tried + checked == len(train) == 30
        assert 0 < checked < tried
        assert not set(map(tuple, test)) & set(map(tuple, train))
        seen += list(map(tuple, test))
    assert sorted(seen) == sorted(map(tuple, X))


@pytest.mark.parametrize("kept_bytes", [0, 200, 1 << 20])
def test_blocks__read_again_are_the_same(tmp_path, monkeypatch, kept_bytes):
    monkeypatch.setattr("ammrank_dask.evaluation.folds.KEPT_BYTES", kept_bytes)
    _, rows = table_rows(tmp_path)
    blocks = rows.training(1)
    first, again = ([blocks[i] for i in range(len(blocks))] for _ in range(2))
    for one, other in zip(first, again, strict=True):
        np.testing.assert_array_equal(one[0].toarray(), other[0].toarray())
        np.testing.assert_array_equal(one[1], other[1])
    assert sum(len(rankings) for _, rankings, _ in first) == blocks.n_rows == 30


def test_dense_blocks__are_in_the_standards_of_the_training_rows(tmp_path):
    _, rows = table_rows(tmp_path)
    train, test = rows.standardized(rows.training(0), rows.test(0))
    assert isinstance(train, DenseBlocks)
    np.testing.assert_allclose(train.X.mean(axis=0), 0, atol=1e-9)
    # Deviation 1 divided by √3; the constant column is 0 everywhere.
    np.testing.assert_allclose(train.X.std(axis=0), [1 / math.sqrt(3), 0, 1 / math.sqrt(3)])
    assert (test.X[:, 1] == 0).all()
    raw = np.concatenate([rows.training(0)[i][0].toarray() for i in range(len(rows.training(0)))])
    own = np.concatenate([rows.test(0)[i][0].toarray() for i in range(len(rows.test(0)))])
    np.testing.assert_allclose(test.X[:, 0], (own[:, 0] - raw[:, 0].mean()) / raw[:, 0].std() / math.sqrt(3), rtol=1e-5)


def test_prepare_table__does_not_depend_on_anything_but_the_number_of_rows(tmp_path):
    X = np.arange(12.0)[:, None]
    rankings = np.tile([[0, 1]], (12, 1))
    for name in ("a", "b"):
        prepare_table(X, rankings, np.zeros(rankings.shape, bool), 3, str(tmp_path / name))
    for array in ("data", "rankings", "hashes"):
        one, other = (load_array(tmp_path / name, array) for name in ("a", "b"))
        np.testing.assert_array_equal(one, other)
    assert RESAMPLING_SALT


def count_policy(name, blocks, tie_order, k):
    counter = COUNTERS[name](sum(len(block) for block in blocks), np.array(tie_order), k)
    for block in blocks:
        counter.add(block)
    return counter.counts()


def test_counters__by_hand():
    # Two slots a user on average: category_top_n gives each of 4 categories 2 of 4 users.
    scores = np.array([[9, 9, 9, 9], [8, 8, 1, 1], [7, 1, 8, 2], [1, 7, 2, 8]], np.float32)
    blocks = [scores[:3], scores[3:]]
    found = count_policy("category_top_n", blocks, [0, 1, 2, 3], 2)
    assert found.exposure.tolist() == [[2], [2], [2], [2]]
    assert found.categories_per_user.tolist() == [0, 2, 1, 0, 1]
    found = count_policy("user_top_k", blocks, [0, 1, 2, 3], 2)
    assert found.categories_per_user.tolist() == [0, 0, 4, 0, 0]
    assert found.exposure.tolist() == [[2, 1], [0, 3], [1, 0], [1, 0]]
    # The first user's equal scores stand in the tie order.
    found = count_policy("user_top_k", blocks, [3, 2, 1, 0], 2)
    assert found.exposure.tolist() == [[0, 2], [1, 1], [1, 1], [2, 0]]


def test_counters__both_policies_hand_out_as_many_slots():
    scores = np.random.default_rng(0).random((7, 4)).astype(np.float32)
    slots = {name: count_policy(name, [scores], [2, 1, 0, 3], 3).slots for name in COUNTERS}
    assert slots == {"user_top_k": 21, "category_top_n": 21}


def draw_features(path, n=900, n_partitions=3):
    """A store of its own making: `pv` and `adv` columns decide what is clicked, ages and genders are columns too."""
    rng = np.random.default_rng(21)
    taste = rng.random((n, 4))
    X = np.hstack(
        [taste + 0.3 * rng.random((n, 4)), taste, np.eye(9)[rng.integers(0, 9, n)], np.eye(2)[np.arange(n) % 2]]
    )
    names = [f"pv:intensity:{c}" for c in "abcd"] + [f"adv:intensity:{c}" for c in "abcd"]
    ages = ["13-17", "18-20", "21-24", "25-29", "30-34", "35-44", "45-54", "55-64", "65+"]
    names += [f"age:{age}" for age in ages] + ["gender:female", "gender:male"]
    rankings = np.argsort(-(taste + 0.2 * rng.random((n, 4))), axis=1)[:, :2]
    rankings[rng.random(n) < 0.05] = -1
    return write_features(
        path, X, np.arange(n) * 7, names, rankings, categories=list("abcd"), n_partitions=n_partitions
    )


def test_compare_methods__results_do_not_depend_on_partitions_for_methods_without_order(tmp_path, client):
    found = []
    for count in (1, 3):
        features = draw_features(tmp_path / f"store-{count}", n_partitions=count)
        rows = prepare_features(client, features, "adv", tmp_path / f"rows-{count}", n_folds=3)
        result = compare_methods(client, rows, ["central-mal", "ag-mal", "lr"])
        found.append({name: entry.measures for name, entry in result.items()})
    for name in ("central-mal", "ag-mal"):
        assert found[0][name].disagreement == pytest.approx(found[1][name].disagreement)
        assert found[0][name].interval("disagreement") == pytest.approx(found[1][name].interval("disagreement"))
    assert found[0]["lr"].disagreement == pytest.approx(found[1]["lr"].disagreement, abs=2e-3)
    assert found[0]["lr"].disagreement < found[0]["ag-mal"].disagreement


def test_prepare_features__gives_group_columns_and_refuses_other_variants(tmp_path, client):
    features = draw_features(tmp_path / "store")
    rows = prepare_features(client, features, "no-adv", tmp_path / "rows", n_folds=3)
    assert rows.group_columns == (tuple(range(4, 13)), (13, 14))
    tested = sum(rows.test(fold).n_rows for fold in range(3))
    n_labelled = sum(int((features.partition(i).rankings >= 0).any(axis=1).sum()) for i in range(3))
    assert tested + rows.n_tuning == n_labelled
    with pytest.raises(BadInput, match="the store has no columns of group 'mail'; it has pv, adv, age, gender"):
        prepare_features(client, features, "mail", tmp_path / "r")
    with pytest.raises(BadInput, match="variant 'no-mail' leaves out a group that is none"):
        prepare_features(client, features, "no-mail", tmp_path / "r")
    with pytest.raises(BadInput, match="folds must be at least 2, got 1"):
        prepare_features(client, features, "adv", tmp_path / "r", n_folds=1)
    with pytest.raises(BadInput, match=r"every fold and the tuning must have a user with clicks, found none in fold"):
        prepare_features(client, features, "adv", tmp_path / "many", n_folds=900)
    bare = write_features(tmp_path / "bare", np.eye(3), [1, 2, 3], ["x", "y", "z"])
    with pytest.raises(BadInput, match="must have rankings to compare methods with, found none"):
        prepare_features(client, bare, "own", tmp_path / "r")


def test_run_fold__a_method_that_cannot_be_fitted_says_so(tmp_path, client, monkeypatch):
    monkeypatch.setattr("ammrank_dask.methods.logistic.MAX_PAIR_BYTES", 10)
    _, rows = table_rows(tmp_path)
    with pytest.raises(BadInput, match="pw-lr cannot be fitted: pw-lr must hold"):
        run_fold("pw-lr", {"C": 1.0}, rows, 0, 0, False)


@pytest.fixture(scope="module")
def site_result(tmp_path_factory, cluster_file, grid):
    """A small simulated lake, a site on it, and its evaluation with all methods."""
    folder = tmp_path_factory.mktemp("site")
    runner = CliRunner()
    commands = [
        ["simulate", "lake", "--users", 600, "--days", 40, "--seed", 3, "--cluster", cluster_file, "--quiet"],
        ["init", "site", "--lake", "lake", "--cluster", cluster_file, "--quiet"],
        [
            "evaluate",
            "site",
            "--date",
            "2026-02-13",
            "--variant",
            "adv",
            "--folds",
            2,
            "--cluster",
            cluster_file,
            "--quiet",
        ],
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for command in commands:
            result = runner.invoke(ammrank, [str(part) for part in command])
            assert result.exit_code == 0, result.output
    return folder, folder / "site" / "evaluations" / "date=2026-02-13"


def test_evaluate_site__has_slices_exposure_and_floor(site_result):
    _, out = site_result
    found = evaluate_json(out)
    methods, details = found["variants"]["adv"], found["details"]["adv"]
    assert set(methods) == set(METHODS)
    assert all(set(row) == METHOD_KEYS for row in methods.values())
    assert all(row["kendall_tau"] is None for row in methods.values())
    assert set(details["exposure"]) == {"lr + category_top_n", "lr + user_top_k", "amm-rank + user_top_k"}
    for name, counts in details["exposure"].items():
        assert sum(counts["categories_per_user"]) == details["users"]
        if "user_top_k" in name:
            assert counts["starved_users"] == counts["overexposed_users"] == 0
            assert counts["slots"] == 10 * details["users"]
    slices = details["slices"]["amm-rank"]
    assert sum(part["users"] for part in slices["activity"]) == details["users"]
    assert [len(slices[name]) for name in ("activity", "group", "category")] == [10, 18, 50]
    mean = sum(part["disagreement"] * part["users"] for part in slices["activity"] if part["users"]) / details["users"]
    low, high = details["intervals"]["amm-rank"]["disagreement"]
    assert low < mean < high
    assert found["floor"]["expected_clicks"]["disagreement"] < min(
        row["disagreement"]["mean"] for row in methods.values()
    )
    assert found["simulation"]["parameters"]["users"] == 600
    assert found["source"]["tuning_users"] + details["users"] == found["source"]["labelled_users"]


def test_evaluate_site__prices_fairness_with_the_best_method(site_result):
    _, out = site_result
    found = evaluate_json(out)
    methods, fairness = found["variants"]["adv"], found["details"]["adv"]["fairness"]
    assert fairness["method"] == min(methods, key=lambda name: methods[name]["disagreement"]["mean"])
    assert 0 < fairness["users"] <= 2000
    assert set(fairness["policies"]) == {"user_top_k", "category_top_n"}
    clicks = [entry["expected_clicks"] for entry in fairness["floors"] if "gap" in entry]
    assert len(clicks) >= 4
    assert (np.diff(clicks) <= 1e-6).all()
    assert clicks[0] <= fairness["policies"]["user_top_k"]["expected_clicks"] * 1.5
    assert all(entry["starved_categories"] == 0 for entry in fairness["floors"][2:] if "gap" in entry)
    page = (out / "evaluation.html").read_text()
    assert "The price of fairness" in page
    assert 'data-chart="fairness"' in page


def test_evaluate_site__takes_both_variants_by_default(site_result, cluster_file):
    folder, _ = site_result
    result = run(
        folder / "site", "--date", "2026-02-13", "--methods", "central-mal,ib-mal", "--folds", 2, "--quiet",
        "--out", folder / "both", "--cluster", cluster_file, "--json",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    found = evaluate_json(folder / "both")
    assert set(found["variants"]) == {"adv", "no-adv"}
    assert printed["variants"] == found["variants"]
    # A centre of all users does not look at features; the nearest users do.
    errors = {v: {m: row["disagreement"]["mean"] for m, row in rows.items()} for v, rows in found["variants"].items()}
    assert errors["adv"]["central-mal"] == errors["no-adv"]["central-mal"]
    assert errors["adv"]["ib-mal"] != errors["no-adv"]["ib-mal"]
    assert found["details"]["adv"]["differences"] == {}
    assert found["reference"] is None


def test_evaluate_site__page_shows_figures(site_result):
    folder, out = site_result
    page = (out / "evaluation.html").read_text()
    assert 'data-chart="precision-at-k"' in page
    assert 'data-chart="slice-activity"' in page
    assert "lr + category_top_n" in page
    assert "oracle: expected clicks" in page
    assert "http" not in page
    assert str(folder) not in page
    assert sorted(path.name for path in out.iterdir()) == ["evaluation.csv", "evaluation.html", "evaluation.json"]


@pytest.mark.parametrize(
    ("difference", "is_better", "choice"),
    [
        (0.5, True, "Switch to amm-rank-plus: users clicked 2.50 of its 10 categories and 2.00 of those of own-history"
         " (+0.50, 95 % interval +0.30 to +0.70, 800 users)."),
        (-0.5, False, "Keep own-history: "),
        (0.1, False, "amm-rank-plus and own-history are too close to tell: "),
    ],
)  # fmt: skip
def test_describe_choice__lists_made_before_the_clicks_decide(difference, is_better, choice):
    sources = {
        "own-history": {"hits": {"mean": 2.0}},
        "amm-rank-plus": {"hits": {"mean": 2.0 + difference, "difference": difference, "standard_error": 0.1}},
    }
    forward = {"k": 10, "users": 800, "reference": "own-history", "sources": sources}
    found = describe_choice({"reference": "amm-rank-plus", "forward": forward})
    assert found[0] is is_better
    assert found[1].startswith(choice)


def test_evaluate_site__page_begins_with_a_choice_and_names_categories_worse_than_random(site_result):
    found = evaluate_json(site_result[1])
    ours = found["reference"]
    best = found["details"]["adv"]["best_others"][ours]["method"]
    _, sentence = describe_choice({**found, "forward": None})
    choices = f"Switch to {ours}|Keep {best}|{ours} and {best} are too close to tell"
    assert re.match(f"({choices}): it ranks", sentence)
    assert "95 % interval" in sentence
    assert describe_choice({**found, "forward": None, "reference": None}) is None
    slices = found["details"]["adv"]["slices"][ours]["category"]
    for part in slices:
        part["disagreement"] = 0.4
    assert "worse than at random" not in render_evaluation(found)
    slices[0]["disagreement"], n_users = 0.6, found["clicks"][slices[0]["category"]]
    page = render_evaluation(found)
    assert f"{ours} ranks 1 category worse than at random: {slices[0]['category']} ({n_users:,} user" in page
    assert page.index('class="verdict') < page.index("<nav>") < page.index('<h2 id="')


def test_evaluate_site__names_from_the_data_are_escaped(site_result):
    text = json.dumps(evaluate_json(site_result[1])).replace("Finance/Loans", "<script>alert(1)</script>")
    page = render_evaluation(json.loads(text))
    assert "<script>" not in page
    assert "&lt;script&gt;" in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--variant", "mail"], "the store has no columns of group 'mail'; it has pv, sq, slc, olc, adv, age, gender"),
        (["--variant", "no-mail"], "variant 'no-mail' leaves out a group that is none"),
        (["--truth", "nowhere"], "must hold the truth of a simulated lake, found no simulation.json"),
    ],
)
def test_evaluate_site__bad_input_is_one_sentence(arguments, message, site_result, cluster_file):
    folder, _ = site_result
    result = run(
        folder / "site", "--date", "2026-02-13", "--methods", "central-mal", "--cluster", cluster_file, "--quiet",
        "--out", folder / "bad", *arguments,
    )  # fmt: skip
    assert result.exit_code == 65, result.output
    assert message in result.output
    assert not (folder / "bad" / "evaluation.json").exists()


def test_evaluate_site__too_few_days_is_one_sentence(site_result, cluster_file):
    folder, _ = site_result
    result = run(folder / "site", "--date", "2026-01-20", "--cluster", cluster_file, "--quiet")
    assert result.exit_code == 65
    needed = "label.days 30 and features.min_days 7 before them are needed"
    assert result.output == f"ammrank: 16 days of events are too few to train: {needed}\n"


@given(st.floats(-2, 2), st.floats(0, 3))
def test_nice_range__encloses_both_values(low, span):
    start, stop = nice_range(low, low + span)
    assert start <= low + 1e-9
    assert low + span <= stop + 1e-9
    assert stop > start


def test_read_rank_table__ties_and_empty_ranks(tmp_path):
    table = read_rank_table(
        write_table(tmp_path / "t.csv", [[1, 1, 1, ""], [2, "", 2, 1], [3, 1, 1, 1]], ["A", "L1", "L2", "L10"])
    )
    assert table.labels == ["L1", "L2", "L10"]
    assert table.ranks.tolist() == [[1, 1, 0], [0, 2, 1]]
    assert table.n_dropped == 1


def test_cost_chart__labels_lie_neither_on_each_other_nor_on_points():
    points = {
        "popularity": (0.002, 0.347), "own-history": (0.03, 0.286), "lr": (1.1, 0.136), "pw-lr": (5.3, 0.154),
        "amm-rank": (0.41, 0.145), "amm-rank-plus": (0.07, 0.098), "a-method-of-my-own": (1.2, 0.140),
    }  # fmt: skip
    chart = cost_chart(points, style_methods(points))
    dots = [(float(x), float(y)) for x, y in re.findall(r'cx="([\d.]+)" cy="([\d.]+)"', chart)]
    labels = {
        name: (float(x), float(y))
        for x, y, name in re.findall(r'<text x="([\d.]+)" y="([\d.]+)" text_?-?anchor="middle">([a-z-]+)</text>', chart)
        if name in points
    }
    assert (len(dots), set(labels)) == (len(points), set(points))
    boxes = {name: (x - 3.1 * len(name), y - 11, x + 3.1 * len(name), y + 3) for name, (x, y) in labels.items()}
    for name, (left, top, right, bottom) in boxes.items():
        assert 0 <= left < right <= 400
        assert not any(left < x < right and top < y < bottom for x, y in dots), name
        for other, box in boxes.items():
            apart = right <= box[0] + 0.1 or box[2] <= left + 0.1 or bottom <= box[1] + 0.1 or box[3] <= top + 0.1
            assert other == name or apart, (name, other)
