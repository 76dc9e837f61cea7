"""For programs with asyncio, which is imported by them alone: nothing here has the loop wait for a manager."""

from __future__ import annotations

import concurrent.futures as cf
import contextlib
import functools
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

if TYPE_CHECKING:
    import asyncio

    from dayfly._future import Future

S = TypeVar("S")
P = ParamSpec("P")
T = TypeVar("T")


def twin(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """The same method to be awaited: it runs in another thread, also to its end where nobody waits any more."""

    @functools.wraps(method)
    async def awaited(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        import asyncio

        return await asyncio.to_thread(method, self, *args, **kwargs)

    name = method.__name__
    awaited.__name__, awaited.__qualname__ = f"a{name}", method.__qualname__.removesuffix(name) + f"a{name}"
    awaited.__doc__ = f"As `{name}`, to be awaited.\n\n{method.__doc__}"
    return awaited


async def submitted(submit: Callable[[], Future[T]]) -> T:
    """Submits in another thread, and awaits the result; where the wait is cancelled, so is what was submitted."""
    import asyncio

    made: list[Future[T]] = []
    gone = threading.Event()

    def step() -> None:
        made.append(submit())
        if gone.is_set():
            _take_back(made[0])

    try:
        await asyncio.to_thread(step)
    except asyncio.CancelledError:
        gone.set()
        if made:
            _take_back_elsewhere(made[0])
        raise
    return await made[0]


async def ended(future: Future[T], *, cancels: bool = True) -> T:
    """The result of a durable task; where the wait is cancelled, so is the task, unless it is said not to be."""
    import asyncio

    loop = asyncio.get_running_loop()
    over = asyncio.Event()

    def tell(_: object) -> None:
        # A loop that is closed has nobody who waits.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(over.set)

    # Not by its own method, which would look for the outcome at once, and long ones are fetched then.
    cf.Future.add_done_callback(future, tell)
    try:
        if future._lease._shut:
            # Nobody looks after its futures any more.
            await asyncio.to_thread(future.done)
        await over.wait()
    except asyncio.CancelledError:
        if cancels:
            _take_back_elsewhere(future)
        raise
    if future.cancelled():
        raise asyncio.CancelledError
    return future.result()


def _take_back(future: Future[Any]) -> None:
    # Nobody is left who could be told that there is no manager.
    with contextlib.suppress(Exception):
        future.kill()


def _take_back_elsewhere(future: Future[Any]) -> None:
    import asyncio

    asyncio.get_running_loop().run_in_executor(None, _take_back, future)


async def items(make: Callable[[], Iterator[T]]) -> AsyncIterator[T]:
    """What an iterator that waits gives, as it does, by a thread of its own."""
    import asyncio

    loop = asyncio.get_running_loop()
    given: asyncio.Queue[tuple[list[T], BaseException | None]] = asyncio.Queue()
    over = threading.Event()

    def give(some: list[T], error: BaseException | None = None) -> None:
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(given.put_nowait, (some, error))

    def run() -> None:
        try:
            for item in make():
                if over.is_set():
                    return
                give([item])
            give([])
        except BaseException as error:
            give([], error)

    threading.Thread(target=run, name="dayfly iterator", daemon=True).start()
    try:
        while True:
            some, error = await given.get()
            if error is not None:
                raise error
            if not some:
                return
            yield some[0]
    finally:
        over.set()
