"""Parameters of models as scikit-learn has them, without an import of it: that is a third of what a command imports."""

from __future__ import annotations

import inspect
import reprlib
from collections import defaultdict
from typing import Any, Self


class Parameters:
    """Base of what has parameters: the keyword arguments of `__init__`, kept under their own names.

    Scikit-learn's `clone`, pipelines and searches take it for an estimator.

    Examples
    --------
    >>> class Line(Parameters):
    ...     def __init__(self, *, slope=1.0, start=None):
    ...         self.slope, self.start = slope, start
    >>> Line(slope=2.0), Line(slope=2.0).set_params(start=3).get_params()
    (Line(slope=2.0), {'slope': 2.0, 'start': 3})
    """

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters by name; if `deep`, those of parameters that have some too, as `outer__inner`."""
        found: dict[str, Any] = {}
        for name in _names_of(type(self)):
            value = getattr(self, name)
            if deep and hasattr(value, "get_params") and not isinstance(value, type):
                found |= {f"{name}__{inner}": of_inner for inner, of_inner in value.get_params().items()}
            found[name] = value
        return found

    def set_params(self, **params: Any) -> Self:
        """Change parameters; those of a parameter are named `outer__inner`."""
        names = _names_of(type(self))
        nested: dict[str, dict[str, Any]] = defaultdict(dict)
        for key, value in params.items():
            name, is_inner, inner = key.partition("__")
            if name not in names:
                raise ValueError(f"Invalid parameter {name!r} for estimator {self!r}. Valid parameters are: {names!r}.")
            if is_inner:
                nested[name][inner] = value
            else:
                setattr(self, name, value)
        for name, own in nested.items():
            getattr(self, name).set_params(**own)
        return self

    def __repr__(self) -> str:
        changed = []
        for name, parameter in inspect.signature(type(self)).parameters.items():
            value = getattr(self, name)
            if value is not parameter.default and repr(value) != repr(parameter.default):
                changed.append(f"{name}={_show(value)}")
        return f"{type(self).__name__}({', '.join(changed)})"

    def __sklearn_tags__(self) -> Any:
        from sklearn.base import BaseEstimator  # who asks is scikit-learn

        return BaseEstimator.__sklearn_tags__(self)


def _show(value: Any) -> str:
    """Return a value as text; of lists and arrays the beginning."""
    value = value.tolist() if hasattr(value, "tolist") else value
    return reprlib.repr(value) if isinstance(value, list | tuple) else repr(value)


def _names_of(kind: type) -> list[str]:
    return sorted(inspect.signature(kind).parameters)
