"""Functions of shared libraries, called from Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dayfly._futures.future import Future
from dayfly._leases.calls import CallTarget
from dayfly._native import Options


class NativeFunction:
    """A symbol of a shared library, which runs on a worker.

    ``data`` is an object with a contiguous buffer, such as bytes or a NumPy array. ``out`` is the capacity for the
    output: a number of bytes, or a writable buffer that receives the output. The call returns bytes, a ``memoryview``
    of shared memory, or the given ``out``.
    """

    def __init__(self, lease: CallTarget, number: int, name: str) -> None:
        self._lease = lease
        self._number = number
        self.name = name

    def submit(
        self, data: Any = b"", *, out: Any = None, deadline: float | None = None, idempotent: bool = False
    ) -> Future[Any]:
        """As a call, but returns a future immediately."""
        into = None if out is None or isinstance(out, int) else memoryview(out).cast("B")
        room = out if isinstance(out, int) else 0 if into is None else into.nbytes
        options = Options(deadline_ms=self._lease._milliseconds(deadline), idempotent=idempotent, room=room)
        self._lease._check_open()
        call = self._lease._pool.submit_raw(self._number, data, options)

        def decode(output: Any) -> Any:
            if into is None:
                return output if isinstance(output, bytes) else memoryview(output)
            with memoryview(output) as view:
                into[: len(view)] = view
            return out

        return Future(call, self._lease._pool, self._lease, decode, raw=True)

    def __call__(
        self, data: Any = b"", *, out: Any = None, deadline: float | None = None, idempotent: bool = False
    ) -> Any:
        """Calls the function on a worker and returns its output.

        Args:
            data: the input.
            out: capacity for the output.
            deadline: seconds that the call may run.
            idempotent: whether the call may run again on another worker if its worker died during the call.
        """
        return self.submit(data, out=out, deadline=deadline, idempotent=idempotent).result()

    def __repr__(self) -> str:
        return f"<dayfly function {self.name} of a shared library>"


class Library:
    """A shared library on leased workers. Created by `Lease.library` and `Fleet.library`.

    ``library.name`` is a function ``uint32_t name(void *in, uint32_t size, void *out)``. ``library.checked("name")`` is
    a function of the checked form of ``dayfly_function.h``, which receives the capacity of its output.
    """

    def __init__(self, lease: CallTarget, path: str | Path) -> None:
        self._lease = lease
        self._path = Path(path)
        self._hash = lease._native.put_code(self._path.read_bytes())

    def plain(self, name: str) -> NativeFunction:
        """Returns a function of the plain form, as attribute access does."""
        return NativeFunction(self._lease, self._lease._pool.register_symbol(self._hash, name, False), name)

    def checked(self, name: str) -> NativeFunction:
        """Returns a function of the checked form."""
        return NativeFunction(self._lease, self._lease._pool.register_symbol(self._hash, name, True), name)

    def __getattr__(self, name: str) -> NativeFunction:
        if name.startswith("__"):
            raise AttributeError(name)
        function = self.plain(name)
        self.__dict__[name] = function
        return function

    def __repr__(self) -> str:
        return f"<dayfly library {self._path.name}>"
