"""The config of a site: defaults, the file that `init` writes, and one sentence about what is wrong."""

import pytest
import yaml
from lakes import lose_link, replace_by

from ammrank_dask.report.thresholds import Thresholds
from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.site.site import Site
from ammrank_dask.storage.vocabulary import GROUPS
from ammrank_dask.workflows.session.config import GONE, Config, check_config, load_config, write_config
from ammrank_dask.workflows.session.config_table import config_table
from ammrank_dask.workflows.session.sections import Retention
from ammrank_dask.workflows.session.settings import lake_path

WHERE = "ammrank.yaml"


def check(text):
    return check_config(yaml.safe_load(text), WHERE)


def test_load_config__empty_file_is_the_defaults(tmp_path):
    path = tmp_path / "ammrank.yaml"
    for text in ("", "# nothing\n", "lake:\ntrain:\n  # epochs: 3\n"):
        path.write_text(text)
        assert load_config(path) == Config()


@pytest.mark.parametrize(("label_days", "kept"), [(3, 45), (30, 45), (31, 46), (60, 75)])
def test_load_config__keep_days_follow_a_label_window_that_is_changed_in_a_written_config(tmp_path, label_days, kept):
    path = tmp_path / "ammrank.yaml"
    text = write_config(Config())
    assert text.count("  days: 30  #") == 1
    path.write_text(text.replace("  days: 30  #", f"  days: {label_days}  #"))
    assert load_config(path).days_kept == kept
    assert check(f"label: {{days: {label_days}}}").days_kept == kept
    assert check(f"{{label: {{days: {label_days}}}, keep_days: 99}}").days_kept == 99


def test_config__defaults_of_the_contract():
    config = Config()
    assert (config.late_days, config.days_kept, config.state.max_age_days) == (7, 45, 730)
    assert (config.label.days, config.label.min_categories, config.taxonomy.level) == (30, 1, 2)
    assert config.features.groups == ["pv", "sq", "slc", "olc", "adv"]
    assert config.event_groups == list(GROUPS)
    assert (config.features.min_days, config.train.max_planes, config.train.every_nights) == (7, 5, 7)
    assert (config.alpha, config.label.alpha, config.train.n_windows) == (0.995, 0.97, 12)
    assert config.quarantine.max_share == 0.01


@pytest.mark.parametrize(
    "config",
    [
        Config(),
        check_config(
            {
                "lake": {"users": None, "events": "/a b/#c: d"},
                "groups": {"pv": ["Seite: 'ä'", "1"], "adc": ["c"], "ignore": ["yes"]},
                "features": {"groups": ["pv"]},
                "unknown_user_ids": [0, "-1", "null"],
                "timezone": "Europe/Berlin",
            },
            WHERE,
        ),
    ],
    ids=["defaults", "other"],
)
def test_write_config__reads_back_with_every_key_and_a_comment(tmp_path, config):
    path = tmp_path / "ammrank.yaml"
    path.write_text(write_config(config), encoding="utf-8")
    assert load_config(path) == config
    sections = [name for name, field in Config.model_fields.items() if field.description is None]
    for line in path.read_text().splitlines():
        name, _, rest = line.partition(":")
        is_value = name.strip() and not line.startswith("#") and name.strip() not in sections
        is_spelling = line.startswith("  ") and name.strip() in (*GROUPS, "female", "male", "ignore")
        assert not is_value or is_spelling or "  # " in rest, line


def test_check_config__takes_one_value_for_a_list_and_numbers_for_text():
    config = check("unknown_user_ids: 0\ngroups: {pv: 1, adc: [click, 2]}\nfeatures: {groups: [pv]}")
    assert config.unknown_user_ids == ["0"]
    assert config.groups == {"pv": ["1"], "adc": ["click", "2"]}


