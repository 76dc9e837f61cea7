"""MPI programs as functions that run on all ranks of a task, started by their nodes' ``mpirun``."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dayfly._command import SHELL, Command
from dayfly._groups import mpi_agent
from dayfly._worker import environment_outside_group
from dayfly.groups import Group, world

#: Default command that starts a program on all ranks.
LAUNCHER = "mpirun -n {ranks}"
#: Seconds between two checks of the running processes.
POLL_INTERVAL = 0.005
#: Prefixes of the variables of batch systems. With them, ``mpirun`` would start ranks through the batch system.
BATCH = ("SLURM_", "PBS_", "LSB_", "SGE_", "PMI_", "PMIX_")
_TO_START, _ENDED = 1, 2


class MPICommand(Command):
    """An MPI program as a function of several ranks, which returns the program's standard output.

    >>> solve = MPICommand("./solver {case}")
    >>> solve.line("a case.dat")
    "./solver 'a case.dat'"
    >>> solver = client.register(solve, ranks=64, placement="spread")  # doctest: +SKIP
    >>> client.run(solver, "case.dat").result()[0]  # doctest: +SKIP
    'converged after 12 steps'

    The ranks are the workers of one task. The task's first worker calls its node's ``mpirun`` (Open MPI or MPICH),
    which starts the program's ranks on the task's hosts: on other hosts through the workers there, without ssh or a
    batch system. All processes end with the task. The first element of the task's result is the output; the others are
    None.

    Args:
        command: as for `Command`, without a launcher.
        launcher: another command that starts the program, used verbatim, such as ``srun -n {ranks}`` in Slurm jobs.
            ``{ranks}`` is the number of ranks, and ``{hosts}`` their hosts, separated by commas, one for each rank.
        directory: as for `Command`.
        variables: as for `Command`.

    Raises:
        CommandError: on a call, if the launcher exits with a status other than 0.
    """

    def __init__(
        self,
        command: str,
        *,
        launcher: str | None = None,
        directory: str | os.PathLike[str] | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(command, directory=directory, variables=variables)
        self.launcher = launcher

    def __call__(self, *args: Any, **kwargs: Any) -> str | None:  # type: ignore[override]
        """Runs the program on all ranks. Every rank calls it."""
        line = self.line(*args, **kwargs)
        comm = world()
        hosts: list[str] = comm.allgather(os.uname().nodename)
        if comm.rank != 0:
            _serve(comm)
            return None
        ranks = {"ranks": comm.size, "hosts": ",".join(hosts)}
        with _leading(comm):
            if self.launcher is not None:
                return self._run(f"{self.launcher.format(**ranks)} {line}", {})
            with (
                tempfile.TemporaryDirectory(prefix="dayfly-mpi-") as place,
                _Agents(comm, hosts, Path(place)) as agents,
            ):
                return self._run(f"{LAUNCHER.format(**ranks)} {line}", agents.variables())

    def _environment(self, more: Mapping[str, str]) -> dict[str, str]:
        # The program must not join this task's group, whose ranks all exist. Its launcher has an MPI of its own.
        given = environment_outside_group()
        if self.launcher is None:
            given = {name: value for name, value in given.items() if not name.startswith(BATCH)}
        return {**given, **more, **self.variables}

    def __repr__(self) -> str:
        return f"<dayfly.MPICommand {self.command!r}>"


class _Agents:
    """Has the ranks on other hosts start the processes that ``mpirun`` requests there."""

    def __init__(self, comm: Group, hosts: Sequence[str], place: Path) -> None:
        self._comm = comm
        self._place = place
        self._slots = Counter(hosts)
        self._leaders = {host: hosts.index(host) for host in self._slots}
        self._asking: dict[int, socket.socket] = {}
        self._asked = 0
        self._over = threading.Event()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(place / "socket"))
        self._listener.listen()
        self._thread = threading.Thread(target=self._run, name="dayfly mpirun", daemon=True)

    def variables(self) -> dict[str, str]:
        """Returns the environment variables that give ``mpirun`` the hosts and the agent."""
        words = shlex.join([sys.executable, "-I", mpi_agent.__file__, str(self._place / "socket")])
        agent = self._file("agent", f'#!/bin/sh\nexec {words} "$@"\n')
        agent.chmod(0o700)
        slots = self._slots.items()
        open_mpi = {
            "plm": "rsh",
            "plm_rsh_agent": str(agent),
            "plm_rsh_no_tree_spawn": "1",
            "orte_default_hostfile": str(self._file("hosts", "".join(f"{host} slots={n}\n" for host, n in slots))),
            "orte_leave_session_attached": "1",
            # The nodes have already bound the ranks to cores.
            "hwloc_base_binding_policy": "none",
        }
        given = {f"OMPI_MCA_{name}": value for name, value in open_mpi.items()} | {
            "HYDRA_HOST_FILE": str(self._file("hydra-hosts", "".join(f"{host}:{n}\n" for host, n in slots))),
            "HYDRA_LAUNCHER": "rsh",
            "HYDRA_LAUNCHER_EXEC": str(agent),
        }
        if os.geteuid() == 0:
            # The operator chose to run nodes as root.
            given |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        return given

    def _file(self, name: str, text: str) -> Path:
        path = self._place / name
        path.write_text(text)
        return path

    def __enter__(self) -> _Agents:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._listener.close()
        for connection in self._asking.values():
            connection.close()

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            while not self._over.is_set():
                if selector.select(POLL_INTERVAL):
                    self._take()
                while self._comm.has_message(tag=_ENDED):
                    asked, code = self._comm.recv(tag=_ENDED)
                    self._answer(self._asking.pop(asked), code)

    def _take(self) -> None:
        connection, _ = self._listener.accept()
        with contextlib.suppress(OSError, ValueError):
            asked = json.loads(connection.makefile().readline())
            leader = self._leaders.get(asked["host"])
            if leader is not None:
                self._asked += 1
                self._asking[self._asked] = connection
                self._comm.send((self._asked, asked["command"]), leader, tag=_TO_START)
                return
        self._answer(connection, 255)

    @staticmethod
    def _answer(connection: socket.socket, code: int) -> None:
        with connection, contextlib.suppress(OSError):
            connection.sendall(f"{code}\n".encode())


@contextlib.contextmanager
def _leading(comm: Group) -> Iterator[None]:
    """Notifies the other ranks at the end. If this rank fails, they detect that it left the group."""
    yield
    for rank in range(1, comm.size):
        comm.send(None, rank, tag=_TO_START)


def _serve(comm: Group) -> None:
    """Serves the other ranks: reserves cores for the program, and starts the first rank's requests on this host."""
    running: dict[int, subprocess.Popen[bytes]] = {}
    try:
        while True:
            if not running or comm.has_message(0, _TO_START):
                asked = comm.recv(0, _TO_START)
                if asked is None:
                    return
                number, command = asked
                running[number] = subprocess.Popen(
                    [SHELL, "-c", command],
                    env=environment_outside_group(),
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                )
            for number in [number for number, process in running.items() if process.poll() is not None]:
                status = running.pop(number).returncode
                comm.send((number, status if status >= 0 else 128 - status), 0, tag=_ENDED)
            time.sleep(POLL_INTERVAL)
    finally:
        for process in running.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
