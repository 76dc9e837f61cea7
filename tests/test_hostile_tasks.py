"""Durable tasks that do their worst: each ends as the guide says, and the endpoint goes on with the next."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import cloudpickle
import pytest
from harness.daemons import Daemon
from harness.leaks import wait_until
from harness.managers import manager_here, most_memory

dayfly = pytest.importorskip("dayfly", reason="the package is not installed: make build")

# Workers cannot import what pytest made of this file.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

MIB = 1 << 20


@pytest.fixture(scope="module")
def manager() -> Iterator[Daemon]:
    with manager_here() as manager:
        yield manager


@pytest.fixture
def client(manager: Daemon) -> Iterator[dayfly.Client]:
    """A client whose test leaves an endpoint behind that runs tasks on every worker."""
    with dayfly.connect(config=manager.state) as client:
        yield client
        # More than there are workers, so that it is not the other one alone that is well.
        assert list(client.map(area, range(40), range(40)).results(timeout=30)) == [n * n for n in range(40)]
        assert manager.alive


def area(width: int, height: int) -> int:
    return width * height


def executions(mark: Path) -> int:
    return mark.stat().st_size


def failure(future: Any) -> dayfly.Error:
    """What Dayfly says of a task that did not end well."""
    with pytest.raises(dayfly.Error) as raised:
        future.result(30)
    return raised.value


def test_task_that_forks_returns_one_result(client: dayfly.Client, tmp_path: Path) -> None:
    def both(mark: str) -> tuple[int, int]:
        before = os.getpid()
        forked = os.fork()
        with open(mark, "a") as file:
            file.write("x")
        if forked:
            # The child is the one that would answer first.
            os.waitpid(forked, 0)
        return before, os.getpid()

    marks = [str(tmp_path / f"{number}") for number in range(8)]
    for before, after in client.map(both, marks).results(timeout=30):
        assert before == after
    # Both sides went through all of the function.
    assert {executions(Path(mark)) for mark in marks} == {2}


def test_gigabyte_of_output_harms_no_task(client: dayfly.Client, manager: Daemon) -> None:
    def babble() -> int:
        piece = b"x" * (MIB - 1) + b"\n"
        written = 0
        while written < 10**9:
            written += os.write(1, piece[: 10**9 - written])
        os.write(1, b"the end\n")
        return written

    assert client.run(babble).result(120) == 10**9
    future = client.run(print, "heard")
    assert future.result(30) is None
    wait_until(lambda: client.output(future) == "heard\n", "others are heard")
    assert most_memory(manager.pid) < 1 << 30


def test_end_of_long_lines_is_kept(client: dayfly.Client) -> None:
    def babble() -> None:
        piece = "x" * (MIB - 1) + "\n"
        for _ in range(100):
            sys.stdout.write(piece)
        print("the end")

    future = client.run(babble)
    assert future.result(60) is None
    wait_until(lambda: client.output(future).endswith("the end\n"), "its last line")
    assert len(client.output(future)) <= 64 << 10


def die(mark: str) -> NoReturn:
    with open(mark, "a") as file:
        file.write("x")
    os.kill(os.getpid(), 9)
    raise AssertionError


def test_task_that_kills_its_worker_runs_once(client: dayfly.Client, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    with dayfly.Executor(client=client) as executor:
        future = executor.submit(die, str(mark))
        error = failure(future)
    assert isinstance(error, dayfly.WorkerDied)
    assert error.code == "maybe_executed"
    assert executions(mark) == 1
    assert client.task_status(future.id)["error"]["code"] == "maybe_executed"


def test_idempotent_task_killing_workers_is_given_up(client: dayfly.Client, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    with dayfly.Executor(client=client, repeatable=True) as executor:
        future = executor.submit(die, str(mark))
        assert failure(future).code == "maybe_executed"
    assert client.task_status(future.id)["attempts"] == 5
    assert executions(mark) == 5
    assert "5 of its executions lost their workers" in client.task_status(future.id)["error"]["message"]


def test_neighbours_of_worker_killing_task_run_once(client: dayfly.Client, tmp_path: Path) -> None:
    def note(path: str) -> None:
        with open(path, "a") as file:
            file.write("x")

    with dayfly.Executor(client=client) as executor:
        killers = [executor.submit(die, str(tmp_path / f"killer{n}")) for n in range(3)]
        others = [executor.submit(note, str(tmp_path / f"other{n}")) for n in range(50)]
        for future in others:
            assert future.result(30) is None
        for future in killers:
            assert failure(future).code == "maybe_executed"
    assert {executions(mark) for mark in tmp_path.iterdir()} == {1}


def test_endless_task_ends_with_its_processes(client: dayfly.Client, tmp_path: Path) -> None:
    def linger(directory: str) -> NoReturn:
        import signal

        # It does not want to end, and what it starts leaves its session, has lost its parent, or both, as daemons have.
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        child = subprocess.Popen(["sleep", "1000"])
        leader = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        orphan = f"sleep 1000 >{directory}/out 2>&1 & echo $! > {directory}/orphan"
        subprocess.run(["sh", "-c", orphan], check=True)
        daemon = f"sleep 1000 >/dev/null 2>&1 & echo $! > {directory}/daemon"
        subprocess.run(["setsid", "--wait", "sh", "-c", daemon], check=True)
        Path(directory, "pids").write_text(f"{os.getpid()} {child.pid} {leader.pid}")
        while True:
            try:
                time.sleep(1000)
            except BaseException:
                pass

    with dayfly.Executor(client=client, walltime=1) as executor:
        begin = time.monotonic()
        error = failure(executor.submit(linger, str(tmp_path)))
        took = time.monotonic() - begin
    assert isinstance(error, dayfly.DeadlineExceeded)
    assert took < 5
    started = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    started += [int((tmp_path / name).read_text()) for name in ("orphan", "daemon")]
    wait_until(lambda: not [pid for pid in started if Path(f"/proc/{pid}").exists()], "all of them are gone")


def test_daemonized_process_ends_with_its_worker(client: dayfly.Client, tmp_path: Path) -> None:
    def daemonize(path: str) -> int:
        daemon = f"sleep 1000 >/dev/null 2>&1 & echo $! > {path}"
        subprocess.run(["setsid", "--wait", "sh", "-c", daemon], check=True)
        return os.getpid()

    def die_of(worker: int) -> None:
        if os.getpid() == worker:
            os.kill(worker, 9)

    path = tmp_path / "daemon"
    worker = client.run(daemonize, str(path)).result(30)
    daemon = int(path.read_text())
    assert Path(f"/proc/{daemon}").exists()

    def killed() -> bool:
        with contextlib.suppress(dayfly.Error):
            client.run(die_of, worker).result(30)
        return not Path(f"/proc/{worker}").exists()

    wait_until(killed, "its worker is gone")
    wait_until(lambda: not Path(f"/proc/{daemon}").exists(), "the daemon is gone, too")


def test_ended_leftover_processes_are_reaped(client: dayfly.Client, manager: Daemon) -> None:
    def leave() -> None:
        subprocess.run(["sh", "-c", "true & exit 0"], check=True)

    def dead() -> int:
        states = (Path(f"/proc/{pid}/stat") for pid in manager.processes())
        words = (path.read_text() for path in states if path.exists())
        return sum(text.rpartition(")")[2].split()[0] == "Z" for text in words)

    batch = client.batch()
    for _ in range(1_000):
        batch.submit(leave)
    assert list(batch.results(timeout=60)) == [None] * 1_000
    # Some are left to those who may yet ask for them: on each worker as many as there are looks between, and the bound.
    wait_until(lambda: dead() < 400, "most of them are collected")


@pytest.mark.parametrize("how", ["descriptor", "stream", "replaced"])
def test_closed_stdout_affects_only_its_task(client: dayfly.Client, how: str) -> None:
    def close(how: str) -> None:
        print("before")
        match how:
            case "descriptor":
                os.close(1)
            case "stream":
                sys.stdout.close()
            case _:
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, 1)

    closing = client.map(close, [how] * 20)
    assert list(closing.results(timeout=30)) == [None] * 20
    saying = client.map(print, [f"heard {number}" for number in range(20)])
    assert list(saying.results(timeout=30)) == [None] * 20
    for number, future in enumerate(saying.futures):
        wait_until(lambda: client.output(future) == f"heard {number}\n", "it is heard")  # noqa: B023 (called at once)


def test_result_of_300_mebibytes_returns_intact(client: dayfly.Client) -> None:
    def make() -> bytes:
        chance = random.Random(7)
        return b"".join([chance.randbytes(MIB) for _ in range(300)])

    chance, wanted = random.Random(7), hashlib.sha256()
    future = client.run(make)
    for _ in range(300):
        wanted.update(chance.randbytes(MIB))
    result = future.result(60)
    assert len(result) == 300 * MIB
    assert hashlib.sha256(result).digest() == wanted.digest()


def test_gibibyte_argument_returns_intact(client: dayfly.Client) -> None:
    block = random.Random(7).randbytes(MIB)

    def again(data: bytes) -> bytes:
        return data

    result = client.run(again, block * 1_100).result(100)
    assert len(result) == 1_100 * MIB
    assert result[:MIB] == result[-MIB:] == block


class UnpicklableError(ValueError):
    def __reduce__(self) -> NoReturn:
        raise RuntimeError("not me")


class UnmakableError(ValueError):
    """Pickled without complaint, and made again by nobody."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(first)


