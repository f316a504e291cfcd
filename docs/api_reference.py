"""Write the reference of the public names from their docstrings: `python docs/api_reference.py > docs/api.md`."""

from __future__ import annotations

import inspect
import math
import re
import sys
from collections.abc import Iterator
from typing import Any

import ammrank_dask
from ammrank_dask.model.estimator import RankingEstimator

HEAD = """# Python reference

The public names of `ammrank_dask`, from their docstrings; written by `python docs/api_reference.py > docs/api.md`.
[Use it from Python](python.md) shows how they go together.

The calls take what you have: pandas, numpy and scipy in memory, or Dask collections on a cluster. There are no Dask
classes: a Dask array given to `fit` makes the rounds of `train` on the cluster, a Dask array given to `predict` makes a
lazy Dask array, and a fitted model is a plain local object. `client=None` is the current client; a client is never
created, closed or changed.

## Beside xgboost.dask, LightGBM and dask-ml

The same task in each: learn from a Dask array `X` in blocks of rows which of ten categories a row prefers, and score
all rows.

```text
# ammrank-dask                                       # xgboost.dask
model = AMMRankPlus().fit(X, rankings)               data = dxgb.DaskDMatrix(client, X, first)
scores = model.decision_function(X)                  output = dxgb.train(client, parameters, data)
                                                     scores = dxgb.predict(client, output, X)
# LightGBM                                           # dask-ml
model = DaskLGBMClassifier().fit(X, first)           model = Incremental(SGDClassifier(loss="log_loss"))
scores = model.predict_proba(X)                      model.fit(X, first, classes=list(range(10)))
                                                     scores = model.predict_proba(X)
```

"""
BESIDE = [
    ("", "ammrank-dask", "xgboost.dask 3.2.0", "LightGBM 4.7.0", "dask-ml 2025.1.0"),
    ("---",) * 5,
    ("lines", "2", "3", "2", "3"),
    ("what is learned", "rankings", "the first category", "the first category", "the first category"),
    (
        "classes", "those for memory", "`DaskDMatrix`, `DaskXGB…`", "`DaskLGBM…`; `to_local()` gives a local model",
        "a wrapper around an estimator",
    ),
    ("predictions of a Dask array are lazy", "yes", "yes", "yes", "yes"),
    (
        "when X is computed", "in `fit`, block by block, to `scratch`", "when the `DaskDMatrix` is made",
        "when `fit` begins", "in `fit`, block by block",
    ),
    (
        "needs all data in memory", "no", "yes, in the workers", "yes, in the workers, which join their blocks", "no",
    ),
    (
        "measured: MB of all workers above their start, 1 / 2 / 4 workers, X of 200 MB", "126 / 272 / 578",
        "939 / 1,141 / 1,282", "784 / 1,110 / 1,443", "60 / 206 / 307",
    ),
    (
        "workers that learn at a time", "`shards`", "all", "all, which talk over sockets",
        "one: blocks are taken one after the other",
    ),
    ("measured: the same bits on 1, 2 and 4 workers", "yes", "no", "no", "yes"),
    ("measured: the same bits in a second run on 2 workers", "yes", "no", "no", "yes"),
]  # fmt: skip
SOURCES = """
Measured by `python -m benchmarks beside` (500,000 rows of 100 columns in 25 blocks, workers of one thread, on
2026-11-19). What every worker has of its own, as compiled code, counts once for each. Rows without "measured" are from
[Distributed XGBoost with Dask][1], [LightGBM's Distributed Learning Guide][2] and [dask-ml on incremental learning][3].

[1]: https://xgboost.readthedocs.io/en/stable/tutorials/dask.html
[2]: https://lightgbm.readthedocs.io/en/stable/Parallel-Learning-Guide.html
[3]: https://ml.dask.org/incremental.html
"""
GROUPS = {
    "Rows from events": (
        ("interest_features", "click_rankings"),
        """import dask.dataframe as dd
import pandas as pd
from distributed import Client
from ammrank_dask import click_rankings, interest_features, write_features

events, users = dd.read_parquet("lake/events"), pd.read_parquet("lake/users.parquet")
taxonomy = pd.read_csv("lake/taxonomy.csv")
with Client(n_workers=1, threads_per_worker=2, processes=False, dashboard_address=None):
    X, user_ids, columns = interest_features(events, "2026-01-20", users, taxonomy, n_partitions=8)  # Dask in and out
    rankings, categories = click_rankings(events, "2026-01-20", "2026-02-19", user_ids, taxonomy)
    print(X.numblocks, X.shape, rankings.shape)  # the lengths of the blocks are known
    write_features("rows", X, user_ids, columns, rankings, categories=categories)  # one task a block""",
    ),
    "Models": (
        ("AMMRankPlus", "AMMRank", "AMM"),
        """import dask.array as da
from distributed import Client
from ammrank_dask import AMMRank

X = da.random.default_rng(1).normal(size=(2_000, 8), chunks=(500, 8))
rankings = X[:, :5].map_blocks(lambda rows: (-rows).argsort(axis=1)[:, :3], chunks=((500,) * 4, (3,)), dtype=int)
with Client(n_workers=1, threads_per_worker=2, processes=False, dashboard_address=None):
    model = AMMRank(epochs=2).fit(X, rankings, shards=2)  # the rounds of train, on all rows
    codes, scores = model.predict_top_k(X, k=3)  # lazy
    print(codes[:3].compute(), model.score(X, rankings))""",
    ),
    "Stored features and training": (
        ("write_features", "open_features", "Features", "train", "TrainSettings", "tune"),
        """from distributed import Client
from ammrank_dask import open_features, train, tune

features = open_features("rows")  # what write_features wrote; open_features("site", "2026-02-18") is that of a night
X, user_ids, columns = features.to_dask()
with Client(n_workers=1, threads_per_worker=2, processes=False, dashboard_address=None) as client:
    best = tune(features, kappas=[0.005, 0.02], clickers_per_plane=[300], epochs=1, client=client).best
    model = train(features, shards=2, epochs=2, **best)  # without client=, the current one
    model.save("model")
    print(best, model.training_["validation_error"])""",
    ),
    "Comparison of methods": (
        ("cross_validate",),
        """import numpy as np
from distributed import Client
from ammrank_dask import cross_validate, open_features
from ammrank_dask.methods.base import Method


class NearestMean(Method):
    method = "nearest-mean"

    def learn(self, blocks, n_categories):
        total = np.zeros((n_categories, self.n_features_in_))
        for X, rankings, _ in blocks:
            for place in range(rankings.shape[1]):
                rows = np.flatnonzero(rankings[:, place] >= 0)
                np.add.at(total, rankings[rows, place], X[rows].toarray())
        self.means_ = total / (self.popularity_ + 1)[:, None]

    def score(self, X):
        return X @ self.means_.T


with Client(n_workers=1, threads_per_worker=2, processes=False, dashboard_address=None):
    print(cross_validate(open_features("rows"), ["popularity", "amm-rank-plus", NearestMean], folds=2))""",
    ),
    "Lists and chances": (
        ("score", "ScoreSettings", "open_qualifications", "Qualifications", "learn_chances", "exposure_report"),
        """from distributed import Client
from ammrank_dask import AMMRankPlus, exposure_report, learn_chances, open_features, open_qualifications, score

features, model = open_features("rows"), AMMRankPlus.load("model")
with Client(n_workers=1, threads_per_worker=2, processes=False, dashboard_address=None):
    X, user_ids, columns = features.to_dask()
    lists = score(model, X, user_ids=user_ids, k=5)  # no path: a lazy Dask DataFrame
    print(lists.head())
    chances = learn_chances(model, features)  # from users who did not train
    score(model, X, "lists", user_ids=user_ids, k=5, policy="balanced", chances=chances)  # passes need a place
    quals = open_qualifications("lists")
    print(quals.to_dask().groupby("category", observed=False)["user_id"].count().compute().head())
    print(exposure_report(quals).head())""",
    ),
    "Measures and simulation": (("disagreement_error", "top_k_metrics", "simulate"), ""),
}
CALLS = {
    "decision_function", "explain", "fit", "get_params", "load", "partial_fit", "predict", "predict_top_k", "save",
    "score", "set_params",
}  # fmt: skip
"""What estimators show; their other methods are for the stages."""
_SECTION = re.compile(r"^(\w[\w ]*)\n-{3,}\n", re.MULTILINE)
_ADDRESS = re.compile(r"<function (\w+) at 0x\w+>")
_LISTED = ("Parameters", "Returns", "Attributes", "Raises")


