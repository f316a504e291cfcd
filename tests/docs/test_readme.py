"""What the README and the docs show must run."""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from ammrank_dask import open_features, open_qualifications
from ammrank_dask.storage.objects.atomic import digest_of
from ammrank_dask.workflows.cluster.cluster_file import ClusterConfig
from ammrank_dask.workflows.session.config_table import config_table

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
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


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where the commands of the README have run, one after the other."""
    place = tmp_path_factory.mktemp("readme")
    run_script("\n".join(blocks(README, "sh")), place)
    return place


def run_script(script, place):
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.mark.docs
def test_readme__commands_run_one_after_the_other(folder):
    assert (folder / "site" / "reports" / "date=2026-02-18" / "report.html").is_file()
    assert (folder / "evaluation" / "evaluation.html").is_file()


@pytest.mark.docs
@pytest.mark.timeout(1200)
def test_readme__python_blocks_run_one_after_the_other(folder):
    script = folder / "blocks.py"
    script.write_text("\n".join(blocks(README, "python")), encoding="utf-8")
    output = run_script(f"{sys.executable} blocks.py", folder)
    assert "exposure_share" in output
    # Scored are later features than those trained on, whose clicks nobody knows yet: they have no rankings.
    scored = open_qualifications(folder / "quals").run.manifest["inputs"]["features"]
    written = [open_features(path.parent) for path in folder.glob("*/manifest.json") if path.parent.name != "quals"]
    rankings = {digest_of([each.run.digest, each.run.checksums]): each.has_rankings for each in written}
    assert rankings[scored] is False


RUNNABLE = [page for page in PAGES[1:] if blocks(page, "python") or blocks(page, "sh")]


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


def test_docs__python_reference_is_that_of_the_docstrings():
    written = runpy.run_path(str(ROOT / "docs" / "api_reference.py"))["reference"]()
    assert (ROOT / "docs" / "api.md").read_text(encoding="utf-8") == written, (
        "write it again with `python docs/api_reference.py > docs/api.md`"
    )
