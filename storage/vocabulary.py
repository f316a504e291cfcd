"""Define the names that code, storage, reports and users share."""

GROUPS = ("pv", "sq", "slc", "olc", "adv", "adc")
PAGE_VIEW_GROUP = "pv"
CLICK_GROUP = "adc"
AD_VIEW_GROUP = "adv"
IGNORE_GROUP = "ignore"

USER_ID, GROUP, CATEGORY, TIMESTAMP = "user_id", "group", "category", "timestamp"
AGE, GENDER = "age", "gender"
PARENT = "parent"
RANK, SCORE, CHANCE, PROPENSITY, CHANGE = "rank", "score", "chance", "propensity", "change"
INCLUSION, HELD_BY, COLD, VALUE = "inclusion", "held_by", "cold", "value"

POLICY_NAMES = ("user_top_k", "category_top_n", "balanced")
"""Policies in the order in which a stored set of them numbers them."""

GENDERS = ("female", "male")
# Lower bounds of the nine age buckets of the paper; ages below the first have no bucket.
AGE_BUCKET_STARTS = (13, 18, 21, 25, 30, 35, 45, 55, 65)
AGE_BUCKETS = ("13-17", "18-20", "21-24", "25-29", "30-34", "35-44", "45-54", "55-64", "65+")
MAX_AGE = 120

INTENSITY, RECENCY = "intensity", "recency"
DAY_US = 86_400_000_000

USERS_A_PARTITION = 50_000
"""Users of a partition when nobody says otherwise: writing an array costs 3 ms, so few and large ones."""

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
"""A spreadsheet takes a cell whose text begins so for a formula, and runs it."""
PERIODS = (1, 3, 12)
"""Label windows before a moment in which clicking users are counted: the last one, a quarter, a year of months."""
