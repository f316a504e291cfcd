"""Windows of labelled rows: written once when they close, the same anywhere, and never in the way of a night."""

import datetime as dt
import json
import shutil

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from begun import invoke
from distributed import Client, LocalCluster
from nights import CONFIG, config_of, copy_world, day, simulate_world

from ammrank_dask.features.store import open_features
from ammrank_dask.scoring.qualifications import open_qualifications
from ammrank_dask.storage.site import popular_days
from ammrank_dask.storage.site.site import Site
from ammrank_dask.storage.site.verdicts import read_verdict
from ammrank_dask.storage.store.manifests import FeaturesManifest, ModelManifest
from ammrank_dask.storage.store.runs import open_run
from ammrank_dask.training.forward import SIMPLE
from ammrank_dask.workflows.operations.status import describe_site
from ammrank_dask.workflows.session.config import write_config
from ammrank_dask.workflows.session.night import Night
from ammrank_dask.workflows.stages import forward as forward_stage
from ammrank_dask.workflows.stages.nightly import nightly

pytestmark = pytest.mark.night

N_DAYS, LAST = 18, 15
FORWARD = {"gate": {"forward": True, "min_users": 1}}
TRAINED = {**FORWARD, "train": {"epochs": 1, "shards": 2, "every_nights": 1}}
UNTRAINED = {**FORWARD, "features": {"min_days": 100}}
"""Windows do not depend on the least number of days, and without a training a night takes a second."""
CLOSED = [date for date in (day(number) for number in range(2, LAST - 2)) if date.toordinal() % 3 == 0]
"""The dates of the windows that are closed on the last night."""


@pytest.fixture(scope="module")
def lake(client, tmp_path_factory):
    """An empty site beside a lake of 200 users; nobody changes it."""
    return simulate_world(client, tmp_path_factory.mktemp("windows"), users=200, days=N_DAYS)


@pytest.fixture(scope="module")
def written(client, lake, tmp_path_factory):
    """The site after one night that made all windows from the lake; nobody changes it."""
    site = copy_world(lake, tmp_path_factory.mktemp("written"))
    run_night(client, site, LAST)
    return site


@pytest.fixture
def empty(lake, tmp_path):
    return copy_world(lake, tmp_path / "empty")


@pytest.fixture
def site(written, tmp_path):
    return copy_world(written, tmp_path / "world")


def run_night(client, site, number, changes=UNTRAINED, progress=None):
    config = config_of(**changes)
    site.config_path.write_text(write_config(config))
    return nightly(Night(client, site, config, day(number), *([] if progress is None else [progress])))


def windows_of(site):
    """Return the checksums of the windows by the date of each."""
    runs = {path.name[5:15]: open_run(path) for path in site.finished_runs("windows")}
    return {dt.date.fromisoformat(date): run.checksums for date, run in runs.items()}


def window_of(site, date):
    [path] = site.path.glob(f"windows/date={date}-*")
    return open_features(path)


def users_of(features):
    parts = [features.partition(number) for number in range(features.n_partitions)]
    return {user for part in parts for user in part.user_ids.to_pandas().tolist()}


def times_of(site):
    return {path.name: (path / "manifest.json").stat().st_mtime_ns for path in site.finished_runs("windows")}


def edit_day(site, number, change):
    folder = site.path.parent / "lake" / "events" / f"date={day(number)}"
    table = pq.read_table(folder, partitioning=None)
    shutil.rmtree(folder)
    folder.mkdir()
    pq.write_table(change(table), folder / "edited.parquet")


def without_clicks(table):
    return table.filter(pc.not_equal(table["group"], "adc"))


def test_write_windows__one_for_each_date_when_it_has_closed(written):
    assert sorted(windows_of(written)) == CLOSED
    for date in CLOSED:
        manifest = FeaturesManifest.of(window_of(written, date).run)
        assert manifest.settings["date"] == str(date)
        assert manifest.settings["label_end"] == str(date + dt.timedelta(3))


