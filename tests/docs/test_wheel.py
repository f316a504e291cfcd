"""What is installed: every file of the three rooms, once, under one name."""

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = ("ammrank_dask", "storage", "workflows")
INSTALLED = {".py", ".csv", ".html", ".j2", ".yaml", ".typed"}


def files_of_git():
    """Return the files of the three rooms that are installed, by their path in the package."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *ROOMS]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    paths = [path for path in map(Path, listed) if (path.suffix or f".{path.name}") in INSTALLED]
    paths = [path for path in paths if (ROOT / path).is_file()]
    return sorted(str(path if path.parts[0] == "ammrank_dask" else "ammrank_dask" / path) for path in paths)


def test_wheel__has_every_file_of_git_once_and_nothing_else(tmp_path):
    # Built from a copy, so that no `build` folder of an earlier build adds what is gone.
    copy = tmp_path / "checkout"
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    for name in listed:
        source, target = ROOT / name, copy / name
        if source.is_symlink() or source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(source.readlink()) if source.is_symlink() else target.write_bytes(source.read_bytes())
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    done = subprocess.run(
        [*command, "--wheel-dir", str(tmp_path), str(copy)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    inside = sorted(name for name in names if ".dist-info/" not in name)
    assert {name.split("/")[0] for name in inside} == {"ammrank_dask"}
    assert inside == files_of_git()
