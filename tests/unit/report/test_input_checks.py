"""What came in for a night is held against what is usual."""

from fractions import Fraction

import pytest

from ammrank_dask.report.input_checks import check_input, describe_day, usual_input
from ammrank_dask.report.thresholds import INPUT_CHECKS, Thresholds

USUAL = {
    "events": 10_000,
    "groups": {"pv": 8_000, "adc": 1_980},
    "users": 1_000,
    "quarantined": 10,
    "late": 100,
    "capped": 0,
    "heaviest": [40, 30, 30],
    "clicks": {"Hats": 990, "Shoes": 990},
}


def a_day(date="2026-01-08", **changes):
    return describe_day(date, **{**USUAL, **changes})


def nights(*changes):
    return [a_day(f"2026-01-0{number}", **change) for number, change in enumerate(changes, start=1)]


def status_of(*days, usual=None):
    checks = check_input({"days": days, "usual": usual}, Thresholds())
    return {check["name"]: check["status"] for check in checks}


def warned(*days, usual=None):
    return {name for name, status in status_of(*days, usual=usual).items() if status == "warn"}


def test_describe_day__has_shares_of_events_read_and_used():
    day = a_day()
    assert (day["used"], day["quarantined_share"], day["late_share"]) == (9_980, 0.001, 100 / 9_980)
    assert (day["heaviest_ids"], day["heaviest_id_share"], day["heaviest_ids_share"]) == (3, 40 / 9_980, 100 / 9_980)


def test_usual_input__is_the_median_of_nights():
    usual = usual_input(
        nights({"users": 10}, {"users": 30}, {"users": 900, "groups": {"pv": 1}, "clicks": {"Hats": 4}})
    )
    assert usual["users"] == 30
    assert usual["groups"] == {"pv": 8_000, "adc": 1_980}
    assert usual["click_shares"] == {"Hats": 0.5, "Shoes": 0.5}
    assert usual["nights"] == ["2026-01-01", "2026-01-02", "2026-01-03"]
    assert usual_input([]) is None


def test_check_input__a_usual_day_has_all_checks_and_no_warning():
    status = status_of(a_day(), usual=usual_input(nights({}, {}, {})))
    assert status == dict.fromkeys(INPUT_CHECKS, "ok")


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"groups": {"pv": 8_000, "adc": 8_000}}, {"events_by_group"}),
        ({"groups": {"pv": 8_000}}, {"events_by_group"}),
        ({"users": 2_100}, {"active_users"}),
        ({"users": 400}, {"active_users"}),
        ({"quarantined": 60}, {"quarantined"}),
        ({"late": 2_000}, {"late"}),
        ({"heaviest": [600]}, {"heaviest_ids"}),
        ({"heaviest": [200, 200, 200]}, {"heaviest_ids"}),
        ({"clicks": {"Hats": 1_800, "Shoes": 180}}, {"click_shares"}),
        ({"clicks": {"Hats": 990, "Boots": 990}}, {"click_shares"}),
        ({"groups": {"pv": 23_000, "adc": 1_980}, "users": 1_900}, set()),
    ],
)
def test_check_input__warns_of_what_is_unusual(changes, names):
    assert warned(a_day(**changes), usual=usual_input(nights({}, {}, {}))) == names


def test_check_input__one_id_with_most_events():
    bot = 24 * 9_980
    day = a_day(events=25 * 10_000, groups={"pv": 8_000 + bot, "adc": 1_980}, users=1_001, heaviest=[bot, 40, 30])
    assert {"heaviest_ids", "events_by_group"} <= warned(day, usual=usual_input(nights({}, {}, {})))
    assert warned(day) == {"heaviest_ids"}  # on a first night, too


def test_check_input__a_handful_says_nothing():
    few = {"events": 12, "groups": {"pv": 8, "adc": 4}, "users": 3, "quarantined": 0, "late": 0, "heaviest": [5, 4, 3]}
    usual = usual_input(nights({**few, "clicks": {"Hats": 4}}))
    day = a_day(**{**few, "groups": {"pv": 12}, "users": 1, "heaviest": [12]}, clicks={"Shoes": 2})
    assert warned(day, usual=usual) <= {"click_shares"}


def test_check_input__the_worst_day_since_the_last_published_night_counts():
    days = [a_day("2026-01-08", heaviest=[9_000]), a_day("2026-01-09")]
    (check,) = [
        found for found in check_input({"days": days, "usual": None}, Thresholds()) if found["status"] == "warn"
    ]
    assert check["what"] == "share of events that are of the heaviest id, 2026-01-08"
    assert check["value"] == 9_000 / 9_980


def test_check_input__the_distance_of_click_shares_is_exact_so_that_no_order_of_names_changes_its_bits():
    clicks, before = ({f"c{i}": 1 + i * step % 97 for i in range(60)} for step in (31, 53))
    usual = usual_input(nights({"clicks": before}))
    checks = check_input({"days": [a_day(clicks=clicks)], "usual": usual}, Thresholds())
    value = next(check["value"] for check in checks if check["name"] == "click_shares")
    shares = {name: count / sum(clicks.values()) for name, count in clicks.items()}
    total = float(sum(Fraction(share) for share in usual["click_shares"].values()))
    differences = [Fraction(abs(shares[name] - usual["click_shares"][name] / total)) for name in clicks]
    assert value == float(sum(differences)) / 2
