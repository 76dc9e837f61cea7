"""Daemons under test, in private directories."""

from __future__ import annotations

import contextlib
import json
import os
import random
import selectors
import signal
import socket
import ssl
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness.leaks import descendants, die_with_parent, kill
from harness.network import Host
from harness.programs import clean_environment, program, run, run_json

#: The lowest port that tests use.
LOWEST_PORT = 10_000
_random = random.SystemRandom()
_given: set[int] = set()


def free_port() -> int:
    """Returns a free port, for a daemon that restarts on the same port.

    It lies below those that the kernel gives to outgoing connections and to listeners without a port of their own. Such
    a port could be taken again before a slow daemon listens.
    """
    first_of_kernel = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = _random.randrange(LOWEST_PORT, max(first_of_kernel, 2 * LOWEST_PORT))
        if port in _given:
            continue
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", port))
            _given.add(port)
            return port


class DaemonError(AssertionError):
    """A daemon did not start. Contains its output."""


class Daemon:
    """``dayfly up``, ``dayfly manager`` or ``dayfly node``: a process with its own state directory and log.

    A daemon reports that it is ready by one line of JSON on standard output, which becomes ``ready``.
    """

    def __init__(
        self,
        *args: str,
        state: Path,
        env: dict[str, str] | None = None,
        timeout: float = 20,
        expect_ready: bool = True,
        host: Host | None = None,
        prefix: tuple[str, ...] = (),
        cwd: Path | None = None,
    ) -> None:
        state.mkdir(parents=True, exist_ok=True)
        self.state = state
        self.args = args
        self.host = host
        self.prefix = prefix
        # Next to the state directory, unless that is a private directory itself.
        place = state if state.parent == Path(tempfile.gettempdir()) else state.parent
        self.log = place / f"{state.name}-{args[0]}-{time.monotonic_ns()}.log"
        self.environment = clean_environment(**(env or {}))
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [*(host.prefix if host else ()), *prefix, program(), *args, "--state-dir", state, "--json"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env=self.environment,
                cwd=cwd,
                # In a session of its own, so that a signal to the terminal does not end it before its test.
                start_new_session=True,
                # It must not outlive the tests, however they end.
                preexec_fn=die_with_parent,  # noqa: PLW1509 (one call, loaded before)
            )
        self.pid = self.process.pid
        self.ready: dict[str, Any] = self._wait_ready(timeout) if expect_ready else {}

    def _wait_ready(self, timeout: float) -> dict[str, Any]:
        assert self.process.stdout is not None
        deadline = time.monotonic() + timeout
        received = b""
        descriptor = self.process.stdout.fileno()
        with selectors.DefaultSelector() as selector:
            selector.register(descriptor, selectors.EVENT_READ)
            while b"\n" not in received:
                left = deadline - time.monotonic()
                if left <= 0 or not selector.select(left):
                    self.kill()
                    raise DaemonError(f"{self} was not ready within {timeout} s; it wrote:\n{self.output()}")
                chunk = os.read(descriptor, 65536)
                if not chunk:
                    status = self.process.wait(timeout=10)
                    raise DaemonError(f"{self} ended with {status} before it was ready; it wrote:\n{self.output()}")
                received += chunk
        ready: dict[str, Any] = json.loads(received.partition(b"\n")[0])
        return ready

    @property
    def connection(self) -> dict[str, Any]:
        """The content of ``connection.json``, which clients need."""
        found: dict[str, Any] = json.loads((self.state / "connection.json").read_text())
        return found

    def ask(
        self, method: str, path: str, body: bytes | None = None, *, token: str = "", **headers: str
    ) -> tuple[int, bytes]:
        """Sends a request to the manager. Returns status and body; ``Content_Type=`` sets a header."""
        connection = self.connection
        request = urllib.request.Request(connection["manager"] + path, body, method=method)
        request.add_header("Authorization", f"Bearer {token or connection['token']}")
        for name, value in headers.items():
            request.add_header(name.replace("_", "-"), value)
        context = ssl.create_default_context(cadata=connection["ca_pem"])
        try:
            with urllib.request.urlopen(request, timeout=30, context=context) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def post(self, path: str, body: Any) -> tuple[int, Any]:
        """Sends a JSON document. Returns the status and the parsed response."""
        status, said = self.ask("POST", path, json.dumps(body).encode(), Content_Type="application/json")
        return status, json.loads(said)

    def cli(self, *args: str, timeout: float = 60) -> Any:
        """Runs ``dayfly ARGS --json`` against this daemon. Returns the parsed output."""
        return run_json(*args, timeout=timeout, env=self.client_environment())

    def cli_on(self, host: Host, *args: str, timeout: float = 60) -> str:
        """Runs ``dayfly ARGS`` against this daemon, on a host of the test's network. Returns the output."""
        return run(*host.prefix, program(), *args, timeout=timeout, env=self.client_environment()).stdout

    def client_environment(self) -> dict[str, str]:
        """Returns the environment in which every client finds this daemon."""
        return self.environment | {"DAYFLY_MANAGER": str(self.state)}

    def output(self) -> str:
        """Returns the daemon's log."""
        # The log may be gone when the teardown is reported.
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    @property
    def alive(self) -> bool:
        """Whether the process is running."""
        return self.process.poll() is None

    def processes(self) -> dict[int, str]:
        """Returns the processes below it, executors and workers, with their command lines."""
        return descendants(self.pid)

    def stop(self, timeout: float = 10) -> int:
        """Ends the daemon by SIGTERM. Returns its exit status; raises if it does not end in time."""
        if self.alive:
            self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise DaemonError(f"{self} did not end within {timeout} s of SIGTERM; it wrote:\n{self.output()}") from None
        self._close()
        return status

    def kill(self) -> None:
        """Kills the daemon alone by SIGKILL. Processes below it must end by themselves."""
        if self.alive:
            self.process.kill()
        self.process.wait(10)
        self._close()

    def kill_tree(self) -> None:
        """Kills the daemon and all processes below it."""
        below = list(self.processes())
        self.kill()
        kill([pid for pid in below if pid in descendants()])

    def restart(self, timeout: float = 20) -> Daemon:
        """Starts a new daemon with the same arguments and state."""
        return Daemon(
            *self.args,
            state=self.state,
            env=self.environment,
            timeout=timeout,
            host=self.host,
            prefix=self.prefix,
        )

    def _close(self) -> None:
        if self.process.stdout:
            self.process.stdout.close()

    def __repr__(self) -> str:
        return f"dayfly {' '.join(self.args)} (process {self.pid}, state {self.state})"


def private_directory() -> tempfile.TemporaryDirectory[str]:
    """Returns a directory with a short path: paths of Unix sockets have at most 107 bytes."""
    return tempfile.TemporaryDirectory(prefix="df-")


@contextlib.contextmanager
def rendezvous() -> Iterator[dict[str, Any]]:
    """Runs a rendezvous without a manager. Yields its line of JSON."""
    process = subprocess.Popen(
        [program(), "rendezvous", "--listen", "127.0.0.1:0", "--json"],
        stdout=subprocess.PIPE,
        text=True,
        env=clean_environment(),
        preexec_fn=die_with_parent,  # noqa: PLW1509 (one call, loaded before)
    )
    assert process.stdout is not None
    with process.stdout:
        yield json.loads(process.stdout.readline())
        process.terminate()
        assert process.wait(10) == 0
