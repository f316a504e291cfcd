"""Categories that too few users have: they go to nobody, also after a crash, and what rules removed is counted."""

import shutil

import pytest
from chance_world import CATEGORIES

from ammrank_dask.scoring import score_passes
from ammrank_dask.scoring.score import score
from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.objects.atomic import digest_tree
from ammrank_dask.storage.store.manifests import QualificationsManifest

POLICIES = ("user_top_k", "category_top_n", "balanced")


def users_of(quals):
    return quals.to_pandas()["category"].value_counts().reindex(CATEGORIES, fill_value=0)


@pytest.mark.parametrize("policy", POLICIES)
def test_score__a_category_with_too_few_users_goes_to_nobody(client, tmp_path, model, features, chances, policy):
    options = {"k": 2, "policy": policy, "chances": chances, "client": client, "n": 1500, "floor": 0.0}
    before = users_of(score(model, features, tmp_path / "all", **options))
    least = int(before[before > 0].min()) + 1
    quals = score(model, features, tmp_path / "few", min_audience=least, **options)
    after, manifest = users_of(quals), QualificationsManifest.of(quals.run)
    assert not ((after > 0) & (after < least)).any()
    small = before[(before > 0) & (before < least)]
    assert len(small) > 0
    assert (after[small.index] == 0).all()
    assert {name: manifest.too_few[name] for name in small.index} == small.to_dict()
    assert manifest.removed["score.min_audience"] == sum(manifest.too_few.values())
    plain = score(model, features, tmp_path / "plain", exclude=list(manifest.too_few), **options)
    assert quals.to_pandas().equals(plain.to_pandas())
    same = score(model, features, tmp_path / "same", min_audience=1, **options)
    assert same.to_pandas().equals(score(model, features, tmp_path / "all", **options).to_pandas())
    assert QualificationsManifest.of(same.run).too_few == {}


@pytest.mark.parametrize("at", [1, 2, 3])
def test_score__a_crash_between_two_makings_changes_nothing(client, tmp_path, model, features, monkeypatch, at):
    before = users_of(score(model, features, tmp_path / "all", k=2, client=client))
    options = {"k": 2, "client": client, "min_audience": int(before[before > 0].min()) + 1}
    whole = score(model, features, tmp_path / "whole", **options)
    assert QualificationsManifest.of(whole.run).too_few
    names, calls = ("_write_lists", "remove", "write_text"), []

    def die_at(name, real):
        def call(*args, **kwargs):
            calls.append(name)
            if calls.count(names[at - 1]) == 1 and name == names[at - 1]:
                if name == "_write_lists":
                    real(*args, **kwargs)
                raise OSError(28, "killed")
            return real(*args, **kwargs)

        return call

    with monkeypatch.context() as patch:
        for name in names:
            patch.setattr(score_passes, name, die_at(name, getattr(score_passes, name)))
        with pytest.raises(OSError, match="killed"):
            score(model, features, tmp_path / "killed", **options)
    score(model, features, tmp_path / "killed", **options)
    assert digest_tree(tmp_path / "killed", ["."]) == digest_tree(tmp_path / "whole", ["."])
    shutil.rmtree(tmp_path / "killed")


def test_score__counts_what_each_rule_removed(client, tmp_path, model, features, chances):
    ids = features.partition(0).user_ids.to_arrow().to_pylist()[:50]
    quals = score(
        model, features, tmp_path / "q", client=client, k=2, chances=chances, exclude=["news"], min_chance=0.05,
        exclude_by_group={"unknown-gender": ["ünï", "news"]}, opt_out=[(user, "autos") for user in ids],
    )  # fmt: skip
    removed = QualificationsManifest.of(quals.run).removed
    assert removed.pop("score.min_chance") > 0
    assert removed == {"score.exclude": 6000, "score.exclude_by_group": 6000, "score.opt_out": 50}


def test_score__refuses_an_audience_of_nobody(client, tmp_path, model, features):
    with pytest.raises(BadInput, match="min_audience must be at least 1, got 0"):
        score(model, features, tmp_path / "q", client=client, k=2, min_audience=0)
