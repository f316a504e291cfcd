"""Match the categories of earlier runs with those of a night by name, so that nothing is counted again."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from ammrank_dask.storage.errors import BadInput, DamagedStore, suggest
from ammrank_dask.storage.lake.taxonomy import Renames, Taxonomy, TaxonomyChange, compare_taxonomies, final_names
from ammrank_dask.storage.site.reports import read_summary
from ammrank_dask.storage.site.site import Site
from ammrank_dask.storage.site.taxonomies import load_taxonomy
from ammrank_dask.storage.store.manifests import RunManifest, StateManifest
from ammrank_dask.storage.store.parts import Recoding
from ammrank_dask.storage.store.qualification_files import read_chances
from ammrank_dask.storage.store.runs import Run
from ammrank_dask.storage.vocabulary import CATEGORY
from ammrank_dask.workflows.stages.history import Refusal
from ammrank_dask.workflows.stages.nights import read_nights

NAMES_TOLD = 5


BLOCKS = "▁▂▃▄▅▆▇█"
SPARK_WIDTH = 64
GROUPS_SHOWN = 5


@dataclass(frozen=True)
class EarlierTaxonomies:
    """The taxonomies that a site has counted with, seen from the one of a night."""

    site: Site
    taxonomy: Taxonomy
    n_groups: int
    renames: Renames = field(default_factory=dict)

    @cached_property
    def _loaded(self) -> dict[str, Taxonomy | None]:
        return {self.taxonomy.digest: self.taxonomy}

    def load(self, digest: str) -> Taxonomy | None:
        """Return the taxonomy with a digest, None when it is not kept."""
        if digest not in self._loaded:
            self._loaded[digest] = load_taxonomy(self.site.path, digest)
        return self._loaded[digest]

    def as_then(self, digest: str) -> Taxonomy:
        """Return how rows were counted with an earlier taxonomy, under the names of now, too; else that of tonight.

        A name that several categories became tells nothing about which of them a row was of.
        """
        before = self.load(digest)
        if before is None or digest == self.taxonomy.digest:
            return self.taxonomy
        codes: dict[str, set[int]] = {}
        for former, name in final_names(self.renames).items():
            if name is not None and former in before.code_of:
                codes.setdefault(name, set()).add(before.code_of[former])
        named = {name: of.pop() for name, of in codes.items() if len(of) == 1 and name not in before.code_of}
        return replace(before, code_of={**before.code_of, **named}) if named else before

    def refusals(self, digests: Iterable[str | None]) -> dict[str, Refusal | None]:
        """Return for each of some taxonomies why its days do not go with the one of tonight, None when they do."""
        return {digest: self._refusal(digest) for digest in digests if digest is not None}

    def _refusal(self, digest: str) -> Refusal | None:
        before = self.load(digest)
        if before is None:
            reason = "the taxonomy was another one, which the site has not kept"
            return Refusal(reason, "put it back for one night, then change it")
        change = compare_taxonomies(before, self.taxonomy)
        if change.lost:
            name = change.lost[0]
            return Refusal(
                f"{name!r} was a category, which the taxonomy no longer has",
                f"say under categories what became of it, {{{name}: NEW NAME}}, or null to count it no more",
            )
        if change.moved:
            node, above, now = change.moved[0]
            others = "1 other node" if len(change.moved) == 2 else f"{len(change.moved) - 1:,} other nodes"
            also = f" ({others} moved, too)" if len(change.moved) > 1 else ""
            counted = f"{node!r} counted for {above or 'no category'!r} and counts for {now or 'no category'!r} now"
            return Refusal(f"{counted}{also}")
        return None

    def recode(self, run: Run) -> Run:
        """Return a day or a state so that its categories are read with the codes of tonight."""
        digest = RunManifest.of(run).settings.get("taxonomy")
        before = self.taxonomy if digest is None else self.load(digest)
        if before is None:
            raise BadInput(f"the taxonomy that {run.path} was counted with is no longer in the site; rebuild it")
        codes = self.taxonomy.codes_of(before.categories)
        return (
            run
            if codes is None
            else replace(run, recoding=Recoding(codes, len(self.taxonomy.categories), self.n_groups))
        )

    def change_before(self, head: Run) -> TaxonomyChange | None:
        """Return what changed since the state that the one of tonight was folded from; None when nothing did."""
        manifest = StateManifest.of(head)
        digest = manifest.taxonomy_before if manifest.taxonomy == self.taxonomy.digest else manifest.taxonomy
        before = None if digest is None else self.load(digest)
        return (
            None
            if before is None or before.digest == self.taxonomy.digest
            else compare_taxonomies(before, self.taxonomy)
        )


def describe_change(change: TaxonomyChange | None, taxonomy: Taxonomy) -> dict[str, list[str]]:
    """Return what is to tell of changed categories, by kind; each is a list of names or of sentences."""
    if change is None:
        return {}
    former = {name for name, _ in change.renamed}
    named = {new for _, new in change.renamed}
    added = [name for name in change.added if name not in taxonomy.former_names and name not in named]
    gone = [name for name in change.gone if name not in former]
    lists = {
        "new categories": [name for name in added if taxonomy.ranked_above(name) == name],
        "new nodes below categories": [name for name in added if taxonomy.ranked_above(name) not in (name, None)],
        "renamed categories": [f"{old} is {new}" for old, new in change.renamed if new is not None],
        "categories counted no more": [old for old, new in change.renamed if new is None],
        "nodes gone, their past stays counted": gone,
    }
    return {kind: names for kind, names in lists.items() if names}


def shorten(names: list[str]) -> str:
    """Return the first names of a list, and how many more there are.

    Examples
    --------
    >>> shorten(["a", "b", "c", "d", "e", "f", "g"])
    'a, b, c, d, e and 2 more'
    """
    more = len(names) - NAMES_TOLD
    return ", ".join(names[:NAMES_TOLD]) + (f" and {more:,} more" if more > 0 else "")


def category_history(site: Site, name: str) -> list[dict[str, Any]]:
    """Return one row per night: exposure and click share from history.json, and what is known while files are kept.

    That is ranks, price and groups (those of age and gender with the category among their first ten) while the report
    is kept, and the mean click probability of its users while the lists are. Raises BadInput when no night has such a
    category.
    """
    nights = [night for night in read_nights(site) if night.cells]
    if not any(name in night.cells for night in nights):
        names = sorted({each for night in nights for each in night.cells})
        alike = [each for each in names if name.lower() in each.lower()] or names
        hint = suggest(name, alike, "categories are", limit=5) if names else "no night has a report yet"
        raise BadInput(f"no kept night has a category {name!r}; {hint}")
    rows = []
    for night in nights:
        if name not in night.cells:
            continue
        exposure, click_share, ratio, is_starved = night.cells[name]
        row: dict[str, Any] = {
            "date": str(night.date),
            "exposure": exposure,
            "exposure_share": exposure / max(1, (night.figures or {})["slots"]),
            "click_share": click_share,
            "ratio": ratio,
            "starved": bool(is_starved),
            "ranks": None,
            "price": None,
            "chance": None,
            "groups": None,
        }
        try:
            summary = read_summary(site.report_folder(night.date))
            kept = next(each for each in summary["categories"] if each[CATEGORY] == name)
            row |= {"ranks": kept["ranks"], "price": kept.get("price"), "groups": _groups_with(name, summary["groups"])}
        except (DamagedStore, OSError, LookupError, TypeError, StopIteration):
            pass  # the report is no longer kept
        with contextlib.suppress(DamagedStore, OSError):
            chances = read_chances(site.qualifications_folder(night.date), name)
            row["chance"] = float(chances.mean()) if len(chances) else None
        rows.append(row)
    return rows


def _groups_with(name: str, groups: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the groups whose first categories have this one, the largest share of users who have it first."""
    having = [
        {"age": group["age"], "gender": group["gender"], "users": group["users"], "share": entry["share"]}
        for group in groups
        for entry in group["top"]
        if entry[CATEGORY] == name
    ]
    return sorted(having, key=lambda group: (-group["share"], group["age"], group["gender"]))