def test_write_windows__users_and_rankings_are_those_who_clicked_after_the_date(written):
    date = CLOSED[1]
    lake = written.path.parent / "lake" / "events"
    days = [pq.read_table(lake / f"date={date + dt.timedelta(number)}") for number in (1, 2, 3)]
    clicked = {user for table in days for user in table.filter(pc.equal(table["group"], "adc"))["user_id"].to_pylist()}
    assert users_of(window_of(written, date)) == clicked


def test_write_windows__night_after_night_the_same_as_from_the_lake(client, empty, written):
    seen = {}
    for number in range(5, LAST + 1):
        run_night(client, empty, number)
        now = times_of(empty)
        assert seen.items() <= now.items(), "a window was written twice"
        seen = now
    assert windows_of(empty) == windows_of(written)


@pytest.mark.parametrize("n_workers", [1, 2, 4])
def test_write_windows__the_same_bytes_on_any_number_of_workers(empty, written, n_workers):
    with (
        LocalCluster(n_workers=n_workers, threads_per_worker=1, processes=False, dashboard_address=None) as cluster,
        Client(cluster, set_as_default=False) as other,
    ):
        run_night(other, empty, LAST)
    assert windows_of(empty) == windows_of(written)


class PowerCutError(Exception):
    """The night ends here."""


def cut_in_windows(stage, done, total):
    """End the night when a partition of a window is written and others are not."""
    if stage == "windows" and 0 < done < total:
        raise PowerCutError


def test_write_windows__a_night_that_ends_in_them_goes_on(client, empty, written):
    with pytest.raises(PowerCutError):
        run_night(client, empty, LAST, progress=cut_in_windows)
    assert not windows_of(empty)
    assert list(empty.path.glob("windows/*/*"))
    run_night(client, empty, LAST)
    assert windows_of(empty) == windows_of(written)


def test_write_windows__nothing_of_an_earlier_users_table_is_left_after_a_crash(client, empty, lake, tmp_path):
    with pytest.raises(PowerCutError):
        run_night(client, empty, LAST, progress=cut_in_windows)
    clean = copy_world(lake, tmp_path / "clean")
    for one in (empty, clean):
        table = one.path.parent / "lake" / "users.parquet"
        pq.write_table(pq.read_table(table).slice(0, 20), table)
        run_night(client, one, LAST)
    assert windows_of(empty) == windows_of(clean)


def test_write_windows__forgotten_users_are_gone(client, site, cluster_file, tmp_path):
    gone = sorted(users_of(window_of(site, CLOSED[0])))[:3]
    others = users_of(window_of(site, CLOSED[0])) - set(gone)
    (tmp_path / "users.csv").write_text("user_id\n" + "\n".join(map(str, gone)) + "\n")
    invoke(cluster_file, "forget", site.path, "--users", tmp_path / "users.csv")
    assert users_of(window_of(site, CLOSED[0])) == others
    assert all(not set(gone) & users_of(window_of(site, date)) for date in CLOSED)
    times = times_of(site)
    run_night(client, site, LAST + 1)
    assert times.items() <= times_of(site).items()
    assert all(not set(gone) & users_of(window_of(site, date)) for date in windows_of(site))


def test_repartition__places_windows(client, site, cluster_file, written):
    before = {date: users_of(window_of(site, date)) for date in CLOSED}
    invoke(cluster_file, "repartition", site.path, "--partitions", 4)
    assert {window_of(site, date).n_partitions for date in CLOSED} == {4}
    assert {date: users_of(window_of(site, date)) for date in CLOSED} == before
    times = times_of(site)
    facts = run_night(client, site, LAST + 1, {**TRAINED, "partitions": 4})
    assert "users" in facts["training"]
    assert times.items() <= times_of(site).items()


def test_prune_windows__those_that_no_training_will_use_are_removed(client, site):
    run_night(client, site, LAST + 1, {**UNTRAINED, "train": {**CONFIG["train"], "windows": 2}})
    oldest = day(LAST + 1) - dt.timedelta(9)
    assert sorted(windows_of(site)) == [date for date in CLOSED if date > oldest]
    run_night(client, site, LAST + 2, {**UNTRAINED, "train": {"epochs": 1, "windows": 1}})
    assert all(date > day(LAST + 2) - dt.timedelta(6) for date in windows_of(site))


