"""The workflow script of the design: an own client, pandas in and out, and no site at all."""

import datetime as dt

import numpy as np
import pandas as pd
from distributed import Client

from ammrank_dask import (
    exposure_report,
    interest_features,
    open_features,
    score,
    train,
    write_features,
)

GROUPS = ("pv", "sq", "slc", "olc", "adv")
CATEGORIES = [f"Category {i}" for i in range(12)]
T = dt.datetime(2026, 2, 1, tzinfo=dt.UTC)


def make_events(rng, n_users=300, n_events=6000):
    """Events in which every user likes three categories, and the rankings of what they will click."""
    liked = np.argsort(rng.random((n_users, 12)), axis=1)[:, :3]
    user = rng.integers(0, n_users, n_events)
    choice = liked[user, rng.choice(3, n_events, p=[0.5, 0.3, 0.2])]
    times = pd.Timestamp(T) - pd.to_timedelta(rng.random(n_events) * 30, unit="D")
    events = pd.DataFrame(
        {
            "user_id": user,
            "group": rng.choice(GROUPS, n_events),
            "category": [CATEGORIES[c] for c in choice],
            "timestamp": times.astype("datetime64[us, UTC]"),
        }
    )
    return events, liked


def test_workflow_script__runs_with_an_own_client_and_no_site(tmp_path):
    events_df, liked = make_events(np.random.default_rng(4))
    with Client(processes=False, n_workers=1, threads_per_worker=2, dashboard_address=None, memory_limit=0) as client:
        before = client.scheduler_info()["workers"].keys()

        X, user_ids, columns = interest_features(events_df, at=T, users=None, taxonomy=None)
        rankings = liked[np.asarray(user_ids)]
        features = write_features(
            tmp_path / "features", X, user_ids, columns, rankings=rankings, categories=CATEGORIES, n_partitions=3
        )
        assert open_features(tmp_path / "features").n_users == len(user_ids)
        part = features.partition(1)
        assert part.X.shape == (len(part.user_ids), len(columns))
        some = list(user_ids[:2])
        assert features.to_pandas(users=some).index.tolist() == sorted(some, key=features.to_pandas().index.get_loc)
        model = train(features, client=client, shards=8, epochs=5)
        quals = score(model, features, tmp_path / "quals", client=client, k=10)
        exposure = exposure_report(quals, client=client)

        assert client.status == "running"
        assert client.scheduler_info()["workers"].keys() == before
    frame = quals.to_pandas(users=None)
    assert len(frame) == 10 * len(user_ids)
    assert exposure["exposure"].sum() == len(frame)
    # The script learned something: the best category of most users is one they like.
    best = frame[frame["rank"] == 1].set_index("user_id")["category"].cat.codes
    assert np.mean([code in liked[user] for user, code in best.items()]) > 0.9
