"""Register every stored array and table column once: name, dimensions, type and meaning.

Everything written to or read from disk is validated against this registry, and `storage/README.md` is generated
from it (`python -m ammrank_dask.storage.store.registry`).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ammrank_dask.storage.errors import REBUILD_COMMAND, BadInput, DamagedStore, EarlierFormat
from ammrank_dask.storage.vocabulary import (
    AGE,
    CATEGORY,
    CHANCE,
    CHANGE,
    COLD,
    GENDER,
    GROUP,
    HELD_BY,
    INCLUSION,
    PARENT,
    PROPENSITY,
    RANK,
    SCORE,
    TIMESTAMP,
    USER_ID,
    VALUE,
)

if TYPE_CHECKING:
    from ammrank_dask.storage.store.groups import StoredArray

FORMAT = "0.3.0"
"""Version of everything under a site: the first of this package that wrote it so. A reader refuses any other."""

REBUILD = f"make it again with {REBUILD_COMMAND}"
"""What to do about most damage."""

UNSIGNED = ("uint16", "uint32")


def check_format(path: Path | str, version: object) -> None:
    """Refuse what another version wrote: what an earlier one wrote a rebuild replaces, a later one's stays."""
    if version == FORMAT:
        return
    if isinstance(version, int):  # before 0.3.0
        raise EarlierFormat(f"{path} has format {version} of an earlier version, this one reads {FORMAT}; {REBUILD}")
    raise BadInput(f"{path} has format {version}, this version reads {FORMAT}; use the version that wrote it")


@dataclass(frozen=True)
class ArraySpec:
    """One stored array: `dims` are names whose lengths must agree inside a part (`x+1` is one longer than `x`)."""

    name: str
    dims: tuple[str, ...]
    dtypes: tuple[str, ...]
    meaning: str


@dataclass(frozen=True)
class PartSchema:
    """The arrays of one partition of one kind of run, and where its counts of rows and non-zeros are read.

    `remedy` is what to do when one is damaged.
    """

    kind: str
    meaning: str
    arrays: tuple[ArraySpec, ...]
    optional: frozenset[str] = frozenset()
    rows_dim: str = "user"
    nnz_dim: str | None = None
    remedy: str = REBUILD

    @property
    def has_users(self) -> bool:
        """Whether a part names users."""
        return any(spec.name == USER_ID for spec in self.arrays)

    def validate(self, arrays: Mapping[str, np.ndarray | StoredArray], where: str) -> dict[str, int]:
        """Check names, types and lengths; return the length of every dimension."""
        specs = {spec.name: spec for spec in self.arrays}
        unknown = sorted(set(arrays) - set(specs))
        missing = sorted(set(specs) - set(arrays) - self.optional)
        if unknown or missing:
            raise DamagedStore(f"{where}: a {self.kind} part has unknown arrays {unknown}, lacks {missing}")
        lengths: dict[str, int] = {}
        for name, array in arrays.items():
            spec = specs[name]
            if str(array.dtype) not in spec.dtypes:
                raise DamagedStore(f"{where}: {name} must be {' or '.join(spec.dtypes)}, found {array.dtype}")
            if len(array.shape) != len(spec.dims):
                raise DamagedStore(f"{where}: {name} must have dimensions {spec.dims}, found {array.shape}")
            for dim, found in zip(spec.dims, array.shape, strict=True):
                base, plus = (dim[:-2], 1) if dim.endswith("+1") else (dim, 0)
                if lengths.setdefault(base, found - plus) != found - plus:
                    raise DamagedStore(
                        f"{where}: {name} has {found} entries, expected {lengths[base] + plus} along {dim}"
                    )
        return lengths


_INT64 = ("int64",)
_IDS = (
    ArraySpec("user_id", ("user",), _INT64, "user ids in ascending order, when ids are integers"),
    ArraySpec("user_id_offsets", ("user+1",), _INT64, "where each id starts in user_id_bytes, when ids are strings"),
    ArraySpec("user_id_bytes", ("id_byte",), ("uint8",), "the ids in UTF-8, one after the other, in byte order"),
)
_ID_NAMES = frozenset(spec.name for spec in _IDS)

_INTEREST = (
    *_IDS,
    ArraySpec("indptr", ("user+1",), _INT64, "where the cells of each user start"),
    ArraySpec("cell", ("cell",), UNSIGNED, "group code × number of categories + category code, ascending per user"),
    ArraySpec(
        "intensity",
        ("cell",),
        ("float64",),
        "Σ α^(T−tᵢ) over the cell's events, T the end of the date, in days",
    ),
    ArraySpec("last", ("cell",), _INT64, "time of the newest event of the cell, microseconds since 1970 UTC"),
)

