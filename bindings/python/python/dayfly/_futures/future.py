"""Futures that create their condition and callback lists only when those are needed."""

from __future__ import annotations

import concurrent.futures as cf
import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Generator
from concurrent.futures._base import CANCELLED, CANCELLED_AND_NOTIFIED, FINISHED, PENDING, RUNNING
from typing import Any, TypeVar, cast

from dayfly._codec.dependencies import result_of
from dayfly._codec.trust import NOBODY, Trust, merged_trust, open_foreign
from dayfly._errors import Cancelled, Error, InitializerError, RemoteTraceback
from dayfly._futures.coroutines import kill_in_background
from dayfly._native import Call, Failure, Foreign, Pool, Task, Tasks

T = TypeVar("T")

#: Seconds to wait until the manager has accepted tasks of another executor.
FLUSH = 60.0
#: Guards the creation of conditions and the hand-over of outcomes. Held for some hundred nanoseconds.
_lock = threading.Lock()
_DONE = (CANCELLED, CANCELLED_AND_NOTIFIED, FINISHED)


class FutureOwner:
    """Base of leases and executors: owns watched futures, and a helper thread that runs `complete_futures` for them."""

    _shut: bool
    _watched: dict[int | str, Future[Any]]
    #: Tenants whose results are unpickled.
    _trust: Trust = NOBODY
    #: The initializer's failure, after which no calls are accepted.
    _initializer_error: InitializerError | None = None

    def _check_usable(self) -> None:
        if self._initializer_error is not None:
            raise type(self._initializer_error)(self._initializer_error.message, self._initializer_error.code)

    def _watch(self, future: Future[Any]) -> None:
        self._watched[future._call.id] = future
        future._call.notify()

    def _ended(self, call: int | str) -> None:
        future = self._watched.pop(call, None)
        if future is not None:
            future._poll()


#: The submission whose arguments this thread is pickling: its executor, and the tasks whose futures they contain.
_submission = threading.local()


class DependencyCollector:
    """Replaces futures of tasks by references to their results while arguments are pickled.

    Entering it returns a dictionary, which receives the ids of those tasks.
    """

    __slots__ = ("_before", "_executor")

    def __init__(self, executor: FutureOwner) -> None:
        self._executor = executor

    def __enter__(self) -> dict[str, int]:
        taken: dict[str, int] = {}
        self._before = getattr(_submission, "now", None)
        _submission.now = (self._executor, taken)
        return taken

    def __exit__(self, *_: object) -> None:
        _submission.now = self._before


