"""What the manager keeps: functions of Python, pickled, and programs of all other kinds, each called in its own way."""

from __future__ import annotations

import inspect
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, ClassVar

import cloudpickle

from dayfly._code import current, own

if TYPE_CHECKING:
    from dayfly._environment import Environment

#: The last byte of a call in JSON; see ``codec.rs``.
JSON = b"\x05"


class Kept:
    """Something that is registered: what the manager, workers and people are told of it."""

    def form(self, image: str | None) -> dict[str, Any]:
        """What it is, as the API's ``Form``."""
        raise NotImplementedError

    def runtime(self, environment: Environment | None) -> dict[str, Any]:
        """What workers must run for it."""
        raise NotImplementedError

    @property
    def code(self) -> bytes:
        """What workers load."""
        raise NotImplementedError

    @property
    def source(self) -> str:
        """What people see of it."""
        raise NotImplementedError

    @property
    def about(self) -> str:
        """Its description, where none is given."""
        return ""


class Program(Kept):
    """What is registered as it is, and is not called through pickled arguments."""

    #: Whether it answers bytes as they are, and not a value.
    raw: ClassVar[bool] = False

    @property
    def key(self) -> Hashable:
        """What two that are the same have in common."""
        return (type(self), self.code, *self.form(None).values())

    @staticmethod
    def packed(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call with these arguments, as the worker gets it: bytes, or what has a buffer of them.

        Raises:
            TypeError: where it cannot be called with them.
        """
        raise NotImplementedError


def native(environment: Environment | None) -> dict[str, Any]:
    """What workers run for programs that need no Python."""
    if environment is not None:
        raise ValueError("an environment is of Python's packages, and this function is none of Python's; leave it out")
    return {"kind": "native"}


class Pickled(Kept):
    """A callable of Python, by value."""

    def __init__(self, fn: Any) -> None:
        self._fn = fn
        own.note(fn)
        #: The modules that it comes with.
        self._own = own.check()

    def form(self, image: str | None) -> dict[str, Any]:
        from dayfly._lease import _PYTHON, _name_of

        version = cloudpickle.__version__
        return {"form": "python", "python": _PYTHON, "cloudpickle": version, "name": _name_of(self._fn)}

    def runtime(self, environment: Environment | None) -> dict[str, Any]:
        from dayfly._client import runtime

        digest = self._own.digest
        # Workers that imported other code are not for it.
        return runtime(environment) | ({} if digest is None else {"code": digest})

    @property
    def code(self) -> bytes:
        return self._own.carry(cloudpickle.dumps(current(self._fn), protocol=5))

    @property
    def source(self) -> str:
        from dayfly._command import Command

        try:
            return self._fn.command if isinstance(self._fn, Command) else inspect.getsource(self._fn)
        except (OSError, TypeError):
            return ""

    @property
    def about(self) -> str:
        return inspect.getdoc(self._fn) or ""
