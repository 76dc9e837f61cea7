"""Functions of shared libraries as durable functions."""

from __future__ import annotations

import concurrent.futures as cf
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from dayfly._functions.kinds import Program, native

if TYPE_CHECKING:
    from dayfly._functions.environment import Environment


class Symbol(Program):
    """A function of a shared library, written in C, C++ or another language, to register or to submit to an `Executor`.

        area = client.register(dayfly.Symbol("area.so", "area"), walltime=60)
        client.run(area, numpy.array([6.0, 7.0])).result()

    It takes one object with a contiguous buffer, such as bytes or a NumPy array, or no argument, which is an empty
    buffer. It returns the bytes that the function wrote. Its worker needs no Python. If the node cannot load the file
    or the file does not have the symbol, the tasks fail with `LoadError`.

    Args:
        library: path of the file, which is read immediately.
        name: name of the symbol, which must be exported, and ``extern "C"`` in C++.
        checked: whether the function has the checked form of ``dayfly_function.h``, which receives the capacity of its
            output and can report an error (`FunctionError`); otherwise it is
            ``uint32_t name(void *in, uint32_t size, void *out)``.
    """

    raw = True

    def __init__(self, library: str | os.PathLike[str], name: str, *, checked: bool = False) -> None:
        path = Path(library)
        self._code = path.read_bytes()
        self._file = path.name
        self.name = self.__name__ = name
        self.checked = checked

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raises TypeError: a symbol runs only on workers."""
        raise TypeError(f"{self!r} runs on workers: register it, and run it as a durable task")

    def form(self, image: str | None) -> dict[str, Any]:
        return {"form": "checked" if self.checked else "plain", "symbol": self.name}

    def runtime(self, environment: Environment | None) -> dict[str, Any]:
        return native(environment)

    @property
    def code(self) -> bytes:
        return self._code

    @property
    def source(self) -> str:
        return f"{self.name} of {self._file}"

    @staticmethod
    def packed(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if kwargs or len(args) > 1:
            raise TypeError(
                "a function of a shared library takes one object with a buffer, such as bytes or an array, and got "
                f"{len(args) + len(kwargs)} arguments"
            )
        data = args[0] if args else b""
        if isinstance(data, cf.Future):
            raise TypeError(
                f"a function of a shared library takes bytes, and {data!r} cannot stand for them: give it the result"
            )
        return data

    def __repr__(self) -> str:
        return f"<dayfly.Symbol {self.source}>"
