"""Tokens that are missing, revoked, replaced or expired."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from harness.daemons import Daemon
from harness.endpoints import endpoints_of
from harness.leaks import wait_until
from harness.people import Observer, Person, Stream

# Workers cannot import what pytest made of this file.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

#: Seconds in which something of a token's ends after the token; the manager looks for expired ones every second.
SOON_S = 5

Owner = Callable[..., Person]


@pytest.fixture
def person(manager: Daemon, tmp_path: Path) -> Iterator[Owner]:
    """``person("carol", "--valid-for", "3s")`` makes a tenant of the test's own, with such a token."""
    made: list[Person] = []

    def make(name: str, *more: str) -> Person:
        made.append(Person(manager, name, tmp_path, *more))
        return made[-1]

    yield make
    for one in made:
        one.client.close()


def revoke(person: Person, *more: str) -> Any:
    return person.manager.cli("token", "revoke", person.token_id, *more)


def events_of(person: Person) -> list[Stream]:
    """Event streams of a person, by TLS and by the local socket."""
    return [person.open_stream("/v1/events", local=local) for local in (False, True)]


def test_request_without_token_is_refused(observer: Observer, alice: Person) -> None:
    assert alice.ask("GET", "/v1/leases")[0] == 200
    for path in ("/v1/leases", "/v1/nodes", "/v1/tokens", "/v1/tasks"):
        status, body = observer.ask("GET", path)
        assert (status, body["error"]["code"]) == (401, "unauthorized"), path


def test_revoked_token_closes_event_streams(person: Owner, bob: Person) -> None:
    carol = person("carol")
    streams, others = events_of(carol), events_of(bob)
    revoke(carol)
    assert all(stream.closed_within(SOON_S) for stream in streams)
    with pytest.raises(AssertionError, match="401"):
        carol.open_stream("/v1/events")
    # Nobody else's end.
    assert not any(stream.closed_within(0.2) for stream in others)
    for stream in streams + others:
        stream.close()


def test_expired_token_closes_event_streams(person: Owner) -> None:
    carol = person("carol", "--valid-for", "2s")
    begun = time.monotonic()
    streams = events_of(carol)
    assert all(stream.closed_within(2 + SOON_S) for stream in streams)
    assert time.monotonic() - begun > 1
    for stream in streams:
        stream.close()


def test_replaced_token_closes_event_streams(person: Owner, tmp_path: Path) -> None:
    carol = person("carol")
    streams = events_of(carol)
    carol.manager.cli("token", "create", "laptop", "--tenant", "carol", "--output", str(tmp_path / "new.json"))
    assert all(stream.closed_within(SOON_S) for stream in streams)
    for stream in streams:
        stream.close()


def wait_for(gate: str) -> None:
    until = time.monotonic() + 30
    while not Path(gate).exists() and time.monotonic() < until:
        time.sleep(0.01)


def test_revoked_token_ends_requests_that_wait(person: Owner, tmp_path: Path) -> None:
    carol = person("carol")
    gate = tmp_path / "gate"
    task = carol.client.run(wait_for, str(gate))
    heard: list[tuple[int, Any]] = []
    waiting = threading.Thread(
        target=lambda: heard.append(carol.ask("GET", f"/v1/tasks/{task.id}/outcome?wait_ms=25000"))
    )
    waiting.start()
    wait_until(lambda: carol.client.task_status(task.id)["state"] == "running", "the task runs", 30)
    revoke(carol)
    waiting.join(SOON_S)
    gate.touch()
    assert not waiting.is_alive()
    status, body = heard[0]
    assert (status, body["error"]["code"]) == (401, "unauthorized")


def test_token_that_revokes_itself_reads_the_result(person: Owner) -> None:
    carol = person("carol")
    status, body = carol.ask("DELETE", f"/v1/tokens/{carol.token_id}")
    assert (status, body["name"]) == (200, "laptop")
    assert carol.ask("GET", "/v1/leases")[0] == 401


def test_replaced_token_of_endpoint_closes_its_connection(manager: Daemon, state: Path) -> None:
    with endpoints_of(manager, state) as make:
        endpoint = make("--min-blocks", "0", start=False)
        token = json.loads((endpoint.directory / "credential.json").read_text())["token"]
        observer = Observer(manager)
        stolen = observer.open_stream("/v1/endpoints/connect", token=token)
        assert stolen.received(0.2) is None
        # Its owner registers it anew, which replaces the token.
        owner = manager.connection["token"]
        assert observer.ask("POST", "/v1/endpoints", {"name": endpoint.name}, token=owner)[0] == 201
        assert stolen.closed_within(SOON_S)
        with pytest.raises(AssertionError, match="401"):
            observer.open_stream("/v1/endpoints/connect", token=token)
        stolen.close()
