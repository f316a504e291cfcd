"""Tasks in threads of the command: results in order, the first error, what may pass is tried again."""

import errno
import os
import threading
import time

import pytest

from ammrank_dask.runtime.thread_tasks import read_ahead, run_in_threads, write_behind
from ammrank_dask.storage.objects import retry


def test_run_in_threads__results_in_order_and_progress():
    told = []
    squares = run_in_threads("square", pow, [(n, 2) for n in range(20)], progress=lambda *args: told.append(args))
    assert squares == [n * n for n in range(20)]
    assert told == [("square", done, 20) for done in range(21)]
    assert run_in_threads("square", pow, []) == []


def test_run_in_threads__the_first_error_is_raised_when_nothing_runs_any_more(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    failed, begun, ended = threading.Event(), [], []

    def work(number):
        begun.append(number)
        if number == 0:
            failed.set()
            raise ValueError("task 0 cannot be done")
        failed.wait()
        time.sleep(0.05)  # so that they are not all done before the error is seen
        ended.append(number)

    with pytest.raises(ValueError, match="task 0 cannot be done"):
        run_in_threads("work", work, [(n,) for n in range(1000)])
    assert sorted(begun) == [0, *sorted(ended)]
    assert len(begun) < 1000


def test_run_in_threads__an_error_that_may_pass_is_tried_again(monkeypatch):
    monkeypatch.setattr(retry, "PAUSES_OF_TASKS", (0.0, 0.0))
    tries = []

    def work(n_failures):
        tries.append(n_failures)
        if len(tries) <= n_failures:
            raise OSError(errno.EIO, "the disk does not answer")
        return "done"

    assert run_in_threads("work", work, [(2,)]) == ["done"]
    assert len(tries) == 3
    tries.clear()
    with pytest.raises(OSError, match="the disk does not answer"):
        run_in_threads("work", work, [(3,)])


def test_read_ahead__one_more_is_read_while_one_is_worked_on():
    asked = [threading.Event() for _ in range(4)]

    def read(number):
        asked[number].set()
        return number * number

    reading = read_ahead(read, range(4))
    assert not asked[0].is_set()
    assert next(reading) == 0
    assert asked[1].wait(60)
    assert not asked[2].is_set()
    assert list(reading) == [1, 4, 9]
    assert list(read_ahead(read, [])) == []


def test_read_ahead__an_error_is_raised_at_its_item():
    reading = read_ahead(lambda number: 1 // number, [1, 0, 1])
    assert next(reading) == 1
    with pytest.raises(ZeroDivisionError):
        next(reading)


def test_write_behind__one_is_written_while_the_next_is_made():
    events = []
    made_next = threading.Event()

    def make():
        for number in range(3):
            if number == 1:
                made_next.set()
            yield number

    def write(number):
        assert made_next.wait(10)  # would wait for ever if the next were made only after this
        events.append(number)
        return -number

    assert write_behind(write, make()) == [0, -1, -2]
    assert events == [0, 1, 2]
    assert write_behind(write, []) == []


def test_write_behind__an_error_ends_it():
    made = []

    def make():
        for number in (1, 0, 1, 1):
            made.append(number)
            yield number

    with pytest.raises(ZeroDivisionError):
        write_behind(lambda number: 1 // number, make())
    assert len(made) == 3
