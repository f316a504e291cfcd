"""Refuse arguments that are not the kind of number that is asked for, with one sentence that echoes them."""

from __future__ import annotations

import math
import operator
from numbers import Real
from typing import Any

from ammrank_dask.storage.errors import BadInput


def whole_number(name: str, value: Any, *, least: int | None = None) -> int:
    """Return a whole number, also one of numpy, as a plain one; refuse anything else, and what is below `least`.

    Examples
    --------
    >>> whole_number("epochs", 3, least=1)
    3
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None:
        raise BadInput(f"{name} must be a whole number, got {value!r}")
    if least is not None and number < least:
        raise BadInput(f"{name} must be {'0 or above' if least == 0 else f'at least {least}'}, got {number}")
    return number


def finite_number(
    name: str,
    value: Any,
    *,
    least: float | None = None,
    most: float | None = None,
    above: float | None = None,
    kind: str = "",
) -> None:
    """Refuse what is no finite number, below `least`, over `most`, or not above `above`; `kind` says what it is.

    Examples
    --------
    >>> finite_number("pace", 1.5, above=0)
    """
    is_number = isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    if (
        not is_number
        or (least is not None and value < least)
        or (most is not None and value > most)
        or (above is not None and value <= above)
    ):
        limits = (
            f"above {above}" if above is not None
            else f"between {least} and {most}" if most is not None
            else f"{least} or above" if least is not None
            else "finite"
        )  # fmt: skip
        raise BadInput(f"{name} must be {kind}{limits}, got {value!r}")


def list_length(k: Any, n_categories: int) -> int:
    """Return how many categories of each user are asked for, as a plain number from 1 to all of them.

    Examples
    --------
    >>> list_length(2, n_categories=3)
    2
    """
    number = whole_number("k", k)
    if not 1 <= number <= n_categories:
        raise BadInput(f"k must be between 1 and n_categories ({n_categories}), got {number}")
    return number
