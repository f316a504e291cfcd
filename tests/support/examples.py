"""How many examples hypothesis tries, and which: the same ones in every run, fewer without the compiler.

`HYPOTHESIS_PROFILE=search` tries others in each run; `make test-random` does. `nojit` is in force where kernels run as
plain Python.
"""

import os

from hypothesis import settings

FEWEST = 10
PROFILE = os.environ.get("HYPOTHESIS_PROFILE") or ("nojit" if os.environ.get("NUMBA_DISABLE_JIT") == "1" else "same")

settings.register_profile("same", deadline=None, derandomize=True)
settings.register_profile("search", deadline=None)
settings.register_profile("nojit", deadline=None, derandomize=True, max_examples=FEWEST)


def examples(number: int, **options) -> settings:
    """Return the settings of a test that tries `number` examples, or as many as the profile allows."""
    return settings(max_examples=min(number, FEWEST) if PROFILE == "nojit" else number, **options)
