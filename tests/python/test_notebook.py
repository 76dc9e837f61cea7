"""Progress of durable tasks in notebooks and terminals, and waiting for them with asyncio."""

from __future__ import annotations

import asyncio
import concurrent.futures as cf
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from harness.leaks import wait_until

dayfly = pytest.importorskip("dayfly", reason="the package is not installed: make build")


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Path]:
    """The file that tasks wait for. It exists in the end, so that no task is left."""
    yield tmp_path / "gate"
    (tmp_path / "gate").touch()


def work(number: int, gate: str) -> int:
    """Fails for one number, and waits for all later ones."""
    if number == 3:
        raise ValueError(number)
    while number > 3 and not Path(gate).exists():
        time.sleep(0.01)
    return number


def area(width: int, height: int) -> int:
    return width * height


def shown(batch: dayfly.Batch) -> tuple[str, int, int, int]:
    """Returns the tag, the counts and the bar that a notebook shows for a batch. The HTML is well-formed."""
    division = ElementTree.fromstring(batch._repr_html_().replace("<br>", "<br/>"))
    said = re.fullmatch(r"(.*): (\d+) of (\d+) tasks done", division.text or "", re.DOTALL)
    assert said is not None, division.text
    bar = division.find("progress")
    assert bar is not None
    # A bar without tasks has an end, too: otherwise browsers would draw a moving one.
    assert float(bar.attrib["max"]) == max(1, int(said[3]))
    return said[1], int(said[2]), int(said[3]), int(bar.attrib["value"])


def numbers_of_bar(drawn: str) -> list[tuple[int, int]]:
    """Returns the drawings of a progress bar on a terminal."""
    return [(int(done), int(total)) for done, total in re.findall(r"\| (\d+)/(\d+) ", drawn)]


def test_notebook_shows_a_batch_in_every_state(client: dayfly.Client, gate: Path) -> None:
    batch = client.map(work, range(500), [str(gate)] * 500)
    wait_until(lambda: batch.done() == 4, "those that wait for nothing have ended", 30)
    wait_until(lambda: batch.counts()["running"], "others run", 30)
    counts = batch.counts()
    # Some tasks are at a worker, some at the endpoint, and most are queued.
    assert counts["done"] == 4
    assert min(counts["waiting"], counts["queued"]) > 0
    assert sum(counts.values()) == 500
    assert shown(batch) == (batch.tag, 4, 500, 4)
    # One of the ended tasks has failed.
    assert re.search(r"</progress> \d+ running, 1 failed</div>", batch._repr_html_())
    assert repr(batch) == f"<dayfly.Batch {batch.tag!r}: 4 of 500 done>"
    assert [repr(future).split()[-1] for future in (batch[0], batch[499])] == ["pending>", "pending>"]
    assert batch[0].done()
    assert repr(batch[0]).endswith(" finished>")
    # Cancelled tasks are done, too.
    assert batch[499].cancel()
    assert repr(batch[499]).endswith(" cancelled_and_notified>")
    wait_until(lambda: shown(batch)[1:] == (5, 500, 5), "it is counted")
    batch.kill()
    wait_until(lambda: shown(batch)[1:] == (500, 500, 500), "all have ended", 30)
    assert batch.counts()["done"] == sum(batch.counts().values()) == 500


def test_notebook_shows_empty_and_growing_batches(client: dayfly.Client) -> None:
    with client.batch() as batch:
        assert shown(batch) == (batch.tag, 0, 0, 0)
        assert list(batch.results(timeout=1, progress=True)) == []
        for number in range(20):
            batch.submit(area, number, 2)
            tag, done, total, bar = shown(batch)
            assert (tag, total) == (batch.tag, number + 1)
            assert 0 <= done == bar <= total
    assert list(batch.results(timeout=30)) == [2 * number for number in range(20)]
    assert shown(batch)[1:] == (20, 20, 20)


def test_notebook_shows_a_tag_escaped(client: dayfly.Client) -> None:
    tag = "<script>alert('1 < 2 && \"x\"')</script> ü"
    batch = client.map(area, [6], [7], tag=tag)
    assert batch[0].result(30) == 42
    assert "<script>" not in batch._repr_html_()
    assert shown(batch) == (tag, 1, 1, 1)
    assert shown(client.tasks(tag))[0] == tag


