"""What a run of tasks leaves behind when it ends early."""

import itertools
import os
import re
import signal
import subprocess
import sys
import threading
import time

import dask
import psutil
import pytest
from distributed import Client, LocalCluster, Status

from ammrank_dask.monitor.events import TOPIC
from ammrank_dask.runtime import stop_tasks, task_workers, tasks
from ammrank_dask.runtime.tasks import (
    SECONDS_BEFORE_RETURN,
    driver_id,
    run_batches,
    run_calls,
    run_checked,
    run_tasks,
    run_together,
)
from ammrank_dask.runtime.thread_tasks import batches
from ammrank_dask.storage.errors import AmmrankError, BadInput
from ammrank_dask.workflows.cluster.checks import CheckedWorker, ClientView, package_versions


@pytest.fixture
def client():
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


def test_run_tasks__leaves_the_pace_of_the_callers_client_as_it_is(client):
    before = client.scheduler_comm.interval
    assert run_tasks(client, "sums", sum, [([1, 2],)]) == [3]
    assert client.scheduler_comm.interval == before


def wait_for(path):
    while not path.exists():
        time.sleep(0.01)


def work(folder, name, seconds):
    """Leave a file at the beginning and one at the end; the task of 0 seconds fails once all others have begun."""
    if not seconds:
        wait_for(folder / "slow.begun")
        raise ValueError("the disk is full")
    (folder / f"{name}.begun").touch()
    time.sleep(seconds)
    (folder / f"{name}.ended").touch()


def work_until_told(folder, name, waits):
    """Leave a file at the beginning, wait for the file `go`, leave another; or fail once the others have begun."""
    if not waits:
        work(folder, name, 0)
    (folder / f"{name}.begun").touch()
    wait_for(folder / "go")
    (folder / f"{name}.ended").touch()


@pytest.fixture
def go(client, tmp_path):
    """Let tasks that wait to be told go on, at the end of the test at the latest, before their cluster closes."""
    yield tmp_path / "go"
    (tmp_path / "go").touch()


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def test_run_tasks__a_failure_waits_for_the_tasks_that_still_run(client, tmp_path):
    items = [(tmp_path, "slow", 1.0), (tmp_path, "bad", 0), *((tmp_path, f"later-{i}", 0.1) for i in range(9))]
    with pytest.raises(ValueError, match="the disk is full"):
        run_tasks(client, "write", work, items)
    left = names_in(tmp_path)
    assert "slow.ended" in left
    assert [name for name in left if name.endswith(".begun")] == [
        name.replace(".ended", ".begun") for name in left if name.endswith(".ended")
    ]
    time.sleep(0.5)
    assert names_in(tmp_path) == left


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, RuntimeError])
def test_run_tasks__an_interrupt_waits_too(client, tmp_path, error):
    def stop(index, result):
        wait_for(tmp_path / "slow.begun")
        raise error

    items = [(tmp_path, "first", 0.01), (tmp_path, "slow", 1.0), *((tmp_path, f"later-{i}", 0.2) for i in range(9))]
    with pytest.raises(error):
        run_tasks(client, "write", work, items, on_result=stop)
    left = names_in(tmp_path)
    assert "slow.ended" in left
    assert len(left) % 2 == 0
    time.sleep(0.5)
    assert names_in(tmp_path) == left


def test_run_tasks__a_long_wait_is_told_once(client, tmp_path, go, monkeypatch, caplog):
    monkeypatch.setattr(stop_tasks, "SECONDS_BEFORE_WARNING", 0.3)

    def end_after_warning():
        while "still run" not in caplog.text:
            time.sleep(0.01)
        time.sleep(1.0)  # more than twice as long as until the first warning
        go.touch()

    watcher = threading.Thread(target=end_after_warning)
    watcher.start()
    with (
        caplog.at_level("WARNING", stop_tasks.__name__),
        pytest.raises(ValueError, match="the disk is full"),
    ):
        run_tasks(client, "write", work_until_told, [(tmp_path, "slow", True), (tmp_path, "bad", False)])
    watcher.join()
    assert [record.getMessage() for record in caplog.records if record.name == stop_tasks.__name__] == [
        "stage write ended early and 1 of its tasks still run; it waits until they have stopped"
    ]
    assert names_in(tmp_path) == ["go", "slow.begun", "slow.ended"]