def reference() -> str:
    """Return the page as Markdown: groups of names, each with an example, and the names of a group in their order."""
    listed = [name for names, _ in GROUPS.values() for name in names]
    if sorted(listed) != sorted(ammrank_dask.__all__):
        raise ValueError(
            f"GROUPS must list every public name once, differs in {set(listed) ^ set(ammrank_dask.__all__)}"
        )
    lines = [HEAD.rstrip(), "", *(f"| {' | '.join(row)} |" for row in BESIDE), SOURCES]
    for title, (names, example) in GROUPS.items():
        links = " · ".join(f"[{name}](#{name.lower()})" for name in names)
        lines += [f"## {title}", "", links, ""]
        if example:
            lines += ["```python", example, "```", ""]
        for name in names:
            lines += [*_entry(name, getattr(ammrank_dask, name)), ""]
    return "\n".join(lines).rstrip() + "\n"


def _entry(name: str, value: Any) -> Iterator[str]:
    yield from (f"### {name}", "", "```text", _signature(name, value, width=110), "```", "")
    yield _text(value)
    if inspect.isclass(value):
        yield from ("", "| call | what it does |", "|---|---|")
        shown = _public_methods(value)
        if issubclass(value, RankingEstimator):
            shown = ((call, function) for call, function in shown if call.partition("(")[0] in CALLS)
        yield from (f"| `{call}` | {_first_line(function)} |" for call, function in shown)


