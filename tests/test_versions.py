"""Two sides of unequal versions refuse each other, and name both versions and what to do."""

from __future__ import annotations

import contextlib
import http.server
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness.daemons import Daemon, free_port
from harness.leaks import wait_until

dayfly = pytest.importorskip("dayfly", reason="the package is not installed: make build")

Start = Callable[..., Daemon]
#: What a side of another version says of itself.
OTHER = "9.9.9/99"


@pytest.mark.parametrize(
    ("path", "who"),
    [("/v1/nodes", "client"), ("/v1/nodes/connect", "node"), ("/v1/endpoints/connect", "endpoint")],
)
def test_request_of_other_version_is_refused(up: Daemon, path: str, who: str) -> None:
    status, said = up.ask("GET", path, dayfly_version=OTHER)
    assert status == 426
    error = json.loads(said)["error"]
    assert error["code"] == "version_mismatch"
    both = (f"the {who} is Dayfly 9.9.9 (wire version 99)", f"this manager is Dayfly {dayfly.__version__}")
    for told in (*both, "install the same release"):
        assert told in error["message"]


def test_request_without_version_is_accepted(up: Daemon) -> None:
    assert up.ask("GET", "/v1/nodes")[0] == 200
    assert up.ask("GET", "/v1/version", dayfly_version=OTHER)[0] == 200


class Other(http.server.BaseHTTPRequestHandler):
    """A manager of another version."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        # As a manager refuses a daemon that connects.
        refusal = {"code": "version_mismatch", "message": "the node is Dayfly 0.0.1, and this manager is Dayfly 9.9.9"}
        connects = self.path.endswith("/connect")
        body = json.dumps({"error": refusal} if connects else []).encode()
        self.send_response(426 if connects else 200)
        self.send_header("dayfly-version", OTHER)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def other_manager(state: Path, port: int = 0) -> Iterator[str]:
    """A manager of another version with the certificate of the one whose state this is; answers its address."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Other)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate(state, "server.pem"), certificate(state, "server.key"))
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"https://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def certificate(state: Path, name: str) -> Path:
    return next(state.rglob(name))


def test_client_refuses_a_manager_of_another_version(up: Daemon) -> None:
    with (
        other_manager(up.state) as other,
        dayfly.connect(other, token=up.connection["token"], ca=certificate(up.state, "ca.pem")) as client,
        pytest.raises(dayfly.AccessError, match="install the same release") as raised,
    ):
        client.nodes()
    assert raised.value.code == "version_mismatch"
    assert "9.9.9 (wire version 99)" in str(raised.value)
    assert f"this program is Dayfly {dayfly.__version__}" in str(raised.value)


def test_node_reports_managers_other_version(start: Start, state: Path) -> None:
    port = free_port()
    manager = start("manager", "--listen", f"127.0.0.1:{port}", state=state / "manager")
    manager.cli("manager", "join-token", "--output", str(state / "join"))
    node = start("node", "--join", str(state / "join"))
    # It is replaced by one of another release.
    manager.stop()
    with other_manager(state / "manager", port):
        wait_until(lambda: "this manager is Dayfly 9.9.9" in node.output(), "the node says why it is alone", 30)
    assert "the node is Dayfly 0.0.1" in node.output()
    node.stop()
