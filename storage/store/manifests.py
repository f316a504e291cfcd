"""Describe the manifest of each kind of run: a typed view for each, over the JSON as it is stored.

A field is read when it is asked for. What an earlier version did not write is None.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from ammrank_dask.storage.store.runs import Run

CHANGEABLE = ("taxonomy", "partitions")
"""Settings of days and states that may change without counting the events again."""


@dataclass(frozen=True)
class RunManifest:
    """What every manifest has: settings, counts, inputs with their digests, and versions of packages."""

    content: Mapping[str, Any]

    @classmethod
    def of(cls, run: Run) -> Self:
        """Return the view of a finished run."""
        return cls(run.manifest)

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings that the content depends on."""
        settings: Mapping[str, Any] = self.content["config"]
        return settings

    @property
    def counts(self) -> Mapping[str, Any]:
        """What a report may quote of the run."""
        counts: Mapping[str, Any] = self.content["facts"]
        return counts

    @property
    def versions(self) -> Mapping[str, str]:
        """The versions of the packages on which stored bytes depend."""
        versions: Mapping[str, str] = self.content["versions"]
        return versions

    @property
    def inputs(self) -> Mapping[str, str | None]:
        """The digests of the runs that were read, by role; not of a day, a state or users."""
        inputs: Mapping[str, str | None] = self.content["inputs"]
        return inputs


class DayManifest(RunManifest):
    """Of the partials of one day."""

    @property
    def id_kind(self) -> str:
        """`int64` or `string`."""
        return str(self.settings["id_kind"])

    @property
    def n_events(self) -> int:
        """Events read."""
        return int(self.counts["events"])

    @property
    def events_by_outcome(self) -> Mapping[str, int]:
        """Events by what became of them: kept, late, unranked …"""
        events: Mapping[str, int] = self.counts["counts"]
        return events

    @property
    def unknown_categories(self) -> list[str]:
        """The most frequent categories that the taxonomy of then lacks."""
        return list(self.counts.get("unknown_values", {}).get("unknown_category", {}))

    @property
    def buckets(self) -> str:
        """What tells the rows of the day from others; empty for a day of an earlier version, or without rows."""
        return str(self.counts.get("buckets", ""))

    @property
    def clicks(self) -> list[tuple[int, int]]:
        """Clicks of the day: pairs of category code and number."""
        return [(code, number) for code, number in self.counts["clicks"]]

    @property
    def clickers(self) -> list[tuple[int, int]] | None:
        """Users who clicked on the day: pairs of category code and number; None for a day of an earlier version."""
        found = self.counts.get("clickers")
        return None if found is None else [(code, number) for code, number in found]

    @property
    def events_by_group(self) -> Mapping[int, int] | None:
        """Used events by group code; None for a day of an earlier version."""
        return dict(self.counts["groups"]) if "groups" in self.counts else None

    @property
    def n_users(self) -> int:
        """Users with a used event."""
        return int(self.counts["users"])

    @property
    def n_late(self) -> int:
        """Used events from before the day."""
        return int(self.counts["late"])

    @property
    def heaviest(self) -> list[int]:
        """Events of the users with the most, from the largest."""
        return list(self.counts["heaviest"])


class StateManifest(RunManifest):
    """Of the state at the end of a date."""

    @property
    def taxonomy(self) -> str | None:
        """The digest of the taxonomy whose codes its cells have."""
        digest: str | None = self.settings.get("taxonomy")
        return digest

    @property
    def taxonomy_before(self) -> str | None:
        """The digest of the taxonomy of the state that it was folded from, when that was another one."""
        digest: str | None = self.settings.get("taxonomy_before")
        return digest

    @property
    def folded_with(self) -> list[Mapping[str, Any]]:
        """The settings, of those that may change, that the digests of its days are of."""
        own = {name: self.settings[name] for name in CHANGEABLE if name in self.settings}
        return list(self.settings.get("folded_with", [own]))

    @property
    def date(self) -> str:
        """The date."""
        return str(self.settings["date"])

    @property
    def id_kind(self) -> str:
        """`int64` or `string`."""
        return str(self.settings["id_kind"])

    @property
    def days(self) -> list[tuple[dt.date, str | None]]:
        """Every day that is in the state, with the digest of its partials; None for a day without events."""
        return [(dt.date.fromisoformat(day), digest) for day, digest in self.content["inputs"]]


