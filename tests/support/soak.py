"""Let writers that are killed and stopped publish nights in one bucket of a server that fails, and count what fails.

`PYTHONPATH=tests/support python tests/support/soak.py MINUTES FOLDER` runs it and leaves in the folder what the writers
noted; each writer is a process of its own.
"""

import contextlib
import datetime as dt
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path

from ammrank_dask.storage.errors import AmmrankError, SiteBusy, StoreFailed
from ammrank_dask.storage.objects.posix import open_objects
from ammrank_dask.storage.objects.store import GUARDS, StoreObjects
from ammrank_dask.storage.site.lease import hold
from ammrank_dask.storage.site.root import Root, move_root, read_root

SECONDS = 2.0
"""How long a lease lasts."""
PARTS = 3
KEPT_NIGHTS = 3
EXIT_BUSY, EXIT_FAILED = 75, 1


class Unreliable(StoreObjects):
    """A store whose process is at times stopped or killed just before a request of the holder.

    That is after the holder has asked whether it still is: a stop there is between a look and a write, a list and a
    delete.
    """

    def delete(self, keys):
        """Remove objects."""
        keys = list(keys)
        if keys and str(self) in GUARDS and random.random() < 0.15:
            note({"stopped": "between list and delete"})
            os.kill(os.getpid(), signal.SIGSTOP)
        super().delete(keys)

    @contextlib.contextmanager
    def _opened(self):
        if str(self) in GUARDS:
            drawn = random.random()
            if drawn < 0.012:
                os.kill(os.getpid(), signal.SIGSTOP if drawn < 0.008 else signal.SIGKILL)
        with super()._opened() as store:
            yield store


def note(facts):
    """Write down what a writer does, in a file of its own."""
    with open(sys.argv[3], "a", encoding="utf-8") as file:
        file.write(json.dumps(facts) + "\n")


def parts_of(key):
    """Return the objects of a run: the last one says what the others hold."""
    parts = {f"{key}/part-{number}": f"{key.partition('-g')[0]} {number} ".encode() * 50 for number in range(PARTS)}
    manifest = {name: hashlib.sha256(data).hexdigest() for name, data in parts.items()}
    return {**parts, f"{key}/manifest.json": json.dumps(manifest).encode()}


def is_whole(objects, key):
    """Return whether a run is what was written."""
    try:
        manifest = json.loads(objects.get(f"{key}/manifest.json")[0])
        return all(hashlib.sha256(objects.get(name)[0]).hexdigest() == digest for name, digest in manifest.items())
    except FileNotFoundError:
        return False


def move(objects, change):
    """Write ROOT, and then remove what nothing names any more, unless another run has the site by now."""
    root, tag = read_root(objects)
    root = change(root or Root())
    move_root(objects, root, tag)
    with contextlib.suppress(SiteBusy, StoreFailed):
        remove_unnamed(objects, root)


def remove_unnamed(objects, root):
    """Remove runs that ROOT does not name."""
    listed = [found.key for found in objects.list("state/")]
    objects.delete([key for key in listed if "/".join(key.split("/")[:2]) not in {*root.kept, *root.building}])


def publish_night(objects, command):
    """Publish the night after the newest one."""
    root = read_root(objects)[0] or Root()
    remove_unnamed(objects, root)
    date = root.date + dt.timedelta(1) if root.date else dt.date(2026, 1, 1)
    key = root.place(f"state/date={date}-{hashlib.sha256(str(date).encode()).hexdigest()[:8]}")
    move(objects, lambda root: root.begin([key]))
    for name, data in parts_of(key).items():
        objects.put(name, [data])

    def publish(root):
        root = root.keep([key])
        commands = {**root.unfinished, str(date): command}
        commands = {night: commands[night] for night in sorted(commands)[-100:]}
        nights = (*root.nights, date)[-KEPT_NIGHTS:]
        gone = [one for one in root.kept if one[11:21] not in set(map(str, nights))]
        return replace(root, date=date, runs={"head": key}, nights=nights, unfinished=commands).discard(gone)

    move(objects, publish)


def write(where):
    """Publish nights until the process is killed, and note how each command ended."""
    plain = open_objects(where)
    objects = Unreliable(plain.url, plain.options)
    while True:
        command, code, error = uuid.uuid4().hex[:12], 0, ""
        try:
            with hold(objects):
                publish_night(objects, command)
        except AmmrankError as failure:
            code, error = EXIT_BUSY if isinstance(failure, SiteBusy) else EXIT_FAILED, str(failure)
        note({"command": command, "exit": code, "error": error})
        time.sleep(random.random() * SECONDS / 4)


