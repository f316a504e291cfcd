"""Know the methods of the comparison by name, load further ones from a file, and build them for the rows at hand."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import math
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from ammrank_dask.methods.base import Method
from ammrank_dask.model.amm_rank_plus import PACE, usual_epochs
from ammrank_dask.model.estimator import RankingEstimator
from ammrank_dask.model.plane_model import PlaneModel
from ammrank_dask.model.search import make_grid, scale_to_pairs
from ammrank_dask.storage.errors import BadInput, suggest
from ammrank_dask.storage.objects.folders import is_file

_importing = threading.Lock()
"""Held while a method is imported: two threads that import scikit-learn from two sides find it half initialised."""

AMM_RANK = "amm-rank"
"""The method of the paper."""

POPULARITY = "popularity"
"""The method that every choice of parameters must beat."""

PLUS = "amm-rank-plus"

_HOMES = {
    POPULARITY: "ammrank_dask.methods.own:Popularity",
    "own-history": "ammrank_dask.methods.own:OwnHistory",
    "own-logit": "ammrank_dask.methods.own:OwnLogit",
    "item-knn": "ammrank_dask.methods.own:ItemKnn",
    "amm": "ammrank_dask.model.amm_rank:AMM",
    "central-mal": "ammrank_dask.methods.mallows:CentralMallows",
    "ag-mal": "ammrank_dask.methods.mallows:GroupMallows",
    "ib-mal": "ammrank_dask.methods.mallows:NeighborMallows",
    "lr": "ammrank_dask.methods.logistic:Logistic",
    "pw-lr": "ammrank_dask.methods.logistic:PairwiseLogistic",
    AMM_RANK: "ammrank_dask.model.amm_rank:AMMRank",
    PLUS: "ammrank_dask.model.amm_rank_plus:AMMRankPlus",
}
METHODS = tuple(_HOMES)
"""All names: the simple ones, the methods of the paper in the order of its table, and ours."""
MethodName: TypeAlias = str | type[RankingEstimator]
"""A known name, the path of a file that defines a method, or its class."""


def reference_of(methods: Iterable[str]) -> str | None:
    """Return which of the methods the others are compared with: ours, else that of the paper, else none.

    Examples
    --------
    >>> reference_of(["lr", "amm-rank", "amm-rank-plus"]), reference_of(["lr", "amm-rank"]), reference_of(["lr"])
    ('amm-rank-plus', 'amm-rank', None)
    """
    present = set(methods)
    return next((name for name in (PLUS, AMM_RANK) if name in present), None)


_REGULARIZATIONS, _PLANE_LIMITS = (1e-4, 1e-3, 3e-3, 1e-2, 3e-2), (1, 2, 5, 50)
_STEPS, _FEWEST_EPOCHS, _MOST_EPOCHS = 200_000, 12, 100
_TABLE_KAPPAS, _TABLE_STEPS, _TABLE_EPOCHS = (4e-3, 4e-2, 4e-1, 4.0), 50_000, (8, 30)


@dataclass(frozen=True)
class Setting:
    """What a method is built for."""

    n_rows: int
    n_categories: int
    group_columns: Sequence[Sequence[int]] = ()
    seed: int = 0
    tuned_rows: int | None = None
    """Training rows with which the parameters were chosen, None while they are being chosen."""
    own_columns: Sequence[Sequence[int]] | None = None
    own_groups: Sequence[int] | None = None
    """Which columns are a category's own, as in `AMMRankPlus`."""
    is_table: bool = False
    own_kinds: Sequence[str] | None = None
    """The names of the kinds of own columns, as `pv:intensity`."""


def resolve_methods(names: Sequence[Any]) -> list[Any]:
    """Return known names, absolute paths of files and classes, refusing anything else; all known methods when empty."""
    found: list[MethodName] = []
    for name in names or METHODS:
        if not isinstance(name, str):
            _check_class(name, "methods")
            found.append(name)
        elif name.endswith(".py"):
            path = Path(name).resolve()
            if not is_file(path):
                raise BadInput(f"{name} must be a file that defines a method, found none there")
            load_method(str(path))
            found.append(str(path))
        elif name in METHODS:
            found.append(name)
        else:
            raise BadInput(f"there is no method {name!r} or FILE.py; {suggest(name, METHODS)}")
    labels = [method_label(name) for name in found]
    twice = sorted({label for label in labels if labels.count(label) > 1})
    if twice:
        raise BadInput(f"every method must be named once, found {', '.join(twice)} more than once")
    return found


def method_label(name: MethodName) -> str:
    """Return the name by which results are listed."""
    label: str = load_method(name).method
    return label