DAY = PartSchema("day", "the interest state of one day's events alone", _INTEREST, optional=_ID_NAMES, nnz_dim="cell")
STATE = PartSchema(
    "state", "the interest state of all events up to a date", _INTEREST, optional=_ID_NAMES, nnz_dim="cell"
)
USERS = PartSchema(
    "users",
    "the demographics of users.parquet",
    (
        *_IDS,
        ArraySpec("age", ("user",), ("int16",), "age in years, -1 when unknown"),
        ArraySpec("gender", ("user",), ("int8",), "0 female, 1 male, -1 unknown"),
    ),
    optional=_ID_NAMES,
)
FEATURES = PartSchema(
    "features",
    "one row of features per user, and the ranking of clicked categories when a label window was given",
    (
        *_IDS,
        ArraySpec("X/data", ("value",), ("float32",), "CSR values, without normalisation and without bias"),
        ArraySpec("X/indices", ("value",), UNSIGNED, "CSR column of each value, ascending per row"),
        ArraySpec("X/indptr", ("user+1",), _INT64, "CSR row starts"),
        ArraySpec("age_bucket", ("user",), ("int8",), "0 to 8 for the nine age buckets, -1 unknown"),
        ArraySpec("gender", ("user",), ("int8",), "0 female, 1 male, -1 unknown"),
        ArraySpec("ranking/indptr", ("user+1",), _INT64, "where the clicked categories of each user start"),
        ArraySpec("ranking/category", ("click",), UNSIGNED, "codes of the clicked categories, best first"),
        ArraySpec("ranking/intensity", ("click",), ("float64",), "click intensity at the end of the label window"),
    ),
    optional=_ID_NAMES | {"ranking/indptr", "ranking/category", "ranking/intensity"},
    nnz_dim="value",
)
_PLUS_ARRAYS = (
    ArraySpec("prior", ("category",), ("float32",), "amm-rank-plus: score before the row is looked at"),
    ArraySpec("limit", ("category",), _INT64, "amm-rank-plus: most planes"),
    ArraySpec("squares", ("column+1",), ("float64",), "amm-rank-plus: squared pushes by column, for a warm start"),
    ArraySpec("centers", ("center", "stored_column"), ("float32",), "amm-rank-plus: centres of all clusterings"),
    ArraySpec("center_start", ("clustering+1",), _INT64, "amm-rank-plus: the first centre of each clustering"),
    ArraySpec("center_nearest", ("clustering",), _INT64, "amm-rank-plus: centres a row belongs to"),
    ArraySpec("center_temperature", ("clustering",), ("float32",), "amm-rank-plus: width of the memberships"),
    ArraySpec("own_columns", ("kind", "category"), _INT64, "amm-rank-plus: columns that are a category's own, or -1"),
    ArraySpec("own_group", ("kind",), _INT64, "amm-rank-plus: event group of each kind of own column"),
    ArraySpec(
        "own_knots",
        ("term", "knot"),
        ("float32",),
        "amm-rank-plus: rising knots of the values of each kind, then of the prior; 0.2.0 had the kinds alone",
    ),
    ArraySpec("own_n_knots", ("term",), _INT64, "amm-rank-plus: knots that count"),
    ArraySpec("own_weights", ("term", "weight"), ("float32",), "amm-rank-plus: linear weight, one a knot, and 0"),
    ArraySpec("own_squares", ("term", "weight"), ("float64",), "amm-rank-plus: squared gradients, for a warm start"),
)
MODEL = PartSchema(
    "model",
    "`arrays.npz` of a fitted model; its `model.json` has `model` (which kind of model), `parameters`, `columns`, …",
    (
        ArraySpec("weights", ("column+1", "plane"), ("float32",), "planes sorted by category, the bias as last row"),
        ArraySpec("plane_category", ("plane",), ("int32",), "category code of each plane"),
        ArraySpec("popularity", ("category",), _INT64, "training users who clicked the category"),
        *_PLUS_ARRAYS,
    ),
    optional=frozenset(spec.name for spec in _PLUS_ARRAYS),
    rows_dim="plane",
    remedy="train it again with `ammrank train`",
)
_FLOAT64 = ("float64",)
CHANCES = PartSchema(
    "chances",
    "what the scores of a model are worth: curves from a score to the chance of a click in the label window",
    (
        ArraySpec("frame", ("frame",), _FLOAT64, "center, scale, width; z = (score − center)/scale, 0 without planes"),
        ArraySpec("intercept", ("category",), _FLOAT64, "logit of the chance = intercept + slope·z + …"),
        ArraySpec("slope", ("category",), _FLOAT64, "above 0"),
        ArraySpec("knot", ("knot",), _FLOAT64, "… + Σ bend·t/(1 + |t|) with t = (z − knot)/width + …"),
        ArraySpec("bend", ("class", "knot"), _FLOAT64, "by class of activity, not below 0"),
        ArraySpec("level", ("class",), _FLOAT64, "… + level of the user's class of activity"),
        ArraySpec(
            "edges", ("edge",), _FLOAT64, "values of a row that come from events, from which on the next class is"
        ),
        ArraySpec(
            "centers",
            ("class",),
            _FLOAT64,
            "ln(1 + values) at which a user is wholly of a class, between two of both; without it of one class alone",
        ),
    ),
    optional=frozenset({"centers"}),
    rows_dim="category",
)
PART_SCHEMAS = {schema.kind: schema for schema in (DAY, STATE, USERS, FEATURES, MODEL, CHANCES)}


