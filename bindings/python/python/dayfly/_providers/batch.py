"""Batch systems, by Parsl's providers.

Parsl knows how to write and submit jobs. How jobs are is asked here, because Parsl keeps its last word on all of them
when the batch system cannot be asked, takes some for ended that are not, and tells no reasons.
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

#: How commands say that nobody answered them, in contrast to a refusal.
UNREACHABLE = re.compile(
    r"unable to contact|timed out|connection refused|connect failure|cannot connect|can't connect|not responding|"
    r"no route to host|zero bytes were transmitted|failed to (connect|fetch)|unable to (connect|send message)|"
    r"LSF is down",
    re.IGNORECASE,
)
#: Options of Parsl's providers that are not for users, and what is instead.
GOVERNED = {
    "nodes_per_block": "it is `nodes` of [blocks]",
    "walltime": "it is `walltime` of [blocks]",
    "init_blocks": "it is `min` of [blocks]",
    "min_blocks": "it is `min` of [blocks]",
    "max_blocks": "it is `max` of [blocks]",
    "parallelism": "as many blocks as the waiting work needs, between `min` and `max` of [blocks], are asked for",
    "launcher": "a block's command is started once on each of the `nodes` of [blocks]",
}
#: Where a process finds its number, by what started it.
RANKS = ("PMIX_RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "PALS_RANKID", "ALPS_APP_PE", "JSM_NAMESPACE_RANK")
#: One process on each node, for all kinds of mpiexec that there are: they differ in options, but these all can have.
ONE_EACH = {
    "OMPI_MCA_rmaps_base_mapping_policy": "ppr:1:node",
    "PRTE_MCA_rmaps_default_mapping_policy": "ppr:1:node",
    "I_MPI_PERHOST": "1",
    "I_MPI_JOB_RESPECT_PROCESS_PLACEMENT": "0",
    "PALS_PPN": "1",
}


@dataclass(frozen=True)
class Done:
    """A command of the batch system that has ended, or was ended."""

    code: int
    out: str
    err: str
    late: bool = False

    @property
    def words(self) -> str:
        """What it has to say."""
        return (self.err.strip() or self.out.strip() or f"ended with {self.code}")[:WORDS]

    @property
    def unreachable(self) -> bool:
        """Whether it did not reach the batch system."""
        return self.late or (self.code != 0 and UNREACHABLE.search(self.words) is not None)


def execute(command: str, limit: float) -> Done:
    """Runs a shell command to its end, or to its end at the limit."""
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
        # With all that the shell started, or its pipes stay open.
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return Done(124, "", f"{command.split(None, 1)[0]} did not end within {limit:g} s", late=True)
    return Done(process.returncode, out, err)


class Batch(Provider):
    """A batch system."""

    libraries: ClassVar[tuple[str, ...]] = ("parsl",)

    #: Of Parsl's provider.
    module: ClassVar[str]
    provider: ClassVar[str]
    #: Those that have to be there.
    commands: ClassVar[tuple[str, ...]] = ()
    #: Options of Parsl's that have another default here.
    defaults: ClassVar[dict[str, Any]] = {"cmd_timeout": LIMIT}
    governed: ClassVar[dict[str, str]] = GOVERNED
    #: What comes before the user's own ``scheduler_options``, so that those have the last word. A block that is over is
    #: over: the endpoint asks for another if it wants one.
    directives: ClassVar[str] = ""
    #: How a command says that it does not know a job, or not any more.
    unknown: ClassVar[re.Pattern[str]] = re.compile(r"(?!)")
    #: Whether walltimes are in whole minutes.
    minutes: ClassVar[bool] = False

    def __init__(self, options: dict[str, Any], directory: str) -> None:
        super().__init__(options, directory)
        self._class = getattr(importlib.import_module(self.module), self.provider)
        self._last: Done | None = None
        self._last_command = ""
        self._made: tuple[tuple[int, float], Any] | None = None
        self._check()
        # By Parsl alone, a command that takes too long goes on for ever, and its words are lost.
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

    # What is different from one to another

    def _launcher(self, nodes: int) -> tuple[str, dict[str, Any]]:
        """Which of Parsl's starts the command on each node, and its arguments."""
        return ("SimpleLauncher", {}) if nodes == 1 else ("MpiExecLauncher", {})

    def _rank(self, nodes: int) -> str:
        """The number of a process, as the shell finds it."""
        if nodes == 1:
            return "0"
        found = "0"
        for name in reversed(RANKS):
            found = f"${{{name}:-{found}}}"
        return found

    def _arguments(self, nodes: int, walltime: float) -> dict[str, Any]:
        """What the provider's constructor is given."""
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
            # Where it may leave its list of hosts.
            first = [f"cd {shlex.quote(self._directory)}", *(f"export {k}={v}" for k, v in ONE_EACH.items())]
            given["worker_init"] = "\n".join([*first, given.get("worker_init", "")])
        return given

    def _directives(self, seconds: int) -> str:
        del seconds
        return self.directives

    def _wrapped(self, command: str, nodes: int) -> str:
        """The command as a process that is the batch system's own child, with its rank."""
        text = f"DAYFLY_RANK={self._rank(nodes)}; export DAYFLY_RANK; exec /bin/sh -c {shlex.quote(command)}"
        if self._launcher(nodes)[0] != "SimpleLauncher":
            # All others write it to a file by a here-document, in which the wrong shell would look at it.
            text = re.sub(r"([\\$`])", r"\\\1", text)
        return text

    # What is the same for all

    def _execute(self, command: str) -> Done:
        self._last = execute(command, float(self._options.get("cmd_timeout", LIMIT)))
        return self._last

    def _execute_wait(self, command: str, limit: float) -> tuple[int, str, str]:
        self._last_command = command
        self._last = execute(command, limit)
        return self._last.code, self._last.out, self._last.err

    def _provider(self, nodes: int, walltime: float) -> Any:
        # Some ask their batch system when they are made, so there is not one for each block.
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
            # Parsl's exceptions differ, and all of them say less than the command did.
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
        """Ends jobs, whoever submitted them; those that have ended are none less cancelled."""
        if not jobs or self._cancel(jobs):
            return
        # One that is unknown lets some commands fail for all.
        if self._last is not None and self._last.unreachable:
            raise ProviderError(self._last.words)
        for job, how in self.jobs(jobs).items():
            if how.state != ENDED and not self._cancel([job]):
                words = self._last.words if self._last else ""
                # It may have ended meanwhile.
                if self.jobs([job])[job].state != ENDED:
                    raise ProviderError(words)

    def _cancel(self, jobs: list[str]) -> bool:
        states: Any = importlib.import_module("parsl.jobs.states")
        # Parsl cancels what it submitted itself, so it is made to believe that.
        for job in jobs:
            status = states.JobStatus(states.JobState.RUNNING)
            self._base.resources[job] = {"job_id": job, "status": status, "job_stdout_path": "", "job_stderr_path": ""}
        try:
            return all(self._base.cancel(jobs))
        finally:
            self._base.resources.clear()

    def _sound(self, command: str) -> str:
        """What a command answers that has to end well."""
        done = self._execute(command)
        if done.code != 0:
            raise ProviderError(done.words)
        return done.out

    def _each_sound(self, command: str, jobs: Iterable[str]) -> str:
        """What a command answers that fails for all of these jobs when it does not know one: then each is asked for."""
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
