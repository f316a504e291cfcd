"""`ammrank init`: what it understands of a lake, what it writes, and what it says."""

from __future__ import annotations

import datetime as dt
import json
import re
import shlex
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from distributed import Client
from lakes import lose_link, replace_by

from ammrank_dask import lake_survey as survey
from ammrank_dask.lake_survey import INTEGER, NAIVE, TimeFacts
from ammrank_dask.simulation.simulate import simulate
from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.site.site import Site
from ammrank_dask.storage.vocabulary import GROUPS
from ammrank_dask.workflows.init import command
from ammrank_dask.workflows.nightly import command as nightly_command
from ammrank_dask.workflows.operations.lake_init.guess import (
    choose_partitions,
    choose_path,
    guess_columns,
    guess_genders,
    guess_groups,
    guess_unit,
    guess_zone,
)
from ammrank_dask.workflows.session.config import Config, load_config
from ammrank_dask.workflows.session.settings import site_taxonomy

FIRST = dt.date(2026, 3, 1)
TAXONOMY = "category,parent\nA,\nA/x,A\nA/y,A\nA/y/deep,A/y\nB,\nB/z,B\n"
Init = Callable[..., Result]


@pytest.fixture
def init(tmp_path: Path, cluster_file: Path) -> Init:
    def run(*options: str, lake: Path = tmp_path / "lake", site: Path = tmp_path / "site") -> Result:
        arguments = [str(site), "--lake", str(lake), "--cluster", str(cluster_file), "--quiet", *options]
        return CliRunner().invoke(command, arguments)

    return run


def micros(day: int, hour: float) -> int:
    """Microseconds since 1970 of an hour of day number `day` of the lake."""
    start = dt.datetime.combine(FIRST + dt.timedelta(day), dt.time(), dt.UTC)
    return int(start.timestamp() * 1_000_000 + hour * 3_600_000_000)


def utc(times: list[int]) -> pa.Array:
    return pa.array(times, pa.int64()).cast(pa.timestamp("us", tz="UTC"))


def write_table(path: Path, columns: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)


def write_day(lake: Path, day: int, rows: Sequence[tuple[Any, str | None, str | None]], hour: float = 12) -> None:
    """Write (user, group, category) rows as the events of a day, as the contract names them."""
    users, groups, categories = zip(*rows, strict=True)
    columns = {
        "user_id": pa.array(users),
        "group": pa.array(groups, pa.string()),
        "category": pa.array(categories, pa.string()),
        "timestamp": utc([micros(day, hour)] * len(rows)),
    }
    write_table(lake / "events" / f"date={FIRST + dt.timedelta(day)}" / "part-0.parquet", columns)


def write_small_lake(lake: Path) -> None:
    """Two days; user 700001 clicks three ranked categories, 700002 two, one of them twice and one above level 2."""
    clicks = [(700001, "adc", "A/x"), (700001, "adc", "A/y/deep"), (700002, "adc", "B/z"), (700002, "adc", "A")]
    write_day(lake, 0, [(700001, "pv", "A/x"), *clicks])
    write_day(lake, 1, [(700001, "adc", "B/z"), (700002, "adc", "B/z"), (700002, "adc", "A/y"), (700003, "pv", None)])
    (lake / "taxonomy.csv").write_text(TAXONOMY)
    people = {
        "user_id": [700001, 700002, 700003, 700004],
        "age": [30, None, 40, 50],
        "gender": ["female", "male", None, "male"],
    }
    write_table(lake / "users.parquet", people)