@dataclass(frozen=True)
class ColumnSpec:
    """One column of a table, with the type it has on disk."""

    name: str
    dtype: str
    meaning: str


TABLES: dict[str, tuple[str, tuple[ColumnSpec, ...]]] = {
    "events": (
        "LAKE/events/date=YYYY-MM-DD/*.parquet, the user's own logs; columns are mapped by `columns` of the config",
        (
            ColumnSpec(USER_ID, "int64 or string", "who"),
            ColumnSpec(GROUP, "string", "kind of event; values are mapped by `groups` of the config"),
            ColumnSpec(CATEGORY, "string", "a node of the taxonomy, usually a leaf"),
            ColumnSpec(TIMESTAMP, "timestamp", "when, UTC; other zones and integers are mapped by the config"),
        ),
    ),
    "users table": (
        "LAKE/users.parquet, a file or a folder of files",
        (
            ColumnSpec(USER_ID, "int64 or string", "who, once"),
            ColumnSpec(AGE, "integer, nullable", "years, 0 to 120"),
            ColumnSpec(GENDER, "string, nullable", "mapped by `genders` of the config"),
        ),
    ),
    "taxonomy": (
        "LAKE/taxonomy.csv",
        (
            ColumnSpec(CATEGORY, "string", "name of the node, unique"),
            ColumnSpec(PARENT, "string", "name of its parent, empty for a root"),
        ),
    ),
    "quarantine": (
        "SITE/quarantine/date=….parquet and users.parquet: rows of the lake that could not be used",
        (
            ColumnSpec("reason", "string", "why the row was set aside"),
            ColumnSpec("file", "string", "file of the lake"),
            ColumnSpec("row", "int64", "row of that file, from 0"),
            ColumnSpec(USER_ID, "string, nullable", "as found"),
            ColumnSpec("value", "string, nullable", "the value that was not understood"),
        ),
    ),
    "by_user": (
        "qualifications/date=…/by_user/part-*.parquet",
        (
            ColumnSpec(USER_ID, "int64 or string", "who"),
            ColumnSpec(RANK, "int16", "1 is best"),
            ColumnSpec(CATEGORY, "string", "the category the user qualifies for"),
            ColumnSpec(
                SCORE, "float32", "g(category, user); comparable within a user; -inf: the category has no planes"
            ),
            ColumnSpec(
                CHANCE,
                "float32",
                "chance that the user clicks the category within the label window; not there without chances",
            ),
            ColumnSpec(
                VALUE,
                "float32",
                "with values: the chance times what a click is worth to the user's group; not there without chances",
            ),
            ColumnSpec(
                PROPENSITY,
                "float32",
                "with exploration: how probable it was to draw the category for the user; 1 for what was not drawn",
            ),
            ColumnSpec(
                INCLUSION,
                "float32",
                "with exploration: how probable it was that the user holds the category, drawn or not; what an estimate"
                " divides a click by",
            ),
            ColumnSpec(
                HELD_BY,
                "string",
                "with exploration: the policies of the run that give the user the category where nothing is drawn, with"
                " spaces between",
            ),
            ColumnSpec(
                COLD, "bool", "whether nothing is known of the user's interests: ranked by age and gender, or like all"
            ),
        ),
    ),
    "by_category": (
        "qualifications/date=…/by_category/category=…/part-*.parquet, by score from the highest and then user id within"
        " a file. A file has about a million rows: those of the partitions that its name gives (part-FIRST-LAST). The"
        " folder has the category as `urllib.parse.quote(category, safe='')` writes it; one that is longer than a file"
        " name may be has a short folder with an `@`, and `config.short_folders` of the manifest says of which"
        " category",
        (
            ColumnSpec(USER_ID, "int64 or string", "who qualifies for the category"),
            ColumnSpec(SCORE, "float32", "as in by_user"),
            ColumnSpec(RANK, "int16", "rank of the category for this user"),
            ColumnSpec(CHANCE, "float32", "as in by_user; not there without chances"),
            ColumnSpec(PROPENSITY, "float32", "as in by_user; not there without exploration"),
        ),
    ),
    "delta": (
        "qualifications/date=…/delta/part-*.parquet: what changed since the last published night, by user id",
        (
            ColumnSpec(USER_ID, "int64 or string", "who"),
            ColumnSpec(CATEGORY, "string, nullable", "the category; null for a user who was forgotten"),
            ColumnSpec(
                CHANGE,
                "string",
                "added (on a first night everything), removed, changed (in rank or score), or forgotten: the user was"
                " forgotten since, and all that is held of them is to be removed",
            ),
            ColumnSpec(RANK, "int16, nullable", "as in by_user; null for what is removed or forgotten"),
            ColumnSpec(SCORE, "float32, nullable", "the same"),
            ColumnSpec(CHANCE, "float32, nullable", "the same; not there without chances"),
        ),
    ),
    "exposure.csv": (
        "reports/date=…/exposure.csv, one row per category; a name that a spreadsheet would take for a formula has a '"
        " before it",
        (
            ColumnSpec(CATEGORY, "string", "the category"),
            ColumnSpec("exposure", "integer", "users who have it, under the active policy"),
            ColumnSpec("exposure_share", "number", "of all qualifications"),
            ColumnSpec("click_share", "number", "of all clicks in the label window"),
            ColumnSpec("ratio", "number, empty", "exposure share ÷ click share; empty without clicks"),
            ColumnSpec("rank_1 … rank_k", "integer", "users who hold it at that rank, if the policy has ranks"),
            ColumnSpec("clicks", "integer", "users who clicked it in the label window, each counted once a day"),
            ColumnSpec("POLICY_exposure", "integer", "users who hold it under each policy of the report"),
            ColumnSpec("POLICY_starved", "0 or 1", "whether the policy starves it"),
            ColumnSpec(
                "price", "number", "with policy balanced: what a slot of it costs in chance; below 0 at its floor"
            ),
            ColumnSpec("floor, cap", "integer", "with policy balanced: the fewest and the most users of it"),
            ColumnSpec("psi", "number, empty", "population stability index against the night before"),
        ),
    ),
}


