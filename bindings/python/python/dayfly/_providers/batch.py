"""Batch systems, through Parsl's providers.

Parsl writes and submits the jobs. This module queries their states itself, because Parsl repeats its last states if the
batch system does not respond, takes some running jobs for ended, and reports no reasons.
"""

from __future__ import annotations

import importlib
import inspect
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from .provider import ENDED, LIMIT, WORDS, Provider, ProviderError, RefusedError

#: Output of commands that could not reach the batch system, as opposed to a refusal.
UNREACHABLE = re.compile(
    r"unable to contact|timed out|connection refused|connect failure|cannot connect|can't connect|not responding|"
    r"no route to host|zero bytes were transmitted|failed to (connect|fetch)|unable to (connect|send message)|"
    r"LSF is down",
    re.IGNORECASE,
)
#: Options of Parsl's providers that users cannot set, and what to set instead.
GOVERNED = {
    "nodes_per_block": "it is `nodes` of [blocks]",
    "walltime": "it is `walltime` of [blocks]",
    "init_blocks": "it is `min` of [blocks]",
    "min_blocks": "it is `min` of [blocks]",
    "max_blocks": "it is `max` of [blocks]",
    "parallelism": "as many blocks as the waiting work needs, between `min` and `max` of [blocks], are asked for",
    "launcher": "a block's command is started once on each of the `nodes` of [blocks]",
}
#: Variables with the number of a process, by the launcher.
RANKS = ("PMIX_RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "PALS_RANKID", "ALPS_APP_PE", "JSM_NAMESPACE_RANK")
#: Variables that make each kind of mpiexec start one process for each node. Their options differ.
ONE_EACH = {
    "OMPI_MCA_rmaps_base_mapping_policy": "ppr:1:node",
    "PRTE_MCA_rmaps_default_mapping_policy": "ppr:1:node",
    "I_MPI_PERHOST": "1",
    "I_MPI_JOB_RESPECT_PROCESS_PLACEMENT": "0",
    "PALS_PPN": "1",
}


@dataclass(frozen=True)
class Done:
    """A command of the batch system that has ended or was killed."""

    code: int
    out: str
    err: str
    late: bool = False

    @property
    def words(self) -> str:
        """The output to report to the user."""
        return (self.err.strip() or self.out.strip() or f"ended with {self.code}")[:WORDS]

    @property
    def unreachable(self) -> bool:
        """Whether the command failed to reach the batch system."""
        return self.late or (self.code != 0 and UNREACHABLE.search(self.words) is not None)


def execute(command: str, limit: float) -> Done:
    """Runs a shell command, and kills it after ``limit`` seconds."""
    process = subprocess.Popen(
        command,
        shell=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        process_group=0,
    )
    try:
        out, err = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        # Kill the whole process group: children of the shell would keep the pipes open.
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return Done(124, "", f"{command.split(None, 1)[0]} did not end within {limit:g} s", late=True)
    return Done(process.returncode, out, err)


class Batch(Provider):
    """Any batch system."""

    libraries: ClassVar[tuple[str, ...]] = ("parsl",)

    #: Name of the module and the class of Parsl's provider.
    module: ClassVar[str]
    provider: ClassVar[str]
    #: Required commands.
    commands: ClassVar[tuple[str, ...]] = ()
    #: Defaults that differ from Parsl's.
    defaults: ClassVar[dict[str, Any]] = {"cmd_timeout": LIMIT}
    governed: ClassVar[dict[str, str]] = GOVERNED
    #: Directives before the user's ``scheduler_options``, which take precedence. A block must not be requeued: the
    #: endpoint submits another one if it needs one.
    directives: ClassVar[str] = ""
    #: Output of commands about a job that is unknown, or no longer known.
    unknown: ClassVar[re.Pattern[str]] = re.compile(r"(?!)")
    #: Whether walltimes are whole minutes.
    minutes: ClassVar[bool] = False

    def __init__(self, options: dict[str, Any], directory: str) -> None:
        super().__init__(options, directory)
        self._class = getattr(importlib.import_module(self.module), self.provider)
        self._last: Done | None = None
        self._last_command = ""
        self._made: tuple[tuple[int, float], Any] | None = None
        self._check()
        # Parsl itself never kills a command that takes too long, and loses its output.
        cluster: Any = importlib.import_module("parsl.providers.cluster_provider")
        cluster.execute_wait = self._execute_wait
        self._base = self._provider(1, 3600)

    def _check(self) -> None:
        for name in self.commands:
            if shutil.which(name) is None:
                raise ProviderError(f"the command {name} is not there; the endpoint needs it in its PATH")
        parameters = inspect.signature(self._class.__init__).parameters
        known = [name for name in parameters if name != "self" and name not in self.governed]
        for name in self._options:
            if name in self.governed:
                raise ProviderError(f"option {name} is the endpoint's own: {self.governed[name]}")
            if name not in known:
                raise ProviderError(f"unknown option {name}; there are {', '.join(sorted(known))}")
        for name in known:
            if parameters[name].default is inspect.Parameter.empty and name not in self._options:
                raise ProviderError(f"option {name} is needed")

    # Differences between the systems

    def _launcher(self, nodes: int) -> tuple[str, dict[str, Any]]:
        """Returns the name and arguments of the Parsl launcher that starts the command on each node."""
        return ("SimpleLauncher", {}) if nodes == 1 else ("MpiExecLauncher", {})

    def _rank(self, nodes: int) -> str:
        """Returns the shell expression for the number of a process."""
        if nodes == 1:
            return "0"
        found = "0"
        for name in reversed(RANKS):
            found = f"${{{name}:-{found}}}"
        return found

    def _arguments(self, nodes: int, walltime: float) -> dict[str, Any]:
        """Returns the arguments of the provider's constructor."""
        given: dict[str, Any] = {**self.defaults, **self._options}
        name, about = self._launcher(nodes)
        launcher = getattr(importlib.import_module("parsl.launchers"), name)(**about)
        seconds = math.ceil(walltime)
        if self.minutes:
            seconds = -(-seconds // 60) * 60
        clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
        given |= {"nodes_per_block": nodes, "walltime": clock, "launcher": launcher}
        options = [self._directives(seconds), given.get("scheduler_options", "")]
        given["scheduler_options"] = "\n".join(part for part in options if part)
        if nodes > 1 and name.startswith("Mpi"):
            # The launcher may write its list of hosts there.
            first = [f"cd {shlex.quote(self._directory)}", *(f"export {k}={v}" for k, v in ONE_EACH.items())]
            given["worker_init"] = "\n".join([*first, given.get("worker_init", "")])
        return given

    def _directives(self, seconds: int) -> str:
        del seconds
        return self.directives

    def _wrapped(self, command: str, nodes: int) -> str:
        """Returns the command as a direct child of the batch system, with its rank in the environment."""
        text = f"DAYFLY_RANK={self._rank(nodes)}; export DAYFLY_RANK; exec /bin/sh -c {shlex.quote(command)}"
        if self._launcher(nodes)[0] != "SimpleLauncher":
            # The other launchers write the command to a file by a here-document, in which the shell expands it.
            text = re.sub(r"([\\$`])", r"\\\1", text)
        return text

    # Common code

    def _execute(self, command: str) -> Done:
        self._last = execute(command, float(self._options.get("cmd_timeout", LIMIT)))
        return self._last

    def _execute_wait(self, command: str, limit: float) -> tuple[int, str, str]:
        self._last_command = command
        self._last = execute(command, limit)
        return self._last.code, self._last.out, self._last.err

    def _provider(self, nodes: int, walltime: float) -> Any:
        # Created on first use and kept: some providers query their batch system on creation.
        if self._made is None or self._made[0] != (nodes, walltime):
            provider = self._class(**self._arguments(nodes, walltime))
            provider.script_dir = self._directory
            self._made = (nodes, walltime), provider
        return self._made[1]

    def _submit(self, name: str, command: str, nodes: int, walltime_s: float) -> str:
        provider = self._provider(nodes, walltime_s)
        self._last, self._last_command = None, ""
        try:
            job = provider.submit(self._wrapped(command, nodes), 1, name)
        except Exception:
            # The output of the command is more informative than any of Parsl's exceptions.
            self._check_last()
            raise
        if not job:
            self._check_last()
            raise ProviderError(f"no job was named by what was submitted: {self._last.words if self._last else ''}")
        return str(job)

    def _check_last(self) -> None:
        if self._last is not None and self._last.code != 0:
            raise (ProviderError if self._last.unreachable else RefusedError)(self._last.words)

    def cancel(self, jobs: list[str]) -> None:
        """Cancels jobs, also those of an earlier process. Ended jobs count as cancelled."""
        if not jobs or self._cancel(jobs):
            return
        # Some commands fail for all jobs if one is unknown.
        if self._last is not None and self._last.unreachable:
            raise ProviderError(self._last.words)
        for job, how in self.jobs(jobs).items():
            if how.state != ENDED and not self._cancel([job]):
                words = self._last.words if self._last else ""
                # The job may have ended meanwhile.
                if self.jobs([job])[job].state != ENDED:
                    raise ProviderError(words)

    def _cancel(self, jobs: list[str]) -> bool:
        states: Any = importlib.import_module("parsl.jobs.states")
        # Parsl cancels only jobs that it has in its own records.
        for job in jobs:
            status = states.JobStatus(states.JobState.RUNNING)
            self._base.resources[job] = {"job_id": job, "status": status, "job_stdout_path": "", "job_stderr_path": ""}
        try:
            return all(self._base.cancel(jobs))
        finally:
            self._base.resources.clear()

    def _sound(self, command: str) -> str:
        """Returns the output of a command. Raises `ProviderError` if it fails."""
        done = self._execute(command)
        if done.code != 0:
            raise ProviderError(done.words)
        return done.out

    def _each_sound(self, command: str, jobs: Iterable[str]) -> str:
        """As `_sound` for several jobs. If the command fails for all because one is unknown, runs it for each."""
        jobs = list(jobs)
        done = self._execute(f"{command} {' '.join(jobs)}")
        if done.code == 0:
            return done.out
        if done.unreachable:
            raise ProviderError(done.words)
        if len(jobs) > 1:
            return "\n".join(self._each_sound(command, [job]) for job in jobs)
        if self.unknown.search(done.words):
            return ""
        raise ProviderError(done.words)
