"""The files around the code: metadata, citation, workflow, templates and hooks."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def load(name):
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


def test_project__has_keywords_classifiers_and_a_version_that_is_not_released_yet():
    assert len(PROJECT["keywords"]) >= 5
    assert PROJECT["keywords"] == sorted(PROJECT["keywords"])
    assert PROJECT["classifiers"] == sorted(PROJECT["classifiers"])
    released = re.findall(r"^## \[(\d+)\.(\d+)\.(\d+)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)
    version = re.fullmatch(r"(\d+)\.(\d+)\.(\d+)(\.dev\d+)?", PROJECT["version"])
    newest = tuple(map(int, released[0]))
    assert (tuple(map(int, version.groups()[:3])) > newest) if version[4] else (version.groups()[:3] == released[0])


def test_citation__names_the_paper():
    citation = load("CITATION.cff")
    assert citation["license"] == PROJECT["license"]
    paper = citation["preferred-citation"]
    names = ", ".join(author["family-names"] for author in paper["authors"])
    last_lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()[-3:]
    assert f'"{paper["title"]}" ({names}, AAAI {paper["year"]})' in "\n".join(last_lines)


def test_workflow__calls_make_targets_that_are_there():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    jobs = load(".github/workflows/ci.yml")["jobs"]
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    assert {f"make {target}" for target in targets} >= set(commands) >= {"make lint", "make test", "make docs"}


def test_hooks__are_local():
    config = load(".pre-commit-config.yaml")
    assert [each["repo"] for each in config["repos"]] == ["local"]
    assert {hook["language"] for hook in config["repos"][0]["hooks"]} == {"system"}


def test_project_files__name_no_address():
    files = [ROOT / "pyproject.toml", ROOT / "CITATION.cff", ROOT / "SECURITY.md", ROOT / ".pre-commit-config.yaml",
             *(path for path in (ROOT / ".github").rglob("*") if path.is_file())]  # fmt: skip
    assert len(files) >= 8
    assert [path.name for path in files if "://" in path.read_text(encoding="utf-8")] == []


@pytest.mark.parametrize(("n_lines", "n_found"), [(11, 0), (12, 1), (30, 1)])
def test_duplicates__names_twelve_lines_of_code_that_stand_twice(tmp_path, n_lines, n_found):
    body = [f"    sums[{number}] = sums[{number}] + {number}" for number in range(n_lines)]
    (tmp_path / "one.py").write_text("\n".join(["import math", "def add(sums):", '    """Add."""', *body]))
    (tmp_path / "two.py").write_text("\n".join(["import math", "def add(sums):", '    """Add."""', "    # now", *body]))
    command = [sys.executable, ROOT / ".ci" / "duplicates.py", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == n_found, done.stderr
    said = f"{tmp_path}/two.py:5: 12 lines or more stand at {tmp_path}/one.py:4, too\n"
    assert done.stdout == said * n_found
