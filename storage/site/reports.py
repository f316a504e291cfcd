"""Keep a night's report: its files, written one by one, and their checksums last."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from ammrank_dask.storage.errors import DamagedStore
from ammrank_dask.storage.objects.atomic import read_json, write_json, write_text
from ammrank_dask.storage.objects.folders import is_file
from ammrank_dask.storage.store.parts import check_files, checksum_file, checksum_of

SUMMARY, EXPOSURE, PAGE, CHECKSUMS = "summary.json", "exposure.csv", "report.html", "checksums.json"


def write_report(folder: str | Path, files: Mapping[str, str]) -> None:
    """Write the text of files by name in their order, and last `checksums.json`, each whole or not at all.

    Parameters
    ----------
    folder
        The report folder of a night; made when it is not there.
    files
        The text of `exposure.csv`, `report.html` and `summary.json`.
    """
    folder = Path(folder)
    write_files(folder, files)
    listing = {name: checksum_file(folder / name) for name in files}
    write_json(folder / CHECKSUMS, {"files": listing, "checksum": checksum_of(listing)})


def write_files(folder: str | Path, files: Mapping[str, str]) -> None:
    """Write the text of files by name in their order, each whole or not at all."""
    for name, text in files.items():
        write_text(Path(folder) / name, text)


def read_summary(folder: Path) -> dict[str, Any]:
    """Return the content of `summary.json` of a report that was written whole."""
    summary: dict[str, Any] = read_json(folder / SUMMARY)
    return summary


def check_report(folder: Path, names: Collection[str] = (EXPOSURE, PAGE, SUMMARY)) -> int:
    """Compare files of a report with `checksums.json`; return the number of bytes read."""
    path = folder / CHECKSUMS
    if not is_file(path):
        raise DamagedStore(f"{path} is missing; make it again with `ammrank report`")
    content = read_json(path)
    try:
        files = content["files"]
        is_same = checksum_of(files) == content["checksum"]
    except (LookupError, TypeError):
        is_same = False
    if not is_same:
        raise DamagedStore(f"{path} is not what was written (checksum differs); make it again with `ammrank report`")
    return check_files(folder, {name: files[name] for name in names})
