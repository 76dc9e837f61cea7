"""Flows: functions that are called with each other's results, as tasks that go on while nobody is there."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dayfly._errors import error_for
from dayfly._tasks import Registered, _milliseconds, _priority, _retries

if TYPE_CHECKING:
    from dayfly._client import Client

#: Seconds that one request waits for a flow's end.
WAIT = 30.0
#: Functions that a flow calls, as they may be given.
Function = Callable[..., Any] | Registered | str


@dataclass(frozen=True)
class Step:
    """One step of a flow: a function to call, or to call for each of many.

    What a step is called with, and what it answers, goes through JSON.

    Attributes:
        name: its name in its flow.
        fn: what it calls: a callable, which is registered, or a registered function, also named as for
            `Client.function`.
        of: the steps whose results are its arguments, in this order; ``"input"`` for the flow's input; by default the
            step before it, or, of the first, the input.
        map: whether it calls its function for each element of its first argument, a list; its result is the list of
            theirs.
        endpoint: where, as for a task.
        keywords: arguments by name.
        retries: how often a task is executed again when its function fails.
        retry_wait: seconds before the first of these; before each further one, twice as long.
        walltime: seconds that one execution may take.
        repeatable: whether a task may be executed again when it may have been executed already.
        memoize: whether a task may have the result of another with the same function and arguments.
        priority: higher ones of yours run first, from -128 to 127.
        deadline: seconds from when a task can begin until its end, after which it is ended.
    """

    name: str
    fn: Function
    of: str | Sequence[str] | None = None
    map: bool = False
    endpoint: str | None = None
    keywords: Mapping[str, Any] = field(default_factory=dict)
    retries: int = 0
    walltime: float | None = None
    repeatable: bool | None = None
    memoize: bool = False
    priority: int = 0
    deadline: float | None = None
    retry_wait: float = 0.0


class Flow:
    """A flow that was started. Made by `Client.flow`; `Client.flows` has all of yours.

    Attributes:
        id: which; another process finds it by this, `Client.find_flow`.
        status: how it did when it was asked last; see the API's ``FlowStatus``.
    """

    def __init__(self, client: Client, status: dict[str, Any]) -> None:
        self._client = client
        self.status = status
        self.id: str = status["id"]

    @property
    def tag(self) -> str:
        """The tag of its tasks, as in `Client.tasks`."""
        tag: str = self.status["tag"]
        return tag

    def refresh(self, wait: float = 0.0) -> dict[str, Any]:
        """Asks how it does, or waits so many seconds, 30 at most, until it has ended; answers ``status``."""
        self.status = json.loads(self._client._native.get(f"/v1/flows/{self.id}?wait_ms={round(wait * 1000)}"))
        return self.status

    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return self._over() or self._over(self.refresh())

    def result(self, timeout: float | None = None) -> Any:
        """What its last step answered, as soon as it has ended.

        Args:
            timeout: seconds to wait; None for ever.

        Raises:
            TimeoutError: it has not ended in time.
            dayfly.Error: it failed; which, as a task of it did.
        """
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            left = WAIT if until is None else min(WAIT, max(0.0, until - time.monotonic()))
            status = self.refresh(left)
            if self._over():
                break
            if until is not None and time.monotonic() >= until:
                raise TimeoutError(f"the flow {self.id} has not ended within {timeout} s; wait longer")
        if status["error"] is not None:
            raise error_for(status["error"]["code"], status["error"]["message"])
        return status["result"]

    def cancel(self) -> None:
        """Cancels it, with its tasks. One that has ended stays as it is."""
        self.status = json.loads(self._client._native.post(f"/v1/flows/{self.id}/cancel", "{}"))

    def _over(self, status: Mapping[str, Any] | None = None) -> bool:
        return (status or self.status)["state"] in {"done", "failed"}

    def __repr__(self) -> str:
        steps = ", ".join(f"{step['name']} {step['done']}/{step['tasks']}" for step in self.status["steps"])
        return f"<dayfly.Flow {self.status['name'] or self.id}: {self.status['state']}{': ' if steps else ''}{steps}>"


def id_of(client: Client, fn: Function) -> str:
    """The id of a function, which is registered if it is none that was."""
    if isinstance(fn, str):
        return client.function(fn).id
    return fn.id if isinstance(fn, Registered) else client.register(fn).id


def described(client: Client, steps: Iterable[Step]) -> list[dict[str, Any]]:
    """Steps as in the API's ``FlowStep``."""
    return [_described(client, step) for step in steps]


def _described(client: Client, step: Step) -> dict[str, Any]:
    of = [step.of] if isinstance(step.of, str) else step.of
    return {
        "name": step.name,
        "function": id_of(client, step.fn),
        "map": step.map,
        "keywords": dict(step.keywords),
        "options": {
            **_retries(step.retries, step.retry_wait),
            "walltime_ms": _milliseconds("walltime", step.walltime),
            "repeatable": step.repeatable,
            "memoize": step.memoize,
            "priority": _priority(step.priority),
            "deadline_ms": _milliseconds("deadline", step.deadline),
        },
        **({} if of is None else {"from": list(of)}),
        **({} if step.endpoint is None else {"endpoint": step.endpoint}),
    }


def start(client: Client, steps: Iterable[Step], input: Any, name: str) -> Flow:
    """Starts a flow; the arguments are those of `Client.flow`."""
    request = {"name": name, "steps": described(client, steps), "input": input}
    return Flow(client, json.loads(client._native.post("/v1/flows", json.dumps(request))))