def _public_methods(value: type) -> Iterator[tuple[str, Any]]:
    """Yield the methods and properties that our classes define, as one calls them."""
    ours = [base for base in value.__mro__ if base.__module__.startswith("ammrank_dask")]
    for name in sorted({name for base in ours for name in vars(base) if not name.startswith("_")}):
        member = inspect.getattr_static(value, name)
        if isinstance(member, property):
            yield name, member
        elif inspect.isfunction(function := getattr(member, "__func__", member)):
            yield _signature(name, function), function


def _signature(name: str, value: Any, width: float = math.inf) -> str:
    """Return the call with defaults and without types, one parameter a line where it is longer than `width`."""
    shown, has_star = [], False
    for parameter in inspect.signature(value).parameters.values():
        if parameter.name in ("self", "cls"):
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not has_star:
            shown, has_star = [*shown, "*"], True
        has_star |= parameter.kind is parameter.VAR_POSITIONAL
        text = str(parameter.replace(annotation=inspect.Parameter.empty))
        shown.append(_ADDRESS.sub(r"\1", text))
    line = f"{name}({', '.join(shown)})"
    return line if len(line) <= width else f"{name}(\n" + "".join(f"    {part},\n" for part in shown) + ")"


def _first_line(value: Any) -> str:
    return (inspect.getdoc(value) or "").partition("\n")[0].replace("|", "\\|")


def _text(value: Any) -> str:
    """Return a docstring as Markdown: sections in bold, the entries of lists as points, examples as code."""
    first, *sections = _SECTION.split(inspect.getdoc(value) or "")
    parts = [first.strip()]
    for title, body in zip(sections[::2], sections[1::2], strict=True):
        shown = _points(body) if title in _LISTED else f"```text\n{body.strip()}\n```"
        parts += [f"**{title}**", shown]
    return "\n\n".join(part for part in parts if part)


def _points(body: str) -> str:
    """Return numpydoc entries, a name and its indented meaning, as a list."""
    points = []
    for line in body.strip().splitlines():
        if line and not line.startswith(" "):
            points.append(f"- `{line.strip()}`:")
        elif line.strip() and points:
            points[-1] += f" {line.strip()}"
    return "\n".join(points)


if __name__ == "__main__":
    sys.stdout.write(reference())
