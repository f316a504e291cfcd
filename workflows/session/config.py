"""Read, check and write `ammrank.yaml`: every key has a default and a comment."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator
from yaml.composer import ComposerError
from yaml.constructor import ConstructorError

from ammrank_dask.storage.errors import BadInput, cut, shell_word, suggest
from ammrank_dask.storage.objects.account import refuse_foreign_file
from ammrank_dask.storage.objects.folders import require_regular
from ammrank_dask.storage.objects.retry import retried
from ammrank_dask.storage.vocabulary import AD_VIEW_GROUP, AGE, CLICK_GROUP, GENDER, GROUPS, IGNORE_GROUP
from ammrank_dask.workflows.session.sections import (
    FOREVER_DAYS,
    LONGEST_DAYS,
    Columns,
    FeaturesConfig,
    Gate,
    Ingest,
    Label,
    Lake,
    Notify,
    Publish,
    Quarantine,
    ReportConfig,
    Retention,
    Score,
    Section,
    Spellings,
    State,
    TaxonomyConfig,
    Texts,
    Train,
    existing_zone,
)

GONE: dict[str, tuple[Any, str]] = {
    "train.block_rows": (1024, "blocks have 1,024 users"),
    "train.patience": (None, "a training has train.epochs passes"),
    "train.average": (None, "held-out users choose between the last model and the average"),
    "train.rank_weight": ("uniform", "nights weigh all ranks alike, and `rank_weight` of ammrank_dask.train does not"),
    "retention.runs": (400, "retention.reports holds for run.json and log.jsonl, too"),
    "retention.models": (40, "retention.qualifications holds for models, too"),
}
"""Keys of earlier versions: the value that means what is done now, which `init` wrote, and what to do about others."""


MOST_DEPTH = 100
MOST_DIGITS = 100
_INT = "tag:yaml.org,2002:int"


class Config(Section):
    lake: Lake = Lake()
    columns: Columns = Columns()
    timezone: str | None = Field(None, description="zone of timestamps that have none, for example UTC")
    timestamp_unit: Literal["s", "ms", "us", "ns"] | None = Field(None, description="unit of integer timestamps")
    unknown_user_ids: Texts = Field([], description="ids that stand for nobody, for example 0 or unknown")
    groups: Spellings = Field(
        {group: [group] for group in GROUPS},
        description="event groups and the values that mean them; adc (ad clicks) is needed; ignore: counted, not used",
    )
    genders: Spellings = Field(
        {"female": ["female"], "male": ["male"]}, description="spellings of genders; ignore: taken as unknown"
    )
    taxonomy: TaxonomyConfig = TaxonomyConfig()
    categories: dict[str, str | None] = Field(
        {},
        description="former names of categories and present ones, to rename or merge them; null: no longer counted",
    )
    alpha: float = Field(0.995, gt=0.0, lt=1.0, description="decay per day of a user's events")
    late_days: int = Field(
        7, ge=0, le=LONGEST_DAYS, description="events that are more days older than their folder are quarantined"
    )
    keep_days: int | None = Field(
        None,
        ge=1,
        le=FOREVER_DAYS,
        description="days whose counts are kept; null: label.days + 15, at least 45",
    )
    state: State = State()
    label: Label = Label()
    features: FeaturesConfig = FeaturesConfig()
    partitions: int = Field(
        8, ge=1, le=65536, description="user partitions, 50,000 users or more each; `ammrank repartition` changes them"
    )
    train: Train = Train()
    score: Score = Score()
    report: ReportConfig = ReportConfig()
    ingest: Ingest = Ingest()
    quarantine: Quarantine = Quarantine()
    gate: Gate = Gate()
    publish: Publish = Publish()
    retention: Retention = Retention()
    notify: Notify = Notify()

    @field_validator("timezone")
    @classmethod
    def _zone_exists(cls, value: str | None) -> str | None:
        return None if value is None else existing_zone(value)

    @field_validator("groups")
    @classmethod
    def _groups_make_sense(cls, groups: dict[str, list[str]]) -> dict[str, list[str]]:
        if CLICK_GROUP not in groups:
            raise ValueError(f"a group {CLICK_GROUP} (ad clicks) is needed: rankings are made of it")
        seen: dict[str, str] = {}
        for group, values in groups.items():
            if not group.isidentifier():
                raise ValueError(f"{group!r} is not a plain name")
            for value in values:
                if seen.setdefault(value, group) != group:
                    raise ValueError(f"the value {value!r} is listed under {seen[value]} and {group}")
        return groups

    @field_validator("genders")
    @classmethod
    def _genders_are_known(cls, genders: dict[str, list[str]]) -> dict[str, list[str]]:
        strange = sorted(set(genders) - {"female", "male", IGNORE_GROUP})
        if strange:
            raise ValueError(f"keys are female, male and ignore, got {', '.join(strange)}")
        return genders

    @model_validator(mode="after")
    def _parts_agree(self) -> Config:
        unknown = [group for group in self.features.groups if group not in self.event_groups]
        if unknown:
            raise ValueError(f"features.groups has {', '.join(unknown)}, which `groups` does not define")
        left_out = self.train.variant.removeprefix("no-")
        if left_out not in (AD_VIEW_GROUP, *self.event_groups, AGE, GENDER):
            raise ValueError(f"train.variant must be adv, or no- and a group to leave out, got {self.train.variant!r}")
        if self.days_kept < self.label.days:
            raise ValueError(
                f"keep_days ({self.keep_days}) must be at least label.days ({self.label.days}); null follows it"
            )
        return self

    @property
    def days_kept(self) -> int:
        """Days whose partials are kept: `keep_days`, or what follows from the label window."""
        return max(45, self.label.days + 15) if self.keep_days is None else self.keep_days

    @property
    def event_groups(self) -> list[str]:
        """The groups that are counted, in the order of their codes."""
        return [group for group in self.groups if group != IGNORE_GROUP]


@retried
def load_config(path: Path) -> Config:
    """Read a config; what is wrong with it, or with who may write it, is said in one sentence."""
    require_regular(path)
    if not path.is_file():
        raise BadInput(
            f"there is no config at {path}; make one with `ammrank init {shell_word(path.parent)} --lake LAKE`"
        )
    refuse_foreign_file(path)
    try:
        content = parse_yaml(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} is not readable YAML: {' '.join(str(error).split())}") from None
    if content is None:
        content = {}
    if not isinstance(content, dict):
        raise BadInput(f"{path} must be a mapping of keys, found a {type(content).__name__}")
    return check_config(content, str(path))


def check_config(content: dict[str, Any], where: str) -> Config:
    """Return the config of a mapping, or say what to change."""
    try:
        return Config.model_validate(_without_gone(content, where))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            raise BadInput(f"{where}: there is no key {key}; {_suggest(key)}") from None
        reason = first["msg"].removeprefix("Value error, ")
        if first["type"] == "model_type":
            reason = "must be a section of keys"
        at = f"{key}: " if key else ""
        got = "" if first["type"] == "value_error" else f", got {cut(repr(first['input']), 100)}"
        # YAML reads yes, no, on and off as booleans.
        quote = "; put it in quotes" if first["type"] == "string_type" and isinstance(first["input"], bool) else ""
        raise BadInput(f"{where}: {at}{reason}{got}{quote}") from None


def _without_gone(content: dict[str, Any], where: str) -> dict[str, Any]:
    """Return a config without the keys of earlier versions, refusing those that had another value than the usual."""
    kept = dict(content)
    for key, (usual, instead) in GONE.items():
        section, _, name = key.partition(".")
        values = kept.get(section)
        if not isinstance(values, dict) or name not in values:
            continue
        if values[name] not in (None, usual):
            raise BadInput(f"{where}: there is no key {key} any more, got {values[name]!r}; {instead}; remove the key")
        kept[section] = {other: value for other, value in values.items() if other != name}
    return kept


def write_config(config: Config) -> str:
    """Return the config as YAML with the description of every key beside it."""
    lines = ["# The config of this site. Every key is optional; the values below are used.", ""]
    _write_section(config, 0, lines)
    return "\n".join(lines) + "\n"


def _write_section(section: BaseModel, depth: int, lines: list[str]) -> None:
    pad = "  " * depth
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        comment = f"  # {field.description}" if field.description else ""
        if isinstance(value, Section):
            lines.append(f"{pad}{name}:{comment}")
            _write_section(value, depth + 1, lines)
        elif isinstance(value, dict) and value:
            lines.append(f"{pad}{name}:{comment}")
            lines.extend(f"{pad}  {as_flow(key)}: {as_flow(found)}" for key, found in value.items())
        else:
            lines.append(f"{pad}{name}: {as_flow(value)}{comment}")


def as_flow(value: Any) -> str:
    """Return a value as YAML on one line."""
    text = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=10_000)
    return text.removesuffix("\n").removesuffix("\n...")


def changed_keys(config: Config) -> dict[str, tuple[Any, Any]]:
    """Return the keys that differ from their defaults, with the value and the default."""
    usual = dict(_keys(Config()))
    return {
        key: (value, usual[key])
        for key, value in _keys(config)
        if not isinstance(value, Section) and value != usual[key]
    }


def _keys(section: BaseModel, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name in type(section).model_fields:
        value = getattr(section, name)
        yield prefix + name, value
        if isinstance(value, Section):
            yield from _keys(value, f"{prefix}{name}.")


def _suggest(key: str) -> str:
    """Suggest a key: the same name in another section, or one of this section that is spelled alike."""
    section, _, name = key.rpartition(".")
    known = {path: path.rpartition(".") for path, _ in _keys(Config())}
    siblings = {last: path for path, (parent, _, last) in known.items() if parent == section}
    elsewhere = [path for path, (_, _, last) in known.items() if last == name]
    if elsewhere:
        return f"did you mean {elsewhere[0]}?"
    return suggest(name, siblings, "known keys are", show=siblings.__getitem__)


def parse_yaml(text: str) -> Any:
    """Return the content of a text; `yaml.YAMLError` says what is wrong with it, whatever that is.

    Examples
    --------
    >>> parse_yaml("a: {b: [1, x]}")
    {'a': {'b': [1, 'x']}}
    >>> parse_yaml("a: 2026-02-31")
    Traceback (most recent call last):
    yaml.error.YAMLError: a value cannot be read (day is out of range for month); put it in quotes
    """
    try:
        return yaml.load(text, _PlainLoader)  # noqa: S506 (it is a SafeLoader)
    except RecursionError:
        raise yaml.YAMLError(f"values must not be nested deeper than {MOST_DEPTH}") from None
    except (ValueError, OverflowError, LookupError, AttributeError) as error:
        # What PyYAML lets through of dates that there are not, and of tags on texts that are no such value.
        raise yaml.YAMLError(f"a value cannot be read ({error}); put it in quotes") from None


class _PlainLoader(yaml.SafeLoader):
    """PyYAML's safe loader without aliases, deep nesting, keys that are there twice and endless integers."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()
        mark = event.start_mark
        if isinstance(event, yaml.AliasEvent):
            raise ComposerError(None, None, f"write the value of *{event.anchor} out: aliases are not read", mark)
        if self.depth == MOST_DEPTH:
            raise ComposerError(None, None, f"values must not be nested deeper than {MOST_DEPTH}", mark)
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key_node, _ in node.value if isinstance(node, yaml.MappingNode) else []:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, Hashable):
                if key in seen:
                    raise ConstructorError(None, None, f"the key {key!r} is there twice; keep one", key_node.start_mark)
                seen.add(key)
        return super().construct_mapping(node, deep)

    def construct_integer(self, node: yaml.ScalarNode) -> int:
        if len(str(node.value)) > MOST_DIGITS:
            raise ConstructorError(None, None, f"integers have at most {MOST_DIGITS} digits", node.start_mark)
        return int(self.construct_yaml_int(node))


_PlainLoader.add_constructor(_INT, _PlainLoader.construct_integer)
