"""Endpoints on this machine, run with their owner's commands, and a breakable connection to their manager."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from harness.daemons import Daemon
from harness.leaks import descendants, wait_until
from harness.programs import program, run


@contextlib.contextmanager
def manager_alone(state: Path, port: int = 0) -> Iterator[Daemon]:
    """Runs a manager without nodes. Asserts at the end that no process started meanwhile is left."""
    before = set(descendants())
    manager = Daemon("manager", "--listen", f"127.0.0.1:{port}", state=state)
    try:
        yield manager
    finally:
        manager.stop()

    def left() -> dict[int, str]:
        now = descendants()
        # Slurm's processes are not the test's.
        return {pid: name for pid, name in now.items() if pid not in before and "slurm" not in name}

    try:
        wait_until(lambda: not left(), "no process is left", 20)
    except AssertionError as error:
        raise AssertionError(f"{error}: {left()}") from None


@contextlib.contextmanager
def endpoints_of(manager: Daemon, home: Path, **variables: str) -> Iterator[Callable[..., Endpoint]]:
    """Yields ``make``: ``make("--max-blocks", "2")`` sets an endpoint up and starts it, by default with two workers
    on each node.
    """
    os.environ.setdefault("DAYFLY_BIN", str(program()))
    made: list[Endpoint] = []

    def make(*setup: str, start: bool = True, name: str = "here") -> Endpoint:
        workers = () if "--workers-per-node" in setup else ("--workers-per-node", "2")
        one = Endpoint(manager, home, name, *workers, *setup, **variables).set_up()
        made.append(one)
        if start:
            one.start()
        return one

    yield make
    for one in made:
        if one.directory.exists():
            print(one.log())
            one.stop()


class Endpoint:
    """One endpoint, used through the commands of ``dayfly endpoint``."""

    def __init__(self, manager: Daemon, home: Path, name: str, *setup: str, **variables: str) -> None:
        self.name = name
        self.manager = manager
        self.directory = home / "dayfly" / "endpoints" / name
        self._environment = manager.client_environment() | {
            "XDG_STATE_HOME": str(home),
            "DAYFLY_PYTHON": sys.executable,
            # Nodes that a test kills leave their state there.
            "TMPDIR": str(home),
        }
        self._environment |= variables
        self._setup = setup

    def set_up(self, *more: str) -> Endpoint:
        """Registers the endpoint and writes its configuration."""
        self.say("setup", *self._setup, *more)
        return self

    def of(self, home: Path, connection: Path) -> Endpoint:
        """Returns another person's endpoint of the same name at the same manager."""
        return Endpoint(self.manager, home, self.name, DAYFLY_MANAGER=str(connection))

    def say(self, command: str, *args: str, timeout: float = 60) -> Any:
        """Runs ``dayfly endpoint COMMAND NAME ARGS --json``. Returns the parsed output."""
        done = run(
            program(), "endpoint", command, self.name, *args, "--json", timeout=timeout, env=self._environment
        ).stdout
        return json.loads(done)

    def refusal(self, command: str, *args: str) -> str:
        """Runs a command that must fail. Returns its error message."""
        done = run(program(), "endpoint", command, self.name, *args, check=False, env=self._environment)
        assert done.returncode != 0, done.stdout
        return done.stderr

    def start(self) -> None:
        """Starts the endpoint in the background."""
        self.say("start")

    def stop(self, *args: str) -> None:
        """Stops the endpoint, which releases its nodes."""
        self.say("stop", *args)

    def kill(self) -> None:
        """Kills the endpoint's daemon alone by SIGKILL."""
        pid = self.local["pid"]
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not self.local["running"], "the endpoint is gone")

    @property
    def local(self) -> Any:
        """The output of ``dayfly endpoint status``."""
        return self.say("status")

    @property
    def blocks(self) -> list[dict[str, Any]]:
        """The blocks in the endpoint's own status."""
        status = self.local["status"]
        return status["blocks"] if status else []

    @property
    def seen(self) -> dict[str, Any]:
        """The endpoint's status at its manager."""
        found: list[dict[str, Any]] = self.manager.cli("endpoint", "list")
        return next(one for one in found if one["name"] == self.name)

    def log(self) -> str:
        """Returns the end of the endpoint's log."""
        with contextlib.suppress(FileNotFoundError):
            return (self.directory / "log").read_text(errors="replace")[-20_000:]
        return ""

    def goes_through(self, way: Way) -> None:
        """Makes the endpoint connect to its manager through ``way`` from its next start on."""
        path = self.directory / "credential.json"
        credential = json.loads(path.read_text()) | {"manager": f"https://127.0.0.1:{way.port}"}
        path.write_text(json.dumps(credential))


class Way:
    """A loopback port that forwards to another until it is cut.

    Data that is not ``answered`` is still forwarded, but its connection then stays silent.
    """

    def __init__(self, url: str, answered: Callable[[bytes], bool] = lambda _: True) -> None:
        host, port = url.rpartition("//")[2].rsplit(":", 1)
        self._to = (host, int(port))
        self._answered = answered
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open = True
        self._ends: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def cut(self) -> None:
        """Breaks all connections, and refuses new ones until `mend`."""
        with self._lock:
            self._open = False
            for end in self._ends:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        """Accepts connections again."""
        with self._lock:
            self._open = True

    def _serve(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                if not self._open:
                    near.close()
                    continue
                far = socket.create_connection(self._to)
                self._ends |= {near, far}
            threading.Thread(target=self._carry, args=(near, far), daemon=True).start()

    def _carry(self, near: socket.socket, far: socket.socket) -> None:
        others = {near: far, far: near}
        with selectors.DefaultSelector() as selector, near, far:
            for end in others:
                selector.register(end, selectors.EVENT_READ)
            with contextlib.suppress(OSError):
                while True:
                    for key, _ in selector.select():
                        end = key.fileobj
                        assert isinstance(end, socket.socket)
                        data = end.recv(1 << 16)
                        if not data:
                            return
                        others[end].sendall(data)
                        if end is near and not self._answered(data):
                            far.recv(1)
                            return

    def close(self) -> None:
        """Closes the port."""
        self.cut()
        # Closing the listener alone would not wake the thread in accept.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)
