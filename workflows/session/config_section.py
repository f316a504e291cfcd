"""What all sections of the config have in common: unknown keys are refused, texts and zones are checked."""

from __future__ import annotations

from typing import Annotated, Any, get_args, get_origin
from zoneinfo import ZoneInfo

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationInfo, field_validator, model_validator

LONGEST_DAYS = 3650
"""Days of the longest window: ten years. Dates so far apart can still be counted."""
FOREVER_DAYS = 36500
"""Most days or nights that something is kept: a hundred years, for those who keep all."""


def refuse_boolean(cls: type[BaseModel], value: Any, info: ValidationInfo) -> Any:
    """Refuse a boolean for a number: YAML reads yes, no, on and off as booleans, and pydantic those as 1 and 0."""
    kind = cls.model_fields[str(info.field_name)].annotation
    kinds = {kind, *get_args(kind)}
    if bool in kinds or not any(one in (int, float) or isinstance(one, int) for one in kinds):
        return value
    named = value if get_origin(kind) is dict and isinstance(value, dict) else {"": value}
    for name, number in named.items():
        if isinstance(number, bool):
            of_key = f"{name!r} " if name else ""
            raise ValueError(f"{of_key}must be a number, got {number}, which YAML also makes of yes, no, on and off")
    return value


class Section(BaseModel):
    """A part of the config: frozen, closed against unknown keys, and without numbers that JSON cannot keep."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _empty_is_default(cls, content: Any) -> Any:
        # YAML reads a section whose keys are all commented out as null.
        return {} if content is None else content

    _booleans_are_no_numbers = field_validator("*", mode="before")(classmethod(refuse_boolean))


def existing_zone(value: str) -> str:
    """Return the name of a time zone, refusing one that there is not."""
    try:
        ZoneInfo(value)
    except Exception:
        raise ValueError(f"{value!r} is not a time zone, for example UTC or Europe/Berlin") from None
    return value


def _texts(values: Any) -> Any:
    """Take one value for a list of one, and a number, which YAML makes of 0, for its digits."""
    listed = values if isinstance(values, list) else [values] if isinstance(values, str | int) else values
    if not isinstance(listed, list):
        return values
    return [str(value) if isinstance(value, int) and not isinstance(value, bool) else value for value in listed]


Texts = Annotated[list[str], BeforeValidator(_texts)]
Spellings = dict[str, Texts]
