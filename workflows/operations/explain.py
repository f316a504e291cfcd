"""Show why a user got their categories."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from ammrank_dask.features.store import Features, open_features
from ammrank_dask.model.explain import PlusScore
from ammrank_dask.model.saved import RankModel
from ammrank_dask.scoring.qualifications import Qualifications, open_qualifications
from ammrank_dask.storage.errors import BadInput, shell_word
from ammrank_dask.storage.lake.people import parse_integer_id
from ammrank_dask.storage.site.site import Site
from ammrank_dask.storage.store.ids import UserIds, ids_from_values
from ammrank_dask.storage.store.qualifications import qualification_parts
from ammrank_dask.storage.store.runs import is_finished, open_run
from ammrank_dask.storage.vocabulary import (
    AGE,
    CATEGORY,
    CHANCE,
    GENDER,
    INTENSITY,
    PROPENSITY,
    RANK,
    RECENCY,
    SCORE,
    VALUE,
)
from ammrank_dask.user_hash import partition_of
from ammrank_dask.workflows.stages.models import load_site_model, model_date

GROUP_WORDS = {
    "pv": "page views of",
    "sq": "searches in",
    "slc": "search result clicks in",
    "olc": "sponsored link clicks in",
    "adv": "ad views of",
    "adc": "ad clicks in",
}
OLDER_COUNT_LESS = ", older ones count less"


def read_one_id(file: TextIO) -> str:
    """Return the one id that a file holds; its text is never shown."""
    try:
        lines = [line.strip() for line in file.read().splitlines() if line.strip()]
    except UnicodeDecodeError:
        lines = []
    if len(lines) != 1:
        raise BadInput(f"--user-file must hold one id on one line, found {len(lines)} lines; give one user at a time")
    return lines[0]


def first_user(site: Site, date: dt.date | None) -> str:
    """Return the id of the first user of a night who holds a category, in the order of the files."""
    night, quals = _find_night(site, date)
    for part in qualification_parts(quals.run):
        rows = part.read(quals.categories)
        if len(rows.user_ids):
            return str(rows.user_ids.to_arrow()[0].as_py())
    raise BadInput(f"no user of the night of {night} holds a category; there is nothing to explain")


def explain_user(site: Site, date: dt.date | None, user: str, *, k: int | None = None, n_features: int = 3) -> Any:
    """Return the qualifications of one user, best first, each with the features that carried its score.

    Parameters
    ----------
    date
        The night; None for the published one.
    user
        The id as text.
    k
        Categories to explain; None for all the user holds.
    n_features
        Features to name for each category: those that weigh most, for or against.
    """
    night, quals = _find_night(site, date)
    features, model = _find_inputs(site, quals)
    ids = _parse_user(user, features.id_kind)
    partition = int(partition_of(ids, features.n_partitions)[0])
    part = features.partition(partition, variant=model.variant_, normalize=model.normalize_rows)
    row = int(part.user_ids.positions_of(ids)[0])
    if row < 0:
        raise BadInput(
            f"the night of {night} has no user with that id; check the id, score.users and score.suppress of the config"
        )
    raw = features.partition(partition, variant=model.variant_, normalize=False).X[row].toarray()[0]
    scores = {found.category: found for found in model.explain(part.X[row])}
    held = quals.to_pandas(users=ids.to_arrow().to_pylist())
    columns = features.columns_of(model.variant_)
    settings = features.manifest.settings

    def name_features(numbers: np.ndarray, contributions: np.ndarray) -> list[dict[str, Any]]:
        return [
            {
                "feature": columns[number],
                "words": describe_feature(columns[number], float(raw[number]), settings),
                "contribution": float(contribution),
            }
            for number, contribution in zip(numbers, contributions, strict=True)
        ]

    categories = []
    for entry in held.to_dict("records")[:k]:
        found = scores[features.categories.index(entry[CATEGORY])]
        weighty = np.argsort(-np.abs(found.contributions), kind="stable")[:n_features]
        explained = {
            "rank": entry[RANK],
            "category": entry[CATEGORY],
            "score": entry[SCORE] if np.isfinite(found.score) else None,
            **({"chance": entry[CHANCE]} if CHANCE in entry else {}),
            **({"value": entry[VALUE]} if VALUE in entry else {}),
            **({"drawn": entry[PROPENSITY]} if entry.get(PROPENSITY, 1.0) < 1 else {}),
            "plane": None if found.plane is None else found.plane + 1,
            "planes": int(model.n_planes_[found.category]),
            "constant": found.bias,
            "features": name_features(found.features[weighty], found.contributions[weighty]),
            "other_features": float(np.delete(found.contributions, weighty).sum()),
        }
        if isinstance(found, PlusScore):
            explained["prior"] = found.prior
            explained["own"] = name_features(found.own_features, found.own_contributions)
            explained["memberships"] = float(found.membership_contributions.sum())
        categories.append(explained)
    trained = model_date(open_run(_run_of(site, "models", quals)))
    return {"date": str(night), "policy": quals.policy, "model": trained, "categories": categories}


def describe_feature(column: str, value: float, settings: Mapping[str, Any]) -> str:
    """Return what a column of a row means, in words.

    Examples
    --------
    >>> settings = {"intensity": "log1p", "alpha": 0.97}
    >>> describe_feature("pv:intensity:Shoes", 1.3863, settings)
    'page views of Shoes: 3.0, older ones count less'
    >>> describe_feature("sq:recency:Hats", 0.97 ** 2, settings)
    'searches in Hats: the last 2.0 days ago'
    """
    kind, _, rest = column.partition(":")
    if kind in (AGE, GENDER):
        return f"{kind} {rest}"
    what, _, category = rest.partition(":")
    events = f"{GROUP_WORDS.get(kind, f'{kind} events in')} {category}"
    if what == INTENSITY and "alpha" in settings:
        amount = math.expm1(value) if settings["intensity"] == "log1p" else value
        return f"{events}: {amount:.1f}{OLDER_COUNT_LESS}"
    if what == RECENCY and "alpha" in settings and value > 0:
        return f"{events}: the last {abs(math.log(value) / math.log(settings['alpha'])):.1f} days ago"
    return column


def _find_night(site: Site, date: dt.date | None) -> tuple[dt.date, Qualifications]:
    if date is None:
        current = site.current()
        if current is None:
            raise BadInput(
                f"{site.path} has nothing published yet; run `ammrank nightly {shell_word(site.path)}` first"
            )
        date = current.date
    folder = site.qualifications_folder(date)
    if not is_finished(folder):
        raise BadInput(f"{date} was not scored; run `ammrank score {shell_word(site.path)} --date {date}` first")
    return date, open_qualifications(folder)


def _find_inputs(site: Site, quals: Qualifications) -> tuple[Features, RankModel]:
    features, model = (_run_of(site, folder, quals) for folder in ("features", "models"))
    return open_features(features), load_site_model(open_run(model))


def _run_of(site: Site, folder: str, quals: Qualifications) -> Path:
    """Return the run that a night was scored from."""
    wanted = quals.manifest.inputs["model" if folder == "models" else folder]
    for path in site.finished_runs(folder):
        if open_run(path).digest == wanted:
            return path
    raise BadInput(
        f"the {folder} from which {quals.path.name.removeprefix('date=')} was scored are not kept any more;"
        " explain the published night"
    )


def _parse_user(user: str, id_kind: str) -> UserIds:
    if id_kind == "string":
        return ids_from_values([user])
    value = parse_integer_id(user)
    if value is None:
        raise BadInput("user ids of this site are 64-bit integers, found another text after --user")
    return ids_from_values(np.array([value], np.int64))


def describe_explanation(explained: dict[str, Any]) -> list[str]:
    """Return the lines that explain the list of a user to a person, a blank line before each category."""
    lines = [
        f"night of {explained['date']}, {explained['policy']}, model of {explained['model']}",
        "a score is the sum of its lines; in counts of events, older ones count less",
    ]
    if not explained["categories"]:
        lines.append("the user holds no category")
    for entry in explained["categories"]:
        lines += ["", *describe_entry(entry)]
    return lines


def describe_entry(entry: dict[str, Any]) -> list[str]:
    """Return the lines that explain one category to a person."""
    head = f"{entry['rank']:>2}. {entry['category']}"
    chance = f", click probability {100 * entry['chance']:.2g} %" if "chance" in entry else ""
    if "value" in entry:
        chance += f", value {entry['value']:.3g}"
    if "drawn" in entry:
        chance += f", drawn by exploration with probability {entry['drawn']:.2g}"
    if entry["score"] is None:
        return [f"{head}: nothing was learned for it; it is here by popularity{chance}"]
    lines = [f"{head}: score {entry['score']:+.3f}{chance}"]
    others = entry["other_features"]
    if "prior" in entry:
        lines.append(f"    {entry['prior']:+.3f}  how often all users click it")
        lines += _own_lines(entry["own"])
        lines.append(f"    {entry['memberships']:+.3f}  what similar users click")
        others += entry["constant"]
    for feature in entry["features"]:
        lines.append(f"    {feature['contribution']:+.3f}  {feature['words'].removesuffix(OLDER_COUNT_LESS)}")
    lines.append(f"    {others:+.3f}  everything else")
    return lines if "prior" in entry else [*lines, f"    {entry['constant']:+.3f}  constant of the category"]


def _own_lines(own: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return one line per event group of the user's own events in the category: how many, how long ago."""
    amounts: dict[str, float] = {}
    words: dict[str, list[str]] = {}
    for feature in own:
        events, _, said = feature["words"].rpartition(": ")
        kind = feature["feature"].partition(":")[0]
        amounts[kind] = amounts.get(kind, 0.0) + feature["contribution"]
        words.setdefault(kind, []).append(said.removesuffix(OLDER_COUNT_LESS) if events else said)
    lines = []
    for kind, amount in sorted(amounts.items(), key=lambda item: -item[1]):
        name = GROUP_WORDS.get(kind, f"{kind} events in").rpartition(" ")[0]
        lines.append(f"    {amount:+.3f}  own {name}: {', '.join(sorted(words[kind]))}")
    return lines
