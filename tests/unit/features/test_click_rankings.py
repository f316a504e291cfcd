"""Rankings of clicked categories straight from a pandas log."""

import numpy as np
import pandas as pd
import pytest

from ammrank_dask import click_rankings
from ammrank_dask.storage.errors import BadInput

AFTER, UNTIL = pd.Timestamp("2026-01-10", tz="UTC"), pd.Timestamp("2026-02-09", tz="UTC")
TAXONOMY = {"Retail": "", "Shoes": "Retail", "Boots": "Shoes", "Hats": "Retail", "Travel": "", "Flights": "Travel"}
ANCESTOR = {"Boots": "Shoes", "Shoes": "Shoes", "Hats": "Hats", "Flights": "Flights"}


def rank_plainly(log, user, categories):
    """Follow the definition: decayed clicks, ties by the last click, then by code."""
    intensity, last = {}, {}
    for row in log[(log["user_id"] == user) & (log["group"] == "adc")].itertuples():
        if AFTER < row.timestamp <= UNTIL:
            code = categories.index(ANCESTOR[row.category])
            intensity[code] = intensity.get(code, 0.0) + 0.97 ** ((UNTIL - row.timestamp) / pd.Timedelta(days=1))
            last[code] = max(last.get(code, AFTER), row.timestamp)
    return sorted(intensity, key=lambda code: (-intensity[code], -last[code].value, code))


@pytest.mark.parametrize("kind", [int, str])
def test_click_rankings__equals_a_loop_over_the_log(kind):
    rng = np.random.default_rng(4)
    n = 400
    log = pd.DataFrame(
        {
            "user_id": [kind(user) for user in rng.integers(0, 30, n)],
            "group": rng.choice(["adc", "pv"], n, p=[0.6, 0.4]),
            "category": rng.choice(list(ANCESTOR), n),
            "timestamp": AFTER + pd.to_timedelta(rng.integers(-86_400 * 10, 86_400 * 40, n), unit="s"),
        }
    )
    user_ids = pd.Series([kind(user) for user in rng.permutation(34)])  # some have no event at all
    rankings, categories = click_rankings(log, AFTER, UNTIL, user_ids, TAXONOMY)
    assert categories == ["Flights", "Hats", "Shoes"]
    codes = [[code for code in row if code >= 0] for row in rankings.tolist()]
    assert codes == [rank_plainly(log, user, categories) for user in user_ids]


def test_click_rankings__without_clicks_has_no_columns():
    log = pd.DataFrame({"user_id": [1], "group": ["pv"], "category": ["Hats"], "timestamp": [UNTIL]})
    rankings, categories = click_rankings(log, AFTER, UNTIL, pd.Series([1, 2]))
    assert (rankings.shape, categories) == ((2, 0), ["Hats"])


def test_click_rankings__refuses_a_window_without_length():
    log = pd.DataFrame({"user_id": [1], "group": ["adc"], "category": ["Hats"], "timestamp": [UNTIL]})
    with pytest.raises(BadInput, match=r"the label window must end after it begins, got 2026-02-09 .* to 2026-01-10"):
        click_rankings(log, UNTIL, AFTER, pd.Series([1]))


def test_click_rankings__users_may_be_a_list_or_an_array():
    log = pd.DataFrame({"user_id": [7], "group": "adc", "category": "Hats", "timestamp": AFTER + pd.Timedelta(days=1)})
    for user_ids in ([8, 7], np.array([8, 7]), pd.Series([8, 7], dtype="Int64")):
        assert click_rankings(log, AFTER, UNTIL, user_ids)[0].tolist() == [[-1], [0]]
