"""A stand-alone node that lives as long as the process that starts it, and clients of such a node."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from dayfly._errors import Error
from dayfly._failures import error_for
from dayfly._leases.client import LeaseClient
from dayfly._program import binary
from dayfly._worker import environment_outside_group

#: Seconds after its start until which a node must serve.
MAX_START_S = 30.0
#: Seconds that a node has to end its workers, before it is killed.
MAX_STOP_S = 10.0
#: Bytes of the node's messages that an error contains.
MAX_MESSAGE = 2000
#: Variables of this process's manager. A stand-alone node has none.
_MANAGER = ("DAYFLY_MANAGER", "DAYFLY_JOIN_TOKEN")
#: Prefixes of the variables by which MPI finds the other ranks of a job. A function on the node is no rank.
_RANK = ("OMPI_", "PMIX_", "PMI_")


class PrivateNode:
    """A stand-alone node of this process. It ends with `end` or with the process, however that ends.

    Args:
        host: name under which other hosts reach this one; None if clients are on this host only.

    Raises:
        dayfly.Error: ``executor_failed`` if the program cannot be started.
    """

    def __init__(self, host: str | None) -> None:
        program = binary() or shutil.which("dayfly")
        if program is None:
            raise error_for(
                "executor_failed",
                "the program dayfly, which a private node needs, is not on the PATH: name it by DAYFLY_BIN",
            )
        # The node makes the directory, and removes it. If this process made it, a kill before the node's start would
        # leave it.
        self._directory = Path(tempfile.gettempdir()) / f"dayfly-job-{secrets.token_hex(8)}"
        self._allowance = ""
        self._started = time.monotonic()
        # A launcher waits until every copy of a rank's pipes is closed, so the node gets none of them.
        self._messages = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `end`)
        words = ["node", "--standalone", "--ephemeral", "--state-dir", str(self._directory), "--sandbox", "process"]
        words += ["--log", "error", "--parent", str(os.getpid())]
        if host is not None:
            words += ["--listen-tcp", "0.0.0.0:0", "--host-name", host]
        try:
            self._process = subprocess.Popen(
                [program, *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._messages,
                env=_environment(),
                # Launchers kill the process group of a rank at once. The node ends its workers by itself.
                process_group=0,
            )
        except OSError as error:
            self._messages.close()
            text = f"{program} cannot be started: {error.strerror}. Name the program dayfly by DAYFLY_BIN"
            raise error_for("executor_failed", text) from error

    def allowance(self) -> str:
        """Returns the text of the node's allowance; "" if the node does not serve yet."""
        if not self._allowance:
            try:
                # The node replaces it as a whole.
                self._allowance = (self._directory / "allowance.json").read_text()
            except OSError:
                return ""
        return self._allowance

    def failure(self) -> Error | None:
        """Returns why the node does not serve: it has ended, or was not ready in time. None if it serves or starts."""
        status = self._process.poll()
        if status is None:
            if self.allowance() or time.monotonic() - self._started < MAX_START_S:
                return None
            text = f"the private node did not serve within {MAX_START_S:.0f} s"
        else:
            text = f"the private node ended with status {status}"
        return error_for("executor_failed", f"{text}: {self._message()}")

    def _message(self) -> str:
        """Returns the last of what the node has written to standard error."""
        # The node shares the position of this file, so this process must not move it.
        descriptor = self._messages.fileno()
        length = os.fstat(descriptor).st_size
        message = os.pread(descriptor, MAX_MESSAGE, max(0, length - MAX_MESSAGE)).decode(errors="replace").strip()
        return message or "it wrote no message"

    def end(self, limit: float = MAX_STOP_S) -> None:
        """Ends the node and its workers, by a kill after ``limit`` seconds, and removes its directory. Idempotent."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(limit)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._messages.close()
        # A node that was killed leaves it.
        shutil.rmtree(self._directory, ignore_errors=True)


def _environment() -> dict[str, str]:
    kept = environment_outside_group().items()
    return {name: value for name, value in kept if name not in _MANAGER and not name.startswith(_RANK)}


def client_of(allowance: str) -> LeaseClient:
    """Returns a client of the node that wrote an allowance.

    Raises:
        dayfly.Error: ``invalid_request`` if the text is no allowance.
    """
    # In memory, because a file on disk would stay if this process were killed now.
    with os.fdopen(os.memfd_create("dayfly-allowance"), "w") as file:
        file.write(allowance)
        file.flush()
        return LeaseClient._open(node=f"/proc/self/fd/{file.fileno()}")
