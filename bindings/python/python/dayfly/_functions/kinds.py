"""The kinds of functions that the manager keeps: pickled Python functions, and programs with their own call format."""

from __future__ import annotations

import inspect
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, ClassVar

import cloudpickle

from dayfly._command import Command
from dayfly._functions.own_code import current_version, tracker
from dayfly._functions.runtime import PYTHON, runtime

if TYPE_CHECKING:
    from dayfly._functions.environment import Environment

#: The last byte of a call in JSON; see ``codec.rs``.
JSON = b"\x05"


class FunctionKind:
    """A function to register, as described to the manager, to workers and to people."""

    def form(self, image: str | None) -> dict[str, Any]:
        """Returns the form of the function, as the API's ``Form``."""
        raise NotImplementedError

    def runtime(self, environment: Environment | None) -> dict[str, Any]:
        """Returns the runtime that workers need for it."""
        raise NotImplementedError

    @property
    def code(self) -> bytes:
        """The bytes that workers load."""
        raise NotImplementedError

    @property
    def source(self) -> str:
        """The source to show to people."""
        raise NotImplementedError

    @property
    def about(self) -> str:
        """The default description."""
        return ""


class Program(FunctionKind):
    """A function that is not called with pickled arguments."""

    #: Whether the result is raw bytes rather than a value.
    raw: ClassVar[bool] = False

    @property
    def key(self) -> Hashable:
        """A value that identifies the program: equal for equal programs."""
        return (type(self), self.code, *self.form(None).values())

    @staticmethod
    def packed(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Returns a call with these arguments, in the form for the worker: bytes, or an object with a buffer.

        Raises:
            TypeError: if the program cannot be called with these arguments.
        """
        raise NotImplementedError


def native(environment: Environment | None) -> dict[str, Any]:
    """Returns the runtime of programs that need no Python."""
    if environment is not None:
        raise ValueError("an environment has Python packages, and this function does not run in Python; leave it out")
    return {"kind": "native"}


def name_of(fn: Any) -> str:
    """Returns the name of a callable, for metering."""
    named = fn if hasattr(fn, "__qualname__") else getattr(fn, "func", type(fn))
    module, name = getattr(named, "__module__", None), getattr(named, "__qualname__", type(fn).__qualname__)
    return name if module in (None, "__main__") else f"{module}.{name}"


class PickledFunction(FunctionKind):
    """A Python callable, pickled by value."""

    def __init__(self, fn: Any) -> None:
        self._fn = fn
        tracker.note(fn)
        #: The client's own modules, which travel with it.
        self._own = tracker.check()

    def form(self, image: str | None) -> dict[str, Any]:
        version = cloudpickle.__version__
        return {"form": "python", "python": PYTHON, "cloudpickle": version, "name": name_of(self._fn)}

    def runtime(self, environment: Environment | None) -> dict[str, Any]:
        digest = self._own.digest
        # Workers that have imported other code must not run it.
        return runtime(environment) | ({} if digest is None else {"code": digest})

    @property
    def code(self) -> bytes:
        return self._own.carry(cloudpickle.dumps(current_version(self._fn), protocol=5))

    @property
    def source(self) -> str:
        try:
            return self._fn.command if isinstance(self._fn, Command) else inspect.getsource(self._fn)
        except (OSError, TypeError):
            return ""

    @property
    def about(self) -> str:
        return inspect.getdoc(self._fn) or ""
