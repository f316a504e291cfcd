"""Write a lake and the truth behind it: every file whole, under a temporary name, then renamed."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zarr
from numpy.typing import NDArray
from zarr.codecs import BloscCodec

from ammrank_dask.storage.objects.atomic import rename_folder, temporary_beside, write_atomic, write_text
from ammrank_dask.storage.vocabulary import AGE, CATEGORY, GENDER, GENDERS, GROUP, PARENT, TIMESTAMP, USER_ID

# Of the codecs tried, snappy with sorted timestamps as deltas is fastest, and as small as zstd.
_PARQUET: dict[str, Any] = {
    "compression": "snappy",
    "use_dictionary": [GROUP, CATEGORY, GENDER],
    # Without the arrow schema in the footer, dictionary columns are read back as the plain strings they are.
    "store_schema": False,
    "data_page_version": "2.0",
    "write_page_checksum": True,
}
_TRUTH_CHUNK_ROWS = 40_000


def events_path(lake: Path, day: date, part: int) -> Path:
    """Path of one file of events in the folder of its day."""
    return lake / "events" / f"date={day.isoformat()}" / f"part-{part:05d}.parquet"


def users_path(lake: Path) -> Path:
    """Path of the table of users."""
    return lake / "users.parquet"


def taxonomy_path(lake: Path) -> Path:
    """Path of the taxonomy."""
    return lake / "taxonomy.csv"


def truth_path(truth: Path, block: int) -> Path:
    """Path of the hidden truth of one block of users."""
    return truth / f"block-{block:05d}.zarr"


def simulation_path(truth: Path) -> Path:
    """Path of the parameters and counts of a simulation."""
    return truth / "simulation.json"


def write_events(
    path: Path,
    *,
    user_ids: pa.Array,
    groups: NDArray[np.int8],
    group_names: Sequence[str],
    categories: NDArray[np.int16],
    category_names: Sequence[str],
    timestamps: NDArray[np.int64],
) -> None:
    """Write one file of events: codes into the names, and timestamps in µs since 1970 UTC."""
    table = pa.table(
        {
            USER_ID: user_ids,
            GROUP: pa.DictionaryArray.from_arrays(pa.array(groups), pa.array(group_names)),
            CATEGORY: pa.DictionaryArray.from_arrays(pa.array(categories), pa.array(category_names)),
            TIMESTAMP: pa.array(timestamps).cast(pa.timestamp("us", tz="UTC")),
        }
    )
    options = {
        "column_encoding": {TIMESTAMP: "DELTA_BINARY_PACKED"},
        "write_statistics": [TIMESTAMP],
        **_PARQUET,
    }
    write_atomic(path, lambda temporary: pq.write_table(table, temporary, **options), durable=False)


def write_users(path: Path, blocks: Iterable[tuple[pa.Array, NDArray[np.integer], NDArray[np.integer]]]) -> None:
    """Write the table of users, a row group for each block (user ids, ages, gender codes); -1 is unknown."""
    schema = pa.schema({AGE: pa.int32(), GENDER: pa.dictionary(pa.int8(), pa.string())})

    def write(temporary: Path) -> None:
        with ExitStack() as stack:
            writer = None
            for user_ids, ages, genders in blocks:
                codes = pa.array(genders.astype(np.int8), mask=genders < 0)
                columns = [
                    user_ids,
                    pa.array(ages.astype(np.int32), mask=ages < 0),
                    pa.DictionaryArray.from_arrays(codes, pa.array(GENDERS)),
                ]
                if writer is None:
                    whole = schema.insert(0, pa.field(USER_ID, user_ids.type))
                    writer = stack.enter_context(pq.ParquetWriter(temporary, whole, **_PARQUET))
                writer.write_table(pa.table(columns, schema=whole))

    write_atomic(path, write, durable=False)


def write_taxonomy(path: Path, parents: Mapping[str, str]) -> None:
    """Write the taxonomy: the parent of every node, empty for a root."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow((CATEGORY, PARENT))
    rows.writerows(parents.items())
    write_text(path, text.getvalue(), durable=False)


def write_truth(path: Path, arrays: Mapping[str, NDArray[Any]], attributes: Mapping[str, Any]) -> None:
    """Write the hidden truth of one block as a zarr group; its folder appears whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_beside(path)
    group = zarr.create_group(temporary, zarr_format=3)
    group.attrs.update(dict(attributes))
    for name, values in arrays.items():
        group.create_array(
            name,
            data=values,
            chunks=(max(1, min(len(values), _TRUTH_CHUNK_ROWS)), *values.shape[1:]),
            compressors=BloscCodec(cname="lz4", clevel=5, shuffle="shuffle"),
            config={"write_empty_chunks": True},
        )
    rename_folder(temporary, path)


def read_truth_attributes(path: Path) -> dict[str, Any]:
    """Read what `write_truth` was given as attributes."""
    return dict(zarr.open_group(path, mode="r").attrs)


def read_truth(path: Path) -> dict[str, NDArray[Any]]:
    """Read the arrays that `write_truth` wrote."""
    group = zarr.open_group(path, mode="r")
    return {name: np.asarray(array[:]) for name, array in group.arrays()}
