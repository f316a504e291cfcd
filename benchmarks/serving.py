"""What a service waits for before it can score: the import of the scorer, beside that of numpy, which is most of it."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from benchmarks.command_line import benchmark
from benchmarks.measure import children_cpu, describe_machine

PROGRAMS = {"nothing": "pass", "numpy": "import numpy", "ammrank_dask.serve": "import ammrank_dask.serve"}
ROUNDS, BAR = 10, 0.2


@benchmark("serve-import")
def measure_import(work: Path) -> None:
    """Print CPU seconds and seconds of processes that import nothing, numpy and the scorer, the best of several."""
    measured: dict[str, list[tuple[float, float]]] = {name: [] for name in PROGRAMS}
    for _ in range(ROUNDS):
        for name, program in PROGRAMS.items():
            measured[name].append(_run(program, work))
    print(f"\na process that imports …, best of {ROUNDS}; {describe_machine()}")
    best = {name: tuple(map(min, zip(*runs, strict=True))) for name, runs in measured.items()}
    for name, (cpu, seconds) in best.items():
        print(f"  {name:20} {cpu:6.3f} CPU s  {seconds:6.3f} s")
    print(f"  the import of the scorer takes {best['ammrank_dask.serve'][1] - best['nothing'][1]:.3f} s (bar {BAR})")


def _run(program: str, work: Path) -> tuple[float, float]:
    """Return CPU seconds and seconds of a process of Python."""
    before, started = children_cpu(), time.perf_counter()
    subprocess.run([sys.executable, "-c", program], check=True, cwd=work)
    seconds = time.perf_counter() - started
    return children_cpu() - before, seconds
