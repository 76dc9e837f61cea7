"""The requests of a client for triggers and flows."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from dayfly._tasks.function_client import FunctionClient

if TYPE_CHECKING:
    from dayfly._tasks.flow import Flow, Step
    from dayfly._tasks.registered import Registered
    from dayfly._tasks.trigger import Trigger


class FlowClient(FunctionClient):
    """The part of `Client` that starts triggers and flows."""

    def trigger(
        self,
        name: str,
        fn: Callable[..., Any] | Registered | str,
        *,
        timer: str | None = None,
        zone: str = "UTC",
        catch_up: bool = True,
        files: str | os.PathLike[str] | None = None,
        pattern: str | None = None,
        existing: bool = False,
        every: float | None = None,
        watched_at: str | None = None,
        webhook: bool = False,
        endpoint: str | None = None,
        keywords: Mapping[str, Any] | None = None,
        then: Iterable[Step] = (),
        valid_for: float | None = None,
        priority: int = 0,
        deadline: float | None = None,
        retries: int = 0,
        retry_wait: float = 0.0,
        walltime: float | None = None,
        repeatable: bool | None = None,
        description: str = "",
        paused: bool = False,
    ) -> Trigger:
        """Runs a function on a schedule (``timer``), on new files (``files``) or on requests (``webhook``).

        Each event becomes a task at least once, even if this process ends. The function's only positional argument is
        the event, a dictionary. The tasks have the tag ``trigger:NAME``. Creating a trigger under an existing name
        changes it and replaces its token.

        Args:
            name: name, unique among your triggers.
            fn: a callable, which is registered; a registered function; or the name of one, as for `function`.
            timer: schedule in cron syntax: minute, hour, day of month, month, day of week, optionally preceded by
                seconds.
            zone: time zone of the schedule, such as ``Europe/Berlin``.
            catch_up: whether to run once for times that passed while the manager was down: for the last of them.
            files: directory or ``s3://bucket/prefix`` to watch. A path with a pattern, such as ``/data/in/*.tif``,
                selects matching files only.
            pattern: the pattern as a separate argument: paths below the directory, such as ``*.tif``, or ``**/*.tif``
                to include subdirectories.
            existing: whether files that already exist count as events.
            every: seconds between two scans; by default 1 for a directory and 10 for a bucket.
            watched_at: the endpoint that scans, which must be yours; by default the endpoint that runs the tasks.
            webhook: whether to accept requests, at `Trigger.url`.
            endpoint: the endpoint that runs the tasks, as for `Executor`.
            keywords: keyword arguments passed with each event, as JSON values.
            then: further steps, which take the result. The trigger's function is then the first step of a flow, with
                the name ``event``.
            valid_for: seconds until the trigger's token expires; by default, and at most, the validity of this client's
                token.
            priority: priority of the tasks, as for `Executor`.
            deadline: seconds until a task must have ended, as for `Executor`.
            retries: how many times a task is executed again if the function raises.
            retry_wait: seconds before the first retry. The wait doubles with each further retry.
            walltime: maximum seconds of one execution; by default the function's.
            repeatable: whether a task may be executed again if it may have been executed already; by default the
                function's setting.
            description: description for people.
            paused: whether to create the trigger paused.

        Returns:
            The trigger, with its token.

        Raises:
            ValueError: if not exactly one of ``timer``, ``files`` and ``webhook`` is given, or an argument does not fit
                it.
            dayfly.Error: if the manager refuses the trigger or cannot be reached.
        """
        about = {name: value for name, value in locals().items() if name != "self"}
        from dayfly._tasks.trigger import create_trigger

        return create_trigger(self, **about)

    def triggers(self) -> list[Trigger]:
        """Returns your triggers."""
        from dayfly._tasks.trigger import Trigger

        return [Trigger(self, status) for status in json.loads(self._native.get("/v1/triggers"))]

    def flow(self, steps: Iterable[Step], input: Any = None, *, name: str = "") -> Flow:
        """Starts a flow: functions that take each other's results, as tasks that run even if this process ends.

        Arguments and results of steps travel as JSON. The tasks have the tag ``flow:ID``.

        Args:
            steps: the steps. Each stands after the steps whose results it takes; see `dayfly.Step`.
            input: input of the flow, as a JSON value.
            name: name for people.

        Raises:
            dayfly.Error: if the manager refuses the flow or cannot be reached.
        """
        from dayfly._tasks.flow import start_flow

        return start_flow(self, steps, input, name)

    def flows(self, limit: int = 100) -> list[Flow]:
        """Returns your flows, the latest first.

        Args:
            limit: maximum number of flows.
        """
        from dayfly._tasks.flow import Flow

        return [Flow(self, status) for status in json.loads(self._native.get(f"/v1/flows?limit={limit}"))]

    def find_flow(self, flow: str) -> Flow:
        """Returns a flow by its id, from any process or machine, for example after a crash.

        Raises:
            dayfly.Error: ``not_found`` if you have no such flow.
        """
        from dayfly._tasks.flow import Flow

        return Flow(self, json.loads(self._native.get(f"/v1/flows/{quote(flow, safe='')}")))
