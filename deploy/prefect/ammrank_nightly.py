"""Run the night of yesterday with Prefect: `python ammrank_nightly.py` serves the schedule.

Run it where `ammrank` is installed and the site is seen. Bad input (65), a night that is held back (66) and a second
run (75) are not tried again: somebody has to look.
"""

import subprocess
from datetime import UTC, datetime, timedelta

from prefect import flow, task

AMMRANK, SITE = "/opt/ammrank/.venv/bin/ammrank", "/srv/ammrank/site"
NOT_AGAIN = {2, 65, 66, 75}


def is_worth_another_try(task, task_run, state) -> bool:
    """Tell whether a night that failed may end otherwise when it is run again."""
    try:
        state.result()
    except subprocess.CalledProcessError as error:
        return error.returncode not in NOT_AGAIN
    except Exception:
        return True
    return False


@task(retries=3, retry_delay_seconds=600, retry_condition_fn=is_worth_another_try)
def run_night(date: str) -> None:
    """Run one night; it goes on where an earlier try stopped."""
    subprocess.run([AMMRANK, "nightly", SITE, "--date", date, "--quiet"], check=True)


@flow
def ammrank_nightly(date: str | None = None) -> None:
    """Qualify users for ad categories."""
    run_night(date or f"{datetime.now(UTC) - timedelta(days=1):%Y-%m-%d}")


if __name__ == "__main__":
    ammrank_nightly.serve(name="ammrank-nightly", cron="30 2 * * *", limit=1)
