"""Run the night of every day with Airflow; `catchup` runs the days that were missed, one after the other.

Copy this into the folder of DAGs, on workers where `ammrank` is installed and that see the site. Bad input (65), a
night that is held back (66) and a second run (75) are not tried again: somebody has to look.
"""

import subprocess
from datetime import UTC, datetime, timedelta

from airflow.decorators import dag, task
from airflow.exceptions import AirflowFailException
from airflow.timetables.interval import CronDataIntervalTimetable

AMMRANK, SITE = "/opt/ammrank/.venv/bin/ammrank", "/srv/ammrank/site"
NOT_AGAIN = {2, 65, 66, 75}


@dag(
    schedule=CronDataIntervalTimetable("30 2 * * *", timezone="UTC"),  # `ds` is the day that is over
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=True,
    max_active_runs=1,
    default_args={"retries": 3, "retry_delay": timedelta(minutes=10)},
)
def ammrank_nightly():
    """Qualify users for ad categories."""

    @task
    def night(ds: str) -> None:
        """Run the night of one day."""
        command = [AMMRANK, "nightly", SITE, "--date", ds, "--quiet"]
        code = subprocess.run(command, check=False).returncode
        if code in NOT_AGAIN:
            raise AirflowFailException(f"ammrank nightly ended with {code}; its sentence is above")
        if code:
            raise RuntimeError(f"ammrank nightly ended with {code}; it goes on where it stopped")

    night()


ammrank_nightly()
