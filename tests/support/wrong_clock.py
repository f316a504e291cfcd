"""Let a process see another time of day than its machine, as a host does whose clock was never set."""

import subprocess
from pathlib import Path

_SOURCE = r"""
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long seconds_ahead(void) {
    const char *text = getenv("SECONDS_AHEAD");
    return text ? atol(text) : 0;
}

int clock_gettime(clockid_t id, struct timespec *now) {
    int failed = syscall(SYS_clock_gettime, id, now);
    if (!failed && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) now->tv_sec += seconds_ahead();
    return failed;
}

int gettimeofday(struct timeval *now, void *zone) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (out) *out = exact.tv_sec;
    return exact.tv_sec;
}
"""


def wrong_clock(folder: Path, seconds_ahead: int) -> dict[str, str]:
    """Compile a library that moves the clock, and return the environment of a process that lives by it.

    Times of files are stamped by the kernel and stay right, as those of a file server are.
    """
    source, library = folder / "wrong_clock.c", folder / "wrong_clock.so"
    source.write_text(_SOURCE, encoding="utf-8")
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", str(library), str(source)], check=True)
    return {"LD_PRELOAD": str(library), "SECONDS_AHEAD": str(seconds_ahead)}
