"""Triggers: start a function on a schedule, on new files or on requests."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

from dayfly._connection import Connection
from dayfly._tasks.flow import Function, Step, function_id, step_specs
from dayfly._tasks.function_client import FunctionClient
from dayfly._tasks.options import checked_priority, milliseconds, retry_options

#: Events in one page of a listing.
PAGE = 1_000
#: Characters that begin a pattern in a path.
WILDCARDS = frozenset("*?[{")


class Trigger:
    """Starts a function on each event. Created by `Client.trigger`; `Client.triggers` returns all of yours.

    Attributes:
        name: name, unique among your triggers.
        status: the status at the last request; see the API's ``TriggerStatus``.
        token: token that permits sending events to this trigger and nothing else; None unless `Client.trigger`
            returned this object.
        url: address for events, which contains the token; None like ``token``.
        ca_pem: certificate of the manager's certificate authority, for clients of ``url``; None like ``token``.
    """

    def __init__(self, client: Connection, status: dict[str, Any], made: Mapping[str, Any] | None = None) -> None:
        self._client = client
        self.status = status
        self.name: str = status["name"]
        self._path = f"/v1/triggers/{quote(self.name, safe='')}"
        about = made or {}
        self.token: str | None = about.get("token")
        self.url: str | None = about.get("url")
        self.ca_pem: str | None = about.get("ca_pem")

    def refresh(self) -> dict[str, Any]:
        """Asks the manager for the status, updates ``status`` and returns it."""
        return self._update(self._client._native.get(self._path))

    def history(self, limit: int = 100) -> list[dict[str, Any]]:
        """Returns the trigger's events, the latest first, with their tasks; see the API's ``EventStatus``.

        Args:
            limit: maximum number of events.
        """
        found: list[dict[str, Any]] = []
        before = ""
        while len(found) < limit:
            page = min(limit - len(found), PAGE)
            some = json.loads(self._client._native.get(f"{self._path}/events?limit={page}{before}"))
            found += some
            # A page may be shorter than requested if its events are large.
            if not some:
                break
            before = f"&before={found[-1]['number']}"
        return found

    def fire(self, event: Any = None, key: str | None = None) -> dict[str, Any]:
        """Sends the trigger an event, as a request would.

        Args:
            event: body of the event, as a JSON value.
            key: idempotency key. Events with the same key are the same event.

        Returns:
            The ``number`` of the event, its ``task`` or ``flow``, and whether the event was already ``known``.
        """
        query = "" if key is None else f"?key={quote(key, safe='')}"
        taken: dict[str, Any] = json.loads(self._client._native.post(f"{self._path}/events{query}", json.dumps(event)))
        return taken

    def pause(self) -> None:
        """Pauses the trigger: it ignores times, leaves files waiting and refuses requests."""
        self._update(self._client._native.post(f"{self._path}/pause", "{}"))

    def resume(self) -> None:
        """Resumes the trigger after `pause`."""
        self._update(self._client._native.post(f"{self._path}/resume", "{}"))

    def remove(self) -> None:
        """Removes the trigger and its history. Its tasks continue."""
        self._update(self._client._native.delete(self._path))

    def _update(self, status: str) -> dict[str, Any]:
        self.status = json.loads(status)
        return self.status

    def __repr__(self) -> str:
        kind, state, started = self.status["source"]["kind"], self.status["state"], self.status["started"]
        return f"<dayfly.Trigger {self.name}: {kind}, {state}, {started} started>"


def create_trigger(
    client: FunctionClient,
    name: str,
    fn: Function,
    *,
    endpoint: str | None,
    keywords: Mapping[str, Any] | None,
    then: Iterable[Step],
    valid_for: float | None,
    priority: int,
    deadline: float | None,
    retries: int,
    retry_wait: float,
    walltime: float | None,
    repeatable: bool | None,
    description: str,
    paused: bool,
    **source: Any,
) -> Trigger:
    """Creates a trigger, or changes the one of this name. The arguments are those of `Client.trigger`."""
    if valid_for is not None and valid_for <= 0:
        raise ValueError(f"valid_for={valid_for}: ask for a positive number of seconds")
    registration = {
        "name": name,
        "description": description,
        "source": event_source(**source),
        "options": {
            "priority": checked_priority(priority),
            "deadline_ms": milliseconds("deadline", deadline),
            **retry_options(retries, retry_wait),
            "walltime_ms": milliseconds("walltime", walltime),
            "repeatable": repeatable,
        },
        "keywords": dict(keywords or {}),
        "then": step_specs(client, then),
        "paused": paused,
        "valid_for_ms": 0 if valid_for is None else max(1, round(valid_for * 1000)),
        **({} if endpoint is None else {"endpoint": endpoint}),
        # Last, so that no function is registered if another argument is invalid.
        "function": function_id(client, fn),
    }
    made = json.loads(client._native.post("/v1/triggers", json.dumps(registration)))
    return Trigger(client, made["status"], made)


def event_source(
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
) -> dict[str, Any]:
    """Returns the event source in the form of the API's ``EventSource``.

    >>> event_source(timer="30 6 * * 1-5", zone="Europe/Berlin")
    {'kind': 'timer', 'cron': '30 6 * * 1-5', 'zone': 'Europe/Berlin', 'catch_up': True}
    >>> event_source(webhook=True)
    {'kind': 'webhook'}
    """
    given = {"timer=": timer is not None, "files=": files is not None, "webhook=True": webhook}
    named = [name for name, is_given in given.items() if is_given]
    if len(named) != 1:
        given_text = " and ".join(named) or "none"
        raise ValueError(f"a trigger has one source of events: give timer=, files= or webhook=True, not {given_text}")
    of_timers = {"zone": zone != "UTC", "catch_up": not catch_up}
    of_files = {"pattern": pattern is not None, "existing": existing, "every": every is not None}
    of_files["watched_at"] = watched_at is not None
    strange = ({} if timer is not None else of_timers) | ({} if files is not None else of_files)
    if lost := [name for name, is_given in strange.items() if is_given]:
        raise ValueError(f"{lost[0]}= does not apply to a trigger with {named[0]}; leave it out")
    if timer is not None:
        return {"kind": "timer", "cron": timer, "zone": zone, "catch_up": catch_up}
    if files is None:
        return {"kind": "webhook"}
    place, pattern = place_of(os.fspath(files), pattern)
    return {
        "kind": "files",
        "place": place,
        "pattern": pattern,
        "existing": existing,
        "every_ms": milliseconds("every", every),
        **({} if watched_at is None else {"endpoint": watched_at}),
    }


def place_of(files: str, pattern: str | None) -> tuple[str, str]:
    """Returns a directory, as an absolute path, or a bucket, and the pattern of paths below it.

    >>> place_of("/data/in/*.tif", None)
    ('/data/in', '*.tif')
    >>> place_of("s3://lab/runs/2*/**/*.json", None)
    ('s3://lab/runs', '2*/**/*.json')
    >>> place_of("/data/in [old]", "*.tif")
    ('/data/in [old]', '*.tif')
    """
    place = files
    if pattern is None:
        parts = files.split("/")
        first = next((index for index, part in enumerate(parts) if WILDCARDS & set(part)), len(parts))
        # The directory of `/*.tif` is the root.
        place = "/".join(parts[:first]) or ("/" if files.startswith("/") else "")
        pattern = "/".join(parts[first:]) or "*"
    return (place if files.startswith("s3://") else os.path.abspath(place)), pattern
