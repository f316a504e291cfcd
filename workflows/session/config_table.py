"""Write the table of all config keys: `python -m ammrank_dask.workflows.session.config_table > docs/config.md`."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import BaseModel

from ammrank_dask.workflows.session.config import Config, as_flow
from ammrank_dask.workflows.session.sections import THRESHOLDS, Section

HEAD = """# The config

Every key of `ammrank.yaml`, with its default. `ammrank init` writes a file with all keys. A missing key has its
default; an unknown key is an error with a suggestion. Paths are relative to the file.

| key | default | meaning |
|---|---|---|
"""


THRESHOLDS_HEAD = """
## Thresholds

The names of `report.thresholds`, with their defaults.

| name | default | meaning |
|---|---|---|
"""


def config_table() -> str:
    """Return the tables as Markdown."""
    limits = vars(Config().report.limits)
    thresholds = [f"| `{name}` | `{limits[name]}` | {meaning} |" for name, (_, _, meaning) in THRESHOLDS.items()]
    return HEAD + "\n".join(_rows(Config(), "")) + "\n" + THRESHOLDS_HEAD + "\n".join(thresholds) + "\n"


def _rows(section: BaseModel, prefix: str) -> Iterator[str]:
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, Section):
            yield from _rows(value, f"{prefix}{name}.")
        else:
            meaning = (field.description or "").replace("|", "\\|")
            yield f"| `{prefix}{name}` | `{as_flow(value)}` | {meaning} |"


if __name__ == "__main__":
    print(config_table(), end="")
