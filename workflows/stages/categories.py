"""Match the categories of earlier runs with those of a night by name, so that nothing is counted again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property

from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.lake.taxonomy import Renames, Taxonomy, TaxonomyChange, compare_taxonomies, final_names
from ammrank_dask.storage.site.site import Site
from ammrank_dask.storage.site.taxonomies import load_taxonomy
from ammrank_dask.storage.store.manifests import RunManifest, StateManifest
from ammrank_dask.storage.store.parts import Recoding
from ammrank_dask.storage.store.runs import Run
from ammrank_dask.workflows.stages.history import Refusal

NAMES_TOLD = 5


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