def said_of(future: Any) -> str:
    """Returns what a notebook shows for a future, without its id."""
    division = ElementTree.fromstring(future._repr_html_())
    named = division.find("code")
    assert named is not None
    assert named.text == str(future.id)
    return "".join(division.itertext()).removeprefix(f"{future.id}: ")


def test_notebook_shows_a_future_in_every_state(client: dayfly.Client, gate: Path) -> None:
    batch = client.map(work, range(500), [str(gate)] * 500)
    wait_until(lambda: batch.counts()["running"], "some run", 30)
    assert said_of(batch[499]) == "running"
    assert batch[499].cancel()
    assert said_of(batch[499]) == "cancelled"
    assert batch[0].result(30) == 0
    assert said_of(batch[0]) == "done"
    with pytest.raises(ValueError, match="3"):
        batch[3].result(30)
    assert said_of(batch[3]) == "ValueError: 3"
    batch.kill()
    wait_until(lambda: said_of(batch[498]) == "cancelled", "it ends", 30)


def test_notebook_shows_an_exception_as_text(client: dayfly.Client) -> None:
    def fail() -> None:
        raise ValueError("<script>alert('1 < 2 && more')</script>")

    future = client.run(fail)
    assert isinstance(future.exception(30), ValueError)
    assert "<script>" not in future._repr_html_()
    assert said_of(future) == "ValueError: <script>alert('1 < 2 && more')</script>"


def test_notebook_shows_a_batch_that_was_found(client: dayfly.Client, gate: Path) -> None:
    batch = client.map(work, range(10), [str(gate)] * 10)
    again = client.tasks(batch.tag)
    wait_until(lambda: shown(again)[1:] == (4, 10, 4), "the same is known of them", 30)
    gate.touch()
    wait_until(lambda: shown(again)[1:] == (10, 10, 10), "all have ended", 30)


def test_results_draw_a_progress_bar(client: dayfly.Client, capfd: pytest.CaptureFixture[str]) -> None:
    batch = client.map(area, range(300), range(300))
    assert list(batch.results(timeout=30, progress=True)) == [n * n for n in range(300)]
    out, drawn = capfd.readouterr()
    assert out == ""
    counted = numbers_of_bar(drawn)
    assert counted[-1] == (300, 300)
    assert counted == sorted(counted)
    assert {total for _, total in counted} == {300}
    assert drawn.endswith("\n")
    assert "100% |" in drawn


