"""A summary with everything in it, and names that would do harm, for tests of pages in a browser."""

import numpy as np

from ammrank_dask.report.summary import summarise
from ammrank_dask.scoring.policies import PolicyCounts

N_CATEGORIES, K = 50, 10


def make_summary():
    """Return a night of 5,000 users with everything in it, and names that would do harm."""
    rng = np.random.default_rng(4)
    names = [f"Consumer Goods/Category number {code} with a rather long name" for code in range(N_CATEGORIES)]
    names[3] = "<script>document.title = 'taken'; console.error('taken')</script>"
    names[4] = "<img src=x onerror=\"document.title='taken'\">"
    names[5] = "Donaudampfschifffahrtselektrizitätenhauptbetriebswerkbauunterbeamtengesellschaft"
    weights = np.arange(1, N_CATEGORIES + 1) ** -0.5
    ranks = np.stack([rng.multinomial(5_000, weights / weights.sum()) for _ in range(K)], axis=1)
    ranks[7:9] = 0
    per_user = np.bincount(rng.binomial(25, 0.4, 5_000), minlength=N_CATEGORIES + 1)
    policies = {
        "user_top_k": PolicyCounts(ranks, np.bincount([K] * 5_000, minlength=N_CATEGORIES + 1)),
        "category_top_n": PolicyCounts(np.full((N_CATEGORIES, 1), 1_000), per_user),
    }
    quantiles = {"0.05": -0.6, "0.25": -0.1, "0.5": 0.01, "0.75": 0.2, "0.95": 0.8}
    means = {"hit_rate": 0.61, "precision": 0.08, "recall": 0.5}
    return summarise(
        policies,
        "user_top_k",
        (10_000 * weights).astype(np.int64),
        names,
        date="2026-03-08",
        cold_users=120,
        k=K,
        n_of={"category_top_n": 1_000},
        before=("2026-03-07", PolicyCounts(ranks[::-1], policies["user_top_k"].categories_per_user)),
        drift={
            "users": 4_990,
            "new_users": 10,
            "gone_users": 3,
            "changed_users": 0.31,
            "first_changed": 0.1,
            "jaccard": 0.87,
            "score_shift": {"pairs": 44_000, "mean": 0.02, "quantiles": quantiles},
            "model_changed": False,
        },
        realised=[
            {
                "nights": nights,
                "date": "2026-02-06",
                "measures": {"users": 700, "users_without_qualification": 2, **means, "popularity": means},
            }
            for nights in (1, 7, 30)
        ],
        groups=[
            {
                "gender": gender,
                "age": age,
                "users": 250,
                "top": [{"category": name, "share": 0.5} for name in names[start : start + 10]],
            }
            for gender in ("female", "male")
            for start, age in enumerate(("13-17", "18-20", "21-24", "25-29", "30-34", "35-44", "45-54", "55-64", "65+"))
        ],
    )