class UsersManifest(RunManifest):
    """Of the users table."""

    @property
    def id_kind(self) -> str:
        """`int64` or `string`."""
        return str(self.settings["id_kind"])


class FeaturesManifest(RunManifest):
    """Of features; those that a library user wrote have no date."""

    @property
    def categories(self) -> list[str]:
        """Names of the ranked categories, by code."""
        return list(self.settings["categories"])

    @property
    def has_rankings(self) -> bool:
        """Whether users have labels."""
        return bool(self.settings["has_rankings"])

    @property
    def id_kind(self) -> str:
        """`int64` or `string`."""
        return str(self.settings["id_kind"])

    @property
    def normalize(self) -> bool:
        """Whether readers bring rows to norm 1."""
        return bool(self.settings["normalize"])

    @property
    def clickers(self) -> list[list[int]] | None:
        """By period before the date the users who clicked, and those who clicked each category; None if unknown."""
        clickers: list[list[int]] | None = self.settings.get("clickers")
        return clickers

    @property
    def splits(self) -> list[str] | None:
        """The splits whose users are in the store; None for all."""
        splits: list[str] | None = self.settings.get("splits")
        return splits


class ModelManifest(RunManifest):
    """Of a trained model, or of a simple one that was made from it."""

    @property
    def date(self) -> str:
        """The date that it was trained for."""
        return str(self.settings["date"])

    @property
    def columns_digest(self) -> str | None:
        """The digest of the columns it was trained on."""
        digest: str | None = self.settings.get("columns")
        return digest

    @property
    def values_digest(self) -> str | None:
        """The digest of the settings that say what values mean."""
        digest: str | None = self.settings.get("values")
        return digest

    @property
    def simple(self) -> str | None:
        """What a model without planes ranks by; None for a trained one."""
        simple: str | None = self.settings.get("simple")
        return simple

    @property
    def method(self) -> str | None:
        """The kind of model; version 0.1.0, which had only one, did not write it."""
        method: str | None = self.settings.get("model")
        return method

    @property
    def n_users(self) -> int:
        """Users it was trained on."""
        return int(self.counts["users"])

    @property
    def n_planes(self) -> int:
        """Planes of all categories."""
        return int(self.counts["planes"])

    @property
    def new_categories(self) -> list[str]:
        """The categories that it scores by the lowest prior of their siblings: nobody has clicked them yet."""
        return list(self.counts.get("new_categories", []))

    @property
    def training(self) -> Mapping[str, Any] | None:
        """What training measured: errors on validation users, and which model was published."""
        training: Mapping[str, Any] | None = self.counts.get("training")
        return training

    @property
    def tuning(self) -> Mapping[str, Any] | None:
        """The table of a tuning that came first."""
        tuning: Mapping[str, Any] | None = self.counts.get("tuning")
        return tuning


class ChancesManifest(RunManifest):
    """Of the chances that scores are worth."""

    @property
    def date(self) -> str:
        """The date that they were learnt for."""
        return str(self.settings["date"])

    @property
    def lag(self) -> dt.date:
        """The last day of the features that they were learnt with."""
        return dt.date.fromisoformat(self.settings["lag"])

    @property
    def model(self) -> str:
        """The digest of the model whose scores they are of."""
        return str(self.inputs["model"])


