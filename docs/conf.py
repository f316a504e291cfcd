"""How Sphinx builds the pages as a site: `make docs`."""

import tomllib
from pathlib import Path

_PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]

project = _PROJECT["name"]
release = version = _PROJECT["version"]
copyright = "the ammrank-dask maintainers, BSD-3-Clause"
extensions = ["myst_parser"]
myst_heading_anchors = 3  # links to headings are checked
html_theme = "furo"
html_title = f"{project} {release}"
html_show_sphinx = False
html_copy_source = False
nitpicky = True
