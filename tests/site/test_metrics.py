"""What Prometheus reads of a site: the age of what is published, and how the last night ended, failed ones too."""

import datetime as dt
import json

import pytest
from click.testing import CliRunner
from nights import day
from prometheus_client.parser import text_string_to_metric_families

from ammrank_dask.storage.errors import BadInput, SiteBusy
from ammrank_dask.workflows.nightly import command as nightly_command
from ammrank_dask.workflows.stages.nights import keep_metrics
from ammrank_dask.workflows.status import command


def metrics_of(text):
    families = text_string_to_metric_families(text)
    return {(sample.name, *sample.labels.values()): sample.value for family in families for sample in family.samples}


def test_site_metrics__what_is_published_and_how_the_last_run_ended(site, cluster_file):
    found = CliRunner().invoke(nightly_command, [str(site.path), "--date", str(day(6)), "--cluster", str(cluster_file)])
    assert found.exit_code == 0, found.output
    text = (site.path / "metrics.prom").read_text()
    asked = CliRunner().invoke(command, [str(site.path), "--prometheus"])
    assert (asked.exit_code, asked.stdout) == (0, text)
    metrics = metrics_of(text)
    summary = json.loads((site.report_folder(day(6)) / "summary.json").read_text())
    end = dt.datetime.combine(day(7), dt.time(), dt.UTC)
    assert metrics[("ammrank_published_timestamp_seconds",)] == end.timestamp()
    assert metrics[("ammrank_last_run_exit_code",)] == 0
    assert metrics[("ammrank_last_run_stage_seconds", "score")] > 0
    assert 0 < metrics[("ammrank_last_run_events",)] < 1e6
    assert metrics[("ammrank_last_run_quarantined_share",)] == 0
    assert metrics[("ammrank_published_users",)] == summary["n_users"]
    statuses = {check["name"]: float(check["status"] == "ok") for check in summary["checks"]}
    assert {key[1]: value for key, value in metrics.items() if key[0] == "ammrank_published_check"} == statuses
    starved = summary["policies"]["user_top_k"]["starved_categories"]
    assert metrics[("ammrank_published_starved_categories",)] == starved
    both = CliRunner().invoke(command, [str(site.path), "--prometheus", "--json"])
    assert (both.exit_code, "not both" in both.output) == (2, True)


def test_keep_metrics__a_night_that_failed_is_told_and_the_published_one_stays(site):
    with pytest.raises(BadInput), keep_metrics(site.path, day(6)):
        raise BadInput("the lake is gone")
    metrics = metrics_of((site.path / "metrics.prom").read_text())
    assert metrics[("ammrank_last_run_exit_code",)] == 65
    assert (
        metrics[("ammrank_published_timestamp_seconds",)] == dt.datetime.combine(day(6), dt.time(), dt.UTC).timestamp()
    )
    with pytest.raises(SiteBusy), keep_metrics(site.path, day(6)):
        raise SiteBusy("another run")
    assert metrics_of((site.path / "metrics.prom").read_text())[("ammrank_last_run_exit_code",)] == 65


def test_keep_metrics__a_full_disk_does_not_fail_the_night(tmp_path, monkeypatch, caplog):
    def no_space(*arguments, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("ammrank_dask.workflows.stages.nights.write_text", no_space)
    with caplog.at_level("WARNING"), keep_metrics(tmp_path, day(0)):
        pass
    assert "metrics.prom was not written: [Errno 28] No space left on device" in caplog.text
    with keep_metrics(tmp_path / "nowhere", day(0)):
        pass
    assert not (tmp_path / "nowhere").exists()
