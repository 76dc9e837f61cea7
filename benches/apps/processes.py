"""Processes beside the measurement: a manager, function servers and raw echoes. All end with their block."""

from __future__ import annotations

import http.client
import importlib.util
import multiprocessing
import os
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "apps"
#: Seconds for a process to serve, to respond, or to stop.
START_S, RESPONSE_S, STOP_S = 30.0, 60.0, 20.0
LENGTH = struct.Struct("<Q")


def has(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def cores() -> list[int]:
    return sorted(os.sched_getaffinity(0))


def dayfly() -> str:
    """Returns the path of the program that is measured."""
    from dayfly._program import binary

    return binary() or "dayfly"


@contextmanager
def on(wanted: Sequence[int]) -> Iterator[None]:
    """Starts processes on these processors."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, wanted)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def end(process: subprocess.Popen[Any]) -> None:
    process.terminate()
    try:
        process.communicate(timeout=STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()


@contextmanager
def site(processors: Sequence[int]) -> Iterator[Path]:
    """Runs a manager with a node of these processors. Yields its state directory."""
    with tempfile.TemporaryDirectory(prefix="dayfly-apps-") as directory:
        state = Path(directory) / "state"
        command = [dayfly(), "up", "--json", "--listen", "127.0.0.1:0", "--state-dir", str(state)]
        command += ["--sandbox", "process", "--python", sys.executable, "--log", "error"]
        with on(processors):
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        try:
            assert process.stdout is not None
            if not process.stdout.readline():
                raise SystemExit("The node for the leased workers did not start: its message is above.")
            yield state
        finally:
            end(process)


class HttpServer:
    """A client of one function server, over one connection that stays open."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=RESPONSE_S)
        self._connection.connect()
        assert self._connection.sock is not None
        self._connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, path: str, body: bytes) -> None:
        self._connection.request("POST", path, body)

    def receive(self) -> bytes:
        response = self._connection.getresponse()
        body = response.read()
        if response.status != 200:
            raise SystemExit(f"The function server responded with status {response.status}.")
        return body

    def call(self, path: str, body: bytes) -> bytes:
        self.send(path, body)
        return self.receive()

    def close(self) -> None:
        self._connection.close()


def start_server(listener: socket.socket) -> subprocess.Popen[Any]:
    """Starts a function server of one process on a socket that listens."""
    command = [sys.executable, str(EXAMPLES / "server.py"), str(listener.fileno())]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=[listener.fileno()])


@contextmanager
def listening() -> Iterator[tuple[socket.socket, int]]:
    """Listens on a free port, so that clients may connect before the server of the socket runs."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        listener.set_inheritable(True)
        yield listener, listener.getsockname()[1]


@contextmanager
def function_server() -> Iterator[int]:
    """Runs a function server of one process. Yields its port."""
    with listening() as (listener, port):
        process = start_server(listener)
        try:
            yield port
        finally:
            end(process)


@contextmanager
def function_servers(count: int, connections: int | None = None) -> Iterator[list[HttpServer]]:
    """Runs function servers of one process each. Yields connections, which take turns over the servers."""
    with ExitStack() as stack:
        ports = [stack.enter_context(function_server()) for _ in range(count)]
        clients = []
        for number in range(connections or count):
            client = HttpServer(ports[number % count])
            stack.callback(client.close)
            client.call("/echo", b"ready")
            clients.append(client)
        yield clients


def _read(connection: socket.socket, into: memoryview) -> bool:
    while into:
        got = connection.recv_into(into)
        if got == 0:
            return False
        into = into[got:]
    return True


def _echo(listener: socket.socket) -> None:
    """Sends back what one client sends, without any function."""
    connection, _ = listener.accept()
    listener.close()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    length, buffer = bytearray(LENGTH.size), bytearray()
    while _read(connection, memoryview(length)):
        (size,) = LENGTH.unpack(length)
        if len(buffer) != size:
            buffer = bytearray(size)
        if not _read(connection, memoryview(buffer)):
            return
        connection.sendall(buffer)


class RawEcho:
    """A TCP connection to a process that sends back what it gets: the limit of what sockets allow in Python."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=RESPONSE_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, body: bytes) -> None:
        if len(body) < 1 << 16:
            self._socket.sendall(LENGTH.pack(len(body)) + body)
        else:
            self._socket.sendall(LENGTH.pack(len(body)))
            self._socket.sendall(body)

    def receive(self, size: int) -> bytearray:
        buffer = bytearray(size)
        if not _read(self._socket, memoryview(buffer)):
            raise SystemExit("The raw echo ended.")
        return buffer

    def call(self, body: bytes) -> bytearray:
        self.send(body)
        return self.receive(len(body))

    def close(self) -> None:
        self._socket.close()


@contextmanager
def raw_echoes(count: int) -> Iterator[list[RawEcho]]:
    """Starts processes that echo, with a connection to each. Call it before this process has other threads."""
    with ExitStack() as stack:
        fork = multiprocessing.get_context("fork")
        clients = []
        for _ in range(count):
            with socket.create_server(("127.0.0.1", 0)) as listener:
                process = fork.Process(target=_echo, args=(listener,), daemon=True)
                process.start()
                port = listener.getsockname()[1]
            stack.callback(process.join, STOP_S)
            client = RawEcho(port)
            stack.callback(client.close)
            clients.append(client)
        yield clients
