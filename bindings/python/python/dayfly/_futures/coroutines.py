"""Support for asyncio, which only programs that use it import. Nothing here blocks the event loop."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar

if TYPE_CHECKING:
    import asyncio

S = TypeVar("S")
P = ParamSpec("P")
T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True)


class Submitted(Protocol[R_co]):
    """What `submit_and_await` needs of a future."""

    def kill(self) -> bool: ...

    def __await__(self) -> Generator[Any, None, R_co]: ...


def async_variant(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """Returns an awaitable variant of a method. It runs in another thread, to its end even if the wait is cancelled."""

    @functools.wraps(method)
    async def awaited(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        import asyncio

        return await asyncio.to_thread(method, self, *args, **kwargs)

    name = method.__name__
    awaited.__name__, awaited.__qualname__ = f"a{name}", method.__qualname__.removesuffix(name) + f"a{name}"
    awaited.__doc__ = f"As `{name}`, to be awaited.\n\n{method.__doc__}"
    return awaited


async def submit_and_await(submit: Callable[[], Submitted[T]]) -> T:
    """Submits in another thread and awaits the result. Cancelling the wait cancels the call or task."""
    import asyncio

    made: list[Submitted[T]] = []
    gone = threading.Event()

    def step() -> None:
        made.append(submit())
        if gone.is_set():
            _kill(made[0])

    try:
        await asyncio.to_thread(step)
    except asyncio.CancelledError:
        gone.set()
        if made:
            kill_in_background(made[0])
        raise
    return await made[0]


def _kill(future: Submitted[Any]) -> None:
    # The wait is cancelled, so an error has no one to receive it.
    with contextlib.suppress(Exception):
        future.kill()


def kill_in_background(future: Submitted[Any]) -> None:
    """Kills a call or task in another thread. The caller runs in an event loop."""
    import asyncio

    asyncio.get_running_loop().run_in_executor(None, _kill, future)


async def iterate_in_thread(make: Callable[[], Iterator[T]]) -> AsyncIterator[T]:
    """Yields the items of a blocking iterator, which runs in a thread of its own."""
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