@pytest.fixture(scope="module")
def simulated(client: Client, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("simulated")
    simulate(folder / "lake", client=client, truth=folder / "truth", users=400, days=8, seed=3)
    return folder / "lake"


@pytest.mark.parametrize("with_taxonomy", [True, False])
def test_init__similar_categories_are_to_set(tmp_path: Path, init: Init, with_taxonomy: bool) -> None:
    write_small_lake(tmp_path / "lake")
    if not with_taxonomy:
        (tmp_path / "lake" / "taxonomy.csv").unlink()
    assert not any(text.startswith("categories: ") for text in json.loads(init("--json").stdout)["to_set"])
    write_day(tmp_path / "lake", 2, [(700001, "adc", "B/Z"), (700001, "pv", "a/X "), (700001, "adc", "A/y")])
    found = json.loads(init("--json", "--force").stdout)["to_set"]
    assert (
        "categories: 'A/x' and 'a/X ', 'B/Z' and 'B/z' differ only in upper and lower case, in blanks around them or in"
        " their Unicode form; if they are the same, name one of the two under `categories` as the former name of the"
        " other"
    ) in found


@pytest.mark.parametrize("name", ["user_id", "category"])
def test_init__string_that_is_too_long_is_refused(tmp_path: Path, init: Init, name: str) -> None:
    row = {"user_id": "a", "group": "adc", "category": "A/x"} | {name: "secret" * 10_000}
    write_day(tmp_path / "lake", 0, [(row["user_id"], row["group"], row["category"])] * 100)
    result = init()
    assert result.exit_code == 65
    assert f"part-0.parquet: a value of '{name}' may have at most 1,024 bytes, found one of 60,000;" in result.stderr
    assert "secret" not in result.output


def test_init__simulated_lake_gives_the_defaults(init: Init, simulated: Path) -> None:
    site = simulated.parent / "site"
    result = init("--json", lake=simulated, site=site)
    assert result.exit_code == 0, result.output
    config = load_config(site / "ammrank.yaml")
    assert config.lake.model_dump() == Config().lake.model_dump() | {
        "events": "../lake/events",
        "users": "../lake/users.parquet",
        "taxonomy": "../lake/taxonomy.csv",
    }
    assert config.model_copy(update={"lake": Config().lake}) == Config()

    facts = json.loads(result.stdout)
    events = pd.concat(pq.read_table(p, partitioning=None).to_pandas() for p in simulated.glob("events/*/*.parquet"))
    assert {group: found["events"] for group, found in facts["groups"].items()} == {
        group: int((events["group"] == group).sum()) for group in GROUPS
    }
    clicks = events[events["group"] == "adc"].reset_index()
    second = clicks["category"].str.split("/").str[:2].str.join("/")
    per_user = second[clicks["category"].str.contains("/")].groupby(clicks["user_id"]).nunique()
    assert facts["users_with_enough_clicks"] == int((per_user >= 1).sum()) > 0
    assert facts["users"] == 400
    assert facts["days"] == {
        "first": "2026-01-05",
        "last": "2026-01-12",
        "count": 8,
        "gaps": [],
        "needed_to_train": 37,
    }
    assert facts["guessed"] == facts["to_set"] == []


def test_init__small_lake_by_hand(init: Init, tmp_path: Path) -> None:
    write_small_lake(tmp_path / "lake")
    result = init()
    assert result.exit_code == 0, result.output
    site = tmp_path / "site"
    assert [line.split() for line in result.stdout.splitlines()[2:]] == [
        ["days", "2", "from", "2026-03-01", "to", "2026-03-02,", "no", "gaps"],
        ["training", "starts", "with", "37", "days"],
        ["events", "9"],
        ["pv", "2"],
        ["adc", "7"],
        ["without", "a", "category", "1"],
        ["categories", "3", "ranked", "(level", "2),", "5", "found", "in", "the", "events"],
        ["users", "4"],
        ["female", "1"],
        ["male", "2"],
        [
            "enough",
            "clicks",
            "2",
            "users",
            "clicked",
            "1",
            "or",
            "more",
            "categories",
            "in",
            "the",
            "last",
            "30",
            "days",
        ],
        ["partitions", "8"],
        ["guessed:", "nothing"],
        ["to", "set:", "nothing"],
        ["next:", "ammrank", "nightly", str(site), "--date", "2026-03-02"],
    ]
    assert "70000" not in result.output
    assert (site.stat().st_mode & 0o777, (site / "ammrank.yaml").stat().st_mode & 0o777) == (0o700, 0o600)
    config = load_config(site / "ammrank.yaml")
    assert config.groups == {"pv": ["pv"], "adc": ["adc"]}
    assert config.features.groups == ["pv"]


def test_init__renamed_lake(init: Init, tmp_path: Path) -> None:
    lake, site = tmp_path / "lake", tmp_path / "site"
    rows: list[tuple[str | None, str, str | None]] = [
        ("u1", "PageView", "shoes"),
        ("u1", "AD_CLICK", "shoes"),
        ("u1", "AD_CLICK", "a,b"),
    ]
    rows += [("u1", "AD_CLICK", "hats"), ("", "AD_CLICK", "hats"), (None, "scroll", "hats"), ("u2", "scroll", None)]
    for day in (0, 1, 3):
        users, groups, categories = zip(*rows, strict=True)
        columns = {
            "UID": pa.array(users),
            "EventType": pa.array(groups),
            "topic": pa.array(categories).dictionary_encode(),
            "price": pa.array([1] * len(rows)),
            "ts": pa.array([micros(day, 23.5) // 1000] * len(rows)),
        }
        write_table(lake / "log" / f"dt={FIRST + dt.timedelta(day)}" / "a.parquet", columns)
    (lake / "log" / f"dt={FIRST + dt.timedelta(2)}").mkdir()
    people = {"UID": ["u1", "u2", "u3", "u4", "u5"], "years": [20, 30, None, 50, 60], "sex": ["F", "M", "x", "N/A", ""]}
    write_table(lake / "users" / "part-0.parquet", people)

    result = init()
    assert result.exit_code == 0, result.output
    config = load_config(site / "ammrank.yaml")
    assert config.lake.model_dump() == {
        "events": "../lake/log",
        "users": "../lake/users",
        "taxonomy": None,
        "date_key": "dt",
        "layout": None,
        "day_zone": "UTC",
        "missing_days": "refuse",
        "past": "refuse",
        "duplicates": "refuse",
    }
    assert config.columns.model_dump() == {
        "user_id": "UID",
        "group": "EventType",
        "category": "topic",
        "timestamp": "ts",
        "age": "years",
        "gender": "sex",
    }
    assert (config.timezone, config.timestamp_unit) == (None, "ms")
    assert config.groups == {"pv": ["PageView"], "adc": ["AD_CLICK"]}
    assert config.genders == {"female": ["F"], "male": ["M"], "ignore": ["", "N/A"]}
    assert config.taxonomy.level == 1
    assert site_taxonomy(Site(site), config).categories == ("a,b", "hats", "shoes")
    text = result.stdout
    assert "without 2026-03-03" in text
    assert "lake.missing_days: there are no events for 2026-03-03" in text
    assert "timestamp_unit: ms" in text
    assert f"lake.taxonomy: null, with the 3 categories found listed in {site / 'categories.csv'}" in text
    assert "6  'scroll'" in text
    assert "1  'x'" in text
    assert re.search(r"\d users clicked 1 or more categories", text)
    assert "28.6% of the events have a group or category that is not mapped" in text
    assert "20.0% of the users have a gender that is not mapped" in text


CLICKS = [(user, "adc", category) for user in range(700001, 700011) for category in ("A", "B", "C")]


def test_init__weekdays_without_events_are_bridged(init: Init, tmp_path: Path, cluster_file: Path) -> None:
    lake, site = tmp_path / "lake", tmp_path / "site"
    days = [day for day in range(24) if (FIRST + dt.timedelta(day)).weekday() != 5]
    for day in days:
        write_day(lake, day, CLICKS)
    result = init()
    assert result.exit_code == 0, result.output
    assert load_config(site / "ammrank.yaml").lake.missing_days == "bridge"
    assert "  lake.missing_days: bridge, as most Saturdays have no events\n" in result.stdout
    assert "to set: nothing" in result.stdout
    assert _run_next(result, cluster_file) == 0

    shutil.rmtree(lake / "events" / f"date={FIRST + dt.timedelta(10)}")
    result = init("--force")
    assert load_config(site / "ammrank.yaml").lake.missing_days == "bridge"
    assert "lake.missing_days: there are no events for 2026-03-11; add them, or they are bridged, too" in result.stdout


def test_init__a_last_day_with_hardly_a_click_is_not_the_next_night(
    init: Init, tmp_path: Path, cluster_file: Path
) -> None:
    for day in range(4):
        write_day(tmp_path / "lake", day, CLICKS)
    write_day(tmp_path / "lake", 4, [*CLICKS[:5], *[(700001, "pv", "A")] * 50])
    result = init()
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1].endswith("--date 2026-03-04")
    sentence = "the next night is that of 2026-03-04, as 2026-03-05 has 5 clicks, less than a fifth of the days before"
    assert sentence in result.stdout
    assert "5 from 2026-03-01 to 2026-03-05" in result.stdout
    assert _run_next(result, cluster_file) == 0

    write_day(tmp_path / "lake", 4, CLICKS[:6])
    assert init("--force").stdout.splitlines()[-1].endswith("--date 2026-03-05")


def _run_next(result: Result, cluster_file: Path) -> int:
    """Return the exit code of the command that init proposes."""
    words = shlex.split(result.stdout.splitlines()[-1].removeprefix("next: ammrank nightly "))
    return CliRunner().invoke(nightly_command, [*words, "--cluster", str(cluster_file), "--quiet"]).exit_code


def test_init__existing_config_is_kept_unless_forced(init: Init, tmp_path: Path) -> None:
    write_small_lake(tmp_path / "lake")
    site = tmp_path / "site"
    site.mkdir()
    (site / "ammrank.yaml").write_text("partitions: 9\n")
    result = init()
    assert result.exit_code == 65
    assert f"{site / 'ammrank.yaml'} exists; --force replaces it" in result.stderr
    assert (site / "ammrank.yaml").read_text() == "partitions: 9\n"
    assert init("--force").exit_code == 0
    assert load_config(site / "ammrank.yaml").partitions == 8


def test_init__a_list_of_categories_is_kept_unless_forced(init: Init, tmp_path: Path) -> None:
    write_small_lake(tmp_path / "lake")
    (tmp_path / "lake" / "taxonomy.csv").unlink()
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "categories.csv").write_text("category,parent\nmine,\n")
    result = init()
    assert result.exit_code == 65
    assert "categories.csv exists; --force replaces it" in result.stderr


def test_init__no_clicks_names_the_option(init: Init, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    write_day(lake, 0, [(1, "pv", "A"), (1, "tap", "A"), (2, "tap", "B"), (2, "tap", "C"), (2, "swipe", "A")])
    result = init()
    assert result.exit_code == 65
    assert "pass --group adc=VALUE, one of 'tap', 'swipe'" in result.stderr
    assert "3  'tap'" in result.stdout
    assert "next:" not in result.stdout
    assert not (tmp_path / "site").exists()

    wrong = init("--group", "adc=click")
    assert wrong.exit_code == 65
    assert "no event has the group 'click'; the log has 'tap', 'pv', 'swipe'" in wrong.stderr

    assert init("--group", "adc=tap", "--group", "ignore=swipe").exit_code == 0
    config = load_config(tmp_path / "site" / "ammrank.yaml")
    assert config.groups == {"pv": ["pv"], "adc": ["tap"], "ignore": ["swipe"]}


def test_init__unknown_categories_are_counted(init: Init, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    strange = [(1, "adc", f"strange {i:02}") for i in range(12) for _ in range(i + 1)]
    write_day(lake, 0, [(1, "adc", "A/x"), (1, "scroll", "elsewhere"), *strange])
    (lake / "taxonomy.csv").write_text(TAXONOMY)
    facts = json.loads(init("--json").stdout)
    assert facts["categories_not_mapped"] == {
        "values": 12,
        "count": 78,
        "top": [[f"strange {i:02}", i + 1] for i in range(11, 1, -1)],
    }
    text = init("--force").stdout
    remedy = "they would be quarantined: add them to the taxonomy, or their new names under `categories`"
    assert f"78 events (12 different categories); {remedy}" in text
    assert "12  'strange 11'" in text
    assert "and 2 more" in text


@pytest.mark.parametrize(
    ("hours", "zone", "said"),
    [
        ([0, 12, 23.9], "UTC", "timezone: UTC, as the times have no zone and 100.0% of 3 sampled times"),
        ([9, 20, 32.9], None, "timezone: the times have no zone, and only 66.7% of 3 sampled times"),
    ],
)
def test_init__naive_times(init: Init, tmp_path: Path, hours: list[float], zone: str | None, said: str) -> None:
    columns = {
        "user_id": [1, 2, 3],
        "group": ["click", "pv", "pv"],
        "category": ["A", "A", "B"],
        "at": pa.array([micros(0, hour) for hour in hours]).cast(pa.timestamp("us")),
    }
    write_table(tmp_path / "lake" / f"date={FIRST}" / "a.parquet", columns)
    result = init()
    assert result.exit_code == 0, result.output
    assert said in result.stdout
    config = load_config(tmp_path / "site" / "ammrank.yaml")
    assert (config.timezone, config.columns.timestamp) == (zone, "at")
    assert config.lake.events == "../lake"
    assert config.groups["adc"] == ["click"]


def test_init__integer_times_far_from_their_folder(init: Init, tmp_path: Path) -> None:
    columns = {"user_id": [1], "group": ["adc"], "category": ["A"], "timestamp": [5]}
    write_table(tmp_path / "lake" / "events" / f"date={FIRST}" / "a.parquet", columns)
    result = init()
    assert "timestamp_unit: the times are integers, and neither" in result.stdout
    config = load_config(tmp_path / "site" / "ammrank.yaml")
    assert config.timestamp_unit is None
    assert config.features.groups == ["adc"]


def test_init__lakes_that_are_none(init: Init, tmp_path: Path) -> None:
    missing = init()
    assert missing.exit_code == 65
    assert f"there is no lake at {tmp_path / 'lake'}" in missing.stderr
    (tmp_path / "lake" / "events" / "year=2026").mkdir(parents=True)
    assert "has no folders named KEY=YYYY-MM-DD" in init().stderr
    (tmp_path / "lake" / "events" / "date=2026-03-01").mkdir()
    assert "have no parquet files" in init().stderr
    columns = {"user_id": [1], "group": ["adc"], "category": ["A"], "timestamp": utc([0])}
    empty = pa.table(columns).slice(0, 0)
    pq.write_table(empty, tmp_path / "lake" / "events" / "date=2026-03-01" / "a.parquet")
    assert "the 1 files of events have no rows" in init().stderr
    for name in ("one", "two"):
        (tmp_path / "both" / name / "date=2026-03-01").mkdir(parents=True)
    assert "has several folders of days (one, two)" in init(lake=tmp_path / "both").stderr


def test_init__a_column_that_cannot_be_guessed(init: Init, tmp_path: Path) -> None:
    columns = {
        "user_id": [1],
        "group": ["adc"],
        "category": ["A"],
        "seen": utc([micros(0, 1)]),
        "stored": utc([micros(0, 2)]),
    }
    write_table(tmp_path / "lake" / "events" / f"date={FIRST}" / "a.parquet", columns)
    result = init()
    assert result.exit_code == 65
    assert "cannot tell which column is timestamp" in result.stderr
    assert "seen (timestamp[us, tz=UTC])" in result.stderr
    assert "--column timestamp=NAME" in result.stderr
    assert "has no column 'sen'" in init("--column", "timestamp=sen").stderr
    assert init("--column", "time=seen").exit_code == 2
    assert init("--column", "timestamp=seen").exit_code == 0
    assert load_config(tmp_path / "site" / "ammrank.yaml").columns.timestamp == "seen"


def test_init__a_users_table_with_other_ids_is_left_out(init: Init, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    write_small_lake(lake)
    write_table(lake / "users.parquet", {"person": [1], "age": [30]})
    result = init()
    assert result.exit_code == 0, result.output
    assert "lake.users is null" in result.stdout
    assert "has no column 'user_id'" in result.stdout
    config = load_config(tmp_path / "site" / "ammrank.yaml")
    assert (config.lake.users, config.columns.age, config.columns.gender) == (None, None, None)
    write_table(lake / "users.parquet", {"user_id": ["1"], "age": [30], "gender": [1]})
    text = init("--force").stdout
    assert "user ids are int64 in the events and string in the users table" in text
    assert "columns.gender is null" in text


def test_init__invalid_taxonomy(init: Init, tmp_path: Path) -> None:
    write_small_lake(tmp_path / "lake")
    (tmp_path / "lake" / "taxonomy.csv").write_text("category,parent\nA,B\nB,A\n")
    result = init()
    assert result.exit_code == 65
    assert "is its own ancestor" in result.stderr


@pytest.mark.timeout(120, method="thread")
@pytest.mark.parametrize("kind", ["fifo", "/dev/zero"])
@pytest.mark.parametrize("name", ["taxonomy.csv", "users.parquet", f"events/date={FIRST}/part-0.parquet"])
def test_init__what_is_no_regular_file_is_named_and_not_waited_for(
    init: Init, tmp_path: Path, name: str, kind: str
) -> None:
    write_small_lake(tmp_path / "lake")
    path = tmp_path / "lake" / name
    found = replace_by(path, kind)
    result = init()
    assert result.exit_code == 65
    assert result.stderr == f"ammrank: {path} must be a regular file, found a {found}; replace or remove it\n"


@pytest.mark.parametrize(
    "name",
    [
        "",
        "taxonomy.csv",
        "users.parquet",
        "users",
        "events",
        f"events/date={FIRST}",
        f"events/date={FIRST}/part-0.parquet",
    ],
)
def test_init__link_that_leads_nowhere_is_named(init: Init, tmp_path: Path, name: str) -> None:
    write_small_lake(tmp_path / "lake")
    said = lose_link(tmp_path / "lake" / name)
    result = init()
    assert result.exit_code == 65
    assert result.stderr == f"ammrank: {said}\n"


@pytest.mark.parametrize("ids", ["int64", "string"])
def test_init__many_users_are_estimated(init: Init, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ids: str) -> None:
    monkeypatch.setattr(survey, "MAX_HASHES", 2_000)
    monkeypatch.setattr(survey, "FILES_AT_ONCE", 2)
    lake = tmp_path / "lake"
    numbers = np.repeat(np.arange(1000), 3)
    users = [f"u{number}" for number in numbers] if ids == "string" else numbers.tolist()
    for day in range(3):
        rows = [(user, "adc" if day else "pv", f"c{i % 3 if i < 1500 else 0}") for i, user in enumerate(users)]
        write_day(lake, day, rows)
    facts = json.loads(init("--json").stdout)
    # 9,000 events and 6,000 clicks against a limit of 2,000: one user in five and one in three is counted.
    assert facts["users_estimated"]
    assert facts["users_with_enough_clicks_estimated"]
    assert facts["users"] % 5 == 0
    assert abs(facts["users"] - 1000) < 250
    assert abs(facts["users_with_enough_clicks"] - 1000) < 250
    assert "about " in init("--force").stdout


def test_init__users_without_a_table_are_exact_when_few(init: Init, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    write_small_lake(lake)
    (lake / "users.parquet").unlink()
    facts = json.loads(init("--json").stdout)
    assert (facts["users"], facts["users_estimated"], facts["genders"]) == (3, False, {})
    assert facts["guessed"] == ["lake.users: null, as there is no users.parquet and no folder users"]


def test_init__clicks_before_the_label_window_do_not_count(init: Init, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    write_day(lake, 0, [(1, "adc", "A")])
    write_day(lake, 1, [(1, "pv", "B"), (2, "pv", "A")])
    write_day(lake, 30, [(1, "pv", "C"), (2, "adc", "B"), (2, "adc", "C")])
    assert json.loads(init("--json").stdout)["users_with_enough_clicks"] == 1


def test_survey_values__too_many_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey, "MAX_VALUES", 3)
    path = tmp_path / "a.parquet"
    write_table(path, {"user_id": [1] * 4, "group": ["adc"] * 4, "category": list("abcd")})
    file = survey.look_at_file(str(path), path.name, ("user_id", "group", "category"))
    with pytest.raises(BadInput, match="'category' has too many distinct values to be the category"):
        survey.survey_values(file, survey.EventColumns(), 0)


def test_guess_columns__names_count_only_with_their_type() -> None:
    schema = pa.schema(
        {"time": pa.string(), "event_time": pa.timestamp("ms"), "User-ID": pa.string(), "type": pa.int8()}
    )
    found = guess_columns(schema, ["user_id", "group", "timestamp"], {}, "a file")
    assert found == {"user_id": "User-ID", "group": None, "timestamp": "event_time"}
    with pytest.raises(BadInput, match="'time' cannot be timestamp: it must be timestamps or integers, found string"):
        guess_columns(schema, ["timestamp"], {"timestamp": "time"}, "a file")
    with pytest.raises(BadInput, match="'User-ID' is given twice"):
        guess_columns(schema, ["user_id", "group"], {"user_id": "User-ID", "group": "User-ID"}, "a file")


@pytest.mark.parametrize("user_id", ["customer", "Client", "account", "member", "visitor"])
@pytest.mark.parametrize("category", ["item", "Product", "family", "topic", "section"])
def test_guess_columns__names_of_shops_and_papers(user_id: str, category: str) -> None:
    schema = pa.schema({category: pa.string(), user_id: pa.string(), "type": pa.string()})
    found = guess_columns(schema, ["user_id", "group", "category"], {}, "a file")
    assert found == {"user_id": user_id, "group": "type", "category": category}


def test_guess_groups__vague_names_give_way_to_clear_ones() -> None:
    assert guess_groups({"click": 5, "search": 1}, []).names == {"sq": ["search"], "adc": ["click"]}
    found = guess_groups({"click": 5, "ad-clicks": 2, "Impressions": 1}, [])
    assert found.names == {"adv": ["Impressions"], "adc": ["ad-clicks"]}
    assert found.unmapped == ["click"]
    given = guess_groups({"click": 5, "ad_click": 2}, [("olc", "click")])
    assert given.names == {"olc": ["click"], "adc": ["ad_click"]}


def test_guess_genders__spellings() -> None:
    found = guess_genders({"Woman": 1, "W": 1, "MALE": 1, "-": 1, "Unknown": 1, "q": 2, "z": 3})
    assert found.names == {"female": ["W", "Woman"], "male": ["MALE"], "ignore": ["-", "Unknown"]}
    assert found.unmapped == ["z", "q"]


def test_guess_times__shares() -> None:
    times = TimeFacts()
    assert (guess_zone(times), guess_unit(times)) == (None, None)
    times.sampled.update({NAIVE: 100, INTEGER: 10})
    times.inside = 94
    times.plausible.update({"ms": 4, "us": 5})
    assert (guess_zone(times), guess_unit(times)) == (None, "us")
    times.inside = 95
    times.plausible["us"] = 4
    assert (guess_zone(times), guess_unit(times)) == ("UTC", None)


def test_choose_partitions__at_least_eight() -> None:
    assert [choose_partitions(n) for n in (0, 400_000, 400_001)] == [8, 8, 9]


def test_choose_path__at_most_two_steps_up() -> None:
    assert choose_path(Path("/a/lake"), Path("/a/b/site")) == "../../lake"
    assert choose_path(Path("/a/lake"), Path("/a/b/c/site")) == "/a/lake"
    assert choose_path(Path("/a/site/lake"), Path("/a/site")) == "lake"