def test_write_windows__other_label_days_make_other_windows(client, site, empty):
    changed = {**UNTRAINED, "label": {"days": 4, "min_categories": 1}}
    run_night(client, site, LAST, changed)  # the same night again: it is published, and its windows are others
    run_night(client, site, LAST + 1, changed)
    run_night(client, empty, LAST + 1, changed)
    assert {date.toordinal() % 4 for date in windows_of(site)} == {0}
    assert windows_of(site) == windows_of(empty)
    assert len(list(site.path.glob("windows/*"))) == len(windows_of(site))


def test_write_windows__days_that_the_lake_has_dropped_are_not_missed(client, site):
    """With other label days nothing of the past can be made again: the night goes on with what it can read."""
    shutil.rmtree(site.path / "days")
    for number in range(LAST - 2):
        shutil.rmtree(site.path.parent / "lake" / "events" / f"date={day(number)}")
    run_night(client, site, LAST + 1, {**UNTRAINED, "label": {"days": 2, "min_categories": 1}})
    assert all(date >= day(LAST - 3) for date in windows_of(site))


def test_write_windows__a_bridged_day_counts_as_one_without_events(client, empty, lake, tmp_path):
    gap = (CLOSED[1] - day(0)).days + 2
    bridging = {**UNTRAINED, "lake": {**CONFIG["lake"], "missing_days": "bridge"}}
    emptied = copy_world(lake, tmp_path / "emptied")
    edit_day(emptied, gap, lambda table: table.slice(0, 0))
    run_night(client, emptied, LAST, bridging)
    shutil.rmtree(empty.path.parent / "lake" / "events" / f"date={day(gap)}")
    run_night(client, empty, LAST, bridging)
    assert sorted(windows_of(empty)) == CLOSED
    assert windows_of(empty) == windows_of(emptied)


@pytest.mark.parametrize("past", ["keep", "refuse"])
def test_write_windows__a_corrected_day_leaves_closed_windows_as_they_are(client, site, past):
    before, times = windows_of(site), times_of(site)
    lake = {**CONFIG["lake"], **({"past": "keep"} if past == "keep" else {})}
    # Behind the window of the night only `keep` goes on; within it the day is folded again.
    number = 4 if past == "keep" else LAST - 1
    edit_day(site, number, without_clicks)
    facts = run_night(client, site, LAST + 1, {**UNTRAINED, "lake": lake})
    assert {"changed days kept as folded", "corrected days"} & set(facts)
    assert {date: windows_of(site)[date] for date in before} == before
    assert times.items() <= times_of(site).items()


def test_write_windows__a_day_that_stays_as_folded_does_not_end_a_night(client, site):
    """Other label days ask for windows over a day whose rows are nowhere any more."""
    shutil.rmtree(site.path / "days" / f"date={day(4)}")
    edit_day(site, 4, without_clicks)
    changed = {"lake": {**CONFIG["lake"], "past": "keep"}, "label": {"days": 2, "min_categories": 1}}
    facts = run_night(client, site, LAST + 1, {**UNTRAINED, **changed})
    assert facts["changed days kept as folded"] == str(day(4))
    assert windows_of(site)
    assert all(date > day(LAST - 4) or date <= day(1) for date in windows_of(site))


def test_ingest__a_rebuild_makes_windows_again(client, site, cluster_file, empty):
    for one in (site, empty):
        edit_day(one, 4, without_clicks)
    before = windows_of(site)
    invoke(cluster_file, "ingest", site.path, "--date", day(LAST), "--rebuild")
    run_night(client, site, LAST)
    run_night(client, site, LAST + 1)
    run_night(client, empty, LAST + 1)
    assert windows_of(site) == windows_of(empty)
    assert windows_of(site).items() != before.items()


