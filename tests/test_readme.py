"""What the README shows must run."""

import re
import subprocess
import sys
from pathlib import Path

import yaml

from workflows.cluster import ClusterConfig

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_readme__python_blocks_run_one_after_the_other(tmp_path):
    code = "\n".join(blocks("python"))
    assert "interest_features" in code
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "sq:intensity:Shoes" in done.stdout or "pv:intensity" in done.stdout


def test_readme__cluster_recipes_are_valid():
    recipes = blocks("yaml")
    assert recipes
    for recipe in recipes:
        assert ClusterConfig(**yaml.safe_load(recipe)).version == 1


def test_readme__shows_the_two_commands_first():
    first_screen = "\n".join(README.splitlines()[:20])
    assert "make nightly" in first_screen
    assert "make test" in first_screen
