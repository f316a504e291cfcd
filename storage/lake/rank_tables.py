"""Read a table of features and ranks, one row an example, and refuse what cannot be compared on."""

import csv
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.objects.folders import require_regular

_LABEL = re.compile(r"L[0-9]+")


@dataclass(frozen=True)
class RankTable:
    """Rows with a preference: features (n, d), and ranks (n, L), 1 best, 0 unranked, equal is a tie."""

    X: np.ndarray
    ranks: np.ndarray
    labels: list[str]
    features: list[str]
    n_dropped: int
    """Rows that prefer no label over another one and were left out."""


def read_rank_table(path: Path) -> RankTable:
    """Read a CSV file whose columns L1, L2, … are ranks and whose other columns are features.

    A rank is a whole number, 1 is best, empty is unranked, equal ranks tie.
    """
    try:
        require_regular(path)
        _check_shape(path)
        frame = pd.read_csv(path, index_col=False)
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}; check the file and its permissions") from None
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError, csv.Error) as error:
        raise BadInput(f"{path} must be a CSV file with a header: {str(error).strip()}") from None
    names = [str(name) for name in frame]
    labels = sorted((name for name in names if _LABEL.fullmatch(name)), key=lambda name: int(name[1:]))
    features = [name for name in names if name not in labels]
    if not labels:
        raise BadInput(f"{path} must have label columns L1, L2, …, found only {_list(features)}")
    if len(labels) == 1:
        raise BadInput(f"{path} must have at least two label columns to rank, found only {labels[0]}")
    if not features:
        raise BadInput(f"{path} must have a feature column beside {_list(labels)}, found none")
    ranks = np.stack([_read_ranks(frame[name], path) for name in labels], axis=1)
    if not ranks.any():
        raise BadInput(f"{path} must have ranks in {_list(labels)}, found only empty ones")
    X = np.stack([_read_feature(frame[name], path) for name in features], axis=1)
    ranked = (ranks > 0).any(axis=1) & (ranks != ranks[:, :1]).any(axis=1)
    if not ranked.any():
        raise BadInput(f"{path} must prefer one label over another in some row, found only ties")
    X, ranks = X[ranked], ranks[ranked]
    if (X[:1] == X).all():
        raise BadInput(f"{path} must have a feature that varies, found constant values in {_list(features)}")
    return RankTable(X, ranks, labels, features, int((~ranked).sum()))


def _check_shape(path: Path) -> None:
    """Refuse what the parser would read as something else: a name twice, and rows longer than the header."""
    with open(path, newline="", encoding="utf-8-sig") as file:
        lines = csv.reader(file)
        header = next(lines, [])
        twice = sorted({name for name in header if header.count(name) > 1})
        if twice:
            raise BadInput(f"{path} must name every column once, found {_list(twice)} more than once")
        for row in lines:
            if len(row) > len(header):
                raise BadInput(
                    f"{path} must have no more values in a row than its header has names ({len(header)}),"
                    f" found {len(row)} in line {lines.line_num}"
                )


def _read_ranks(column: pd.Series, path: Path) -> np.ndarray:
    values = pd.to_numeric(column, errors="coerce").to_numpy(np.float64)
    wrong = column.notna().to_numpy() & ~(np.isfinite(values) & (values >= 1) & (values == np.floor(values)))
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise BadInput(
            f"ranks in column {column.name} of {path} must be whole numbers from 1, or empty,"
            f" found {column.tolist()[row]!r} in row {row + 1}"
        )
    return np.nan_to_num(values).astype(np.int64)


def _read_feature(column: pd.Series, path: Path) -> np.ndarray:
    values = pd.to_numeric(column, errors="coerce").to_numpy(np.float64)
    wrong = ~np.isfinite(values)
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        found = "no value" if pd.isna(column.iloc[row]) else repr(column.tolist()[row])
        raise BadInput(
            f"feature column {column.name} of {path} must hold finite numbers, found {found} in row {row + 1};"
            " encode or drop the column"
        )
    return values


def _list(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "") if names else "nothing"
