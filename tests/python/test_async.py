"""Durable tasks in programs with asyncio. Managers and tasks never block the event loop."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from harness.daemons import Daemon
from harness.leaks import wait_until
from harness.managers import manager_here

dayfly = pytest.importorskip("dayfly", reason="the package is not installed: make build")


@pytest.fixture(scope="module")
def manager() -> Iterator[Daemon]:
    with manager_here() as manager:
        yield manager


@pytest.fixture(scope="module")
def client(manager: Daemon) -> Iterator[dayfly.Client]:
    with dayfly.connect(config=manager.state) as client:
        yield client


def area(width: int, height: int) -> int:
    return width * height


def wait_for(path: str) -> str:
    """Reports that it runs, and waits until it may end."""
    Path(path + ".begun").touch()
    while not Path(path).exists():
        time.sleep(0.01)
    return "released"


def run(main: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Returns the result of a coroutine."""
    return asyncio.run(asyncio.wait_for(main(), 60))


async def until(condition: Callable[[], bool], what: str) -> None:
    await asyncio.to_thread(wait_until, condition, what, 30)


@asynccontextmanager
async def ticking() -> AsyncIterator[list[int]]:
    """Counts the iterations of the event loop."""
    ticks = [0]

    async def tick() -> None:
        while True:
            await asyncio.sleep(0)
            ticks[0] += 1

    ticker = asyncio.ensure_future(tick())
    try:
        yield ticks
    finally:
        ticker.cancel()


def test_functions_and_batches_work_with_asyncio(client: dayfly.Client) -> None:
    async def main() -> None:
        function = await client.aregister(area, name="area", walltime=60)
        assert await client.arun(function, 6, 7) == 42
        assert await asyncio.gather(*(client.arun(area, n, height=n) for n in range(50))) == [n * n for n in range(50)]
        batch = await client.amap(area, range(20), range(20), tag="squares")
        assert [result async for result in batch] == [n * n for n in range(20)]
        again = await client.atasks("squares")
        assert [result async for result in again] == [n * n for n in range(20)]
        assert await (await client.atask(batch[3].id)) == 9
        async with client.abatch(tag="some") as some:
            some.submit(area, 1, 2)
            assert await some.asubmit(area, 3, 4) == 12
        assert [result async for result in await client.atasks("some")] == [2, 12]

    run(main)


def test_executor_maps_for_async_for(client: dayfly.Client) -> None:
    def odd(n: int) -> int:
        if n % 2 == 0:
            raise ValueError(n)
        return n

    async def main() -> None:
        with dayfly.Executor(client=client) as executor:
            assert [y async for y in executor.amap(area, range(10), range(10))] == [n * n for n in range(10)]
            assert [y async for y in executor.amap(abs, range(-10, 0), chunksize=4)] == list(range(10, 0, -1))
            for chunksize in (1, 3):
                results = executor.amap(odd, [1, 2, 3], chunksize=chunksize)
                assert await anext(results) == 1
                with pytest.raises(ValueError, match="2"):
                    await anext(results)
            after = executor.submit(area, 2, 3)
        # No helper thread completes its futures now.
        assert await after == 6
        with dayfly.Executor(client=client, durable=False, workers=1) as executor:
            assert [y async for y in executor.amap(abs, range(-10, 0))] == list(range(10, 0, -1))

    run(main)


def test_output_of_a_running_task_is_followed(client: dayfly.Client, tmp_path: Path) -> None:
    def speak(path: str) -> None:
        print("first", flush=True)
        while not os.path.exists(path):
            time.sleep(0.01)
        print("second", flush=True)

    gate = tmp_path / "gate"

    async def main() -> str:
        future = client.run(speak, str(gate))
        said = ""
        async with ticking() as ticks:
            async for where, text in client.afollow(future):
                assert where == "out"
                said += text
                if not gate.exists():
                    assert said == "first\n"
                    assert ticks[0] > 0
                    gate.touch()
        with pytest.raises(dayfly.Error, match="you have no task"):
            async for _ in client.afollow("0" * 32):
                pass
        return said

    assert run(main) == "first\nsecond\n"


def test_event_loop_runs_while_the_manager_is_stopped(client: dayfly.Client, manager: Daemon) -> None:
    async def main() -> None:
        assert await client.arun(area, 6, 7) == 42
        before = client.run(area, 1, 1)
        assert await before == 1
        os.kill(manager.pid, signal.SIGSTOP)
        try:
            steps = [
                asyncio.ensure_future(step)
                for step in (
                    client.aregister(lambda: 1, name="one"),
                    client.arun(lambda: 2),
                    client.amap(abs, [-3]),
                    client.atasks("squares"),
                    client.atask(before.id),
                    anext(aiter(client.afollow(before)), None),
                )
            ]
            async with ticking() as ticks:
                # Every step has begun, and the event loop still runs.
                while ticks[0] < 1000:
                    await asyncio.sleep(0)
                assert not any(step.done() for step in steps)
        finally:
            os.kill(manager.pid, signal.SIGCONT)
        registered, two, batch, *_ = await asyncio.gather(*steps)
        assert (registered.name, two, [one async for one in batch]) == ("one", 2, [3])

    run(main)


def test_cancelled_wait_cancels_its_task_but_no_batch(client: dayfly.Client, tmp_path: Path) -> None:
    gate = str(tmp_path / "gate")

    async def main() -> None:
        waiting = asyncio.ensure_future(client.arun(wait_for, gate))
        await until(lambda: os.path.exists(f"{gate}.begun"), "it runs")
        [task] = [
            one["id"] for one in dayfly._tasks.batch.statuses(client, client._executor().tag) if one["state"] != "done"
        ]
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await until(lambda: client.task_status(task)["state"] == "done", "it has ended")
        assert client.task_status(task)["error"]["code"] == "cancelled"
        batch = await client.amap(wait_for, [gate, gate])
        waiting = asyncio.ensure_future(anext(aiter(batch)))
        await until(lambda: batch.counts()["running"] > 0, "they run")
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        Path(gate).touch()
        assert [result async for result in batch] == ["released", "released"]

    run(main)


def test_task_submitted_after_a_cancelled_wait_is_cancelled(
    client: dayfly.Client, manager: Daemon, tmp_path: Path
) -> None:
    gate = str(tmp_path / "gate")

    async def main() -> str:
        with dayfly.Executor(client=client) as executor:
            os.kill(manager.pid, signal.SIGSTOP)
            try:
                # The call waits until its function is registered.
                waiting = asyncio.ensure_future(executor.asubmit(wait_for, gate))
                await asyncio.sleep(0)
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
            finally:
                os.kill(manager.pid, signal.SIGCONT)
            # Otherwise the program would not end.
            return str(executor.tag)

    tag = run(main)
    wait_until(lambda: client.tasks(tag).counts()["done"] == len(client.tasks(tag)), "what there was has ended", 30)


def test_async_variants_have_their_methods_signatures_and_docs(client: dayfly.Client) -> None:
    for name in ("register", "map", "task", "tasks"):
        method, twin = (getattr(dayfly.Client, one) for one in (name, f"a{name}"))
        assert inspect.iscoroutinefunction(twin)
        assert twin.__name__ == f"a{name}"
        assert list(inspect.signature(twin).parameters) == list(inspect.signature(method).parameters)
        assert method.__doc__ in twin.__doc__
