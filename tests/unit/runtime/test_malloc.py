"""What tasks free is kept for the next one, and handed back where memory is short."""

import os
import subprocess
import sys

import pytest

from ammrank_dask.runtime.malloc import hand_back_freed

# Every second array is freed: what is kept lies above all that is free.
PROGRAM = """
import sys
import numpy as np, psutil
from ammrank_dask.runtime.malloc import hand_back_freed
arrays = [np.ones(1 << 17) for _ in range(200)]
del arrays[::2]
before = psutil.Process().memory_info().rss
was_tried = hand_back_freed(int(before * float(sys.argv[1])))
print(was_tried, before - psutil.Process().memory_info().rss > 60 << 20)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="malloc_trim is of GNU's C library")
@pytest.mark.parametrize(("limit_by_memory", "expected"), [(1.1, "True True"), (1.5, "False False")])
def test_hand_back_freed__above_its_share_of_the_limit(limit_by_memory, expected):
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "268435456", "MALLOC_TRIM_THRESHOLD_": "268435456"}
    command = [sys.executable, "-c", PROGRAM, str(limit_by_memory)]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == expected


@pytest.mark.parametrize("limit", [None, 0])
def test_hand_back_freed__not_without_a_limit(limit):
    assert not hand_back_freed(limit)


KEEPING = """
import numpy as np, psutil, pyarrow as pa
from ammrank_dask.runtime.malloc import keep_freed
keep_freed()
assert pa.default_memory_pool().backend_name == "system"
before = psutil.Process().memory_info().rss
array, buffer = np.ones(1 << 22), pa.allocate_buffer(1 << 22)
del array, buffer
print(psutil.Process().memory_info().rss - before > 30 << 20)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="mallopt is of GNU's C library")
def test_keep_freed__large_arrays_are_not_handed_back():
    found = subprocess.run([sys.executable, "-c", KEEPING], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "True"