def test_write_windows__know_the_days_of_a_year_before(client, empty, monkeypatch):
    monkeypatch.setattr(popular_days, "YEAR", 6)
    run_night(client, empty, LAST)
    window = window_of(empty, CLOSED[-1])
    lake = empty.path.parent / "lake" / "events"

    def users_by_day(first, last):
        counts = dict.fromkeys(window.categories, 0)
        for number in range(first, last):
            table = pq.read_table(lake / f"date={CLOSED[-1] - dt.timedelta(number)}", partitioning=None)
            rows = table.filter(pc.equal(table["group"], "adc")).select(["user_id", "category"]).to_pylist()
            for _, name in {(row["user_id"], "/".join(row["category"].split("/")[:2])) for row in rows}:
                counts[name] += 1
        return list(counts.values())

    *periods, now, ago = window.manifest.clickers
    assert len(periods) == 3
    assert (now, ago) == ([0, *users_by_day(0, 3)], [0, *users_by_day(3, 6)])


def models_of(site):
    return [ModelManifest.of(open_run(path)) for path in site.finished_runs("models")]


def n_windows_of(site):
    """Return how many windows the model of the night was trained on."""
    return max(model.counts.get("windows", 0) for model in models_of(site))


def test_nightly__trains_on_all_windows_that_ended_before_the_last(client, site):
    facts = run_night(client, site, LAST + 1, TRAINED)
    assert n_windows_of(site) == 1 + len([date for date in CLOSED if date <= day(LAST + 1 - 6)])
    assert "in the lists of a model that ends before, and" in facts["gate"]
    verdict = read_verdict(site, day(LAST + 1))
    assert set(verdict.facts["forward"]["sources"]) == {"model", *SIMPLE}


@pytest.mark.parametrize(
    ("number", "train", "others"),
    [
        (15, {}, set()),  # it would be trained as the new one is
        (15, {"max_planes": 1}, {"champion"}),
        (16, {}, {"champion", "published"}),  # it is as old as the label window
    ],
)
def test_nightly__the_model_in_use_is_tried_as_of_before_the_window(client, empty, number, train, others):
    run_night(client, empty, 13, {**TRAINED, "gate": {"forward": False, "min_users": 1}})
    facts = run_night(client, empty, number, {**TRAINED, "train": {**TRAINED["train"], **train}})
    forward = read_verdict(empty, day(number)).facts["forward"]
    assert set(forward["sources"]) == {"model", *SIMPLE} | others
    assert ("; those of the " in facts["gate"]) == ("champion" in others)
    if "published" in others:  # lists of that night are its own, of the same users
        assert forward["sources"]["published"]["hits"] == forward["sources"]["champion"]["hits"]
        lists = describe_site(empty, config_of(), day(number))["lists"]
        assert f"; the lists that were published before it had {forward['sources']['published']['hits']:.2f})" in lists


def test_nightly__the_model_in_use_stays_where_its_lists_are_ahead(client, empty, written):
    """Every user clicks the one category they view, and the new model knows of no page view."""
    users, names = sorted(users_of_lake(empty)), window_of(written, CLOSED[0]).categories
    for number in range(N_DAYS):
        rows = [(user, group, names[at % len(names)]) for at, user in enumerate(users) for group in ("pv", "adc")]
        edit_day(empty, number, lambda table, rows=rows: event_table(table, rows))
    run_night(client, empty, 13, {**TRAINED, "gate": {"forward": False, "min_users": 1}})
    facts = run_night(client, empty, 15, {**TRAINED, "train": {**TRAINED["train"], "variant": "no-pv"}})
    verdict = read_verdict(empty, day(15))
    assert (verdict.facts["forward"]["source"], verdict.accepted) == ("champion", False)
    assert verdict.chosen == verdict.champion
    assert facts["gate"].startswith("the model in use scores: of 10 categories users clicked ")
    assert "in the lists of the model in use as it was before, and" in facts["gate"]
    assert facts["model"] == f"of {day(13)}"


