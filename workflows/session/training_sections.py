"""The sections of the config about what is learnt: the state, labels, features, the model, and the gate before it."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from ammrank_dask.workflows.session.config_section import FOREVER_DAYS, LONGEST_DAYS, Section


class State(Section):
    max_age_days: int = Field(730, ge=1, le=FOREVER_DAYS, description="cells without an event for longer are dropped")


class Label(Section):
    days: int = Field(30, ge=1, le=LONGEST_DAYS, description="length of the label window")
    alpha: float = Field(0.97, gt=0, lt=1, description="decay per day of the clicks that order a user's ranking")
    min_categories: int = Field(1, ge=1, description="users with fewer clicked categories do not train")


class FeaturesConfig(Section):
    groups: list[str] = Field(["pv", "sq", "slc", "olc", "adv"], description="groups that make features")
    intensity: Literal["log1p", "raw"] = Field("log1p", description="log1p or raw")
    recency: Literal["decay", "none"] = Field(
        "decay", description="decay: alpha^days since the last event; none: leave out"
    )
    normalize: bool = Field(True, description="divide rows by their norm when read")
    min_days: int = Field(
        7, ge=0, le=LONGEST_DAYS, description="days of history before the label window that training needs"
    )


OPTIONS_OF = {
    "amm-rank": ("regularization", "rank_weight"),
    "amm-rank-plus": ("kappa", "clickers_per_plane", "clusterings", "windows"),
}
"""Keys of `train` that only one model has."""
WINDOWS = 12
"""Label windows whose users train unless the config says how many."""
EPOCHS = 5
"""What earlier versions wrote as `epochs` into every config."""
EARLIER = {"auto_tune", "fit"}
"""Keys of earlier versions, in which nights chose parameters themselves."""


class Train(Section):
    model: Literal["amm-rank-plus", "amm-rank"] = Field(
        "amm-rank-plus", description="amm-rank-plus: prior, own term, memberships, planes; amm-rank: the paper's planes"
    )
    variant: str = Field(
        "adv", description="adv: all columns, those of ad views if there are any; no-adv: without them"
    )
    windows: int | None = Field(
        None, ge=1, description="amm-rank-plus: label windows whose users train, the newest and those before; null: 12"
    )
    shards: int = Field(8, ge=1, description="logical shards; part of the result, unlike the number of workers")
    rounds_per_epoch: int = Field(2, ge=1, description="merges of the shards an epoch")
    epochs: int | None = Field(
        None, ge=1, description="passes over the rows; null: 5, or 2 of amm-rank-plus from 10,000 rows on"
    )
    kappa: float | None = Field(None, gt=0, description="amm-rank-plus: lambda is kappa / training users; null: 0.005")
    clickers_per_plane: int | None = Field(
        None, ge=1, description="amm-rank-plus: a category has a plane for so many users who clicked it; null: 300"
    )
    clusterings: int | None = Field(
        None, ge=0, description="amm-rank-plus: clusterings of the training users; null: 3, 0: no memberships"
    )
    regularization: float | None = Field(None, gt=0, description="amm-rank: lambda; null: 1e-3")
    max_planes: int = Field(5, ge=1, description="limit of planes per category")
    rank_weight: Literal["uniform", "reciprocal"] | None = Field(
        None, description="amm-rank: weight of a rank in the loss; null: uniform"
    )
    warm_start: bool = Field(False, description="begin with the planes of the model before")
    every_nights: int = Field(7, ge=1, le=LONGEST_DAYS, description="nights between two trainings")
    seed: int = Field(0, ge=0, description="same seed, same model")

    @model_validator(mode="before")
    @classmethod
    def _as_before(cls, values: Any) -> Any:
        """Read a section as an earlier version wrote it.

        One without `model` but with a key of amm-rank is of 0.1.0 and for amm-rank. Without `windows`, 5 epochs are
        what `init` wrote into every config: nobody set them. Keys of what nights no longer do are left out.
        """
        if not isinstance(values, dict):
            return values
        is_old = any(values.get(name) is not None for name in OPTIONS_OF["amm-rank"])
        values = {name: value for name, value in values.items() if name not in EARLIER}
        values = {"model": "amm-rank", **values} if is_old else values
        return {**values, "epochs": None} if "windows" not in values and values.get("epochs") == EPOCHS else values

    @model_validator(mode="after")
    def _options_are_of_the_model(self) -> Train:
        for model, names in OPTIONS_OF.items():
            given = [name for name in names if getattr(self, name) is not None]
            if model != self.model and given:
                raise ValueError(f"{given[0]} is a key of {model}; remove it, or set model: {model}")
        return self

    @property
    def n_windows(self) -> int:
        """Label windows whose users train; the paper's model has one."""
        if self.model == "amm-rank":
            return 1
        return WINDOWS if self.windows is None else self.windows

    def parameters(self) -> dict[str, Any]:
        """Return the keywords of `ammrank_dask.train`."""
        names = {"clusterings": "n_clusterings"}
        values = self.model_dump(exclude={"every_nights", "warm_start", "windows"})
        optional = {"epochs", *(name for options in OPTIONS_OF.values() for name in options)}
        return {names.get(key, key): value for key, value in values.items() if value is not None or key not in optional}


class Gate(Section):
    forward: bool = Field(
        True,
        description="amm-rank-plus: own history makes the lists unless those of a model without the last label window"
        " have more hits in it; false: a model always does",
    )
    tolerance: float = Field(
        0.01, ge=0.0, le=1.0, description="a new model scores unless it is worse by more than this share"
    )
    min_users: int = Field(
        100, ge=0, description="fewer held-out users than this decide nothing: the new model scores, without chances"
    )