BAD = {
    "misspelled": ("alfa: 0.9", "there is no key alfa; did you mean alpha?"),
    "misspelled inside": ("lake: {evnts: x}", "there is no key lake.evnts; did you mean lake.events?"),
    "in another section": ("level: 3", "there is no key level; did you mean taxonomy.level?"),
    "nothing like it": ("state: {zzz: 1}", "there is no key state.zzz; known keys are state.max_age_days"),
    "number as a key": ("1: 2", "1: Keys should be strings, got 1"),
    "wrong type": ("alpha: fast", "alpha: Input should be a valid number, unable to parse string"),
    "fraction": ("partitions: 2.5", "partitions: Input should be a valid integer, got a number with a fractional part"),
    "list for a section": ("lake: [a]", "lake: must be a section of keys, got ['a']"),
    "yes for a text": ("groups: {adc: yes}", "groups.adc.0: Input should be a valid string, got True; put it"),
    "null for spellings": ("groups:", "groups: Input should be a valid dictionary, got None"),
    "choice": ("lake: {missing_days: skip}", "lake.missing_days: Input should be 'refuse' or 'bridge', got 'skip'"),
    "alpha of 1": ("alpha: 1", "alpha: Input should be less than 1, got 1"),
    "alpha of 0": ("alpha: 0", "alpha: Input should be greater than 0, got 0"),
    "alpha not a number": ("alpha: .nan", "alpha: Input should be a finite number, got nan"),
    "label.alpha of 1": ("label: {alpha: 1}", "label.alpha: Input should be less than 1, got 1"),
    "label.alpha of 0": ("label: {alpha: 0}", "label.alpha: Input should be greater than 0, got 0"),
    "no windows": ("train: {windows: 0}", "train.windows: Input should be greater than or equal to 1, got 0"),
    "endless kappa": ("train: {kappa: .inf}", "train.kappa: Input should be a finite number, got inf"),
    "endless cap": ("score: {balanced: {cap: .inf}}", "score.balanced.cap: Input should be a finite number, got inf"),
    "endless cap by name": (
        "score: {balanced: {caps: {a: .inf}}}", "score.balanced.caps.a: Input should be a finite number, got inf"
    ),
    "endless threshold": (
        "report: {thresholds: {psi: .inf}}", "report.thresholds.psi: Input should be a finite number, got inf"
    ),
    "level of 0": ("taxonomy: {level: 0}", "taxonomy.level: Input should be greater than or equal to 1, got 0"),
    "share of 2": ("quarantine: {max_share: 2}", "quarantine.max_share: Input should be less than or equal to 1"),
    "yes for a number": ("score: {k: yes}", "score.k: must be a number, got True, which YAML also makes of yes, no,"),
    "off for an optional number": ("score: {min_score: off}", "score.min_score: must be a number, got False, which"),
    "on for a number by name": (
        "score: {balanced: {floors: {Hats: on}}}", "score.balanced.floors: 'Hats' must be a number, got True, which"
    ),
    "no for a column": ("columns: {age: no}", "columns.age: Input should be a valid string, got False; put it in quo"),
    "no partitions": ("partitions: 0", "partitions: Input should be greater than or equal to 1, got 0"),
    "unit": ("timestamp_unit: h", "timestamp_unit: Input should be 's', 'ms', 'us' or 'ns', got 'h'"),
    "zone": ("timezone: Mars/Base", "timezone: 'Mars/Base' is not a time zone, for example UTC or Europe/Berlin"),
    "zone outside": ("timezone: ../../etc/passwd", "timezone: '../../etc/passwd' is not a time zone"),
    "short keep_days": ("keep_days: 29", "keep_days (29) must be at least label.days (30); null follows it"),
    "feature group": ("features: {groups: [pv, search]}", "features.groups has search, which `groups` does not define"),
    "variant": ("train: {variant: no-ads}", "train.variant must be adv, or no- and a group to leave out, got 'no-ads'"),
    "no such threshold": (
        "report: {thresholds: {pssi: 1}}", "report.thresholds: there is no threshold 'pssi'; did you mean psi?"
    ),
    "share above 1": ("report: {thresholds: {late: 2}}", "report.thresholds: late must be between 0 and 1, got 2"),
    "factor below 1": (
        "report: {thresholds: {active_users: .5}}", "report.thresholds: active_users must be at least 1, got 0.5"
    ),
    "yes for a threshold": (
        "report: {thresholds: {late: yes}}", "report.thresholds: 'late' must be a number, got True, which YAML also"
    ),
    "no clicks": ("groups: {pv: pv}", "groups: a group adc (ad clicks) is needed: rankings are made of it"),
    "value twice": ("groups: {adc: c, pv: c}", "groups: the value 'c' is listed under adc and pv"),
    "group name": ("groups: {adc: c, 'a b': x}", "groups: 'a b' is not a plain name"),
    "ids as groups": ("columns: {group: user_id}", "columns: user_id and group are both 'user_id'; name two columns"),
    "gender": ("genders: {diverse: d}", "genders: keys are female, male and ignore, got diverse"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "sentence"), BAD.values(), ids=BAD)
