"""The users of a manager: tenants with tokens and clients, and an observer without a token."""

from __future__ import annotations

import contextlib
import hashlib
import json
import socket
import ssl
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

from harness.daemons import Daemon
from harness.managers import tenant

#: Seconds after which a raw request fails.
DEADLINE_S = 30


class Observer:
    """A client that reaches a manager's port and has no token."""

    #: Default token of raw requests; empty for none.
    token = ""

    def __init__(self, manager: Daemon, source: str = "") -> None:
        self.manager = manager
        #: Source address of its connections.
        self.source = source
        connection = manager.connection
        self.url: str = connection["manager"]
        self.tls = ssl.create_default_context(cadata=connection["ca_pem"])

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the manager."""
        parts = urllib.parse.urlsplit(self.url)
        assert parts.hostname is not None
        assert parts.port is not None
        return parts.hostname, parts.port

    def ask(self, method: str, path: str, body: Any = None, *, token: str | None = None) -> tuple[int, Any]:
        """Sends one request over HTTPS and returns its status and body, decoded if it is JSON."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, method=method)
        request.add_header("Content-Type", "application/json")
        if token := self.token if token is None else token:
            request.add_header("Authorization", f"Bearer {token}")
        try:
            with urllib.request.urlopen(request, timeout=DEADLINE_S, context=self.tls) as answer:
                return answer.status, _decoded(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, _decoded(error.read())

    def connect(self) -> socket.socket:
        """Opens a TCP connection and sends nothing."""
        source = (self.source, 0) if self.source else None
        return socket.create_connection(self.address, timeout=DEADLINE_S, source_address=source)

    def connect_tls(self) -> ssl.SSLSocket:
        """Opens a connection and completes the TLS handshake."""
        return self.tls.wrap_socket(self.connect(), server_hostname=self.address[0])

    def connect_local(self) -> socket.socket:
        """Opens a connection over the manager's local socket, for programs on the same machine."""
        digest = hashlib.sha256(self.manager.connection["ca_pem"].strip().encode() + self.address[1].to_bytes(2, "big"))
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(DEADLINE_S)
        connection.connect(f"\0dayfly-manager-{digest.digest()[:16].hex()}")
        return connection

    def open_stream(self, path: str, *, token: str | None = None, local: bool = False, **headers: str) -> Stream:
        """Opens a WebSocket at this path. Raises ``AssertionError`` with the response's head if it is refused."""
        connection = self.connect_local() if local else self.connect_tls()
        return Stream(connection, path, self.token if token is None else token, **headers)


class Stream:
    """A WebSocket that reports only whether data arrived and whether it was closed."""

    def __init__(self, connection: socket.socket, path: str, token: str, **headers: str) -> None:
        self.connection = connection
        bearer = f"Authorization: Bearer {token}\r\n" if token else ""
        bearer += "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        connection.sendall(
            f"GET {path} HTTP/1.1\r\nHost: dayfly\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n{bearer}\r\n".encode()
        )
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            byte = connection.recv(1)
            if not byte:
                break
            head += byte
        assert head.startswith(b"HTTP/1.1 101 "), head

    def received(self, timeout: float) -> bytes | None:
        """Returns bytes that arrived within ``timeout`` seconds; empty at the end, None on a timeout."""
        self.connection.settimeout(timeout)
        try:
            return self.connection.recv(1 << 16)
        except TimeoutError:
            return None
        except OSError:
            return b""

    def closed_within(self, timeout: float) -> bool:
        """Returns whether the other side closes the connection within ``timeout`` seconds after its last data."""
        while received := self.received(timeout):
            # The other side may send the reason before it closes the connection.
            if (b"revoked or has expired" in received) or received[0] & 0x0F == 0x8:
                return True
        return received == b""

    def close(self) -> None:
        """Closes the connection."""
        with contextlib.suppress(OSError):
            self.connection.close()


class Person(Observer):
    """A tenant, with a client and a token."""

    def __init__(self, manager: Daemon, name: str, directory: Path, *more: str) -> None:
        import dayfly

        super().__init__(manager)
        self.name = name
        self.connection = tenant(manager, name, directory, *more)
        self.token = json.loads(self.connection.read_text())["token"]
        self.client = dayfly.connect(config=self.connection)

    @property
    def token_id(self) -> str:
        """The id by which the token is revoked."""
        tokens = self.manager.cli("token", "list")
        return str(next(one["id"] for one in tokens if one["tenant"] == self.name and one["name"] == "laptop"))


class People(dict[str, Person]):
    """The tenants of one manager by name, created on first use."""

    def __init__(self, manager: Daemon, directory: Path) -> None:
        super().__init__()
        self.manager = manager
        self.directory = directory

    def __missing__(self, name: str) -> Person:
        made = self[name] = Person(self.manager, name, self.directory)
        return made

    def close(self) -> None:
        """Closes the clients of all tenants."""
        for person in self.values():
            person.client.close()


def _decoded(body: bytes) -> Any:
    try:
        return json.loads(body or b"null")
    except ValueError:
        return body
