"""What all sections of the config have in common: unknown keys are refused, texts and zones are checked."""

from __future__ import annotations

from typing import Annotated, Any
from zoneinfo import ZoneInfo

from pydantic import BaseModel, BeforeValidator, ConfigDict, model_validator


class Section(BaseModel):
    """A part of the config: frozen, closed against unknown keys, and without numbers that JSON cannot keep."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _empty_is_default(cls, content: Any) -> Any:
        # YAML reads a section whose keys are all commented out as null.
        return {} if content is None else content


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
