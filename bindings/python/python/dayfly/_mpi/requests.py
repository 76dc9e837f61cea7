"""Operations in the background, and what a receive found."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from dayfly._errors import RequestError
from dayfly._mpi.types import (
    ANY_SOURCE,
    ANY_TAG,
    BYTE,
    PROC_NULL,
    UNDEFINED,
    Datatype,
)
from dayfly._native import Request as _NativeRequest


class _Receiver(Protocol):
    """The part of a communicator that receives objects."""

    _waiting: list[Any]

    def _advance(self, request: Any) -> None: ...

    def iprobe(self, source: int = ..., tag: int = ...) -> bool: ...


class Status:
    """What a receive, or a probe, found."""

    def __init__(self) -> None:
        self.source = ANY_SOURCE
        self.tag = ANY_TAG
        self.count = 0

    def _set(self, found: tuple[int, int, int] | None) -> None:
        if found is not None:
            self.source, self.tag, self.count = found

    def Get_source(self) -> int:
        """Who sent it."""
        return self.source

    def Get_tag(self) -> int:
        """Under which tag."""
        return self.tag

    def Get_count(self, datatype: Datatype = BYTE) -> int:
        """Elements of it."""
        whole, rest = divmod(self.count, datatype.size)
        return UNDEFINED if rest else whole

    Get_elements = Get_count

    def Get_error(self) -> int:
        """Always 0: errors are raised."""
        return 0

    def Is_cancelled(self) -> bool:
        """Whether the operation was ended early."""
        return False


#: What is received from nobody.
_NOTHING = (PROC_NULL, ANY_TAG, 0)


class Request:
    """An operation in the background."""

    def __init__(self, native: _NativeRequest | None, finish: Callable[[], Any] | None = None) -> None:
        self._native = native
        self._finish = finish
        self._value: Any = None
        self._done = native is None

    def _end(self, found: tuple[int, int, int] | None, status: Status | None) -> None:
        self._done = True
        if status is not None:
            status._set(found)
        if self._finish is not None:
            self._value = self._finish()
            self._finish = None

    def Wait(self, status: Status | None = None) -> bool:
        """Waits until it is over."""
        if self._native is None:
            if status is not None:
                status._set(_NOTHING)
        elif not self._done:
            self._end(self._native.wait(), status)
        return True

    def Test(self, status: Status | None = None) -> bool:
        """Whether it is over."""
        if not self._done and self._native is not None:
            over, found = self._native.test()
            if over:
                self._end(found, status)
        return self._done

    def wait(self, status: Status | None = None) -> Any:
        """Waits until it is over, and answers the object that was received."""
        self.Wait(status)
        return self._value

    def test(self, status: Status | None = None) -> tuple[bool, Any]:
        """Whether it is over, and the object that was received."""
        return self.Test(status), self._value

    def Cancel(self) -> None:
        """Ends it early."""
        if self._native is not None:
            self._native.cancel()
        self._done = True

    @staticmethod
    def Waitall(requests: Iterable[Request], statuses: list[Status] | None = None) -> bool:
        """Waits for all of them."""
        for number, request in enumerate(requests):
            request.Wait(statuses[number] if statuses else None)
        return True

    @staticmethod
    def waitall(requests: Iterable[Request], statuses: list[Status] | None = None) -> list[Any]:
        """Waits for all of them, and answers the objects that were received."""
        return [r.wait(statuses[n] if statuses else None) for n, r in enumerate(requests)]

    @staticmethod
    def Waitany(requests: Sequence[Request], status: Status | None = None) -> int:
        """Waits for one of them, and answers which."""
        if all(request._done for request in requests):
            return UNDEFINED
        while True:
            for number, request in enumerate(requests):
                if not request._done and request.Test(status):
                    return number
            time.sleep(0)

    @staticmethod
    def waitany(requests: Sequence[Request], status: Status | None = None) -> tuple[int, Any]:
        """Waits for one of them, and answers which, and the object that it received."""
        number = Request.Waitany(requests, status)
        return number, None if number == UNDEFINED else requests[number]._value

    @staticmethod
    def Testany(requests: Sequence[Request], status: Status | None = None) -> tuple[int, bool]:
        """Which of them is over now, and whether one is."""
        under_way = [number for number, request in enumerate(requests) if not request._done]
        for number in under_way:
            if requests[number].Test(status):
                return number, True
        return UNDEFINED, not under_way

    @staticmethod
    def testany(requests: Sequence[Request], status: Status | None = None) -> tuple[int, bool, Any]:
        """The same, and the object that it received."""
        number, over = Request.Testany(requests, status)
        return number, over, None if number == UNDEFINED else requests[number]._value

    @staticmethod
    def Waitsome(requests: Sequence[Request], statuses: list[Status] | None = None) -> list[int] | None:
        """Waits until some of them are over, and answers which; None if all were before."""
        while any(not request._done for request in requests):
            if some := Request.Testsome(requests, statuses):
                return some
            time.sleep(0)
        return None

    @staticmethod
    def waitsome(
        requests: Sequence[Request], statuses: list[Status] | None = None
    ) -> tuple[list[int] | None, list[Any] | None]:
        """The same, and the objects that they received."""
        some = Request.Waitsome(requests, statuses)
        return some, None if some is None else [requests[number]._value for number in some]

    @staticmethod
    def Testsome(requests: Sequence[Request], statuses: list[Status] | None = None) -> list[int] | None:
        """Which of them are over now; None if all were before."""
        under_way = [number for number, request in enumerate(requests) if not request._done]
        if not under_way:
            return None
        some: list[int] = []
        for number in under_way:
            if requests[number].Test(statuses[len(some)] if statuses else None):
                some.append(number)
        return some

    @staticmethod
    def testsome(
        requests: Sequence[Request], statuses: list[Status] | None = None
    ) -> tuple[list[int] | None, list[Any] | None]:
        """The same, and the objects that they received."""
        some = Request.Testsome(requests, statuses)
        return some, None if some is None else [requests[number]._value for number in some]

    @staticmethod
    def Testall(requests: Sequence[Request], statuses: list[Status] | None = None) -> bool:
        """Whether all of them are over."""
        # Each of them moves on, also behind one that is not over.
        over = [request.Test(statuses[n] if statuses else None) for n, request in enumerate(requests)]
        return all(over)

    @staticmethod
    def testall(requests: Sequence[Request], statuses: list[Status] | None = None) -> tuple[bool, list[Any] | None]:
        """The same, and the objects that they received."""
        over = Request.Testall(requests, statuses)
        return over, [request._value for request in requests] if over else None

    def Free(self) -> None:
        """Does nothing: it goes when nobody has it any more."""


class Prequest(Request):
    """An operation that is started again and again, each time after it was over."""

    def __init__(self, begin: Callable[[], Request]) -> None:
        super().__init__(None)
        self._begin = begin

    def Start(self) -> None:
        """Starts it."""
        if not self._done:
            raise RequestError("this request is under way; wait for it before it is started again", "invalid_request")
        self._native = self._begin()._native
        self._done = self._native is None

    @staticmethod
    def Startall(requests: Iterable[Prequest]) -> None:
        """Starts all of them."""
        for request in requests:
            request.Start()


#: Of an operation that did not go to the background.
_OVER = Request(None)


class _Object(Request):
    """An object on its way here, received when its message is there: its length is not known before."""

    def __init__(self, comm: _Receiver, source: int, tag: int) -> None:
        super().__init__(None)
        self._comm, self._source, self._tag = comm, source, tag
        #: Not over until somebody has asked, though its message may have come while another was waited for.
        self._done = False
        self._found: tuple[int, int, int] | None = None

    def _matches(self, source: int, tag: int) -> bool:
        return self._source in (ANY_SOURCE, source) and self._tag in (ANY_TAG, tag)

    def _take(self, value: Any, found: tuple[int, int, int]) -> None:
        self._value, self._found = value, found

    def _over(self, status: Status | None) -> bool:
        if self._found is not None:
            self._done = True
            if status is not None:
                status._set(self._found)
        return self._done

    def Wait(self, status: Status | None = None) -> bool:
        while not self._done and self._found is None:
            self._comm._advance(self)
        return self._over(status)

    def Test(self, status: Status | None = None) -> bool:
        while not self._done and self._found is None and self._comm.iprobe(self._source, self._tag):
            self._comm._advance(self)
        return self._over(status)

    def Cancel(self) -> None:
        self._done = True
        if self in self._comm._waiting:
            self._comm._waiting.remove(self)
