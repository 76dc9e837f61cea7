"""Flows: functions that take each other's results, as durable tasks."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dayfly._connection import Connection
from dayfly._failures import error_for
from dayfly._tasks.function_client import FunctionClient
from dayfly._tasks.options import checked_priority, milliseconds, retry_options
from dayfly._tasks.registered import Registered

#: Maximum seconds that one request waits for the end of a flow.
WAIT = 30.0
#: The forms in which a step may name its function.
Function = Callable[..., Any] | Registered | str


@dataclass(frozen=True)
class Step:
    """One step of a flow: a function to call, once or for each element of a list.

    Arguments and results of a step travel as JSON.

    Attributes:
        name: name of the step, unique in its flow.
        fn: the function: a callable, which is registered; a registered function; or the name of one, as for
            `Client.function`.
        of: names of the steps whose results are the arguments, in this order; ``"input"`` for the flow's input. By
            default the previous step, or the input for the first step.
        map: whether to call the function for each element of the first argument, a list. The result is the list of
            the results.
        endpoint: the endpoint that runs the tasks, as for `Executor`.
        keywords: keyword arguments, as JSON values.
        retries: how many times a task is executed again if its function raises.
        retry_wait: seconds before the first retry. The wait doubles with each further retry.
        walltime: maximum seconds of one execution.
        repeatable: whether a task may be executed again if it may have been executed already.
        memoize: whether a task may take the result of another task with the same function and arguments.
        priority: tasks of yours with a higher priority run first; -128 to 127.
        deadline: seconds from when a task can begin until it must have ended. It is then ended.
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
    """A started flow. Created by `Client.flow`; `Client.flows` returns all of yours.

    Attributes:
        id: id of the flow, by which `Client.find_flow` finds it from any process.
        status: the status at the last request; see the API's ``FlowStatus``.
    """

    def __init__(self, client: Connection, status: dict[str, Any]) -> None:
        self._client = client
        self.status = status
        self.id: str = status["id"]

    @property
    def tag(self) -> str:
        """The common tag of its tasks, for `Client.tasks`."""
        tag: str = self.status["tag"]
        return tag

    def refresh(self, wait: float = 0.0) -> dict[str, Any]:
        """Asks the manager for the status, updates ``status`` and returns it.

        Args:
            wait: seconds to wait for the end of the flow, at most 30; 0 to return at once.
        """
        self.status = json.loads(self._client._native.get(f"/v1/flows/{self.id}?wait_ms={round(wait * 1000)}"))
        return self.status

    def done(self) -> bool:
        """Returns whether the flow has ended, successfully or not."""
        return self._has_ended() or self._has_ended(self.refresh())

    def result(self, timeout: float | None = None) -> Any:
        """Waits for the flow and returns the result of its last step.

        Args:
            timeout: seconds to wait; None for no limit.

        Raises:
            TimeoutError: if the flow has not ended in time.
            dayfly.Error: if the flow failed: the error of the task that failed.
        """
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            left = WAIT if until is None else min(WAIT, max(0.0, until - time.monotonic()))
            status = self.refresh(left)
            if self._has_ended():
                break
            if until is not None and time.monotonic() >= until:
                raise TimeoutError(f"the flow {self.id} has not ended within {timeout} s; wait longer")
        if status["error"] is not None:
            raise error_for(status["error"]["code"], status["error"]["message"])
        return status["result"]

    def cancel(self) -> None:
        """Cancels the flow and its tasks. Has no effect on a flow that has ended."""
        self.status = json.loads(self._client._native.post(f"/v1/flows/{self.id}/cancel", "{}"))

    def _has_ended(self, status: Mapping[str, Any] | None = None) -> bool:
        return (status or self.status)["state"] in {"done", "failed"}

    def __repr__(self) -> str:
        steps = ", ".join(f"{step['name']} {step['done']}/{step['tasks']}" for step in self.status["steps"])
        return f"<dayfly.Flow {self.status['name'] or self.id}: {self.status['state']}{': ' if steps else ''}{steps}>"


def function_id(client: FunctionClient, fn: Function) -> str:
    """Returns the id of a function. Registers the function if it is a plain callable."""
    if isinstance(fn, str):
        return client.function(fn).id
    return fn.id if isinstance(fn, Registered) else client.register(fn).id


def step_specs(client: FunctionClient, steps: Iterable[Step]) -> list[dict[str, Any]]:
    """Returns steps in the form of the API's ``FlowStep``."""
    return [_described(client, step) for step in steps]


def _described(client: FunctionClient, step: Step) -> dict[str, Any]:
    of = [step.of] if isinstance(step.of, str) else step.of
    return {
        "name": step.name,
        "function": function_id(client, step.fn),
        "map": step.map,
        "keywords": dict(step.keywords),
        "options": {
            **retry_options(step.retries, step.retry_wait),
            "walltime_ms": milliseconds("walltime", step.walltime),
            "repeatable": step.repeatable,
            "memoize": step.memoize,
            "priority": checked_priority(step.priority),
            "deadline_ms": milliseconds("deadline", step.deadline),
        },
        **({} if of is None else {"from": list(of)}),
        **({} if step.endpoint is None else {"endpoint": step.endpoint}),
    }


def start_flow(client: FunctionClient, steps: Iterable[Step], input: Any, name: str) -> Flow:
    """Starts a flow. The arguments are those of `Client.flow`."""
    request = {"name": name, "steps": step_specs(client, steps), "input": input}
    return Flow(client, json.loads(client._native.post("/v1/flows", json.dumps(request))))
