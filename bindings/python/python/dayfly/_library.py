"""Functions of shared libraries, called from Python."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from dayfly._future import Future
from dayfly._native import Options

if TYPE_CHECKING:
    from dayfly._lease import Lease


class NativeFunction:
    """A symbol of a shared library, as a worker calls it.

    ``data`` is anything with a contiguous buffer: bytes, a NumPy array. ``out`` says how much room the output needs, as
    a number of bytes or as a writable buffer that takes it. The output is bytes, a view of shared memory that reads
    like them (``memoryview``), or what was given as ``out``.
    """

    def __init__(self, lease: Lease, number: int, name: str) -> None:
        self._lease = lease
        self._number = number
        self.name = name

    def submit(
        self, data: Any = b"", *, out: Any = None, deadline: float | None = None, idempotent: bool = False
    ) -> Future[Any]:
        """As calling it, but answers a future at once."""
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
        """Calls it and waits for its output."""
        return self.submit(data, out=out, deadline=deadline, idempotent=idempotent).result()

    def __repr__(self) -> str:
        return f"<dayfly function {self.name} of a shared library>"


class Library:
    """A shared library that was sent to a lease's workers.

    ``library.name`` is a function of the form ``uint32_t name(void *in, uint32_t size, void *out)``;
    ``library.checked("name")`` one of the form that is told its output's capacity (``dayfly_function.h``).
    """

    def __init__(self, lease: Lease, path: str | Path) -> None:
        self._lease = lease
        self._path = Path(path)
        self._hash = lease._native.put_code(self._path.read_bytes())

    def plain(self, name: str) -> NativeFunction:
        """A function of the plain form, as attribute access gives it."""
        return NativeFunction(self._lease, self._lease._pool.register_symbol(self._hash, name, False), name)

    def checked(self, name: str) -> NativeFunction:
        """A function of the checked form."""
        return NativeFunction(self._lease, self._lease._pool.register_symbol(self._hash, name, True), name)

    def __getattr__(self, name: str) -> NativeFunction:
        if name.startswith("__"):
            raise AttributeError(name)
        function = self.plain(name)
        self.__dict__[name] = function
        return function

    def __repr__(self) -> str:
        return f"<dayfly library {self._path.name}>"