def category_table(history: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Return the head and the rows of a table."""
    more = [name for name in ("chance", "price") if any(row[name] is not None for row in history)]
    head = ["night", "users", "exposure", "clicks", "ratio", "mean rank", *more]
    rows = []
    for row in history:
        ranks = row["ranks"] or []
        n_users = sum(ranks)
        mean = sum(rank * users for rank, users in enumerate(ranks, start=1)) / n_users if n_users else None
        texts = [
            row["date"] + (" starved" if row["starved"] else ""),
            f"{row['exposure']:,}",
            f"{row['exposure_share']:.2%}",
            f"{row['click_share']:.2%}",
            "–" if row["ratio"] is None else f"{row['ratio']:.2f}",
            "–" if mean is None else f"{mean:.1f}",
        ]
        forms = {"chance": "{:.2%}", "price": "{:+.4f}"}
        rows.append([*texts, *("–" if row[name] is None else forms[name].format(row[name]) for name in more)])
    return head, rows


def category_lines(history: Sequence[dict[str, Any]]) -> list[str]:
    """Return exposure and click share as two sparklines on one scale."""
    newest = history[-SPARK_WIDTH:]
    highest = max([max(row["exposure_share"], row["click_share"]) for row in newest]) or 1.0
    lines = [""]
    for label, key in (("exposure share", "exposure_share"), ("click share", "click_share")):
        lines.append(f"{label:15}{spark([row[key] for row in newest], highest)}")
    lines.append(f"{'':15}0 to {highest:.2%}, {newest[0]['date']} to {newest[-1]['date']}")
    return lines


def describe_newest(history: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Return users by rank and the age and gender groups of the newest night, as short texts."""
    newest = history[-1]
    texts = {}
    if newest["ranks"]:
        texts["users by rank"] = ", ".join(f"{rank}: {users:,}" for rank, users in enumerate(newest["ranks"], start=1))
    if newest["groups"]:
        groups = [f"{group['gender']} {group['age']} {group['share']:.0%}" for group in newest["groups"][:GROUPS_SHOWN]]
        texts["groups"] = f"{', '.join(groups)}; share of the group's users"
    return texts


def spark(values: Sequence[float], highest: float) -> str:
    """Return values from 0 to `highest` as blocks of growing height.

    Examples
    --------
    >>> spark([0, 1, 2], 2)
    '▁▅█'
    """
    return "".join(BLOCKS[min(len(BLOCKS) - 1, int(value / highest * len(BLOCKS)))] for value in values)