class WordlessError(UnpicklableError):
    def __str__(self) -> NoReturn:
        raise RuntimeError("no words")


class QuittingError(ValueError):
    def __reduce__(self) -> NoReturn:
        raise SystemExit(3)


class NestedError(ValueError):
    """One that carries what cannot be pickled, as many an exception of a library does."""

    def __init__(self) -> None:
        super().__init__("with a lock", threading.Lock())


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: UnpicklableError("on purpose"), "UnpicklableError: on purpose"),
        (lambda: UnmakableError("on", "purpose"), "UnmakableError: on"),
        (lambda: WordlessError("on purpose"), "WordlessError"),
        (NestedError, "NestedError: .*with a lock"),
    ],
    ids=["unpicklable", "unmakable", "wordless", "nested"],
)
def test_unpicklable_exception_keeps_name_and_text(client: dayfly.Client, make: Any, told: str) -> None:
    def fail() -> NoReturn:
        raise make()

    with pytest.raises(dayfly.RemoteError, match=told) as raised:
        client.run(fail).result(30)
    assert "in fail" in str(raised.value.__cause__)


def test_exception_exiting_in_pickle_keeps_its_name(client: dayfly.Client) -> None:
    def fail() -> NoReturn:
        raise QuittingError("on purpose")

    with pytest.raises((dayfly.RemoteError, dayfly.FunctionError), match="QuittingError: on purpose"):
        client.run(fail).result(30)


