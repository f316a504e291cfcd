"""What `python -m benchmarks paper` measures and draws."""

import logging
import xml.etree.ElementTree as ET

from benchmarks.paper import StageMeter, Usage, bare_system_seconds, draw_night


def test_usage__adds_what_lies_between_samples_and_keeps_the_highest_peak():
    usage = Usage(peak=7)
    usage.add(Usage(1.0, 2.0, 0.5, 10, 20, 5), Usage(4.0, 3.0, 0.75, 15, 40, 6))
    assert usage == Usage(3.0, 1.0, 0.25, 5, 20, 7)
    assert usage.cpu == 1.25


def test_stage_meter__gives_steps_of_ingest_a_row_and_the_rest_to_its_stage():
    meter = StageMeter()
    for stage, done in (("scan", 0), ("scan", 2), ("users-read", 0), ("fold", 0), ("fold", 1), ("fold", 2)):
        meter(stage, done, 2)
    for name in ("ingest", "train"):
        meter.emit(logging.makeLogRecord({"msg": "stage %s took %.1f s", "args": (name, 1.0)}))
    meter.emit(logging.makeLogRecord({"msg": "night of %s began", "args": ("2026-01-05",)}))
    assert list(meter.stages) == ["ingest", "scan", "fold", "train"]
    parts = list(meter.stages.values())
    assert abs(meter.total().seconds - sum(part.seconds for part in parts)) < 1e-6
    assert all(part.peak > 0 for part in parts)


def test_draw_night__has_two_bars_a_stage_as_long_as_its_seconds():
    stages = [
        {"name": "fold", "user": 3.0, "system": 1.0, "share": 0.5, "bound": "bare codec"},
        {"name": "a < b", "user": 1.0, "system": 0.0, "share": None, "bound": None},
    ]
    picture = draw_night({"stages": stages, "users": 10, "events": 20, "machine": "this one"})
    root = ET.fromstring(str(picture))
    bars = [float(bar.get("width")) for bar in root.iter("{http://www.w3.org/2000/svg}rect")]
    assert bars == [315, 105, 105, 0]
    texts = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "4.0, 0.50 of bare codec" in texts
    assert "a < b" in texts


def test_bare_system_seconds__grow_with_the_bytes(tmp_path):
    nothing, much = (bare_system_seconds(tmp_path / "bare", n_bytes, n_bytes) for n_bytes in (0, 1 << 29))
    assert nothing == 0.0
    assert 0.0 < much < 60.0
    assert list(tmp_path.iterdir()) == []