def test_train__tunes_on_the_last_window_by_models_that_end_before(site, cluster_file, monkeypatch):
    monkeypatch.setattr(forward_stage, "KAPPAS", (0.05,))
    monkeypatch.setattr(forward_stage, "CLICKERS_PER_PLANE", (60,))
    site.config_path.write_text(write_config(config_of(**{**TRAINED, "train": {**TRAINED["train"], "kappa": 1e6}})))
    said = invoke(cluster_file, "train", site.path, "--date", day(LAST), "--tune")
    header, first, second = (line.split() for line in said.splitlines()[:3])
    assert header[:3] == ["clickers_per_plane", "kappa", "ε_dis"]
    assert {first[1], second[1]} == {"1e+06", "0.05"}
    assert float(first[3]) >= float(second[3])
    best = (first if first[-1] == "*" else second)[:2]
    told = dict(line.split(maxsplit=1) for line in said.splitlines() if line.startswith("train."))
    assert [float(told[f"train.{name}"]) for name in header[:2]] == [float(cell) for cell in best]
    [model] = models_of(site)
    assert model.tuning["users"] > 20
    assert [model.settings[name] for name in header[:2]] == [float(cell) for cell in best]


def test_nightly__suppressed_users_do_not_train_whenever_a_window_was_written(client, site, empty, tmp_path):
    listed = sorted(users_of_lake(site))[::3]
    (tmp_path / "listed.txt").write_text("\n".join(map(str, listed)) + "\n")
    suppressing = {**TRAINED, "score": {"suppress": str(tmp_path / "listed.txt")}}
    for one in (site, empty):  # windows from before the list, and of the night itself
        run_night(client, one, LAST + 1, suppressing)
    assert set(listed) & users_of(window_of(site, CLOSED[0]))
    trained = [
        [model.counts["training"] for model in models_of(one) if "windows" in model.counts] for one in (site, empty)
    ]
    assert trained[0] == trained[1] != []


def test_nightly__a_window_in_which_nobody_clicked_is_left_out(client, empty):
    for number in (1, 2, 3):
        edit_day(empty, (CLOSED[1] - day(0)).days + number, without_clicks)
    facts = run_night(client, empty, LAST, TRAINED)
    assert window_of(empty, CLOSED[1]).n_users == 0
    assert n_windows_of(empty) == len([date for date in CLOSED if date <= day(LAST - 6)])
    assert facts["published"]


def test_nightly__a_moment_before_which_nobody_clicked_has_a_prior_all_the_same(client, empty):
    for number in range((CLOSED[0] - day(0)).days + 1):
        edit_day(empty, number, without_clicks)
    facts = run_night(client, empty, LAST, TRAINED)
    assert window_of(empty, CLOSED[0]).n_users > 20
    assert {row[0] for row in window_of(empty, CLOSED[0]).manifest.clickers} == {0}
    assert facts["published"]


def test_nightly__one_user(client, empty):
    user = min(users_of_lake(empty))
    for number in range(N_DAYS):
        edit_day(empty, number, lambda table: table.filter(pc.equal(table["user_id"], user)))
    facts = run_night(client, empty, LAST, TRAINED)
    assert facts["training"].startswith("none: ")
    assert sorted(windows_of(empty)) == CLOSED


@pytest.mark.parametrize(
    ("number", "train", "reason"),
    [
        (7, {}, "a model is tried once there are 12 days of events"),
        (
            LAST,
            {"windows": 1},
            "a model is tried on earlier label windows, and train.windows is 1; set it to 2 or more",
        ),
    ],
)
def test_nightly__with_one_window_a_simple_source_scores(client, empty, number, train, reason):
    changes = {**TRAINED, "train": {**TRAINED["train"], **train}}
    facts = run_night(client, empty, number, changes)
    forward = read_verdict(empty, day(number)).facts["forward"]
    assert facts["gate"].startswith(f"{SIMPLE[forward['source']]} scores: {reason}; ")
    assert set(forward["sources"]) == set(SIMPLE)
    model = ModelManifest.of(open_run(empty.path / empty.current().runs["model"]))
    assert model.simple == forward["source"]