@pytest.mark.usefixtures("go")
def test_run_tasks__the_wait_has_an_end(client, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(stop_tasks, "SECONDS_TO_STOP", 0.5)
    with (
        caplog.at_level("WARNING", stop_tasks.__name__),
        pytest.raises(ValueError, match="the disk is full"),
    ):
        run_tasks(client, "write", work_until_told, [(tmp_path, "slow", True), (tmp_path, "bad", False)])
    assert names_in(tmp_path) == ["slow.begun"]
    assert "1 of its tasks still run; it does not wait for them any longer" in caplog.text


@pytest.mark.usefixtures("go")
def test_run_tasks__ctrl_c_ends_the_wait_at_once(client, tmp_path):
    def press():
        wait_for(tmp_path / "slow.begun")
        time.sleep(0.5)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    thread = threading.Thread(target=press)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            run_tasks(client, "write", work_until_told, [(tmp_path, "slow", True), (tmp_path, "bad", False)])
        assert names_in(tmp_path) == ["slow.begun"]
    finally:
        thread.join()
        signal.signal(signal.SIGINT, before)


def freeze(folder, name, seconds):
    """Stop the whole worker in the middle of a task."""
    (folder / "pid").write_text(str(os.getpid()))
    (folder / "slow.begun").touch()
    os.kill(os.getpid(), signal.SIGSTOP)


def freeze_or_fail(folder, name, seconds):
    (freeze if seconds else work)(folder, name, seconds)


def test_run_tasks__a_worker_that_does_not_answer_is_given_up(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(stop_tasks, "SECONDS_TO_ANSWER", 1.0)
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address=None) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        with (
            caplog.at_level("WARNING", stop_tasks.__name__),
            pytest.raises(ValueError, match="the disk is full"),
        ):
            run_tasks(client, "write", freeze_or_fail, [(tmp_path, "slow", 1.0), (tmp_path, "bad", 0)])
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    assert "workers do not say whether its tasks still run; it does not wait for them any longer" in caplog.text


def test_run_tasks__a_scheduler_that_is_gone_is_not_waited_for(tmp_path, monkeypatch):
    cluster = LocalCluster(n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None)

    def close(index, result):
        cluster.close()
        raise RuntimeError("no connection")

    with Client(cluster, set_as_default=False) as client:
        monkeypatch.setattr(stop_tasks, "SECONDS_TO_STOP", 3600.0)
        with pytest.raises(AmmrankError, match="the scheduler is gone since stage write; run the command again"):
            run_tasks(client, "write", work, [(tmp_path, str(i), 0.01) for i in range(20)], on_result=close)


def test_run_tasks__ends_when_the_scheduler_is_gone_and_a_task_is_never_reported(client, tmp_path, go, monkeypatch):
    began = time.monotonic()
    for module in (tasks, stop_tasks):
        monkeypatch.setattr(module, "is_scheduler_gone", lambda client: time.monotonic() - began > 0.5)
    with pytest.raises(AmmrankError, match="the scheduler is gone since stage lost; run the command again to go on"):
        run_tasks(client, "lost", wait_for, [(tmp_path / "go",)])
    assert not go.exists()


def fail_so_often(folder, name, n_failures, error):
    """Count the calls in files, and fail in the first of them."""
    n_calls = len(list(folder.glob(f"{name}-*")))
    (folder / f"{name}-{n_calls}").touch()
    if n_calls < n_failures:
        raise error
    return name


def count_calls(folder, name):
    return len(list(folder.glob(f"{name}-*")))


@pytest.mark.parametrize(
    "error", [OSError(5, "Input/output error"), OSError(116, "Stale file handle"), MemoryError()], ids=repr
)
def test_run_tasks__an_error_that_may_pass_is_tried_twice_more(client, tmp_path, error):
    items = [(tmp_path, "sound", 0, error), (tmp_path, "once", 1, error), (tmp_path, "twice", 2, error)]
    assert run_tasks(client, "write", fail_so_often, items) == ["sound", "once", "twice"]
    assert [count_calls(tmp_path, name) for name in ("sound", "once", "twice")] == [1, 2, 3]
    with pytest.raises(type(error)):
        run_tasks(client, "write", fail_so_often, [(tmp_path, "thrice", 3, error)])
    assert count_calls(tmp_path, "thrice") == 3


@pytest.mark.parametrize(
    "error",
    [
        BadInput("row 3 is bad"),
        ValueError("a mistake"),
        OSError(28, "No space left on device"),
        PermissionError(13, "no"),
    ],
    ids=repr,
)
def test_run_tasks__bad_input_mistakes_and_full_disks_are_not_tried_again(client, tmp_path, error):
    with pytest.raises(type(error)):
        run_tasks(client, "write", fail_so_often, [(tmp_path, "bad", 1, error)])
    assert count_calls(tmp_path, "bad") == 1


def test_run_tasks__a_worker_without_the_package_is_one_sentence(client, tmp_path):
    error = ModuleNotFoundError("No module named 'ammrank_dask'")
    with pytest.raises(AmmrankError, match=r"a worker has not what stage write needs \(No module.*same version every"):
        run_tasks(client, "write", fail_so_often, [(tmp_path, "bad", 9, error)])


def test_run_tasks__a_worker_that_joins_and_does_not_pass_takes_no_task(tmp_path):
    other = {**package_versions(), "numpy": "1.0"}
    (tmp_path / "mark").touch()
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        client.register_plugin(CheckedWorker("another driver", ClientView(tmp_path, "mark", other, 0.0)))
        assert run_tasks(client, "write", abs, [(-1,)]) == [1]
        client.register_plugin(CheckedWorker(driver_id(), ClientView(tmp_path, "mark", package_versions(), 0.0)))
        assert run_tasks(client, "write", abs, [(-1,)]) == [1]
        client.unregister_worker_plugin(f"ammrank-check-{driver_id()}")
        client.register_plugin(CheckedWorker(driver_id(), ClientView(tmp_path, "mark", other, 0.0)))
        refused = client.submit(run_checked, driver_id(), [(abs, (-1,))], False)
        time.sleep(5 * SECONDS_BEFORE_RETURN)
        assert refused.status == "pending"  # it goes back and back, until a worker may run it
        cluster.scale(2)
        client.wait_for_workers(2, timeout=60)
        asked = client.run(lambda dask_worker: dask_worker.plugins[f"ammrank-check-{driver_id()}"].refusal)
        assert [re.sub(r"\S+://\S+", "HERE", answer) for answer in asked.values()] == 2 * [
            f"the worker at HERE has numpy {package_versions()['numpy']} instead of 1.0; install the same versions"
            " everywhere"
        ]
        client.unregister_worker_plugin(f"ammrank-check-{driver_id()}")
        assert refused.result(timeout=60) == [1]
        assert sorted(path.name for path in tmp_path.iterdir()) == ["mark"]


def lose_workers(folder, name):
    """Leave a file, and wait for what never comes."""
    (folder / f"{name}.begun").touch()
    wait_for(folder / "never")


def kill_for_good(cluster, folder):
    """Kill all workers of a cluster once one of them has begun a task; nobody starts them again."""
    wait_for(folder / "0.begun")
    for nanny in cluster.workers.values():
        nanny.status = Status.closing_gracefully  # a running one starts its worker again
        os.kill(nanny.pid, signal.SIGKILL)


def test_run_tasks__workers_that_are_gone_for_good_end_the_wait(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(task_workers, "SECONDS_WITHOUT_WORKERS", 1.0)
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address=None) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        killer = threading.Thread(target=kill_for_good, args=(cluster, tmp_path))
        killer.start()
        with (
            caplog.at_level("WARNING", "ammrank_dask.runtime.tasks"),
            pytest.raises(AmmrankError, match="stage write has had no worker for 1 s: they are gone, or paused for"),
        ):
            run_tasks(client, "write", lose_workers, [(tmp_path, str(i)) for i in range(5)])
        killer.join()
    assert "stage write: there is no worker now; it waits 1 s for one" in caplog.text


def test_run_tasks__a_cluster_without_workers_may_start_them():
    with (
        LocalCluster(n_workers=0, threads_per_worker=1, processes=False, dashboard_address=None) as cluster,
        Client(cluster, set_as_default=False) as client,
        dask.config.set({task_workers.PATIENCE: "20s"}),
    ):
        cluster.adapt(minimum=0, maximum=2, interval="100ms")
        assert run_tasks(client, "write", os.path.basename, [("a/b",), ("a/c",)]) == ["b", "c"]


def test_run_tasks__a_scheduler_that_gives_up_first_says_the_same():
    with (
        dask.config.set({task_workers.PATIENCE: "300ms"}),
        LocalCluster(n_workers=0, processes=False, dashboard_address=None) as cluster,
        Client(cluster, set_as_default=False) as client,
        dask.config.set({task_workers.PATIENCE: None}),
        pytest.raises(AmmrankError, match=r"stage write has had no worker for 0\.3 s"),
    ):
        run_tasks(client, "write", os.path.basename, [("a/b",)])


def test_workers__that_a_busy_scheduler_does_not_describe_are_there(client, monkeypatch):
    workers = task_workers.TaskWorkers(client, "write", 2)
    flight = tasks._Flight(client, "write", [])
    workers.patience = 0.0
    monkeypatch.setattr(client, "scheduler_info", lambda n_workers: {"workers": {}, "n_workers": 2})
    workers.wait_for_some(flight)
    monkeypatch.setattr(client, "scheduler_info", lambda n_workers: {"workers": {}, "n_workers": 0})
    workers.wait_for_some(flight)  # warns
    with pytest.raises(AmmrankError, match="stage write has had no worker for 0 s"):
        workers.wait_for_some(flight)


def pause(dask_worker):
    """Let a worker find that it has too little memory, from its next look on."""
    dask_worker.memory_manager.memory_pause_fraction = 1e-6


def pause_workers(client, folder, n_workers):
    """Pause some workers while all are at a task and have another one waiting, and let them go on then."""
    for number in range(2):
        wait_for(folder / f"{number}.begun")
    client.run(pause, workers=list(client.scheduler_info(n_workers=-1)["workers"])[:n_workers])
    while [worker["status"] for worker in client.scheduler_info(n_workers=-1)["workers"].values()].count(
        "paused"
    ) < n_workers:
        time.sleep(0.02)
    task_workers.SECONDS_BEFORE_WARNING = 0.3  # not before: two workers are not paused at the same moment
    (folder / "go").touch()


@pytest.fixture
def watched(client, monkeypatch):
    """Events of a client whose stages look at their workers without delay, once `pause_workers` lets them."""
    events = []
    client.subscribe_topic(TOPIC, lambda event: events.append(event[1]))
    monkeypatch.setattr(task_workers, "SECONDS_BEFORE_WARNING", 60.0)
    return events


def test_run_tasks__a_task_that_waits_at_a_paused_worker_goes_to_another(client, watched, tmp_path, caplog):
    thread = threading.Thread(target=pause_workers, args=(client, tmp_path, 1))
    thread.start()
    with caplog.at_level("WARNING", "ammrank_dask.runtime.tasks"):
        run_tasks(client, "write", work_until_told, [(tmp_path, str(i), True) for i in range(8)])
    thread.join()
    assert names_in(tmp_path) == sorted([*(f"{i}.{state}" for i in range(8) for state in ("begun", "ended")), "go"])
    # How many wait there when it is paused is up to Dask: what it takes from the worker is not waiting any more.
    said = re.findall(r"stage write: [1-7] of its tasks go from workers that are paused for .* to others", caplog.text)
    assert said
    assert [event["text"] for event in watched if event["kind"] == "note"] == said


def test_run_tasks__workers_that_are_all_paused_end_the_wait_sooner(client, watched, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(task_workers, "SECONDS_PAUSED", 1.0)
    thread = threading.Thread(target=pause_workers, args=(client, tmp_path, 2))
    thread.start()
    with (
        caplog.at_level("WARNING", "ammrank_dask.runtime.tasks"),
        pytest.raises(
            AmmrankError, match=r"stage write does not go on: all of its 2 workers have been paused .* for 1 s; give"
        ),
    ):
        run_tasks(client, "write", work_until_told, [(tmp_path, str(i), True) for i in range(8)])
    thread.join()
    sentence = "stage write: all of its workers are paused for lack of memory; it waits 1 s for one"
    assert sentence in caplog.text
    assert [event["text"] for event in watched if event["kind"] == "note"] == [sentence]


def freeze_once(folder, name):
    """Stop the whole worker at the first try of task 0, and leave a file at every other."""
    if name == "0" and not (folder / "pid").exists():
        freeze(folder, name, 0)
    (folder / f"{name}.ended").touch()
    return name


@pytest.mark.system  # half a minute beside other work
def test_run_tasks__a_worker_that_is_stopped_is_named_and_its_tasks_run_on_another(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(task_workers, "SECONDS_BEFORE_WARNING", 0.3)
    monkeypatch.setattr(task_workers, "SECONDS_TO_ANSWER", 1.0)
    with (
        dask.config.set({task_workers.TIME_TO_LIVE: "1s"}),  # after ten heartbeats, five seconds
        LocalCluster(n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address=None) as cluster,
        Client(cluster, set_as_default=False) as client,
        caplog.at_level("WARNING", "ammrank_dask.runtime.tasks"),
    ):
        names = [str(i) for i in range(6)]
        assert run_tasks(client, "write", freeze_once, [(tmp_path, name) for name in names]) == names
        assert not psutil.pid_exists(int((tmp_path / "pid").read_text()))
    assert re.search(r"stage write: nothing was heard of the worker at tcp://\S+ for \d+ s; if that stays", caplog.text)


def test_give_back_memory__returns_what_was_freed():
    """A hundred megabytes in small pieces, under one that stays: the heap cannot shrink from its end."""
    code = (
        "import ctypes, psutil\n"
        "from ammrank_dask.runtime.malloc import give_back_memory\n"
        "ctypes.CDLL(None).mallopt(-1, 2**30)\n"  # M_TRIM_THRESHOLD, as the built-in cluster has it, or more
        "pieces = [bytes(1000) for _ in range(100_000)]\n"
        "last = bytes(1000)\n"
        "before = psutil.Process().memory_info().rss\n"
        "del pieces\n"
        "give_back_memory()\n"
        "assert before - psutil.Process().memory_info().rss > 60e6\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_takes_tasks__a_paused_worker_only_while_it_is_at_one():
    assert task_workers._takes_tasks({"status": "running", "metrics": {}})
    assert task_workers._takes_tasks({"status": "paused", "metrics": {"task_counts": {"executing": 1}}})
    assert not task_workers._takes_tasks({"status": "paused", "metrics": {"task_counts": {"memory": 3}}})


def test_width__is_that_of_the_workers_a_cluster_may_grow_to():
    with (
        LocalCluster(n_workers=1, threads_per_worker=2, processes=False, dashboard_address=None) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        assert task_workers.TaskWorkers(client, "write", 2).width() == 4
        assert [task_workers.TaskWorkers(client, "write", each).spare() for each in (1, 2, 4)] == [1, 1, 4]
        cluster.adapt(minimum=1, maximum=5, interval="1h")
        assert task_workers.TaskWorkers(client, "write", 2).width() == 2 * 5 * 2
        cluster.adapt(minimum=1, maximum=float("inf"), interval="1h")
        assert task_workers.TaskWorkers(client, "write", 2).width() == 4


def test_run_tasks__go_to_the_scheduler_together(client, monkeypatch):
    real, sizes = client.map, []

    def count(function, *columns, **options):
        sizes.append(len(columns[0]))
        return real(function, *columns, **options)

    monkeypatch.setattr(client, "map", count)
    assert run_tasks(client, "many", abs, [(-number,) for number in range(20)]) == list(range(20))
    # Four for each of two threads, then as many as leave two to each while they go.
    assert sizes == [8, 4, 4, 4]
    monkeypatch.setattr(tasks, "SUBMITTED_TOGETHER", 3)
    sizes.clear()
    assert run_tasks(client, "few", abs, [(-number,) for number in range(7)]) == list(range(7))
    assert sizes == [3, 3, 1]


def touch_after(before, own):
    """Leave a file; the one before must be there."""
    assert before is None or before.exists()
    time.sleep(0.05)
    own.touch()


@pytest.mark.parametrize("per_thread", [1, 4])
def test_run_tasks__a_task_waits_for_the_one_that_it_comes_after(client, tmp_path, per_thread):
    after = [None, None, None, 0, 1, 3]
    files = [tmp_path / str(number) for number in range(len(after))]
    items = [(None if before is None else files[before], own) for before, own in zip(after, files, strict=True)]
    calls = [[(touch_after, item)] for item in items]
    run_calls(client, "chain", calls, after=after, in_flight_per_thread=per_thread)
    assert all(file.exists() for file in files)


@pytest.mark.parametrize("units", [int, [3, 4, 5, 6, 7]])
def test_run_together__small_pieces_share_a_task_and_keep_their_order(client, units):
    steps, counts = [], []

    class Seen:
        def __call__(self, stage, done, total):
            steps.append((done, total))

        def count(self, stage, units, unit):
            counts.append(units)

    calls, weights = [(abs, (number,)) for number in (3, -4, 5, -6, 7)], [0.1, 0.1, 2.0, 0.05, 0.1]
    results = run_together(client, "small", calls, weights=weights, progress=Seen(), units=units)
    assert results == [3, 4, 5, 6, 7]
    assert steps == [(0, 3), (1, 3), (2, 3), (3, 3)]
    assert sorted(counts) == [5, 7, 13]


def test_run_tasks__other_work_is_done_once_when_there_are_tasks_and_before_any_ends(client):
    steps = []
    calls = [[(abs, (-1,))], [(abs, (-2,)), (len, ("abc",))]]
    results = run_calls(
        client, "small", calls, progress=lambda stage, done, total: steps.append(done),
        meanwhile=lambda: steps.append("meanwhile"),
    )  # fmt: skip
    assert steps == [0, "meanwhile", 1, 2]
    assert results == [1, 2, 3]


def test_run_batches__a_function_takes_some_items_and_each_result_is_told_of(client):
    seen = {}
    results = run_batches(
        client, "small", accumulate, [3, 4, 5, 6], weights=[0.1, 0.1, 2.0, 0.1], on_result=seen.__setitem__
    )
    assert results == [3, 7, 5, 6]
    assert seen == {0: 3, 1: 7, 2: 5, 3: 6}
    assert run_batches(client, "small", accumulate, [], weights=[]) == []


def accumulate(numbers):
    """Return running sums, which tell what was together."""
    return list(itertools.accumulate(numbers))


@pytest.mark.parametrize("n_at_once", [1, 2, 8, 64])
def test_batches__are_few_where_much_is_left_and_enough_for_all(n_at_once):
    items = list(range(66))
    found = batches(items, [0.2] * 66, n_at_once=n_at_once)
    sizes = [len(batch) for batch in found]
    assert [item for batch in found for item in batch] == items
    assert sizes == sorted(sizes, reverse=True)
    assert min(66, 3 * n_at_once) <= len(found)
    assert sizes[-1] <= 5
    assert len(found) <= 4 * n_at_once + 2


def test_batches__never_get_larger_than_is_worth_losing():
    found = batches(range(1000), [1.0] * 1000, n_at_once=2)
    assert {len(batch) for batch in found[:100]} == {8}
