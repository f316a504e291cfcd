"""Hypothesis strategies for logs: few users and categories, so that cells meet, and times at the edges."""

import datetime as dt

from hypothesis import strategies as st
from reference import DAY, end_of

GROUPS = ("pv", "sq", "slc", "olc", "adv", "adc")
LATE_DAYS = 7
FIRST_DAY = dt.date(2026, 3, 26)  # a clock change of central Europe lies in the days that follow

# Three levels; `Rétail/…=..` and the script tag are legal names, and Bare is a root without children.
PARENT_OF = {
    "Finance": "",
    "Finance/Loans": "Finance",
    "Finance/Loans/Car": "Finance/Loans",
    "Finance/Loans/Home": "Finance/Loans",
    "Finance/Funds": "Finance",
    "Rétail": "",
    "Rétail/<script>": "Rétail",
    "Rétail/../x=y": "Rétail",
    "Rétail/../x=y/deep": "Rétail/../x=y",
    "Bare": "",
}
INTEGER_USERS = (-(2**63), -1, 0, 7, 11, 2**63 - 1)
STRING_USERS = ("a", "B", "ü", "a/b", "=cmd()", "user-0001")


def event_times(day: int):
    """Times that a folder may hold, the edges more often: from late_days before it up to exactly T."""
    end = end_of(FIRST_DAY + dt.timedelta(day))
    oldest = end - DAY - LATE_DAYS * DAY
    return st.one_of(st.integers(oldest, end), st.sampled_from([end, end - DAY, oldest, end - 1, end - DAY - 1]))


@st.composite
def logs(draw, users=INTEGER_USERS, max_days=4, max_events=25):
    """A log as one list of (user, group, category, time) for each of some consecutive days."""
    n_days = draw(st.integers(1, max_days))
    days = []
    for day in range(n_days):
        event = st.tuples(
            st.sampled_from(users), st.sampled_from(GROUPS), st.sampled_from(sorted(PARENT_OF)), event_times(day)
        )
        days.append(draw(st.lists(event, max_size=max_events)))
    return days
