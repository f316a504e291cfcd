"""Kernels are compiled once on a machine, whoever asks first."""

import contextlib
import fcntl
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import numpy as np
import pytest

from ammrank_dask.kernels import jit
from ammrank_dask.kernels.jit import kernel

WITH_COMPILER = pytest.mark.skipif(os.environ.get("NUMBA_DISABLE_JIT") == "1", reason="nothing is compiled")

MODULE = """
    import sys
    import numpy as np
    from ammrank_dask.kernels.jit import kernel

    @kernel
    def double(values):
        for i in range(len(values)):
            values[i] *= 2

    @kernel
    def quadruple(values):
        double(values)
        double(values)

    for name in sys.argv[1:]:
        values = np.arange(3).astype(name)
        quadruple(values)
        assert values.tolist() == [0, 4, 8], values
    print(*(sum(function.stats.cache_misses.values()) for function in (quadruple, double)))
"""


@contextlib.contextmanager
def held_lock(function):
    """Hold a kernel as another process does that compiles it."""
    folder = Path(function.stats.cache_path)
    folder.mkdir(parents=True, exist_ok=True)
    code = function.py_func.__code__
    with open(folder / f"test_jit.{code.co_name}-{code.co_firstlineno}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@WITH_COMPILER
def test_kernel__is_compiled_once_for_all_processes(tmp_path):
    script = tmp_path / "kernels_of_two.py"
    script.write_text(textwrap.dedent(MODULE))
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    runs = [
        subprocess.Popen([sys.executable, str(script), *types], env=environment, stdout=subprocess.PIPE, text=True)
        for types in (("int64", "float32"), ("float32", "int64"))
    ]
    printed = [run.communicate()[0] for run in runs]
    assert [run.returncode for run in runs] == [0, 0]
    compiled = np.array([line.split() for line in printed], int)
    assert compiled.sum(axis=0).tolist() == [2, 2]  # once for each of the two types


@WITH_COMPILER
def test_kernel__waits_for_who_compiles_it(tmp_path, monkeypatch):
    monkeypatch.setattr("numba.config.CACHE_DIR", str(tmp_path))

    @kernel
    def add_one(values):
        values[0] += 1

    values = np.zeros(1)
    caller = threading.Thread(target=add_one, args=(values,))
    with held_lock(add_one):
        caller.start()
        caller.join(0.3)
        assert caller.is_alive()
        assert values[0] == 0
    caller.join()
    assert values[0] == 1


@WITH_COMPILER
def test_kernel__works_where_nothing_can_be_locked(tmp_path, monkeypatch):
    monkeypatch.setattr("numba.config.CACHE_DIR", str(tmp_path))

    @kernel
    def subtract_one(values):
        values[0] -= 1

    def refuse(*arguments):
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    values = np.zeros(1)
    subtract_one(values)
    assert values[0] == -1


@WITH_COMPILER
def test_kernel__does_not_wait_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr("numba.config.CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(jit, "WAIT_SECONDS", 0.1)

    @kernel
    def add_two(values):
        values[0] += 2

    values = np.zeros(1)
    with held_lock(add_two):
        add_two(values)
    assert values[0] == 2


@WITH_COMPILER
def test_kernel__works_where_nothing_can_be_kept(tmp_path):
    """A read-only root and a home that cannot be written: numba finds no folder for its cache."""
    code = (
        "import numba.core.caching as caching\n"
        "caching.CacheImpl._locator_classes = []\n"
        "import numpy as np\n"
        "from ammrank_dask.kernels.jit import kernel\n"
        "@kernel\n"
        "def double(x):\n"
        "    return 2 * x\n"
        "assert double(3) == 6 and double.stats.cache_path is None, double.stats\n"
    )
    (tmp_path / "script.py").write_text(code)
    done = subprocess.run([sys.executable, str(tmp_path / "script.py")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@WITH_COMPILER
def test_kernel__is_compiled_again_when_one_that_it_calls_changed_in_another_file(tmp_path):
    """The result would be that of the old helper otherwise."""
    kernels = tmp_path / "kernels"
    kernels.mkdir()
    helper = "from ammrank_dask.kernels.jit import kernel\n\n@kernel\ndef step(value):\n    return value + {}\n"
    caller = "from ammrank_dask.kernels.jit import kernel\nfrom helper import step\n\n@kernel\ndef twice(value):\n"
    (kernels / "caller.py").write_text(f"{caller}    return step(step(value))\n\nprint(twice(0))\n")
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    printed = []
    for number in (1, 1, 5):
        (kernels / "helper.py").write_text(helper.format(number))
        done = subprocess.run(
            [sys.executable, str(kernels / "caller.py")], env=environment, capture_output=True, text=True, check=True
        )
        printed.append(int(done.stdout))
    assert printed == [2, 2, 10]
