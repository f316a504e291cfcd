"""The kernels once more as plain Python: what the compiler makes of them must be what they say."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

KERNEL_TESTS = [
    "ingest/test_interest.py",
    "kernels/test_ammrank_kernel.py",
    "kernels/test_score_kernel.py",
    "kernels/test_balanced_kernel.py",
    "kernels/test_plus_kernel.py",
]


@pytest.mark.parametrize("name", KERNEL_TESTS)
def test_kernels__hold_without_the_compiler(name):
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", str(Path(__file__).parents[1] / name)],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