class QualificationsManifest(RunManifest):
    """Of the qualifications of a night; those that a library user wrote have no date and no label window."""

    @property
    def date(self) -> dt.date:
        """The night."""
        return dt.date.fromisoformat(self.settings["date"])

    @property
    def n_partitions(self) -> int:
        """Number of partitions."""
        return int(self.settings["partitions"])

    @property
    def categories(self) -> list[str]:
        """Names of the ranked categories, by code."""
        return list(self.settings["categories"])

    @property
    def k(self) -> int:
        """Categories a user is meant to get."""
        return int(self.settings["k"])

    @property
    def policy(self) -> str:
        """The active policy."""
        return str(self.settings["policy"])

    @property
    def objective(self) -> str:
        """What lists were made for: `clicks` or `value`."""
        return str(self.settings.get("objective", "clicks"))

    @property
    def currency(self) -> str:
        """The word that is printed with values; empty for none."""
        return str(self.counts.get("currency", ""))

    @property
    def removed(self) -> dict[str, int]:
        """How many pairs of a user and a category each rule of the config kept apart, by its key.

        `score.suppress` is users, and `score.min_audience` pairs that were on lists.
        """
        rules = {f"score.{name}": int(count) for name, count in self.counts.get("barred", {}).items()}
        if "suppressed_users" in self.counts:
            rules["score.suppress"] = int(self.counts["suppressed_users"])
        if self.too_few:
            rules["score.min_audience"] = sum(self.too_few.values())
        return rules

    @property
    def too_few(self) -> dict[str, int]:
        """Users by category whom `score.min_audience` took it from."""
        return {name: int(users) for name, users in self.counts.get("too_few", {}).items()}

    @property
    def groups(self) -> list[dict[str, Any]]:
        """The first categories of each group of age and gender, without small groups."""
        return [dict(group) for group in self.counts.get("groups", [])]

    @property
    def has_values(self) -> bool:
        """Whether it was said what a click is worth, and lists have a value."""
        return self.chances is not None and bool(self.settings.get("values") or self.settings.get("values_by_group"))

    @property
    def model(self) -> str:
        """The digest of the model that scored."""
        return str(self.inputs["model"])

    @property
    def previous(self) -> str | None:
        """The digest of the qualifications that `delta` was taken against."""
        return self.inputs["previous"]

    @property
    def chances(self) -> str | None:
        """The digest of the chances that were used."""
        return self.inputs.get("chances")

    @property
    def n_users(self) -> int:
        """Users scored."""
        return int(self.counts["users"])

    @property
    def cold_users(self) -> int:
        """Users without an event."""
        return int(self.counts["cold_users"])

    @property
    def policies(self) -> Mapping[str, Mapping[str, Any]]:
        """By policy what it assigned, and what is kept of its plan."""
        policies: Mapping[str, Mapping[str, Any]] = self.counts["policies"]
        return policies

    @property
    def may_hold(self) -> list[int] | None:
        """Users who may hold each category, by code; version 0.1.0 did not write it."""
        may_hold: list[int] | None = self.counts.get("may_hold")
        return may_hold

    @property
    def explored(self) -> Mapping[str, Any] | None:
        """What exploration drew: `share`, `slots`, `targets` by code, `users` by code; None without exploration."""
        explored: Mapping[str, Any] | None = self.counts.get("explored")
        return explored

    @property
    def unknown_opt_outs(self) -> int:
        """Users on the list of opt-outs who are not among the scored ones."""
        return int(self.counts.get("unknown_opt_outs", 0))

    @property
    def clicks(self) -> list[int]:
        """Clicks of the label window by category code."""
        return list(self.counts["clicks"])

    @property
    def events_of_label_window(self) -> Mapping[str, int]:
        """Events of the label window by what became of them."""
        events: Mapping[str, int] = self.counts["events_of_label_window"]
        return events


class VerdictManifest(RunManifest):
    """Of what the gate decided."""

    @property
    def challenger(self) -> str:
        """The digest of the model that was new."""
        return str(self.inputs["challenger"])

    @property
    def champion(self) -> str | None:
        """The digest of the model that scored before; None for the first."""
        return self.inputs["champion"]

    @property
    def accepted(self) -> bool:
        """Whether the challenger scores."""
        return bool(self.counts["accepted"])
