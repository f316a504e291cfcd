"""Record what twelve small sites come to, or compare it: `python -m tests.frozen record|check [--sites 1,2] …`."""

import sys
from pathlib import Path

import click

from tests.frozen.results import RECORDED, compare, record, run_sites
from tests.frozen.sites import SITES


def _numbers(context: click.Context, parameter: click.Parameter, value: str | None) -> list[int]:
    numbers = list(SITES) if value is None else [int(number) for number in value.split(",")]
    unknown = sorted(set(numbers) - set(SITES))
    if unknown:
        raise click.BadParameter(f"sites are 1 to {len(SITES)}, got {unknown[0]}")
    return numbers


@click.command(context_settings={"max_content_width": 120})
@click.argument("action", type=click.Choice(["record", "check"]))
@click.option("--sites", "numbers", callback=_numbers, help="Numbers of sites, with commas between; all if not given.")
@click.option("--workers", type=click.IntRange(1), default=1, show_default=True, help="Workers of the cluster.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder that gets all rows: SITE/DATE/TABLE.txt.")
def main(action: str, numbers: list[int], workers: int, out: Path | None) -> None:
    """Run small sites and record the hashes of all their rows, or compare them with those recorded.

    To see which rows another commit makes, write both with --out and use `diff -r`.
    """
    results = run_sites(numbers, workers=workers, out=out, say=click.echo)
    if action == "record":
        record(results)
        click.echo(f"recorded {len(results)} sites in {RECORDED}")
        return
    found = compare(results)
    click.echo("\n".join(found) or f"{len(results)} sites are as recorded")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
