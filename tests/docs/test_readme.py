"""What the README and the docs show must run."""

import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from ammrank_dask import open_features, open_qualifications
from ammrank_dask.storage.objects.atomic import digest_of
from ammrank_dask.workflows.cluster.cluster_file import ClusterConfig
from ammrank_dask.workflows.session.config import check_config
from ammrank_dask.workflows.session.config_table import config_table

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
MAX_README_LINES = 100
PYTHON = ROOT / "docs" / "python.md"
PAGES = [README, *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page, language):
    """The fenced blocks of a language; those in a list are indented."""
    return [block for found, block in all_blocks(page) if found == language]


def all_blocks(page):
    """The fenced blocks with their languages, in the order of the page."""
    text = page.read_text(encoding="utf-8")
    found = re.findall(r"^( *)```(\w+)\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE)
    return [
        (language, "\n".join(line[len(indent) :] for line in block.splitlines())) for indent, language, block in found
    ]


def commands_of_readme():
    """Return all commands of the README in their order: indented ones, and those of its blocks; not the tests."""
    text = re.sub(r"^```sh\n(.*?)^```", r"\1", README.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    commands = re.findall(r"^(?: {4})?((?:make|ammrank|\.) [^#\n]*?) *(?:#.*)?$", text, re.MULTILINE)
    return [command for command in commands if command != "make test"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A clone in which the commands of the README have run in one shell that begins without our environment.

    `make setup` finds its work done, since there is no package index: `.venv` has the environment of these tests. The
    demo is small.
    """
    place = tmp_path_factory.mktemp("readme")
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    for name in (name for name in names if (ROOT / name).is_file() and "/" not in name):
        shutil.copy2(ROOT / name, place / name)
    (place / ".venv").mkdir()
    for part in Path(sys.prefix).iterdir():
        (place / ".venv" / part.name).symlink_to(part)
    (place / ".venv" / ".set-up").unlink(missing_ok=True)
    (place / ".venv" / ".set-up").touch()
    script = "\n".join(commands_of_readme())
    run_script(script, place, {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(place), "DEMO_USERS": "300"})
    return place


def run_script(script, place, environment=None):
    ours = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=place,
        env={**os.environ, "PATH": ours} if environment is None else environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.mark.docs
@pytest.mark.timeout(3600)
def test_readme__commands_run_one_after_the_other(folder):
    assert (folder / "nightly-demo" / "index.html").is_file()
    assert (folder / "site" / "reports" / "date=2026-05-04" / "report.html").is_file()
    assert list((folder / "site" / "backtests").glob("from=*/backtest.html"))


def test_readme__is_short_and_has_the_commands_of_a_first_report():
    assert len(README.read_text(encoding="utf-8").splitlines()) <= MAX_README_LINES
    commands = commands_of_readme()
    assert [command.split()[1] for command in commands] == [
        "nightly", "setup", ".venv/bin/activate", "--version", "simulate", "init", "nightly", "nights", "explain",
        "backtest",
    ]  # fmt: skip


@pytest.mark.docs
@pytest.mark.timeout(1200)
def test_python_page__scores_other_features_than_it_trains_on(folder):
    script = folder / "blocks.py"
    script.write_text("\n".join(blocks(PYTHON, "python")), encoding="utf-8")
    output = run_script(f"{sys.executable} blocks.py", folder)
    assert "exposure_share" in output
    # Scored are later features than those trained on, whose clicks nobody knows yet: they have no rankings.
    scored = open_qualifications(folder / "quals").run.manifest["inputs"]["features"]
    written = [open_features(path.parent) for path in folder.glob("*/manifest.json") if path.parent.name != "quals"]
    rankings = {digest_of([each.run.digest, each.run.checksums]): each.has_rankings for each in written}
    assert rankings[scored] is False


RUNNABLE = [page for page in PAGES[1:] if page != PYTHON and (blocks(page, "python") or blocks(page, "sh"))]


@pytest.mark.docs
@pytest.mark.parametrize("page", RUNNABLE, ids=lambda page: page.name)
def test_docs__blocks_run_on_the_site_of_the_readme(folder, page):
    for number, (language, code) in enumerate(all_blocks(page)):
        if language == "python":
            # A block may begin with the name of its file.
            name = re.match(r"# (\w+\.py)\n", code)
            file = name[1] if name else f"{page.stem}_{number}.py"
            (folder / file).write_text(code, encoding="utf-8")
            run_script(f"{sys.executable} {file}", folder)
        elif language == "sh":
            run_script(code, folder)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_docs__links_and_pictures_are_there(page):
    text = page.read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)#]+)\)", text) + re.findall(r'src="([^"]+)"', text)
    missing = [target for target in targets if "://" not in target and not (page.parent / target).exists()]
    assert missing == []


def test_docs__cluster_recipes_are_valid():
    recipes = [recipe for page in PAGES for recipe in blocks(page, "yaml") if recipe.startswith("version:")]
    assert len(recipes) >= 4
    for recipe in recipes:
        assert ClusterConfig(**yaml.safe_load(recipe)).version == 1


def test_docs__config_examples_are_valid():
    examples = [example for page in PAGES for example in blocks(page, "yaml") if not example.startswith("version:")]
    assert len(examples) >= 4
    for example in examples:
        check_config(yaml.safe_load(example), "docs")


def test_docs__blocks_are_run_or_plain_text():
    languages = {language for page in PAGES for language, _ in all_blocks(page)}
    assert languages == {"sh", "python", "yaml", "text"}


def test_docs__make_targets_are_there_and_the_readme_begins_with_two():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    named = {page: re.findall(r"^ {4}make ([a-z-]+)", page.read_text(encoding="utf-8"), re.MULTILINE)
             for page in [*PAGES, ROOT / "CONTRIBUTING.md"]}  # fmt: skip
    assert named[README][:2] == ["nightly", "test"]
    assert {target for found in named.values() for target in found} <= targets


def test_docs__config_table_is_that_of_the_config():
    assert (ROOT / "docs" / "config.md").read_text(encoding="utf-8") == config_table(), (
        "write it again with `python -m ammrank_dask.workflows.session.config_table > docs/config.md`"
    )


@pytest.mark.parametrize(("page", "script"), [("api", "api_reference"), ("commands", "command_reference")])
def test_docs__references_are_those_of_the_code(page, script):
    written = runpy.run_path(str(ROOT / "docs" / f"{script}.py"))["reference"]()
    assert (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8") == written, (
        f"write it again with `python docs/{script}.py > docs/{page}.md`"
    )


def test_docs__every_page_is_in_the_contents_of_the_site():
    listed = re.findall(r"^([a-z-]+)$", (ROOT / "docs" / "index.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(listed) == sorted(page.stem for page in PAGES[1:] if page.stem != "index")


def test_troubleshooting__messages_are_those_of_the_code():
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ((?:`[^`]+`(?:, )?)+).*? \|", page, re.MULTILINE)
    assert len(rows) >= 15
    sources = [path for room in ("ammrank_dask", "storage", "workflows") for path in (ROOT / room).rglob("*.py")]
    code = re.sub(r'"\s*f?"', "", "".join(path.read_text(encoding="utf-8") for path in sources))
    parts = [
        part.strip(" ;,") for row in rows for quoted in re.findall(r"`([^`]+)`", row) for part in quoted.split("…")
    ]
    assert [part for part in parts if part and part not in code] == []
