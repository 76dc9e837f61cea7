"""Sessions of browsers over HTTP: what a cookie is worth, and for how long. No browser is needed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness import postgres
from harness.console import Answer
from harness.daemons import Daemon, free_port
from harness.leaks import wait_until
from harness.people import Observer
from harness.postgres import Postgres

#: What only a script of the console can send.
CHANGE = {"Dayfly_Console": "1"}


def opened(manager: Daemon, token: str = "") -> dict[str, str]:
    """Opens a session. Returns the header with its cookie."""
    answer = Answer(manager, "POST", "/v1/session", {"token": token or manager.connection["token"]})
    assert answer.status == 200, answer.body
    return {"Cookie": answer.headers["Set-Cookie"].split(";")[0]}


def status(manager: Daemon, sent: dict[str, str]) -> int:
    """The status of a request that needs a token."""
    return Answer(manager, "GET", "/v1/tenants", **sent).status


def token_of(manager: Daemon, name: str, *more: str) -> str:
    return str(manager.cli("token", "create", name, *more)["token"])


@pytest.fixture
def manager(start: Callable[..., Daemon]) -> Daemon:
    return start("manager", "--listen", f"127.0.0.1:{free_port()}")


def test_cookie_is_no_token(manager: Daemon) -> None:
    token = manager.connection["token"]
    sent = opened(manager)
    value = sent["Cookie"].partition("=")[2]
    assert status(manager, sent) == 200
    assert token not in value
    assert value not in token
    assert Answer(manager, "GET", "/v1/tenants", Authorization=f"Bearer {value}").status == 401
    # Nor does a cookie with a token open anything, as it did before.
    assert status(manager, {"Cookie": f"__Host-dayfly={token}"}) == 401
    assert opened(manager) != sent
    # Sessions are not among the tokens, and nobody can revoke one by an id.
    assert [one["name"] for one in manager.cli("token", "list")] == ["connection.json"]


def test_forged_cookie_opens_nothing(manager: Daemon, start: Callable[..., Daemon]) -> None:
    own = opened(manager)["Cookie"].partition("=")[2]
    other = start("manager", "--listen", f"127.0.0.1:{free_port()}")
    foreign = opened(other)["Cookie"].partition("=")[2]
    turned = own[:-1] + ("0" if own[-1] != "0" else "1")
    for forged in (foreign, turned, own[:-1], own + "0", own[:-2] + "zz", "0" * 64, "=", "..", "a" * 4_000):
        assert status(manager, {"Cookie": f"__Host-dayfly={forged}"}) == 401, forged
    # Another name is another cookie.
    assert status(manager, {"Cookie": f"dayfly={own}"}) == 401
    assert status(manager, {"Cookie": f"other=1; __Host-dayfly={own}"}) == 200


def test_ended_session_is_void_everywhere(manager: Daemon) -> None:
    first, second = opened(manager), opened(manager)
    assert Answer(manager, "DELETE", "/v1/session", **first).status == 403
    ended = Answer(manager, "DELETE", "/v1/session", **first, **CHANGE)
    assert ended.status == 204
    assert "Max-Age=0" in ended.headers["Set-Cookie"]
    # Whoever has a copy of the cookie has nothing.
    assert status(manager, first) == 401
    assert status(manager, second) == 200
    assert Answer(manager, "GET", "/v1/session", **second).status == 200


def test_events_of_a_session_end_with_it(manager: Daemon) -> None:
    observer = Observer(manager)
    first, second = opened(manager), opened(manager)
    streams = [observer.open_stream("/v1/events", token="", **one, Origin="https://dayfly") for one in (first, second)]
    own = observer.open_stream("/v1/events", token=manager.connection["token"])
    assert Answer(manager, "DELETE", "/v1/session", **first, **CHANGE).status == 204
    assert streams[0].closed_within(10)
    # The token's other connections stay.
    assert not own.closed_within(0.3)
    assert not streams[1].closed_within(0.3)
    for stream in (*streams, own):
        stream.close()


def test_session_ends_with_its_token(manager: Daemon) -> None:
    kept, revoked = token_of(manager, "kept"), token_of(manager, "revoked")
    narrow = opened(manager, token_of(manager, "narrow", "--read-only"))
    sessions = [opened(manager, kept), opened(manager, revoked)]
    (found,) = [one for one in manager.cli("token", "list") if one["name"] == "revoked"]
    manager.cli("token", "revoke", found["id"])
    assert [status(manager, one) for one in sessions] == [200, 401]
    # A session permits no more than its token.
    assert Answer(manager, "PUT", "/v1/tenants/astro", {}, **narrow, **CHANGE).status == 403
    # Nor does it last longer.
    short = token_of(manager, "short", "--valid-for", "3s")
    answer = Answer(manager, "POST", "/v1/session", {"token": short})
    assert "Max-Age=2" in answer.headers["Set-Cookie"] or "Max-Age=3" in answer.headers["Set-Cookie"]
    sent = {"Cookie": answer.headers["Set-Cookie"].split(";")[0]}
    assert status(manager, sent) == 200
    wait_until(lambda: status(manager, sent) == 401, "the end of a session whose token expires")


def test_session_outlives_a_restart(manager: Daemon) -> None:
    sent = opened(manager)
    gone = opened(manager)
    assert Answer(manager, "DELETE", "/v1/session", **gone, **CHANGE).status == 204
    # The file of the store contains neither the token nor the cookie.
    kept = b"".join(file.read_bytes() for file in Path(manager.state).glob("*.db*"))
    assert kept
    assert manager.connection["token"].encode() not in kept
    assert sent["Cookie"].partition("=")[2].encode() not in kept
    manager.stop()
    again = manager.restart()
    try:
        assert status(again, sent) == 200
        assert status(again, gone) == 401
    finally:
        again.stop()


@pytest.mark.skipif(postgres.unavailable() is not None, reason=str(postgres.unavailable()))
def test_session_holds_at_every_manager(start: Callable[..., Daemon], state: Path, server: Postgres) -> None:
    database = server.database()

    def one(number: int) -> Daemon:
        return start("manager", "--listen", f"127.0.0.1:{free_port()}", "--store", database, state=state / f"m{number}")

    first, second = one(0), one(1)
    sent = opened(first)

    def everywhere(wanted: int) -> Any:
        return lambda: [status(manager, sent) for manager in (first, second)] == [wanted] * 2

    wait_until(everywhere(200), "a session at both managers")
    # A request that the other manager owns goes there with the token.
    listed = json.loads(Answer(second, "GET", "/v1/managers", **sent).body)
    assert len(listed) == 2
    assert Answer(second, "GET", "/v1/tasks", **sent).status == 200
    assert Answer(second, "DELETE", "/v1/session", **sent, **CHANGE).status == 204
    wait_until(everywhere(401), "the end of a session at both managers")
