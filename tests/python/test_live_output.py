"""Output of durable tasks, during and after them: separated by task, also on a shared worker."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from harness.leaks import wait_until

dayfly = pytest.importorskip("dayfly", reason="the package is not installed: make build")


def speak(text: str) -> None:
    print(text)
    print(f"{text} again", file=sys.stderr)


def test_output_of_a_task_arrives_while_it_runs(client: dayfly.Client, tmp_path: Path) -> None:
    gate = tmp_path / "gate"

    def work() -> str:
        print("step 1")
        while not gate.exists():
            time.sleep(0.01)
        # Without an end of line, and not through Python.
        sys.stdout.write("step 2")
        sys.stdout.flush()
        os.write(2, b"trouble")
        # Through the C library, which buffers it until it is flushed.
        ctypes.CDLL(None).printf(b"(from C)")
        subprocess.run(["echo", "step 3"], check=True)
        print("step 4", end="")
        return "done"

    future = client.run(work)
    wait_until(future.running, "the task to run")
    wait_until(lambda: client.output(future) == "step 1\n", "its first line")
    assert not future.done()
    gate.touch()
    heard = list(client.follow(future))
    assert future.result(30) == "done"
    out = "".join(text for where, text in heard if where == "out")
    assert out.replace("(from C)", "", 1) == "step 1\nstep 2step 3\nstep 4"
    assert "(from C)" in out
    assert "".join(text for where, text in heard if where == "err") == "trouble"
    # Also afterwards, by its id.
    assert client.output(future.id, "out") == out
    assert client.output(future.id, "err") == "trouble"


def test_output_of_tasks_on_shared_workers_is_separated(client: dayfly.Client) -> None:
    batch = client.map(speak, [f"task {number}" for number in range(200)])
    assert list(batch.results(timeout=60)) == [None] * 200
    for number, future in enumerate(batch.futures):
        wait_until(lambda future=future: "again" in client.output(future), "what it printed to come")
        assert client.output(future, "out") == f"task {number}\n"
        assert client.output(future, "err") == f"task {number} again\n"


def test_output_of_a_worker_killing_task_is_kept(client: dayfly.Client) -> None:
    def die() -> None:
        os.write(2, b"I am about to die\n")
        os.abort()

    future = client.run(die)
    with pytest.raises(dayfly.WorkerDied):
        future.result(30)
    wait_until(lambda: client.output(future, "err") == "I am about to die\n", "its last words")


def test_endless_output_keeps_its_end_and_blocks_nobody(client: dayfly.Client) -> None:
    def babble() -> int:
        line = "x" * 999
        for _ in range(20_000):
            print(line)
        print("the end")
        return 20_000

    begin = time.monotonic()
    future = client.run(babble)
    assert client.run(len, "abc").result(30) == 3
    assert future.result(120) == 20_000
    print(f"20 MB took {time.monotonic() - begin:.1f} s")
    wait_until(lambda: client.output(future).endswith("the end\n"), "its last line")
    assert 1_000 < len(client.output(future)) <= 64 << 10


def test_output_of_other_tenants_tasks_is_refused(client: dayfly.Client) -> None:
    with pytest.raises(dayfly.RequestError, match="no task"):
        client.output("0" * 32)
    with pytest.raises(ValueError, match="stream"):
        client.output("0" * 32, "both")
