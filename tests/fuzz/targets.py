"""The files that come from outside, and how the product reads them."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from deltalake import DeltaTable, write_deltalake
from lakes import date_of, good_events, write_lake, write_site
from pyiceberg.catalog.sql import SqlCatalog

from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.lake.events import EventMapping, decode_events
from ammrank_dask.storage.lake.files import EventColumns, FileSlice, read_batches, scan_file
from ammrank_dask.storage.lake.listing import list_days
from ammrank_dask.storage.lake.people import PeopleMapping, decode_people, read_opt_outs, read_user_list
from ammrank_dask.storage.lake.taxonomy import flat_taxonomy, read_taxonomy
from ammrank_dask.storage.vocabulary import GENDERS, GROUPS, TIMESTAMP
from ammrank_dask.workflows.session.config import load_config
from tests.fuzz.mutations import change_bytes, change_document

CATEGORIES = ("Flights", "Hats", "Shoes")
IDS = ("int64", "string")


class Target(ABC):
    """One kind of file. `change` writes one that is odd, `read` reads it as a command would."""

    def __init__(self, folder: Path) -> None:
        """Make the files that are changed."""
        self.folder = folder
        folder.mkdir(parents=True)

    @abstractmethod
    def change(self, rng: random.Random) -> None:
        """Write an odd file."""

    @abstractmethod
    def read(self, rng: random.Random) -> None:
        """Read what was written last."""


class Parquet(Target):
    """A table as somebody else's program writes it: any types, any encoding, then perhaps damaged bytes."""

    names: tuple[str, ...] = ()

    def change(self, rng: random.Random) -> None:
        """Write a table of good or random columns."""
        while True:
            try:
                return self.write(rng)
            except pa.ArrowException:
                continue  # the format has no such values

    def write(self, rng: random.Random) -> None:
        """Write a table, unless the format cannot hold it."""
        columns = self.good_columns()
        n_rows = len(next(iter(columns.values())))
        if rng.random() < 0.6:
            for name in rng.sample(self.names, rng.choice([1, 1, 2])):
                columns[name] = _odd_column(rng, n_rows)
        if rng.random() < 0.1:
            columns.pop(rng.choice(self.names))
        if rng.random() < 0.1:
            columns[f"{rng.choice(self.names)} "] = _odd_column(rng, n_rows)
        table = pa.table(columns).slice(0, rng.choice([0, 1, n_rows, n_rows]))
        self.path = self.folder / "part-0.parquet"
        pq.write_table(
            table,
            self.path,
            compression=rng.choice(["none", "snappy", "zstd", "gzip"]),
            use_dictionary=rng.random() < 0.5,
            version=rng.choice(["1.0", "2.4", "2.6"]),
            data_page_version=rng.choice(["1.0", "2.0"]),
            row_group_size=rng.choice([1, 7, 10**6]),
            data_page_size=rng.choice([64, 10**6]),
            write_page_checksum=rng.random() < 0.5,
            store_schema=rng.random() < 0.7,
        )
        if rng.random() < 0.6:
            self.path.write_bytes(change_bytes(rng, self.path.read_bytes(), "parquet"))

    @abstractmethod
    def good_columns(self) -> dict[str, pa.Array]:
        """Return columns that can be read."""


class Events(Parquet):
    """A file of events."""

    names = ("user_id", "group", "category", "timestamp")

    def good_columns(self) -> dict[str, pa.Array]:
        """Return the events of a day."""
        rows = good_events(repeat=4)
        times = [date_of(1)] * len(rows)
        columns = {name: pa.array([row[name] for row in rows]) for name in self.names[:3]}
        return {**columns, TIMESTAMP: pa.array(times).cast(pa.timestamp("us", "UTC"))}

    def read(self, rng: random.Random) -> None:
        """Scan the file and decode all its rows."""
        columns = dataclasses.astuple(EventColumns())[:4]
        mapping = EventMapping(
            EventColumns(timezone=rng.choice([None, "UTC"]), timestamp_unit=rng.choice([None, "s", "ms"])),
            {name: code for code, name in enumerate(GROUPS)},
            frozenset(),
            flat_taxonomy(CATEGORIES),
            len(GROUPS),
            0,
            3,
            frozenset(rng.choice([(), ("", "-1", "0")])),
            rng.choice(["UTC", "Europe/Berlin"]),
        )
        file = scan_file(str(self.path), self.path.name, columns)
        for group in range(len(file.rows)):
            for _, table in read_batches(FileSlice(file, (group,)), columns, columns[1:3]):
                decode_events(table, mapping, end=1_767_830_400_000_000, where=file.path)


