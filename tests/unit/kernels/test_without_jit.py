"""The kernels once more as plain Python: what the compiler makes of them must be what they say."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

UNIT = Path(__file__).parents[1]
KERNEL_TESTS = [
    "ingest/test_event_rows.py",
    "ingest/test_interest.py",
    "kernels/test_ammrank_kernel.py",
    "kernels/test_score_kernel.py",
    "kernels/test_balanced_kernel.py",
    "benchmarks/test_boosting_kernel.py",
    "kernels/test_plus_kernel.py",
    "kernels/test_exponential.py",
    "kernels/test_features_kernel.py",
    "kernels/test_chances_kernel.py",
    "kernels/test_scoring_plus_kernel.py",
    "kernels/test_selection_kernel.py",
]


@pytest.mark.night
@pytest.mark.skipif(os.environ.get("NUMBA_DISABLE_JIT") == "1", reason="the tests around it are this test")
def test_kernels__hold_without_the_compiler():
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        *(str(UNIT / name) for name in KERNEL_TESTS),
    ]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        command, env={**environment, "NUMBA_DISABLE_JIT": "1"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert int(re.search(r"(\d+) passed", done.stdout).group(1)) > 40