class Future(cf.Future[T]):
    """The future of a call or durable task, as a `concurrent.futures.Future`.

    The thread that calls `result` receives the response itself, without another thread to wake it. The lease's helper
    thread handles the future only after a callback was added, or ``concurrent.futures.wait`` or a similar function was
    called.
    """

    #: Tenants whose results may be unpickled, in addition to those that the executor trusts.
    _trust: Trust = NOBODY

    # Does not call the base class, which creates a condition: that costs more than the call.
    def __init__(
        self,
        call: Call | Task,
        pool: Pool | Tasks,
        owner: FutureOwner,
        decode: Callable[[Any], T] | None = None,
        raw: bool = False,
    ) -> None:
        # A Call comes with a Pool, and a Task with Tasks. Both have the same methods.
        self._call: Any = call
        self._pool = pool
        self._owner: Any = owner
        self._decode = decode
        self._raw = raw
        self._lazy_condition: threading.Condition | None = None
        self._state = PENDING
        self._result: T | None = None
        self._exception: BaseException | None = None

    def __getattr__(self, name: str) -> Any:
        # The base class would have created these lists in its constructor.
        if name in ("_waiters", "_done_callbacks"):
            with _lock:
                return self.__dict__.setdefault(name, [])
        raise AttributeError(name)

    def __await__(self) -> Generator[Any, None, T]:
        """Awaits the result, in any asyncio loop.

        Cancelling the wait ends a durable task, even one that runs, and cancels a call that has not been sent.
        """
        if type(self._call) is Task:
            return await_task(self).__await__()
        import asyncio

        return asyncio.wrap_future(self).__await__()

    def _repr_html_(self) -> str:
        """Returns the HTML that a notebook displays."""
        from html import escape

        how = "running" if not self.done() else "cancelled" if self.cancelled() else "done"
        if how == "done" and (error := self.exception()) is not None:
            how = f"{type(error).__name__}: {error}"
        return f"<div><code>{escape(str(self.id))}</code>: {escape(how)}</div>"

    @property
    def id(self) -> int | str:
        """Number of the call in its lease, or id of the task, for `Client.task`."""
        number: int | str = self._call.id
        return number

    @property
    def _condition(self) -> threading.Condition:  # type: ignore[override]
        if self._lazy_condition is None:
            self._watch()
        made = self._lazy_condition
        assert made is not None
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        now = getattr(_submission, "now", None)
        if now is None or type(self._call) is not Task or self._decode is not None:
            text = "a future cannot be pickled: take its result, or give it to a durable task, which waits for it"
            raise TypeError(text)
        if self._raw:
            raise TypeError(f"{self!r} is of a shared library's function, and no argument: give its result instead")
        executor, taken = now
        tasks: Any = self._pool
        if tasks is not executor._pool and not tasks.flush(FLUSH):
            raise cf.TimeoutError(f"the manager did not accept the task {self.id} within {FLUSH} s")
        place = taken.setdefault(str(self.id), len(taken))
        trust = merged_trust(merged_trust(self._trust, self._owner._trust), executor._trust)
        return result_of, ((place, trust if trust is True else sorted(trust)) if trust else (place,))

    def _watch(self) -> None:
        """Creates the condition, and has the helper thread complete this future."""
        with _lock:
            if self._lazy_condition is not None:
                return
            self._lazy_condition = threading.Condition()
            watch = self._state not in _DONE
        if watch:
            self._owner._watch(self)

    def _accept(self, outcome: Any) -> None:
        """Takes the outcome of the call and finishes the future. Later calls have no effect."""
        try:
            result, error = self._read(outcome)
        except KeyboardInterrupt:
            # The next caller reads the outcome.
            self._unread = outcome
            if (made := self._lazy_condition) is not None:
                with made:
                    made.notify_all()
            raise
        with _lock:
            made = self._lazy_condition
            if made is None:
                self._finish(result, error)
                return
        with made:
            if self._state in _DONE:
                return
            self._finish(result, error)
            for waiter in self._waiters:
                if self._state is CANCELLED_AND_NOTIFIED:
                    waiter.add_cancelled(self)
                elif error is None:
                    waiter.add_result(self)
                else:
                    waiter.add_exception(self)
            made.notify_all()
        self._invoke_callbacks()

    def _read(self, outcome: Any) -> tuple[Any, BaseException | None]:
        """Returns the result and the exception to raise instead. Raises `KeyboardInterrupt` on Ctrl-C."""
        if type(outcome) is Failure:
            return None, outcome.error
        try:
            if type(outcome) is Foreign:
                outcome = open_foreign(outcome, merged_trust(self._trust, self._owner._trust))
            return outcome if self._decode is None else self._decode(outcome), None
        except BaseException as raised:
            # The function itself may have raised a `KeyboardInterrupt`, which is its outcome.
            if isinstance(raised, KeyboardInterrupt) and not isinstance(raised.__cause__, RemoteTraceback):
                raise
            return None, raised

    def _take_unread(self) -> Any:
        """Returns and removes the outcome that an interrupted thread did not read; `Ellipsis` if there is none."""
        return self.__dict__.pop("_unread", Ellipsis)

    def _finish(self, result: Any, error: BaseException | None) -> None:
        if self._state in _DONE:
            return
        if type(error) is Cancelled:
            self._state = CANCELLED_AND_NOTIFIED
            return
        self._result = result
        self._exception = error
        self._state = FINISHED
        if isinstance(error, InitializerError):
            self._owner._initializer_error = error

    def _await(self, timeout: float | None) -> None:
        """Returns once the future is done, or raises `TimeoutError`."""
        until = None if timeout is None else time.monotonic() + timeout
        if self._state not in _DONE:
            outcome = self._call.wait(self._pool, timeout, self._raw)
            if outcome is NotImplemented:
                if self._state in _DONE:
                    return
                raise cf.TimeoutError
            if outcome is Ellipsis:
                outcome = self._take_unread()
            if outcome is not Ellipsis:
                self._accept(outcome)
                return
        if self._state in _DONE:
            return
        # Another thread took the outcome. It finishes the future, or leaves the outcome unread if it is interrupted.
        condition = self._condition
        with condition:
            while self._state not in _DONE:
                outcome = self._take_unread()
                if outcome is not Ellipsis:
                    break
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    raise cf.TimeoutError
                condition.wait(left)
            else:
                return
        self._accept(outcome)

    def result(self, timeout: float | None = None) -> T:
        """Waits for the call and returns its result, or raises the exception of the function.

        Args:
            timeout: seconds to wait; None for no limit.

        Raises:
            TimeoutError: after ``timeout`` seconds. The call continues.
            concurrent.futures.CancelledError: if the call was cancelled.
            dayfly.Error: if the call failed.
        """
        if self._state is not FINISHED:
            self._await(timeout)
            if self._state is not FINISHED:
                raise cf.CancelledError
        if self._exception is not None:
            try:
                raise self._exception
            finally:
                # Otherwise the exception's traceback would keep this future, and the future the exception.
                del self
        return self._result  # type: ignore[return-value]

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Waits for the call and returns the exception that it raised, or None.

        Args:
            timeout: seconds to wait; None for no limit.

        Raises:
            TimeoutError: after ``timeout`` seconds. The call continues.
            concurrent.futures.CancelledError: if the call was cancelled.
        """
        if self._state is not FINISHED:
            self._await(timeout)
            if self._state is not FINISHED:
                raise cf.CancelledError
        return self._exception

    def _poll(self) -> None:
        """Takes the outcome if it has arrived."""
        if self._state not in _DONE:
            outcome = self._call.take(self._pool, self._raw)
            if outcome is Ellipsis:
                outcome = self._take_unread()
            if outcome is not NotImplemented and outcome is not Ellipsis:
                self._accept(outcome)

    def done(self) -> bool:
        """Returns whether the call has ended or was cancelled."""
        self._poll()
        return self._state in _DONE

    def running(self) -> bool:
        """Returns whether a worker has received the call and it has not ended. For a durable task, asks the manager."""
        self._poll()
        if self._state is not PENDING:
            return self._state is RUNNING
        if not self._call.is_sent():
            return False
        if type(self._call) is not Task:
            return True
        try:
            return bool(self._owner._state_of(str(self.id)) == "running")
        except Error:
            # The state is unknown.
            return False

    def cancelled(self) -> bool:
        """Returns whether the call was cancelled."""
        self._poll()
        return self._state in (CANCELLED, CANCELLED_AND_NOTIFIED)

    def cancel(self) -> bool:
        """Cancels the call or task unless it runs, and returns whether it will never run. See `kill`.

        It runs from the moment a worker receives it. The manager or the endpoint that holds it decides, so True
        guarantees that it never begins. For a durable task, returns False if the manager cannot be reached within 5 s
        or does not respond within 10 s: the task may then run.
        """
        if self._state in (CANCELLED, CANCELLED_AND_NOTIFIED):
            return True
        self._poll()
        if self._state in _DONE or not self._cancel_call():
            return False
        condition = self._condition
        with condition:
            if self._state in _DONE:
                return self._state is not FINISHED
            self._state = CANCELLED_AND_NOTIFIED
            for waiter in self._waiters:
                waiter.add_cancelled(self)
            condition.notify_all()
        self._invoke_callbacks()
        return True

    def _cancel_call(self) -> bool:
        try:
            cancelled: bool = self._call.cancel()
        except Error as error:
            if error.code != "unreachable":
                raise
            return False
        return cancelled

    def kill(self) -> bool:
        """Ends the call or task even if it runs, together with its worker. Calls queued on that worker move to another.

        Returns False if it has already ended. Otherwise `result` soon raises ``concurrent.futures.CancelledError``,
        unless the function returns first. A call that was sent and has not begun ends when it begins.
        """
        self._poll()
        killed: bool = self._state not in _DONE and self._call.kill()
        return killed

    async def acancel(self) -> bool:
        """As `cancel`, for ``await``."""
        import asyncio

        return await asyncio.to_thread(self.cancel)

    async def akill(self) -> bool:
        """As `kill`, for ``await``."""
        import asyncio

        return await asyncio.to_thread(self.kill)

    def add_done_callback(self, fn: Callable[[cf.Future[T]], object]) -> None:
        """Calls ``fn(future)`` once the call has ended: at once if it has, else from the lease's helper thread."""
        self._poll()
        super().add_done_callback(fn)

    def __repr__(self) -> str:
        return f"<dayfly.Future {self._call.id} {self._state.lower()}>"


