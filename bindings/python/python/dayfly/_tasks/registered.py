"""Functions that are registered with the manager."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from dayfly._codec.trust import NOBODY, Trust
from dayfly._functions.entry_point import EntryPoint
from dayfly._functions.environment import Environment
from dayfly._functions.kinds import FunctionKind, PickledFunction, Program
from dayfly._functions.source import Source
from dayfly._functions.symbol import Symbol
from dayfly._leases.defaults import Borrow, Placement
from dayfly._native import Tasks, check_cores
from dayfly._tasks.options import milliseconds
from dayfly._tasks.sizes import Sizer

#: Classes of programs that are not called with pickled arguments, by the ``form`` in the API.
_KINDS: dict[str, type[Program]] = {"entry_point": EntryPoint, "plain": Symbol, "checked": Symbol, "source": Source}


class Registered:
    """A function that is registered with the manager. Created by `Client.register`.

    Attributes:
        id: id of this version of the function, the hash of its code and runtime.
        name: name of the function. The name alone means the last version.
        owner: name of the tenant that registered it.
        version: number of the version, from 1; 0 without a name.
        status: the manager's description of the function.
    """

    def __init__(
        self,
        status: dict[str, Any],
        fn: Callable[..., Any] | None = None,
        *,
        trust: Trust = NOBODY,
        sizer: Sizer | None = None,
    ) -> None:
        self.status = status
        #: Tenants whose results of this function are unpickled.
        self._trust = trust
        self._fn = fn
        #: States the sizes of calls; None if the arguments state their own.
        self._sizer = sizer
        self.id: str = status["id"]
        self.name: str | None = status["name"]
        self.owner: str = status["owner"]
        self.version: int = status["version"]
        self._number = bytes.fromhex(self.id)
        self._kind = _KINDS.get(status["form"]["form"])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function in this process.

        Raises:
            TypeError: if the function was not registered from this process.
        """
        if self._fn is None:
            raise TypeError(f"{self!r} is kept by the manager; run it there with client.run")
        return self._fn(*args, **kwargs)

    def diff(self, earlier: Registered) -> str:
        """Returns the changes to an earlier version's source in the format of ``diff -u``; empty if there are none."""
        import difflib

        before, after = (str(one.status["source"]).splitlines() for one in (earlier, self))
        return "\n".join(difflib.unified_diff(before, after, repr(earlier), repr(self), lineterm=""))

    def __repr__(self) -> str:
        name = f"{self.owner}/{self.name or self.status['form'].get('name', '')}"
        return f"<dayfly function {name} {f'v{self.version} ' if self.version else ''}{self.id[:8]}>"


def describe(
    kept: FunctionKind,
    *,
    name: str | None = None,
    description: str | None = None,
    cores: float = 1,
    memory: int = 0,
    gpus: int = 0,
    lend: bool = True,
    borrow: Borrow = "cpu",
    walltime: float | None = None,
    repeatable: bool = False,
    share: Iterable[str] = (),
    environment: Environment | None = None,
    image: str | None = None,
    ranks: int = 0,
    placement: Placement | None = None,
) -> dict[str, Any]:
    """Returns the description of a function for the manager, without its code."""
    check_cores(cores)
    return {
        "name": name,
        "description": kept.about if description is None else description,
        "source": kept.source,
        "form": kept.form(image),
        "runtime": kept.runtime(environment),
        "resources": {
            "cores": cores,
            "memory_bytes": memory,
            "gpus": gpus,
            "walltime_ms": milliseconds("walltime", walltime),
            "ranks": ranks,
            "lend": lend,
            "borrow": borrow,
            **({} if placement is None else {"placement": placement}),
        },
        "repeatable": repeatable,
        "shared_with": [share] if isinstance(share, str) else list(share),
        **({} if image is None else {"image": image}),
    }


def register(tasks: Tasks, fn: Any, *, source: bool = False, **about: Any) -> dict[str, Any]:
    """Registers a function with the manager and returns its status."""
    kept = Source(fn) if source else fn if isinstance(fn, FunctionKind) else PickledFunction(fn)
    status: dict[str, Any] = json.loads(tasks.register(json.dumps(describe(kept, **about)), kept.code))
    return status