class Quits:
    def __reduce__(self) -> NoReturn:
        raise SystemExit(3)


class Dies:
    def __reduce__(self) -> NoReturn:
        os._exit(3)


def test_unpicklable_result_raises_pickles_error(client: dayfly.Client) -> None:
    with pytest.raises(TypeError, match=r"cannot pickle .*lock"):
        client.run(threading.Lock).result(30)
    with pytest.raises(TypeError, match=r"cannot pickle .*generator"):
        client.run(lambda: (n for n in range(3))).result(30)
    with pytest.raises(RuntimeError, match="not me"):
        client.run(UnpicklableError, "returned").result(30)


def test_result_ending_worker_in_pickle_is_reported(client: dayfly.Client) -> None:
    with pytest.raises(SystemExit):
        client.run(Quits).result(30)
    assert failure(client.run(Dies)).code == "maybe_executed"


def test_too_deep_result_is_reported(client: dayfly.Client) -> None:
    def deep() -> list[Any]:
        nested: list[Any] = []
        for _ in range(100_000):
            nested = [nested]
        return nested

    with pytest.raises((pickle.PicklingError, RecursionError), match="recursion"):
        client.run(deep).result(30)


@pytest.mark.parametrize("status", [None, 0, 3, "a message"])
def test_sys_exit_is_reported_as_system_exit(client: dayfly.Client, status: object) -> None:
    def quit(status: object) -> NoReturn:
        sys.exit(status)  # type: ignore[arg-type]

    with pytest.raises(SystemExit) as raised:
        client.run(quit, status).result(30)
    assert raised.value.code == status


def test_os_exit_is_reported_with_its_status(client: dayfly.Client) -> None:
    error = failure(client.run(os._exit, 3))
    assert error.code == "maybe_executed"
    assert "exit status 3" in str(error)
