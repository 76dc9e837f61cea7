"""Failures, and the errors that the caller receives."""

from __future__ import annotations

import concurrent.futures
import itertools
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time

import cloudpickle
import dayfly
import pytest
from harness.leaks import descendants, living, parent, wait_until

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def square(x):
    return x * x


def test_worker_that_dies_in_a_call_is_replaced(own):
    with pytest.raises(dayfly.WorkerDied) as caught:
        own.call(lambda: os.kill(os.getpid(), signal.SIGKILL))
    assert caught.value.code == "maybe_executed"
    assert isinstance(caught.value, concurrent.futures.BrokenExecutor), "for programs that look for that"
    assert own.call(square, 3) == 9
    assert own.incarnations() == [2]


def test_os_exit_in_a_function_is_worker_died(own):
    with pytest.raises(dayfly.WorkerDied, match="exit status 3"):
        own.call(os._exit, 3)
    assert own.call(square, 3) == 9


def test_calls_behind_a_dead_worker_still_run(own):
    own.call(square, 1)
    dying = own.submit(os._exit, 1)
    behind = [own.submit(square, x) for x in range(20)]
    assert [future.result(timeout=20) for future in behind] == [x * x for x in range(20)]
    with pytest.raises(dayfly.WorkerDied):
        dying.result()


def test_idempotent_call_is_retried(own, tmp_path):
    mark = tmp_path / "mark"

    def once():
        if not mark.exists():
            mark.touch()
            os._exit(1)
        return "second"

    assert own.options(idempotent=True).call(once) == "second"


def test_call_past_its_deadline_is_ended(own):
    start = time.monotonic()
    with pytest.raises(dayfly.DeadlineExceeded) as caught:
        own.options(deadline=0.2).call(time.sleep, 60)
    assert caught.value.code == "deadline_exceeded"
    assert time.monotonic() - start < 10
    assert own.options(deadline=10).call(square, 2) == 4


