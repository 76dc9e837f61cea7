"""The behavior that programs for other executors need: initializers, limits, and failures of calls."""

from __future__ import annotations

import concurrent.futures as cf
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

dayfly = pytest.importorskip("dayfly", reason="the package is not installed: make build")

Make = Callable[..., "dayfly.Executor"]


@pytest.fixture(params=["durable", "direct"])
def make(request: pytest.FixtureRequest, client: dayfly.Client) -> Make:
    """Makes an executor of either kind."""
    is_durable = request.param == "durable"
    own: dict[str, Any] = {} if is_durable else {"durable": False, "max_workers": 2}
    return lambda **options: dayfly.Executor(client=client, **own, **options)


def test_initializer_runs_once_before_calls_in_each_worker(make: Make, tmp_path: Path) -> None:
    def count(directory: Path, word: str) -> None:
        global WORD  # noqa: PLW0603
        WORD = word
        with (directory / str(os.getpid())).open("a") as file:
            file.write("x")

    def word() -> tuple[str, int]:
        return WORD, os.getpid()  # type: ignore[name-defined]

    def other(_: int) -> str:
        return WORD + "!"  # type: ignore[name-defined]

    class Method:
        def say(self) -> str:
            return WORD + "?"  # type: ignore[name-defined]

    with make(initializer=count, initargs=(tmp_path, "ready")) as executor:
        said = [future.result(30) for future in [executor.submit(word) for _ in range(20)]]
        assert {text for text, _ in said} == {"ready"}
        # Each function has module variables of its own, and finds those of the initializer.
        assert list(executor.map(other, range(5), timeout=30)) == ["ready!"] * 5
        assert list(executor.map(other, range(5), chunksize=2, timeout=30)) == ["ready!"] * 5
        assert executor.submit(Method().say).result(30) == "ready?"
    counted = {file.name: file.read_text() for file in tmp_path.iterdir()}
    assert {str(process) for _, process in said} <= counted.keys()
    assert set(counted.values()) == {"x"}


def test_failing_initializer_breaks_its_executor(make: Make) -> None:
    def fail(what: str) -> None:
        raise LookupError(what)

    executor = make(initializer=fail, initargs=("no model",))
    futures = [executor.submit(os.getpid) for _ in range(4)]
    for future in futures:
        with pytest.raises(dayfly.InitializerFailed, match="LookupError: no model") as raised:
            future.result(30)
        assert isinstance(raised.value, cf.BrokenExecutor)
    assert any("in fail" in str(future.exception().__cause__) for future in futures)
    with pytest.raises(cf.BrokenExecutor, match="no model"):
        executor.submit(os.getpid)
    with pytest.raises(cf.BrokenExecutor, match="no model"):
        executor.map(abs, [1])
    executor.shutdown()


def test_wrong_initializers_are_refused_at_creation(make: Make) -> None:
    with pytest.raises(TypeError, match="must be a callable"):
        make(initializer=7)
    with pytest.raises(ValueError, match="without an initializer"):
        make(initargs=(1,))
    with pytest.raises(ValueError, match="max_tasks_per_child"):
        make(max_tasks_per_child=3)
    with pytest.raises(TypeError, match="max_workers="):
        make(endpoint=4)


def test_unpicklable_arguments_fail_in_the_future(make: Make) -> None:
    class Trap:
        def __reduce__(self) -> Any:
            raise LookupError("not this one")

    with make() as executor:
        future = executor.submit(abs, Trap())
        assert future.done()
        assert not future.running()
        assert not future.cancel()
        assert not future.kill()
        with pytest.raises(LookupError, match="not this one"):
            future.result(0)
        assert list(cf.as_completed([future], timeout=0)) == [future]
        lock = threading.Lock()
        assert isinstance(executor.submit(lambda: lock).exception(0), TypeError)
        told = []
        future.add_done_callback(told.append)
        assert told == [future]
        assert executor.submit(abs, -7).result(30) == 7


def test_max_workers_limits_a_direct_executor(client: dayfly.Client) -> None:
    with dayfly.Executor(client=client, durable=False, max_workers=2) as executor:
        assert executor._lease.workers == 2
    for wrong in (0, -1):
        with pytest.raises(ValueError, match="max_workers must be greater than 0"):
            dayfly.Executor(client=client, durable=False, max_workers=wrong)
    with pytest.raises(ValueError, match="give one of them"):
        dayfly.Executor(client=client, durable=False, max_workers=2, workers=2)
    with pytest.raises(ValueError, match="an endpoint decides"):
        dayfly.Executor(client=client, max_workers=2)


def test_executor_refuses_calls_after_shutdown(make: Make) -> None:
    executor = make()
    assert executor.submit(abs, -1).result(30) == 1
    executor.shutdown()
    with pytest.raises(RuntimeError, match="cannot schedule new futures after shutdown"):
        executor.submit(abs, -1)
    with pytest.raises(RuntimeError, match="cannot schedule new futures after shutdown"):
        executor.map(abs, [1])


@pytest.mark.parametrize("durable", [True, False])
def test_program_that_ends_waits_for_its_calls(durable: bool) -> None:
    code = f"""
        import atexit, time

        @atexit.register
        def last():
            try:
                executor.submit(abs, 1)
            except RuntimeError as error:
                print("refused:", error)

        import dayfly

        def speak():
            time.sleep(0.5)
            print("apple", flush=True)

        executor = dayfly.Executor(durable={durable})
        executor.submit(speak)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        check=False,
        text=True,
        timeout=60,
        env={**os.environ, "DAYFLY_MANAGER": ""},
    )
    assert done.returncode == 0, done.stderr
    assert "refused: cannot schedule new futures after shutdown" in done.stdout
    assert "apple" in done.stdout