class Users(Parquet):
    """A table of users."""

    names = ("user_id", "age", "gender")

    def good_columns(self) -> dict[str, pa.Array]:
        """Return some users."""
        ages, genders = [34, 19, None, 70] * 5, ["female", "male", None, "f"] * 5
        return {"user_id": pa.array(range(20)), "age": pa.array(ages), "gender": pa.array(genders)}

    def read(self, rng: random.Random) -> None:
        """Scan the table and decode all its rows."""
        spelled = {name: code for code, name in enumerate(GENDERS)}
        mapping = PeopleMapping("user_id", "age", "gender", spelled, frozenset(), frozenset())
        file = scan_file(str(self.path), self.path.name, self.names)
        for group in range(len(file.rows)):
            for _, table in read_batches(FileSlice(file, (group,)), self.names, ()):
                decode_people(table, mapping, where=file.path)


class UserList(Parquet):
    """A list of users, or of pairs of users and categories: parquet or text."""

    names = ("user_id", "category")

    def good_columns(self) -> dict[str, pa.Array]:
        """Return a few pairs."""
        return {"user_id": pa.array(range(20)), "category": pa.array(["Hats", "Shoes"] * 10)}

    def change(self, rng: random.Random) -> None:
        """Write a table or a text."""
        if rng.random() < 0.5:
            return super().change(rng)
        self.path = self.folder / "users.csv"
        lines = "user_id,category\n1,Hats\n" + "".join(f'{user},"Shoes"\n' for user in range(2, 40))
        self.path.write_bytes(change_bytes(rng, rng.choice([lines, "user_id\n1\n2\n"]).encode(), "text"))

    def read(self, rng: random.Random) -> None:
        """Read it as a list, or as pairs."""
        if rng.random() < 0.5:
            read_user_list(self.path, rng.choice(IDS), may_be_empty=rng.random() < 0.5)
        else:
            read_opt_outs(self.path, rng.choice(IDS), CATEGORIES, {"Caps": "Hats", "Gone": None})


class Taxonomy(Target):
    """A taxonomy."""

    def change(self, rng: random.Random) -> None:
        """Write a forest whose edges may be anything."""
        names = [f"c{number}" for number in range(rng.choice([3, 30, 300]))]
        lines = [f"{name},{rng.choice([*names[:at], '', ''])}" for at, name in enumerate(names)]
        if rng.random() < 0.3:
            lines.append(f"{rng.choice(names)},{rng.choice(names)}")
        text = "category,parent\n" + "\n".join(lines)
        self.path = self.folder / "taxonomy.csv"
        self.path.write_bytes(change_bytes(rng, text.encode(), "text") if rng.random() < 0.8 else text.encode())

    def read(self, rng: random.Random) -> None:
        """Read it at some level."""
        read_taxonomy(self.path, rng.choice([1, 2, 50]), rng.choice([None, {"old": "c1"}, {"c0": None}]))


class ConfigFile(Target):
    """The config of a site."""

    def __init__(self, folder: Path) -> None:
        """Write the config of a small site."""
        super().__init__(folder)
        self.path = write_site(folder / "site", write_lake(folder / "lake", n_days=1)).config_path
        self.good = self.path.read_text(encoding="utf-8")

    def change(self, rng: random.Random) -> None:
        """Write it with other values, or other bytes."""
        if rng.random() < 0.5:
            document = change_document(rng, yaml.safe_load(self.good))
            self.path.write_text(yaml.safe_dump(document), encoding="utf-8", errors="replace")
        else:
            self.path.write_bytes(change_bytes(rng, self.good.encode(), "yaml"))

    def read(self, rng: random.Random) -> None:
        """Read the config."""
        load_config(self.path)