class _Unsent:
    """Stands for a call whose arguments could not be pickled."""

    id = "(not sent)"


def failed_future(error: BaseException, pool: Pool | Tasks, owner: FutureOwner) -> Future[Any]:
    """Returns the future of a call that failed before it was sent."""
    future: Future[Any] = Future(cast(Any, _Unsent), pool, owner)
    future._finish(None, error)
    return future


async def await_task(future: Future[T], *, cancels: bool = True) -> T:
    """Awaits the result of a durable task. With ``cancels``, cancelling the wait cancels the task."""
    import asyncio

    loop = asyncio.get_running_loop()
    over = asyncio.Event()

    def tell(_: object) -> None:
        # If the loop is closed, nothing waits for this future.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(over.set)

    # Not by the future's own method, which would fetch the outcome now, in the loop's thread: it may be large.
    cf.Future.add_done_callback(future, tell)
    try:
        if future._owner._shut:
            # After the shutdown no helper thread completes the futures.
            await asyncio.to_thread(future.done)
        await over.wait()
    except asyncio.CancelledError:
        if cancels:
            kill_in_background(future)
        raise
    if future.cancelled():
        raise asyncio.CancelledError
    return future.result()


def complete_futures(owner_ref: weakref.ref[FutureOwner], pool: Pool | Tasks) -> None:
    """Completes watched futures, until the pool is closed or the owner of the futures is garbage-collected."""
    while True:
        ended = pool.serve()
        if not ended:
            return
        owner = owner_ref()
        if owner is None:
            return
        for call in ended:
            owner._ended(call)
        del owner