def test_check_config__says_what_is_wrong(text, sentence):
    with pytest.raises(BadInput) as raised:
        check(text)
    assert str(raised.value).startswith(f"{WHERE}: {sentence}")
    assert "\n" not in str(raised.value)


GONE_SENTENCES = {
    "train: {block_rows: 64}": "train.block_rows any more, got 64; blocks have 1,024 users; remove the key",
    "train: {patience: 2}": "train.patience any more, got 2; a training has train.epochs passes; remove the key",
    "train: {average: true}": "train.average any more, got True; held-out users choose between the last model and",
    "train: {rank_weight: reciprocal}": "train.rank_weight any more, got 'reciprocal'; nights weigh all ranks alike",
    "retention: {runs: 30}": "retention.runs any more, got 30; retention.reports holds for run.json and log.jsonl",
    "retention: {models: 7}": "retention.models any more, got 7; retention.qualifications holds for models, too",
}


@pytest.mark.parametrize(("text", "sentence"), GONE_SENTENCES.items())
def test_check_config__keys_that_are_gone_are_told_with_their_replacement(text, sentence):
    with pytest.raises(BadInput) as raised:
        check(text)
    assert str(raised.value).startswith(f"{WHERE}: there is no key {sentence}")


def test_check_config__keys_that_are_gone_are_read_as_init_wrote_them():
    given = {}
    for key, (usual, _) in GONE.items():
        section, _, name = key.partition(".")
        given.setdefault(section, {})[name] = usual
    assert len(GONE_SENTENCES) == len(GONE) == sum(map(len, given.values()))
    assert check_config(given, WHERE) == Config()
    assert given["retention"] == {"runs": 400, "models": 40}  # what was read stays as it was


def test_config__has_at_most_81_keys():
    text = config_table()
    keys = [line for line in text[: text.index("## Thresholds")].splitlines() if line.startswith("| `")]
    assert 70 < len(keys) <= 81


def test_thresholds__those_that_are_set_and_the_usual_ones():
    limits = check("report: {thresholds: {psi: 1, late: 0}}").report.limits
    assert limits == Thresholds(psi=1.0, late=0.0)
    assert check("report: {thresholds:}").report.limits == Thresholds()


WINDOWS = ["late_days", "label.days", "features.min_days", "train.every_nights"]
KEPT = ["keep_days", "state.max_age_days", *(f"retention.{name}" for name in Retention.model_fields)]


@pytest.mark.parametrize(("key", "most"), [*((key, 3650) for key in WINDOWS), *((key, 36500) for key in KEPT)])
def test_check_config__days_are_so_many_that_dates_can_be_counted(key, most):
    def of(days):
        section, _, name = key.rpartition(".")
        return {"keep_days": 36500} | ({section: {name: days}} if section else {name: days})

    check_config(of(most), WHERE)
    for days in (most + 1, 10**9, 10**20):
        with pytest.raises(BadInput) as raised:
            check_config(of(days), WHERE)
        assert str(raised.value) == f"{WHERE}: {key}: Input should be less than or equal to {most}, got {days}"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"lake: [", "is not readable YAML: while parsing a flow node"),
        (b"alpha: \xff", "is not readable YAML: "),
        (
            b"lake: &a [x]\nscore: {exclude: *a}",
            "is not readable YAML: write the value of *a out: aliases are not read",
        ),
        (b"a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]", "is not readable YAML: write the value of *a out: aliases"),
        (b"lake: " + b"[" * 101 + b"]" * 101, "is not readable YAML: values must not be nested deeper than 100 in"),
        (b"lake: " + b"[" * 99_999, "is not readable YAML: values must not be nested deeper than 100 in"),
        (b"alpha: 0.9\nalpha: 0.8", "is not readable YAML: the key 'alpha' is there twice; keep one in"),
        (b"score: {k: 3, n: 1, k: 3}", "is not readable YAML: the key 'k' is there twice; keep one in"),
        (b"timezone: 2026-02-31", "is not readable YAML: a value cannot be read (day is out of range for month)"),
        (b"score: {k: " + b"9" * 5000 + b"}", "is not readable YAML: integers have at most 100 digits in"),
        (b"score: {k: 0x" + b"f" * 5000 + b"}", "is not readable YAML: integers have at most 100 digits in"),
        (b"timezone: !!timestamp x", "is not readable YAML: a value cannot be read ("),
        (b"- alpha\n", "must be a mapping of keys, found a list"),
        (b"!!python/object/apply:os.system ['true']", "is not readable YAML: could not determine a constructor"),
    ],
)
def test_load_config__says_what_is_wrong_with_the_file(tmp_path, content, sentence):
    path = tmp_path / "ammrank.yaml"
    path.write_bytes(content)
    with pytest.raises(BadInput) as raised:
        load_config(path)
    assert str(raised.value).startswith(f"{path} {sentence}")
    assert "\n" not in str(raised.value)