def test_dead_executor_is_noticed_before_its_replacement(monkeypatch, tmp_path):
    monkeypatch.setenv("DAYFLY_WARM_POOL", "0")
    (tmp_path / "sitecustomize.py").write_text("import time\ntime.sleep(1)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with dayfly.connect() as client, client.lease(workers=1, mode="warm") as lease:
        executor, mark = lease.call(os.getppid), tmp_path / "mark"
        future = lease.submit(lambda: (mark.touch(), time.sleep(60)))
        # Before that, the next worker would execute it.
        wait_until(mark.exists, "the call's start")
        begin = time.monotonic()
        os.kill(executor, signal.SIGKILL)
        with pytest.raises(dayfly.WorkerDied):
            future.result(timeout=20)
        assert time.monotonic() - begin < 0.5
        assert lease.call(square, 3) == 9
        assert time.monotonic() - begin > 1


def test_calls_after_the_nodes_end_fail_immediately():
    with dayfly.connect() as client, client.lease(workers=2, mode="warm") as lease:
        lease.call(square, 1)
        manager = parent(lease.call(os.getppid))
        below = set(descendants(manager))
        os.kill(manager, signal.SIGKILL)
        # A worker that still lives for a moment may still respond.
        wait_until(lambda: not living(below), "the end of the workers")
        # Whatever the first calls return, no later call waits.
        deadline = time.monotonic() + 20
        for _ in range(50):
            with pytest.raises(dayfly.Error):
                lease.submit(square, 2).result(timeout=deadline - time.monotonic())


def test_dead_executor_delays_no_other_lease(monkeypatch, tmp_path):
    # No executor is kept warm, and the interpreter starts slowly.
    monkeypatch.setenv("DAYFLY_WARM_POOL", "0")
    (tmp_path / "sitecustomize.py").write_text("import time\ntime.sleep(0.5)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    ticks = []
    stop = threading.Event()

    def tick():
        while not stop.wait(0.001):
            ticks.append(time.monotonic())

    with dayfly.connect() as client, client.lease(workers=1, mode="warm") as lease:
        executor, worker = lease.call(os.getppid), lease.call(os.getpid)
        ticking = threading.Thread(target=tick)
        ticking.start()
        begin = time.monotonic()
        os.kill(executor, signal.SIGKILL)
        # The worker would die with its executor, after it responded to a few calls.
        os.kill(worker, signal.SIGKILL)
        futures = [lease.options(idempotent=True).submit(square, x) for x in range(20)]
        submitted = time.monotonic() - begin
        assert [future.result(timeout=20) for future in futures] == [x * x for x in range(20)]
        repaired = time.monotonic() - begin
        stop.set()
        ticking.join()
    assert repaired > 0.5
    assert submitted < repaired / 2
    assert max(later - sooner for sooner, later in itertools.pairwise(ticks)) < repaired / 2


def test_state_of_a_dead_worker_is_state_lost(own):
    incarnation = own.incarnations()[0]
    pinned = own.options(worker=0, incarnation=incarnation)
    assert pinned.call(square, 2) == 4
    with pytest.raises(dayfly.WorkerDied):
        own.call(os._exit, 1)
    with pytest.raises(dayfly.StateLost):
        pinned.call(square, 2)


def test_released_lease_is_lease_ended(client):
    lease = client.lease(mode="warm")
    lease.call(square, 1)
    lease._native.release()
    with pytest.raises(dayfly.Error) as caught:
        lease.call(time.sleep, 30)
    assert caught.value.code == "lease_ended"
    lease.shutdown()


def test_more_hot_workers_than_cores_are_refused(client):
    with pytest.raises(dayfly.Error) as caught:
        client.lease(workers=1000, mode="hot")
    assert caught.value.code in ("too_large", "no_capacity")


def test_invalid_arguments_are_refused(client, own):
    with pytest.raises(ValueError, match="mode"):
        client.lease(mode="cold")
    with pytest.raises(ValueError, match="deadline"):
        own.options(deadline=-1)
    with pytest.raises(dayfly.Error, match="slots"):
        client.lease(slots=3)
    with pytest.raises(dayfly.RequestError, match="workers"):
        own.options(worker=7).submit(square, 1)


def test_client_in_a_forked_child_is_refused(own):
    own.call(square, 1)

    def child(pipe):
        try:
            own.call(square, 2)
        except dayfly.Forked as error:
            pipe.send(error.code)
        else:
            pipe.send("worked")

    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    process = context.Process(target=child, args=(there,))
    process.start()
    assert here.poll(20)
    assert here.recv() == "forked"
    process.join(10)
    assert process.exitcode == 0
    assert own.call(square, 3) == 9


def test_interrupts_reach_a_waiting_thread(own):
    threading.Timer(0.3, lambda: signal.raise_signal(signal.SIGINT)).start()
    future = own.submit(time.sleep, 60)
    with pytest.raises(KeyboardInterrupt):
        future.result(timeout=20)
    future.kill()


PROGRAM = """
import dayfly, os, sys
client = dayfly.connect()
lease = client.lease(workers=1, mode="warm")
print(lease.submit(pow, 2, 5).result(), lease.call(os.getpid), flush=True)
{end}
"""


@pytest.mark.parametrize(
    ("end", "status"),
    [("", 0), ("raise SystemExit(3)", 3), ("lease.submit(print).add_done_callback(print)", 0), ("os._exit(4)", 4)],
)
def test_program_without_shutdown_leaves_nothing(end, status):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(end=end)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == status, done.stderr
    value, worker = done.stdout.split()[:2]
    assert value == "32"
    until = time.monotonic() + 15
    while os.path.exists(f"/proc/{worker}") and time.monotonic() < until:
        threading.Event().wait(0.02)
    assert not os.path.exists(f"/proc/{worker}")
    assert "Traceback" not in done.stderr


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def test_shut_down_lease_keeps_no_descriptors_or_threads(client):
    with client.lease(mode="warm") as lease:
        lease.call(square, 1)
    before, threads = descriptors(), threading.active_count()
    for _ in range(5):
        with client.lease(workers=2, mode="warm") as lease:
            assert list(lease.map(square, range(10))) == [x * x for x in range(10)]
            lease.submit(square, 3).add_done_callback(lambda future: future.result())
    assert descriptors() <= before
    assert threading.active_count() <= threads


def test_dropped_lease_is_released(client):
    lease = client.lease(mode="warm")
    lease.call(square, 1)
    held = lease.id

    def state():
        return next(each["state"] for each in client.leases() if each["lease"] == held)

    assert state() == "active"
    del lease
    until = time.monotonic() + 10
    while state() == "active" and time.monotonic() < until:
        threading.Event().wait(0.01)
    assert state() == "released"


def test_client_lists_its_nodes(client):
    assert len(client.nodes()) == 1
    assert "embedded" in repr(client)


def test_running_manager_is_found_by_its_directory(up, monkeypatch):
    with dayfly.connect(up.state) as client, client.lease(mode="warm") as lease:
        assert lease.call(square, 4) == 16
    monkeypatch.setenv("DAYFLY_MANAGER", str(up.state))
    with dayfly.connect() as client:
        assert "embedded" not in repr(client)
    with pytest.raises(dayfly.ConnectionFailed, match="dayfly up"):
        dayfly.connect(up.state / "nowhere")


def test_package_contains_the_program(tmp_path):
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; sys.argv = ['dayfly', 'version']; from dayfly._program import main; main()",
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert dayfly.__version__ in done.stdout
