"""Tokens that are missing, revoked, replaced or expired."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import dayfly
import pytest
from harness import postgres
from harness.daemons import Daemon, free_port
from harness.endpoints import endpoints_of
from harness.leaks import wait_until
from harness.people import Observer, Person, Stream
from harness.postgres import Postgres

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
        close(one)


def close(person: Person) -> None:
    """Ends a client, whose token may be good for nothing any more."""
    with contextlib.suppress(dayfly.Error):
        person.client.close()


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
    # Accepted when this returns.
    task = carol.client.map(wait_for, [str(gate)]).futures[0]
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


def double(number: int) -> int:
    return 2 * number


def state_of(manager: Daemon, lease: str) -> str:
    """How a lease does, as its operator sees it."""
    leases = manager.cli("lease", "list", "--all")
    return str(next(one["state"] for one in leases if one["lease"] == lease))


def test_revoked_token_ends_its_leases(person: Owner, bob: Person) -> None:
    carol = person("carol")
    lease, other = carol.client.lease(), bob.client.lease()
    assert lease.call(double, 4) == 8
    revoked = revoke(carol)
    assert (revoked["leases_ended"], revoked["leases_kept"]) == (1, 0)
    assert state_of(carol.manager, lease.id) == "revoked"
    with pytest.raises(dayfly.Error) as error:
        lease.call(double, 4)
    assert error.value.code in ("lease_ended", "lease_revoked", "unauthorized"), error.value
    assert other.call(double, 5) == 10
    other.shutdown()


def test_kept_lease_outlives_its_revoked_token(person: Owner) -> None:
    carol = person("carol")
    lease = carol.client.lease()
    revoked = revoke(carol, "--keep-leases")
    assert (revoked["leases_ended"], revoked["leases_kept"]) == (0, 1)
    assert lease.call(double, 4) == 8
    # Longer than the manager takes to look for leases whose token is gone.
    with pytest.raises(AssertionError, match="not within"):
        wait_until(lambda: state_of(carol.manager, lease.id) != "active", "it ends", 2)
    carol.manager.cli("lease", "revoke", lease.id)


def test_replaced_token_hands_its_leases_on(person: Owner, tmp_path: Path) -> None:
    carol = person("carol")
    lease = carol.client.lease()
    new = ("token", "create", "laptop", "--tenant", "carol", "--output", str(tmp_path / "new.json"))
    carol.manager.cli(*new)
    assert lease.call(double, 4) == 8
    assert revoke(carol)["leases_ended"] == 1
    assert state_of(carol.manager, lease.id) == "revoked"


def test_lease_ends_when_its_token_expires(person: Owner) -> None:
    carol = person("carol", "--valid-for", "5s")
    lease = carol.client.lease(duration=3600)
    assert lease.grant["duration_ms"] <= 5000
    assert "ends with the token" in lease.grant["notice"]
    # It is counted from its first use, and does not last a moment longer for that.
    wait_until(lambda: state_of(carol.manager, lease.id) not in ("granted", "active"), "the lease ends", 5 + SOON_S)


def test_lease_of_revoked_token_ends_after_restart(start: Callable[..., Daemon], tmp_path: Path) -> None:
    manager = start("up", "--listen", f"127.0.0.1:{free_port()}", "--python", sys.executable)
    carol = Person(manager, "carol", tmp_path)
    lease = carol.client.lease()
    # The store knows by which token a lease was made, and so does the manager's next life.
    manager.kill_tree()
    again = start(*manager.args, state=manager.state)
    carol.manager = again
    revoke(carol)
    wait_until(lambda: state_of(again, lease.id) not in ("granted", "active"), "the lease ends", 30)
    close(carol)


def test_revoked_token_ends_allowances(person: Owner) -> None:
    carol = person("carol")
    wish = {"workers": 1, "duration_ms": 60_000, "holder": "00" * 32}
    status, allowance = carol.ask("POST", "/v1/allowances", wish)
    assert status == 201, allowance
    revoke(carol)
    # A new token of the tenant does not bring them back.
    path = str(carol.connection)
    carol.manager.cli("token", "create", "laptop", "--tenant", "carol", "--output", path)
    again = json.loads(carol.connection.read_text())["token"]
    assert carol.ask("GET", f"/v1/allowances/{allowance['allowance']}", token=again)[0] == 404


@pytest.mark.skipif(postgres.unavailable() is not None, reason=str(postgres.unavailable()))
def test_other_manager_ends_what_a_revoked_token_opened(
    start: Callable[..., Daemon], state: Path, tmp_path: Path, server: Postgres
) -> None:
    database = server.database()
    own = ("--store", database, "--sandbox", "process")
    one, other = (start("manager", "--listen", f"127.0.0.1:{free_port()}", *own, state=state / n) for n in "ab")
    other.cli("manager", "join-token", "--output", str(state / "token"))
    start("node", "--join", str(state / "token"), "--sandbox", "process", "--python", sys.executable)
    carol = Person(one, "carol", tmp_path)
    # The lease is of a node of the other manager's.
    lease = carol.client.lease(wait=20)
    assert lease.call(double, 4) == 8
    stream = Observer(other).open_stream("/v1/events", token=carol.token)
    assert revoke(carol)["leases_ended"] == 1
    assert stream.closed_within(SOON_S)
    wait_until(lambda: state_of(one, lease.id) == "revoked", "the lease ends", SOON_S)
    stream.close()
    close(carol)
