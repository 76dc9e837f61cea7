"""Tokens that are missing, revoked or expired."""

from __future__ import annotations

from harness.people import Observer, Person


def test_request_without_token_is_refused(observer: Observer, alice: Person) -> None:
    assert alice.ask("GET", "/v1/leases") == (200, [])
    for path in ("/v1/leases", "/v1/nodes", "/v1/tokens", "/v1/tasks"):
        status, body = observer.ask("GET", path)
        assert (status, body["error"]["code"]) == (401, "unauthorized"), path
