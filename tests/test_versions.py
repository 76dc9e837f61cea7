"""Two sides of unequal versions refuse each other, and name both versions and what to do."""

from __future__ import annotations

import http.server
import json
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.daemons import Daemon

mayfly = pytest.importorskip("mayfly", reason="the package is not installed: make build")

#: What a side of another version says of itself.
OTHER = "9.9.9/99"


@pytest.mark.parametrize(
    ("path", "who"),
    [("/v1/nodes", "client"), ("/v1/nodes/connect", "node"), ("/v1/endpoints/connect", "endpoint")],
)
def test_request_of_another_version_is_refused_by_the_manager(up: Daemon, path: str, who: str) -> None:
    status, said = up.ask("GET", path, mayfly_version=OTHER)
    assert status == 426
    error = json.loads(said)["error"]
    assert error["code"] == "version_mismatch"
    both = (f"the {who} is Mayfly 9.9.9 (wire version 99)", f"this manager is Mayfly {mayfly.__version__}")
    for told in (*both, "install the same release"):
        assert told in error["message"]


def test_request_without_a_version_and_the_question_for_it_are_answered(up: Daemon) -> None:
    assert up.ask("GET", "/v1/nodes")[0] == 200
    assert up.ask("GET", "/v1/version", mayfly_version=OTHER)[0] == 200


class Other(http.server.BaseHTTPRequestHandler):
    """A manager of another version."""

    def do_GET(self) -> None:
        body = b"[]"
        self.send_response(200)
        self.send_header("mayfly-version", OTHER)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def other(up: Daemon) -> Iterator[str]:
    """Its address; it has the certificate of the manager that it replaces."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Other)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate(up, "server.pem"), certificate(up, "server.key"))
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"https://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def certificate(up: Daemon, name: str) -> Path:
    return next(up.state.rglob(name))


def test_client_refuses_a_manager_of_another_version(up: Daemon, other: str) -> None:
    with (
        mayfly.connect(other, token=up.connection["token"], ca=certificate(up, "ca.pem")) as client,
        pytest.raises(mayfly.AccessError, match="install the same release") as raised,
    ):
        client.nodes()
    assert raised.value.code == "version_mismatch"
    assert "9.9.9 (wire version 99)" in str(raised.value)
    assert f"this program is Mayfly {mayfly.__version__}" in str(raised.value)