def test_nightly__own_history_scores_unless_the_log_is_long_enough_to_try_others(client, empty):
    facts = run_night(client, empty, 3, {**TRAINED, "features": {"min_days": 1}})  # one day before the window
    assert facts["gate"].startswith("own history scores: a model is tried once there are 12 days of events; ")
    assert "sources" not in read_verdict(empty, day(3)).facts["forward"]


@pytest.mark.parametrize(("number", "has_model"), [(6, False), (LAST, True)])
def test_nightly__popularity_makes_the_lists_where_own_history_is_of_no_use(client, empty, written, number, has_model):
    """Every user views one of three categories all the time, and clicks either of two that nobody views."""
    users, names = sorted(users_of_lake(empty)), window_of(written, CLOSED[0]).categories
    for at in range(N_DAYS):
        rows = [(user, "pv", names[place % 3]) for place, user in enumerate(users)]
        rows += [(user, "adc", names[3 + (place + at) % 2]) for place, user in enumerate(users)]
        edit_day(empty, at, lambda table, rows=rows: event_table(table, rows))
    facts = run_night(client, empty, number, {**TRAINED, "score": {"k": 2}})
    forward = read_verdict(empty, day(number)).facts["forward"]
    assert (forward["beside"], "model" in forward["sources"]) == ("popularity", has_model)
    hits = {name: source["hits"] for name, source in forward["sources"].items()}
    assert hits["popularity"] == 2 > hits["own-history"]
    # A model can at best draw level with popularity, which has all that is clicked.
    assert forward["source"] == "popularity"
    assert facts["gate"].startswith("popularity scores: ")
    lists = open_qualifications(empty.qualifications_folder(day(number))).to_pandas()
    assert set(lists["category"].astype(str)) == {names[3], names[4]}
    assert describe_site(empty, config_of(), day(number))["lists"].startswith("Lists come from popularity: ")
    page = (empty.report_folder(day(number)) / "report.html").read_text()
    assert "<p>Lists come from popularity: " in page


def test_nightly__a_simple_source_has_chances_the_balanced_policy_and_a_report(client, empty):
    run_night(client, empty, 7, {**TRAINED, "score": {"policy": "balanced"}})
    source = ModelManifest.of(open_run(empty.path / empty.current().runs["model"])).simple
    lists = open_qualifications(empty.qualifications_folder(day(7)))
    assert lists.policy == "balanced"
    rows = lists.to_pandas()
    assert rows["chance"].between(0, 1, inclusive="neither").all()
    folder = empty.report_folder(day(7))
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["forward"]["source"] == source
    assert summary["policies"]["balanced"]["starved_categories"] == 0
    assert f"<p>Lists come from {SIMPLE[source]}: " in (folder / "report.html").read_text()


@pytest.mark.parametrize(("is_drifting", "status"), [(False, "ok"), (True, "warn")])
def test_nightly__warns_when_interests_drift_as_a_whole(client, empty, written, is_drifting, status):
    """Every user views one category three times a day for six days, then another one twice a day, and clicks that."""
    users, names = sorted(users_of_lake(empty)), window_of(written, CLOSED[0]).categories
    for number in range(N_DAYS):
        shift, n_views = (0, 3) if number < 6 else (1, 2)
        rows = [
            (user, group, names[(place + shift) % len(names)])
            for place, user in enumerate(users)
            for group in ["pv"] * n_views
        ]
        clicked = shift if is_drifting else 0
        rows += [(user, "adc", names[(place + clicked) % len(names)]) for place, user in enumerate(users)]
        edit_day(empty, number, lambda table, rows=rows: event_table(table, rows))
    run_night(client, empty, LAST, {**TRAINED, "score": {"k": 1}})
    summary = json.loads((empty.path / "reports" / f"date={day(LAST)}" / "summary.json").read_text())
    [check] = [check for check in summary["checks"] if check["name"] == "interest_drift"]
    assert check["value"] == (1.0 if is_drifting else -1.0)
    assert check["status"] == status