class Table(Target):
    """What the log of a table says: JSON, and files of another kind."""

    def __init__(self, folder: Path) -> None:
        """Keep the bytes of all files of the log."""
        super().__init__(folder)
        self.root = self.make(write_lake(folder / "lake", n_days=2))
        self.good = {path: path.read_bytes() for path in self.logs() if path.suffix != ".crc"}

    @abstractmethod
    def make(self, lake: Path) -> Path:
        """Make the table, and return its folder."""

    @abstractmethod
    def logs(self) -> list[Path]:
        """Return the files that are changed."""

    def change(self, rng: random.Random) -> None:
        """Write one file of the log with other values, or other bytes; the others as they were."""
        for path, data in self.good.items():
            path.write_bytes(data)
        path = rng.choice(list(self.good))
        data = self.good[path]
        if path.suffix == ".json" and rng.random() < 0.6:
            lines = data.decode().splitlines() if "_delta_log" in str(path) else [data.decode()]
            at = rng.randrange(len(lines))
            lines[at] = json.dumps(change_document(rng, json.loads(lines[at])))
            path.write_text("\n".join(lines), encoding="utf-8", errors="replace")
        elif rng.random() < 0.1:
            path.unlink()
        else:
            path.write_bytes(change_bytes(rng, data, "json" if path.suffix == ".json" else "parquet"))

    def read(self, rng: random.Random) -> None:
        """List the days of the table."""
        list_days(self.root, "date")


class Delta(Table):
    """A table of Delta Lake with a checkpoint."""

    def make(self, lake: Path) -> Path:
        """Make the table, and return its folder."""
        root = self.folder / "delta"
        for date, rows in _days(lake):
            day = rows.append_column("date", pa.array([date] * len(rows)))
            write_deltalake(root, day, partition_by=["date"], mode="append")
        DeltaTable(root).create_checkpoint()
        write_deltalake(root, day.slice(0, 5), partition_by=["date"], mode="append")
        return root

    def logs(self) -> list[Path]:
        """Return the files that are changed."""
        return sorted(path for path in (self.root / "_delta_log").iterdir() if path.is_file())


class Iceberg(Table):
    """A table of Iceberg."""

    def make(self, lake: Path) -> Path:
        """Make the table, and return its folder."""
        uri = f"sqlite:///{self.folder}/catalog.db"
        catalog = SqlCatalog("fuzz", uri=uri, warehouse=(self.folder / "warehouse").as_uri())
        catalog.create_namespace("shop")
        table: Any = None
        for date, day in _days(lake):
            rows = day.append_column("date", pa.array([date] * len(day)))
            if table is None:
                table = catalog.create_table("shop.events", schema=rows.schema)
                with table.update_spec() as update:
                    update.add_identity("date")
            table.append(rows)
        catalog.close()
        return Path(table.location().removeprefix("file://"))

    def logs(self) -> list[Path]:
        """Return the newest metadata, and not the manifests: pyiceberg's decoder of Avro reads beyond damaged ones."""
        return [max((self.root / "metadata").glob("*.metadata.json"))]


def _days(lake: Path) -> list[tuple[Any, pa.Table]]:
    days = list_days(lake / "events", "date")
    return [(date, pq.read_table(day.files()[0], partitioning=None)) for date, day in days.items()]


TARGETS: dict[str, type[Target]] = {
    "events": Events,
    "users": Users,
    "user list": UserList,
    "taxonomy": Taxonomy,
    "config": ConfigFile,
    "delta": Delta,
    "iceberg": Iceberg,
}