def describe_formats() -> str:
    """Return the storage format as Markdown, from the registry alone."""
    lines = [
        "# What is stored",
        "",
        "Generated by `python -m ammrank_dask.storage.store.registry > storage/README.md`; a test holds the two equal.",
        "",
        f"Format version {FORMAT}. A run is a folder with a `manifest.json` that is written last; a folder without one"
        " is unfinished. Days, states, users and chances are Arrow IPC files without compression, one per partition,"
        " `part-NNNNN.arrow`: `pandas.read_feather`, `polars.read_ipc` and `pyarrow.ipc.open_file` open them. Arrays by"
        " user are columns (string ids are one column `user_id`), and those that `indptr` cuts into users are fields of"
        " the column `cells`, a list of structs; chances are one row of lists. The manifest has the CRC-32C of each"
        " file, and readers compare it before Arrow sees a byte.",
        "",
        "Features are plain zarr (v3) groups, one per partition, in a group that is the run:"
        " `zarr.open_group(run)['part-00000/X/data']`. An array has one chunk, little-endian and without compression,"
        " and behind it its CRC-32C (the codec `crc32c`). The attribute `files` of the group of a partition has size"
        " and CRC-32C of every other file of it (of a chunk that before the codec); the manifest has the CRC-32C of the"
        " `zarr.json` with that attribute.",
        "",
        "A model is two files that numpy alone reads: `arrays.npz`, uncompressed, and `model.json` with its parameters,"
        " the names of its categories and columns, size and CRC-32C of the arrays, and a checksum of its own content.",
        "",
        "Times are microseconds since 1970 UTC. `X` follows AnnData's `csr_matrix` convention, so that it opens with"
        " plain zarr and scipy.",
    ]
    for schema in PART_SCHEMAS.values():
        lines += [
            "",
            f"## `{schema.kind}` parts: {schema.meaning}",
            "",
            "| array | dims | type | meaning |",
            "|---|---|---|---|",
        ]
        for array in schema.arrays:
            types = " or ".join(array.dtypes)
            lines.append(f"| `{array.name}` | {', '.join(array.dims)} | {types} | {array.meaning} |")
    lines += ["", "# Tables"]
    for name, (place, columns) in TABLES.items():
        lines += ["", f"## {name}", "", place, "", "| column | type | meaning |", "|---|---|---|"]
        lines += [f"| `{column.name}` | {column.dtype} | {column.meaning} |" for column in columns]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(describe_formats())