def test_nightly__windows_with_hardly_any_user_are_told(client, empty):
    for number in range(LAST - 2):
        edit_day(empty, number, without_clicks)
    facts = run_night(client, empty, LAST, TRAINED)
    reason = "no earlier label window that the site has kept has 20 users who clicked"
    assert facts["gate"].startswith(f"own history scores: {reason}; ")


def test_nightly__a_category_that_came_leaves_the_windows_in_use(client, site):
    """Those before it have no column of it; the night trains on their rows, and tries a model of them."""
    taxonomy = site.path.parent / "lake" / "taxonomy.csv"
    before = window_of(site, CLOSED[0]).categories
    lines = taxonomy.read_text().splitlines()
    parents = dict(line.split(",") for line in lines[1:])
    taxonomy.write_text("\n".join([*lines, f"Aardvarks,{parents[before[0]]}"]) + "\n")
    times = times_of(site)
    facts = run_night(client, site, LAST + 1, TRAINED)
    assert facts["new categories"] == "Aardvarks"
    assert times.items() <= times_of(site).items()
    assert window_of(site, CLOSED[0]).categories == before
    assert n_windows_of(site) == 1 + len([date for date in CLOSED if date <= day(LAST + 1 - 6)])
    assert "in the lists of a model that ends before, and" in facts["gate"]


def test_nightly__a_renamed_category_keeps_its_windows(client, site, empty):
    name = window_of(site, CLOSED[0]).categories[0]
    changes = {**TRAINED, "categories": {name: "Aardvarks"}}
    for one in (site, empty):
        run_night(client, one, LAST + 1, changes)
    trained = [
        [model.counts["training"] for model in models_of(one) if "windows" in model.counts] for one in (site, empty)
    ]
    assert window_of(site, CLOSED[0]).categories[0] == name
    assert window_of(empty, CLOSED[0]).categories[0] == "Aardvarks"
    assert trained[0] == trained[1] != []


def test_nightly__a_category_that_went_leaves_the_windows_in_use(client, site):
    """Windows from before it went have a column of it; no list has it."""
    name = window_of(site, CLOSED[0]).categories[0]
    times = times_of(site)
    facts = run_night(client, site, LAST + 1, {**TRAINED, "categories": {name: None}})
    assert facts["categories counted no more"] == name
    assert times.items() <= times_of(site).items()
    assert window_of(site, CLOSED[0]).categories[0] == name
    assert n_windows_of(site) == 1 + len([date for date in CLOSED if date <= day(LAST + 1 - 6)])
    assert "in the lists of a model that ends before, and" in facts["gate"]
    lists = open_qualifications(site.qualifications_folder(day(LAST + 1))).to_pandas()
    assert name not in set(lists["category"])


def test_backtest__nights_of_the_past_have_windows_of_their_own(client, site, cluster_file):
    config = config_of(**TRAINED)
    site.config_path.write_text(write_config(config))
    before = times_of(site)
    said = invoke(cluster_file, "backtest", site.path, "--from", day(13), "--to", day(14), "--every", 1, "--json")
    nights = json.loads(said.splitlines()[-1])["nights"]
    assert ["in the lists of a model that ends before" in night["gate"] for night in nights] == [True, True]
    [work] = [path for path in (site.path / "backtests" / ".work").iterdir() if path.is_dir()]
    assert sorted(path.name[5:15] for path in Site(work).finished_runs("windows")) == [
        str(date) for date in CLOSED if date <= day(14 - 3)
    ]
    assert times_of(site) == before


def event_table(table, rows):
    """Return rows (user, group, category) as events of the day of a table."""
    user, group, category = zip(*rows, strict=True)
    time = pa.array([table["timestamp"][0].as_py()] * len(rows), table.schema.field("timestamp").type)
    columns = {"user_id": user, "group": group, "category": category, "timestamp": time}
    return pa.table({name: columns[name] for name in table.column_names}).cast(table.schema)


def users_of_lake(site):
    table = pq.read_table(site.path.parent / "lake" / "events", partitioning=None)
    clicks = table.filter(pc.equal(table["group"], "adc"))
    return set(clicks["user_id"].to_pylist())