class Soak:
    """Writers, their server, a reader, and what was seen."""

    def __init__(self, server, where, folder, n_writers=4):
        self.server, self.where, self.folder = server, where, Path(folder)
        self.objects = open_objects(where)
        self.n_writers = n_writers
        self.counts = Counter()
        self.commands_of = defaultdict(set)
        """By night, the commands that published it."""
        self.seen = []
        """The contents of ROOT, as a reader saw them."""
        self.problems = []
        self._is_over = threading.Event()

    def run(self, seconds):
        """Let the writers write, then check all they left."""
        random.seed(self.where)
        reader = threading.Thread(target=self._read)
        reader.start()
        with self.server.faults(self._fail), self.server.losses(self._lose):
            self._write(time.monotonic() + seconds)
        self._is_over.set()
        reader.join()
        self._check()
        return self.counts

    def _fail(self, method, path):
        drawn = random.random()
        if drawn < 0.02:
            self.counts["slow answers"] += 1
            time.sleep(random.random() * SECONDS / 2)
        elif drawn < 0.04:
            self.counts["500s and 503s"] += 1
            return random.choice([("500 Internal Server Error", "InternalError"), ("503 Slow Down", "SlowDown")])
        elif drawn < 0.07 and is_conditional(method, path):
            self.counts["409s"] += 1
            return "409 Conflict", "ConditionalRequestConflict"
        return None

    def _lose(self, method, path):
        drawn = random.random()
        if is_conditional(method, path) and drawn < 0.1:
            self.counts["lost answers"] += 1
            return random.choice([("reset", ""), ("500 Internal Server Error", "InternalError")])
        if drawn > 0.98:  # carried out, and answered late
            time.sleep(random.random() * SECONDS / 2)
        return None

    def _write(self, end):
        environment = {**os.environ, "AMMRANK_LEASE_SECONDS": str(SECONDS)}
        wakes, number = {}, 0
        writers = {}
        while time.monotonic() < end:
            while len(writers) < self.n_writers:
                number += 1
                command = [sys.executable, __file__, "write", self.where, str(self.folder / f"writer-{number}.jsonl")]
                started = subprocess.Popen(command, env=environment)
                writers[started.pid] = started
            for pid in list(writers):
                found, status = os.waitpid(pid, os.WNOHANG | os.WUNTRACED)
                if found and os.WIFSTOPPED(status):
                    length = random.choice([0.3, 1.5, 2.5]) * SECONDS
                    self.counts["stops beyond the lease" if length > SECONDS else "short stops"] += 1
                    wakes[pid] = time.monotonic() + length
                elif found:
                    self.counts["kills"] += 1
                    writers.pop(pid).returncode = status
                    assert os.WTERMSIG(status) == signal.SIGKILL, f"a writer ended with {status}"
            if random.random() < 0.002:  # at any moment, also between two instructions
                victim = random.choice(list(writers))
                os.kill(victim, random.choice([signal.SIGSTOP, signal.SIGKILL]))
            for pid, when in list(wakes.items()):
                if when < time.monotonic():
                    del wakes[pid]
                    if pid in writers:
                        os.kill(pid, signal.SIGCONT)
            time.sleep(0.02)
        for process in writers.values():
            process.kill()
            process.wait()

    def _read(self):
        """Read what is published, all the time, as its readers do."""
        while not self._is_over.is_set():
            with contextlib.suppress(AmmrankError):  # an answer of the server
                root = read_root(self.objects)[0]
                self._note(root)
                if root is None or root.date is None:
                    continue
                self.counts["reads"] += 1
                if not is_whole(self.objects, root.runs["head"]):
                    now = read_root(self.objects)[0]
                    if (now.date - root.date).days < KEPT_NIGHTS:
                        self.problems.append(f"torn: {root.date}")
            time.sleep(0.02)

    def _note(self, root):
        if root is None:
            return
        for night, command in root.unfinished.items():
            self.commands_of[night].add(command)
        if not self.seen or self.seen[-1].writes[0] != root.writes[0]:
            if self.seen and self.seen[-1].writes[0] not in root.writes:
                self.problems.append(f"lost: write {self.seen[-1].number}")
            if self.seen and root.date and self.seen[-1].date and root.date < self.seen[-1].date:
                self.problems.append(f"back in time: {root.date}")
            self.seen.append(root)

    def _check(self):
        """Compare what was published with how its commands ended; then publish once more, and look for what is left."""
        with hold(self.objects):
            publish_night(self.objects, "last")
        root = read_root(self.objects)[0]
        self._note(root)
        ends = {}
        for path in self.folder.glob("writer-*.jsonl"):
            for line in path.read_text(encoding="utf-8").splitlines():
                noted = json.loads(line)
                if "stopped" in noted:
                    self.counts[f"stops {noted['stopped']}"] += 1
                    continue
                ends[noted["command"]] = noted["exit"]
                self.counts[f"commands that exited {noted['exit']}"] += 1
        published = {command for commands in self.commands_of.values() for command in commands}
        self.counts["nights"] = len(self.commands_of)
        self.counts["holders"] = len({root.epoch for root in self.seen})
        self.problems += [f"double: {night}" for night, commands in self.commands_of.items() if len(commands) > 1]
        self.problems += [f"published and exited {ends[one]}: {one}" for one in published if ends.get(one, 0)]
        self.problems += [f"exited 0, not published: {one}" for one in ends if not ends[one] and one not in published]
        nights = sorted(map(dt.date.fromisoformat, self.commands_of))
        days = [nights[0] + dt.timedelta(number) for number in range(len(nights))]
        self.problems += ["a night is missing"] if nights != days else []
        self.problems += [f"damaged: {key}" for key in root.kept if not is_whole(self.objects, key)]
        named = {name for key in root.kept for name in parts_of(key)}
        listed = {found.key for found in self.objects.list("state/")}
        self.problems += [f"left: {key}" for key in sorted(listed - named)]


def is_conditional(method, path):
    """Return whether a request writes an object under a condition."""
    return method == "PUT" and (path.endswith(("/ROOT", "/LOCK")) or "/roots/" in path)


def run(minutes, folder):
    """Run it, print the counts, and end with 1 if anything went wrong."""
    from s3 import serve_s3

    Path(folder).mkdir(parents=True)
    with serve_s3() as server:
        server.make_bucket("soak")
        soak = Soak(server, server.url("soak/site"), folder)
        counts = soak.run(60 * minutes)
    print(json.dumps(dict(sorted(counts.items())), indent=1))
    print("\n".join(soak.problems) or "0 torn, 0 double, 0 lost, 0 published though the command did not exit with 0")
    raise SystemExit(bool(soak.problems))


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(sys.argv[2])
    else:
        run(float(sys.argv[1]), sys.argv[2])