def test_progress_bar_counts_in_completion_order(
    client: dayfly.Client, gate: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    batch = client.map(work, [4, 0, 1, 2], [str(gate)] * 4)
    completed = batch.as_completed(timeout=30, progress=True)
    assert {next(completed).result() for _ in range(3)} == {0, 1, 2}
    gate.touch()
    assert [future.result() for future in completed] == [4]
    drawn = capfd.readouterr().err
    assert numbers_of_bar(drawn)[-1] == (4, 4)
    assert drawn.endswith("\n")
    assert len(list(batch.as_completed())) == 4
    assert capfd.readouterr().err == ""


def test_progress_bar_ends_at_a_failed_task(
    client: dayfly.Client, gate: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    batch = client.map(work, range(10), [str(gate)] * 10)
    with pytest.raises(ValueError, match="3"):
        list(batch.results(timeout=30, progress=True))
    drawn = capfd.readouterr().err
    assert numbers_of_bar(drawn)[-1] == (3, 10)
    assert drawn.endswith("\n")


def test_progress_bar_ends_at_timeout_or_abandonment(
    client: dayfly.Client, gate: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    batch = client.map(area, range(5), range(5))
    batch.extend(work, [4], [str(gate)])
    with pytest.raises(TimeoutError):
        list(batch.results(timeout=0.5, progress=True))
    assert numbers_of_bar(capfd.readouterr().err)[-1] == (5, 6)
    results = batch.results(timeout=30, progress=True)
    assert [next(results), next(results)] == [0, 1]
    results.close()  # type: ignore[attr-defined]
    drawn = capfd.readouterr().err
    assert numbers_of_bar(drawn)[-1][1] == 6
    assert drawn.endswith("\n")
    # Results that were not read are not lost.
    gate.touch()
    assert list(batch.results(timeout=30)) == [0, 1, 4, 9, 16, 4]


def test_progress_bar_ends_at_a_cancelled_task(
    client: dayfly.Client, gate: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    batch = client.map(work, [0, 4, 5], [str(gate)] * 3)
    assert batch[0].result(30) == 0
    batch.kill()
    with pytest.raises(cf.CancelledError):
        list(batch.results(timeout=30, progress=True))
    assert numbers_of_bar(capfd.readouterr().err)[-1] == (1, 3)


def awaited(make: Callable[[], Any], limit: float = 30) -> Any:
    """Returns the result of a coroutine."""
    return asyncio.run(asyncio.wait_for(make(), limit))


def test_awaited_task_does_not_block_the_loop(client: dayfly.Client, gate: Path) -> None:
    async def main() -> tuple[int, bool]:
        waiting = asyncio.ensure_future(executor.asubmit(work, 4, str(gate)))
        # Other tasks return results meanwhile.
        assert await executor.asubmit(area, 6, height=7) == 42
        before = waiting.done()
        gate.touch()
        return await waiting, before

    with dayfly.Executor(client=client) as executor:
        assert awaited(main) == (4, False)


def test_many_tasks_are_awaited_concurrently(client: dayfly.Client) -> None:
    async def main() -> list[int]:
        return await asyncio.gather(*(executor.asubmit(area, n, n) for n in range(200)))

    with dayfly.Executor(client=client) as executor:
        assert awaited(main) == [n * n for n in range(200)]


def test_exception_of_an_awaited_task_is_raised(client: dayfly.Client, gate: Path) -> None:
    async def main() -> None:
        with pytest.raises(ValueError, match="3"):
            await executor.asubmit(work, 3, str(gate))
        both = await asyncio.gather(
            executor.asubmit(work, 3, str(gate)), executor.asubmit(work, 2, str(gate)), return_exceptions=True
        )
        assert [type(one) for one in both] == [ValueError, int]

    with dayfly.Executor(client=client) as executor:
        awaited(main)


def test_timed_out_await_cancels_its_task(client: dayfly.Client, gate: Path) -> None:
    async def main() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(executor.asubmit(work, 4, str(gate)), 0.2)
        assert await executor.asubmit(area, 6, 7) == 42

    executor = dayfly.Executor(client=client)
    try:
        awaited(main)
    finally:
        executor.shutdown(wait=True, cancel_futures=True)


def test_decorated_function_is_awaited(client: dayfly.Client) -> None:
    decorated = dayfly.durable(client=client)(area)

    async def main() -> int:
        return int(await decorated.asubmit(6, height=7))

    assert awaited(main) == 42
    assert list(decorated.map(range(3), range(3)).results(timeout=30)) == [0, 1, 4]


def test_asyncio_awaits_futures_of_a_batch(client: dayfly.Client, gate: Path) -> None:
    async def main() -> tuple[list[int], int, int]:
        loop = asyncio.get_running_loop()
        wrapped = [asyncio.wrap_future(future) for future in batch.futures]
        squares = await asyncio.gather(*wrapped)
        # A completed future can be awaited again.
        return squares, await asyncio.wrap_future(batch[2]), await loop.run_in_executor(executor, area, 6, 7)

    batch = client.map(area, range(50), range(50))
    with dayfly.Executor(client=client) as executor:
        assert awaited(main) == ([n * n for n in range(50)], 4, 42)


def test_cancelled_task_cancels_its_await(client: dayfly.Client, gate: Path) -> None:
    async def main() -> None:
        futures = [asyncio.wrap_future(future) for future in batch.futures]
        batch.kill()
        ended = await asyncio.gather(*futures, return_exceptions=True)
        assert [type(one) for one in ended] == [asyncio.CancelledError] * 20

    batch = client.map(work, [4] * 20, [str(gate)] * 20)
    awaited(main)


def test_futures_and_batches_are_awaitable(client: dayfly.Client) -> None:
    async def all_of_them() -> tuple[int, list[int], list[int]]:
        one = await client.run(pow, 2, 10)
        batch = client.map(abs, [-1, -2, -3])
        some = [result async for result in batch]
        return one, some, await asyncio.gather(*batch.futures)

    assert asyncio.run(all_of_them()) == (1024, [1, 2, 3], [1, 2, 3])

    async def fails() -> None:
        with pytest.raises(ZeroDivisionError):
            await client.run(divmod, 1, 0)

    asyncio.run(fails())
