"""Read odd files in a process of its own, which may die, hang or take all memory without harm to who watches it."""

from __future__ import annotations

import faulthandler
import os
import random
import resource
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.fuzz.targets import Target

SECONDS = 20
"""Within which a file is read or refused."""
GIB = 1 << 30
MEMORY = 6 * GIB
"""Address space of the process; libraries take about a third of it before anything is read."""
GROWTH = GIB
"""How much more memory than at its start the process may ever have used."""
LONGEST = 2_000
"""Characters of a message."""


@dataclass
class Outcome:
    """What became of the files: how many were read and refused by target, and each that neither was."""

    read: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)

    @property
    def cases(self) -> int:
        """Files that were tried."""
        return self.read.total() + self.refused.total() + len(self.findings)


def try_files(
    seed: int, seconds: float, targets: Sequence[str] = (), cases: int | None = None, patience: float = SECONDS
) -> Outcome:
    """Try odd files for so long, or so many. A process that dies or hangs is a finding, and another one goes on."""
    outcome, end, first = Outcome(), time.monotonic() + seconds, 0
    while time.monotonic() < end and (cases is None or first < cases):
        command = [sys.executable, "-m", "tests.fuzz.machine", str(seed), str(first), str(cases or -1), *targets]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as child:
            first = _watch(child, end, outcome, first, seed, patience)
    return outcome


def _watch(child: subprocess.Popen[str], end: float, outcome: Outcome, first: int, seed: int, patience: float) -> int:
    """Note what a process says of each file until it ends; return the number of the next file."""
    at, said, beat = "", [], [time.monotonic() + 3 * SECONDS]
    done = threading.Event()

    def guard() -> None:
        while not done.wait(0.2):
            if time.monotonic() > min(beat[0], end):
                child.kill()

    watcher = threading.Thread(target=guard, daemon=True)
    watcher.start()
    assert child.stdout is not None
    for line in child.stdout:
        word, _, rest = line.rstrip("\n").partition("\t")
        if word == "try":
            at, said, beat[0] = rest, [], time.monotonic() + patience
            first = int(at.split("\t")[0]) + 1
        elif word in ("read", "refused"):
            getattr(outcome, word)[rest] += 1
            at = ""
        elif word == "found":
            outcome.findings.append(_finding(seed, at, "neither read nor refused", said))
            at = ""
        else:
            said.append(line)
    done.set()
    watcher.join()
    code, now = child.wait(), time.monotonic()
    if code != 0 and now < end:
        if not first:
            raise RuntimeError("".join(said))
        why = f"no answer within {patience:g} s" if now > beat[0] else f"exit code {code}"
        outcome.findings.append(_finding(seed, at, why, said))
    return first


def _finding(seed: int, at: str, why: str, said: Sequence[str]) -> str:
    return f"seed {seed}, file {at.replace(chr(9), ', ')}: {why}\n{''.join(said[-40:])}"


def main(seed: int, first: int, cases: int, names: Sequence[str]) -> None:
    """Try the files from a number on; a file that is neither read nor refused ends the process."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
    from tests.fuzz.targets import make_targets

    faulthandler.enable(sys.stdout)
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory(prefix="ammrank-fuzz-") as folder:
        targets = make_targets(Path(folder), names)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        at_start = _used()
        number = first
        while number != cases:
            rng = random.Random(f"{seed}-{number}")
            name = rng.choice(list(targets))
            print(f"try\t{number}\t{name}", flush=True)
            targets[name].change(rng)
            print(f"{_read(targets[name], rng, at_start)}\t{name}", flush=True)
            number += 1


def _read(target: Target, rng: random.Random, at_start: int) -> str:
    """Return what became of a file; print what is wrong with how it was read."""
    from ammrank_dask.storage.errors import AmmrankError

    word = "read"
    try:
        target.read(rng)
    except AmmrankError as error:
        word, message = "refused", str(error)
        if "\n" in message or not 0 < len(message) < LONGEST:
            print(f"not one sentence: {message[:3000]!r}")
            return "found"
    except Exception:
        traceback.print_exc(file=sys.stdout)
        return "found"
    if _used() - at_start > GROWTH:
        print(f"{(_used() - at_start) >> 20} MiB more than at the start")
        sys.stdout.flush()
        os._exit(1)
    return word


def _used() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


if __name__ == "__main__":
    _, of_seed, from_number, until, *names = sys.argv
    main(int(of_seed), int(from_number), int(until), names)