@pytest.mark.timeout(20, method="thread")
def test_load_config__what_is_no_regular_file_is_named_and_not_waited_for(tmp_path):
    path = tmp_path / "ammrank.yaml"
    path.touch()
    replace_by(path, "fifo")
    with pytest.raises(BadInput, match=f"{path} must be a regular file, found a named pipe; replace or remove it"):
        load_config(path)
    said = lose_link(path)
    with pytest.raises(BadInput) as raised:
        load_config(path)
    assert str(raised.value) == said


def test_lake_path__a_character_that_no_path_can_have(tmp_path):
    with pytest.raises(
        BadInput, match=r"^a path must not have the character NUL, got 'a\\x00b'; correct .*ammrank\.yaml"
    ):
        lake_path(Site(tmp_path), "a\0b")


def test_load_config__missing_file_says_how_to_make_one(tmp_path):
    with pytest.raises(BadInput, match=r"there is no config at .*; make one with `ammrank init .* --lake LAKE`"):
        load_config(tmp_path / "ammrank.yaml")


def test_train__is_amm_rank_plus_unless_a_key_of_amm_rank_is_set():
    assert check("train: {epochs: 3}").train.model == "amm-rank-plus"
    # As version 0.1.0 wrote it: every key, and no model.
    old = check("train: {regularization: 0.001, rank_weight: uniform, max_planes: 5}").train
    assert old.model == "amm-rank"
    assert old.parameters()["regularization"] == 0.001
    assert "kappa" not in old.parameters()


def test_train__keys_of_nights_that_chose_parameters_are_left_out():
    plain = check("train: {kappa: 0.01}")
    for old in ("auto_tune: true", "auto_tune: false, fit: closer", "fit: null"):
        assert check(f"train: {{kappa: 0.01, {old}}}") == plain
    assert "auto_tune" not in write_config(plain)
    # `init` wrote 5 epochs into every config until there was `windows`.
    assert check("train: {epochs: 5, auto_tune: true}").train.epochs is None
    assert check("train: {epochs: 5, windows: null}").train.epochs == 5


def test_train__parameters_are_those_of_the_model():
    given = check("train: {kappa: 0.01, clusterings: 1}").train.parameters()
    assert (given["kappa"], given["n_clusterings"], given["model"]) == (0.01, 1, "amm-rank-plus")
    assert not {"regularization", "rank_weight", "clusterings", "every_nights", "warm_start"} & set(given)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "train: {model: amm-rank-plus, regularization: 0.1}",
            "regularization is a key of amm-rank; remove it, or",
        ),
        ("train: {model: amm-rank, kappa: 0.1}", "kappa is a key of amm-rank-plus; remove it, or set model"),
        ("train: {model: lr}", "train.model: Input should be 'amm-rank-plus' or 'amm-rank', got 'lr'"),
    ],
)
def test_train__refuses_keys_of_the_other_model(text, sentence):
    with pytest.raises(BadInput, match=sentence):
        check(text)
