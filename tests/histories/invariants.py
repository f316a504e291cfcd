"""What must hold of a site after any command, told from its lake and its published tables by pandas alone."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc
import pyarrow.parquet as pq

from tests.histories.inputs import Inputs, date_of

DAY_US = 86_400_000_000


class Differs(AssertionError):
    """A site is not as it has to be."""


def events_of(inputs: Inputs) -> pd.DataFrame:
    """Return all events that count, with their ranked categories, from the lake of the control."""
    parents, renames = inputs.parents(), inputs.renames

    def ranked(name: str | None) -> str | None:
        while name is not None and parents.get(name) and parents[parents[name]]:
            name = parents[name]
        if name is None or not parents.get(name):
            return None  # of no category, or above the level of the ranked ones
        while name in renames:
            renamed = renames[name]
            if renamed is None:
                return None
            name = renamed
        return name

    days = []
    for day in inputs.days():
        table = inputs.rows_of(day)
        stamps = pc.cast(table["timestamp"], pa.int64()).to_numpy()
        frame = table.select(["user_id", "group", "category"]).to_pandas()
        days.append(frame.assign(us=stamps, day=day))
    events = pd.concat(days, ignore_index=True)
    of_name = {name: ranked(name) for name in events["category"].dropna().unique()}
    events["category"] = events["category"].map(of_name)
    return events[events["category"].notna()]


def check_state(inputs: Inputs, events: pd.DataFrame, texts: dict[str, str], last: int) -> None:
    """Compare the published state with sums over all events up to its date."""
    alpha = inputs.config.get("alpha", 0.995)
    end = (date_of(last + 1) - date_of(0)).days * DAY_US + pd.Timestamp(date_of(0)).value // 1000
    events = events[(events["day"] <= last) & ~events["user_id"].isin(inputs.forgotten)]
    events = events.assign(intensity=alpha ** ((end - events["us"]) / DAY_US))
    cells = events.groupby(["user_id", "group", "category"]).agg(intensity=("intensity", "sum"), last=("us", "max"))
    rows = pd.DataFrame(_rows(texts["state"]), columns=["user_id", "group", "category", "intensity", "last"])
    found = rows.set_index(["user_id", "group", "category"]).sort_index()
    cells = cells.sort_index()
    if list(found.index) != list(cells.index):
        odd = sorted(set(found.index) ^ set(cells.index))
        raise Differs(f"the state has {len(found)} cells, by pandas {len(cells)}, for example {odd[:2]}")
    if not np.allclose(found["intensity"], cells["intensity"], rtol=1e-9) or (found["last"] != cells["last"]).any():
        raise Differs("the state has other intensities or times than pandas")


def check_exposure(inputs: Inputs, events: pd.DataFrame, texts: dict[str, str], last: int) -> None:
    """Compare exposure and clicks of the report with the published lists and with the events of the label window."""
    exposure = Counter(row["category"] for row in lists_of(texts))
    lines = [line.split("\t") for line in texts["exposure"].splitlines()]
    header, rows = [name.strip('"') for name in lines[0]], [[cell.strip('"') for cell in line] for line in lines[1:]]
    table = pd.DataFrame(rows, columns=header).set_index("category")
    told = {name: int(n) for name, n in table["exposure"].items() if int(n)}
    # Of lists from which somebody was taken since, the report stays; a rebuild takes such lists as they are.
    odd = {name for name in {*told, *exposure} if not 0 <= told.get(name, 0) - exposure[name] <= len(inputs.forgotten)}
    if odd:
        raise Differs(f"exposure.csv has {told}, the lists {dict(exposure)}")
    days = inputs.config["label"]["days"]
    window = events[(events["day"] > last - days) & (events["day"] <= last) & (events["group"] == "adc")]
    # A user who clicks a category counts once a day; days that were counted before somebody was forgotten stay.
    window = window.drop_duplicates(["user_id", "category", "day"])
    most = window["category"].value_counts()
    least = window[~window["user_id"].isin(inputs.forgotten)]["category"].value_counts()
    for name, n in table["clicks"].astype(int).items():
        if not least.get(name, 0) <= n <= most.get(name, 0):
            raise Differs(f"exposure.csv has {n} clicks on {name}, the lake {least.get(name, 0)}")


def check_lists(inputs: Inputs, texts: dict[str, str]) -> None:
    """Check what must hold of lists under every policy, and more where the policy says more."""
    score = inputs.config["score"]
    lists = lists_of(texts)
    by_user: dict[Any, list[dict[str, Any]]] = {}
    for row in sorted(lists, key=lambda row: (str(row["user_id"]), row["rank"])):
        by_user.setdefault(row["user_id"], []).append(row)
    pairs = {(row["user_id"], row["category"]) for row in lists}
    if len(pairs) != len(lists):
        raise Differs("a user has a category twice")
    if pairs != {(row["user_id"], row["category"]) for row in _dicts(texts["by_category"])}:
        raise Differs("by_category has other pairs than by_user")
    for rows in by_user.values():
        if [row["rank"] for row in rows] != list(range(1, len(rows) + 1)):
            raise Differs(f"ranks are {[row['rank'] for row in rows]}")
        key = "value" if score.get("objective") == "value" else "score"
        worth = [row[key] for row in rows]
        if score["policy"] == "user_top_k" and not score["explore"] and worth != sorted(worth, reverse=True):
            raise Differs(f"the {key} of a list does not fall: {worth}")
        if score["policy"] != "category_top_n" and len(rows) > score["k"]:
            raise Differs(f"a user has {len(rows)} categories, k is {score['k']}")
    opted_out = {
        tuple(line.split(",", 1)) for line in (inputs.control.path / "opt-outs.csv").read_text("utf-8").splitlines()
    }
    if score.get("opt_out") and (bad := {(str(user), name) for user, name in pairs} & opted_out):
        raise Differs(f"{len(bad)} pairs are assigned that were opted out")
    exposure = Counter(name for _, name in pairs)
    if exposure and min(exposure.values()) < (score.get("min_audience") or 0):
        raise Differs(f"a category has {min(exposure.values())} users, score.min_audience is {score['min_audience']}")
    odd = set(exposure) - set(inputs.categories())
    if odd or set(exposure) & set(score.get("exclude", [])):
        raise Differs(f"lists have {sorted(odd)}, and exclude {score.get('exclude')}")
    if score["policy"] != "category_top_n" and not score.get("min_audience") and not set(inputs.users) <= set(by_user):
        raise Differs(f"{len(set(inputs.users) - set(by_user))} users have no list")


def lists_of(texts: dict[str, str]) -> list[dict[str, Any]]:
    """Return the rows of by_user."""
    return _dicts(texts["by_user"])


def check_forgotten(folder: Path, forgotten: list[Any]) -> None:
    """Look for forgotten users in all tables below a folder, and for text ids in all bytes."""
    needles = [user.encode() for user in forgotten if isinstance(user, str)]
    for root, _, names in os.walk(folder):
        for name in names:
            path = Path(root, name)
            if path.parent.name in ("delta", "tombstones"):  # they tell readers who was forgotten
                continue
            data = path.read_bytes()
            if any(needle in data for needle in needles) or set(_ids_of(path)) & set(forgotten):
                raise Differs(f"{path} has a forgotten user")


def check_size(tried: Path, control: Path) -> None:
    """Compare the number of files and bytes with those of the control, and look for what a crash left."""
    sizes = []
    for site in (tried, control):
        files = [Path(root, name) for root, _, names in os.walk(site) for name in names]
        # Marks by which workers are asked what they see stay for some days.
        counted = [path for path in files if "roots" not in path.parts and not path.name.startswith(".view-")]
        sizes.append((len(counted), sum(path.stat().st_size for path in counted)))
        if left := [path for path in files if path.name.startswith(".tmp-")]:
            raise Differs(f"{left[0]} is left")
        if (n_roots := sum("roots" in path.parts for path in files)) > 50:
            raise Differs(f"{site} has {n_roots} former contents of ROOT")
    (n, n_bytes), (usual, usual_bytes) = sizes
    if n > 1.5 * usual + 50 or n_bytes > 1.5 * usual_bytes + 500_000:
        raise Differs(f"the site has {n} files and {n_bytes} bytes, its control {usual} and {usual_bytes}")


def fingerprint(site: Path) -> str | None:
    """Return a hash of the lists that a reader is sent to, None before the first."""
    lists = site / "qualifications"
    try:
        name = (lists / "LATEST").read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return None
    # As long as a folder is open, it is the same one, whatever takes its name.
    opened = os.open(lists / name, os.O_RDONLY)
    try:
        folder = Path(f"/proc/self/fd/{opened}/by_user")
        tables = [pq.read_table(path) for path in sorted(folder.iterdir())]
        rows = sorted(repr(row) for table in tables for row in zip(*table.to_pydict().values(), strict=True))
        return hashlib.sha256(f"{name}{rows}".encode()).hexdigest()
    finally:
        os.close(opened)


@contextlib.contextmanager
def reading(site: Path) -> Iterator[set[str | None]]:
    """Read the newest lists of a site again and again as long as the block lasts, and collect their fingerprints."""
    seen: set[str | None] = set()
    errors: list[Exception] = []
    is_over = threading.Event()

    def read() -> None:
        try:
            while not is_over.wait(0.03):
                seen.add(fingerprint(site))
        except Exception as error:
            errors.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield seen
    finally:
        is_over.set()
        reader.join()
    if errors:
        raise Differs(f"a reader was stopped by {errors[0]!r}")


def _ids_of(path: Path) -> list[Any]:
    if path.suffix == ".parquet":
        table = pq.read_table(path, partitioning=None)
    elif path.suffix == ".arrow":
        with pa.ipc.open_file(path) as file:
            table = file.read_all()
    else:
        return []
    ids: list[Any] = table["user_id"].to_pylist() if "user_id" in table.column_names else []
    return ids


def _rows(text: str) -> list[list[Any]]:
    return [[_value(cell) for cell in line.split("\t")] for line in text.splitlines()[1:]]


def _dicts(text: str) -> list[dict[str, Any]]:
    header = [_value(cell) for cell in text.split("\n", 1)[0].split("\t")]
    return [dict(zip(header, row, strict=True)) for row in _rows(text)]


def _value(cell: str) -> Any:
    """Return a value as `tests.frozen.export` writes it: JSON, or a float in hexadecimal."""
    try:
        return json.loads(cell)
    except ValueError:
        return float.fromhex(cell)
