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


def test_check_input__names_three_pairs_of_categories_that_are_similar():
    pairs = [["Hats", "hats"], ["Caf\u00e9", "Cafe\u0301"], ["Shoes", "Shoes "], ["Toys", "toys"], ["Tea", "tea"]]
    (check,) = check_input({"days": [], "usual": None, "similar_categories": pairs}, Thresholds())
    assert check == {
        "name": "similar_categories",
        "what": (
            "pairs of categories that differ only in upper and lower case, in blanks around them or in their Unicode"
            " form: 'Hats' and 'hats', 'Caf\\xe9' and 'Cafe\\u0301', 'Shoes' and 'Shoes ' and 2 more"
        ),
        "value": 5,
        "limit": 0,
        "worse": "above",
        "status": "warn",
    }


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
        ({"groups": {"pv": 16_000, "adc": 3_960}}, {"events_by_group"}),  # every file of a day twice
        ({"groups": {"pv": 14_000, "adc": 1_980}, "users": 1_900}, set()),
    ],
)
def test_check_input__warns_of_what_is_unusual(changes, names):
    assert warned(a_day(**changes), usual=usual_input(nights({}, {}, {}))) == names


def test_check_input__one_id_with_most_events():
    bot = 24 * 9_980
    day = a_day(events=25 * 10_000, groups={"pv": 8_000 + bot, "adc": 1_980}, users=1_001, heaviest=[bot, 40, 30])
    assert {"heaviest_ids", "events_by_group"} <= warned(day, usual=usual_input(nights({}, {}, {})))
    assert warned(day) == {"heaviest_ids"}  # on a first night, too


@pytest.mark.parametrize(
    ("used", "usual", "sentence", "status"),
    [
        (4_980, True, "used rows of 2026-01-08; usual is 99.8%", "warn"),
        (5_000, True, "used rows of 2026-01-08; usual is 99.8%", "ok"),
        (0, True, "rows of 2026-01-08 that are used", "warn"),
        (0, False, "rows of 2026-01-08 that are used", "warn"),
        (1, False, "clicks of 2026-01-08 that are used", "warn"),
    ],
)
def test_check_input__used_share(used, usual, sentence, status):
    day = a_day(groups={"pv": used, "adc": 0}, clicks={})
    before = usual_input(nights({}, {}, {"groups": {"pv": 10}})) if usual else None
    checks = check_input({"days": [day], "usual": before}, Thresholds())
    (check,) = [check for check in checks if check["name"] == "used_share"]
    assert (check["what"], check["status"], check["worse"]) == (sentence, status, "below")


def test_check_input__rows_over_a_cap_could_be_used():
    assert "used_share" not in warned(a_day(groups={"pv": 20, "adc": 10}, capped=9_900), usual=usual_input(nights({})))


def test_check_input__a_day_without_rows_has_no_share_of_used_ones():
    empty = {"events": 0, "groups": {}, "users": 0, "quarantined": 0, "late": 0, "heaviest": [], "clicks": {}}
    assert "used_share" not in status_of(a_day(**empty), usual=usual_input(nights({})))
    assert "used_share" not in status_of(a_day(**empty))


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
    assert check["what"] == "events of the heaviest id, 2026-01-08"
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
