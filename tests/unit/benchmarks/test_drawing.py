"""What benchmarks draw on logarithmic axes, and the slopes they print."""

import xml.etree.ElementTree as ET

import pytest

from benchmarks.drawing import HEIGHT, LEFT, TOP, WIDTH, draw_curves, draw_points
from benchmarks.growth import sizes_up_to, slope_of
from benchmarks.peers import draw_peers

SVG = "{http://www.w3.org/2000/svg}"


def circles(picture):
    return [
        (float(circle.get("cx")), float(circle.get("cy"))) for circle in ET.fromstring(picture).iter(f"{SVG}circle")
    ]


def test_draw_points__places_them_by_logarithm_and_height():
    points = [("a<b", 1.0, 0.1, True), ("c", 10.0, 0.2, False), ("d", 100.0, 0.0, False)]
    picture = str(draw_points(points, title="t", x="x", y="y", note="n"))
    highest = 1.1 * 0.2
    expected = [
        (LEFT + WIDTH * step / 2, TOP + HEIGHT * (1 - value / highest)) for step, value in ((0, 0.1), (1, 0.2), (2, 0))
    ]
    for found, wanted in zip(circles(picture), expected, strict=True):
        assert found == pytest.approx(wanted, abs=0.01)
    assert "a&lt;b" in picture


def test_draw_curves__both_axes_are_logarithmic():
    picture = str(draw_curves([("cpu", [(10, 1), (1_000, 100)])], title="t", x="x", y="y", note="n"))
    found = circles(picture)
    assert found[0] == pytest.approx((LEFT, TOP + HEIGHT), abs=0.01)
    assert found[1] == pytest.approx((LEFT + WIDTH, TOP), abs=0.01)


def test_draw_peers__adds_the_seconds_of_training_and_scoring():
    row = {"name": "amm-rank", "train_seconds": 4.0, "score_seconds": 6.0, "error": 0.1}
    picture = str(draw_peers({"peers": [row], "train": 10, "test": 5, "machine": "m"}))
    assert circles(picture)[0][0] == pytest.approx(LEFT, abs=0.01)  # ten seconds, the left end of the axis


def test_slope_of__is_that_of_the_logarithms():
    found = {10: {"cpu": 3.0}, 100: {"cpu": 3.0 * 10**1.5}, 1000: {"cpu": 3.0 * 10**3}}
    assert slope_of(found, "cpu") == pytest.approx(1.5)


@pytest.mark.parametrize(
    ("users", "sizes"), [(10_000, [10_000]), (40_000, [10_000, 30_000, 40_000]), (20_000, [10_000, 20_000])]
)
def test_sizes_up_to__triples_up_to_the_last(users, sizes):
    assert sizes_up_to(users, least=10_000) == sizes