class Broken(Target):
    """A reader that does not do what it should, to see that it is found."""

    def change(self, rng: random.Random) -> None:
        """Change nothing."""


class Raises(Broken):
    """Ends with an error that is not meant for users."""

    def read(self, rng: random.Random) -> None:
        """Look up what is not there."""
        raise KeyError("path")


class Rambles(Broken):
    """Says more than a sentence."""

    def read(self, rng: random.Random) -> None:
        """Refuse in two lines."""
        raise BadInput("one line\nand another")


class Dies(Broken):
    """Ends the process, as a fault in a library does."""

    def read(self, rng: random.Random) -> None:
        """Abort."""
        os.abort()


class Hangs(Broken):
    """Does not come back."""

    def read(self, rng: random.Random) -> None:
        """Wait."""
        time.sleep(3600)


class Grows(Broken):
    """Takes memory that the size of a file does not explain."""

    def read(self, rng: random.Random) -> None:
        """Fill an array."""
        bytearray(3 << 29)


BROKEN: dict[str, type[Target]] = {"raises": Raises, "rambles": Rambles, "dies": Dies, "hangs": Hangs, "grows": Grows}


def make_targets(folder: Path, names: Sequence[str]) -> dict[str, Target]:
    """Make targets in a folder."""
    kinds = TARGETS | BROKEN
    return {name: kinds[name](folder / name.replace(" ", "-")) for name in names or TARGETS}


def _odd_column(rng: random.Random, n_rows: int) -> pa.Array:
    """Return a column of some type with values at its edges."""
    kind = rng.choice(_KINDS)
    values = [rng.choice(_VALUES[kind]) for _ in range(n_rows)]
    array = pa.array(values, kind)
    if rng.random() < 0.2 and not pa.types.is_nested(kind) and not pa.types.is_null(kind):
        array = array.dictionary_encode()
    return array


_TEXTS = [
    None,
    "",
    " ",
    "pv",
    "adc",
    "Hats",
    "hats",
    "Shoes\x00",
    "\u0130",
    "e\u0301",
    "9" * 40,
    "-1",
    "x" * 1500,
    "=a",
]
_INTS = [None, 0, -1, 1, 127]
_VALUES: dict[pa.DataType, list[Any]] = {
    pa.null(): [None],
    pa.bool_(): [None, True, False],
    pa.int8(): [*_INTS, -128],
    pa.uint64(): [None, 0, 2**64 - 1, 2**63],
    pa.int32(): [*_INTS, 2**31 - 1, -(2**31)],
    pa.int64(): [*_INTS, 2**63 - 1, -(2**63), 1_767_700_000, 1_767_700_000_000],
    pa.float32(): [None, 0.0, float("nan"), float("inf"), 1.5],
    pa.float64(): [None, -0.0, float("nan"), -float("inf"), 1e300, 3.0],
    pa.string(): _TEXTS,
    pa.large_string(): _TEXTS,
    pa.binary(): [None, b"", b"pv", b"\xff\xfe", b"Hats"],
    pa.binary(3): [None, b"abc", b"\xff\x00\xff"],
    pa.date32(): [None, 0, 20_000, 2**31 - 1, -(2**31)],
    pa.timestamp("s"): [None, 0, 1_767_700_000, 2**62, -(2**62)],
    pa.timestamp("ms", "America/New_York"): [None, 0, 1_767_700_000_000, 2**62],
    pa.timestamp("us"): [None, 0, 1_767_700_000_000_000, 2**63 - 1, -(2**63)],
    pa.timestamp("ns", "UTC"): [None, 0, 1_767_700_000_000_000_000, 2**63 - 1],
    pa.time64("us"): [None, 0, 86_399_999_999],
    pa.duration("s"): [None, 0, 10],
    pa.decimal128(38, 2): [None, 0, 1],
    pa.list_(pa.int64()): [None, [], [1, None]],
    pa.struct([("a", pa.int64())]): [None, {"a": 1}],
}
_KINDS = list(_VALUES)