def _check_class(value: Any, where: str) -> None:
    """Refuse what is no class of a method with a name."""
    if not (inspect.isclass(value) and issubclass(value, Method)):
        shown = value.__name__ if inspect.isclass(value) else type(value).__name__
        raise BadInput(
            f"{where} must be names, files or subclasses of ammrank_dask.methods.base.Method, got {shown}; pass the"
            " class, not an object of it"
        )
    if not isinstance(getattr(value, "method", None), str):
        raise BadInput(f'{value.__name__} in {where} must say its name as `method = "…"`')


@functools.cache
def load_method(name: MethodName) -> Any:
    """Return the class of a known name, the one that a file defines, or a class as it is."""
    if not isinstance(name, str):
        return name
    if not name.endswith(".py"):
        module, _, attribute = _HOMES[name].partition(":")
        with _importing:
            return getattr(importlib.import_module(module), attribute)
    spec = importlib.util.spec_from_file_location(f"ammrank_method_{Path(name).stem}", name)
    if spec is None or spec.loader is None:
        raise BadInput(f"{name} cannot be loaded as a Python file")
    module_of_file = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module_of_file)
    except Exception as error:
        raise BadInput(f"{name} cannot be loaded: {type(error).__name__}: {error}") from None
    defined = [
        value
        for value in vars(module_of_file).values()
        if inspect.isclass(value) and issubclass(value, Method) and value.__module__ == spec.name
    ]
    if len(defined) != 1:
        raise BadInput(f"{name} must define one subclass of ammrank_dask.methods.base.Method, found {len(defined)}")
    _check_class(defined[0], name)
    return defined[0]


def grid_of(name: MethodName, mean_pairs: float = 0.0, *, is_table: bool = False) -> list[dict[str, Any]]:
    """Return the grid of a method for users of `mean_pairs` pairs; held-out users, or rows of a table, choose from it.

    Where a loss sums the pairs of a user, as that of planes does, λ follows their number. For users AMM-rank-plus has
    no grid: κ hardly matters there, and what a few held-out users would choose is chance.
    """
    cls = load_method(name)
    if name == PLUS:
        return make_grid(kappa=_TABLE_KAPPAS) if is_table else [{}]
    if not issubclass(cls, PlaneModel):
        return [dict(params) for params in cls.grid]
    values = _REGULARIZATIONS if cls.top_only else scale_to_pairs(_REGULARIZATIONS, mean_pairs)
    return make_grid(regularization=values, max_planes=_PLANE_LIMITS)


def widens_of(name: MethodName) -> Sequence[str]:
    """Return the parameters whose grid goes on beyond its edge."""
    cls = load_method(name)
    if name == PLUS:
        return ("kappa",)
    return ("regularization",) if issubclass(cls, PlaneModel) else cls.widens


def build_method(name: MethodName, params: Mapping[str, Any], setting: Setting) -> RankingEstimator:
    """Return an unfitted method with the chosen parameters and those that follow from the rows.

    Planes get as many epochs as make 200,000 steps, 12 at least and 100 at most. Their λ weighs against the mean
    loss: the best one falls with the square root of the number of rows, as bounds for hinge losses have it, so one
    that was chosen with fewer rows is scaled down. The C of the logistic models weighs against the sum and stays, as
    does the κ of AMM-rank-plus. On users that has the epochs and the pace of a night; on a table, whose rows rank
    everything, planes are not limited by clickers, and few rows get more epochs.
    """
    cls = load_method(name)
    known = inspect.signature(cls).parameters
    offered: dict[str, Any] = {
        "n_categories": setting.n_categories,
        "seed": setting.seed,
        "group_columns": tuple(tuple(columns) for columns in setting.group_columns),
        "own_columns": setting.own_columns,
        "own_groups": setting.own_groups,
        "own_kinds": setting.own_kinds,
    }
    chosen = {key: value for key, value in offered.items() if key in known} | dict(params)
    if issubclass(cls, PlaneModel):
        epochs = min(_MOST_EPOCHS, max(_FEWEST_EPOCHS, _STEPS // max(1, setting.n_rows)))
        chosen = {"epochs": epochs} | chosen
        if setting.tuned_rows is not None:
            chosen["regularization"] *= math.sqrt(setting.tuned_rows / setting.n_rows)
    if name == PLUS and setting.is_table:
        fewest, most = _TABLE_EPOCHS
        epochs = min(most, max(fewest, _TABLE_STEPS // max(1, setting.n_rows)))
        chosen = {"epochs": epochs, "clickers_per_plane": 1} | chosen
    elif name == PLUS:
        chosen = {"epochs": usual_epochs(setting.n_rows), "pace": PACE} | chosen
    built: RankingEstimator = cls(**chosen)
    built.n_categories = setting.n_categories  # also where the constructor does not take it
    return built
