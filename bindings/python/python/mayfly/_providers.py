"""What an endpoint starts to have blocks of nodes from a batch system, by Parsl's providers.

Runs as ``python -m mayfly._providers``. Each line of its standard input is a request in JSON, each line of its standard
output the answer to one; it ends with its input. The first request says which batch system it is:

    {"kind": "slurm", "options": {"partition": "idle"}, "directory": "/scratch/blocks"}
    {"ready": "slurm", "parsl": "2026.10.26"}

Then ``submit``, ``status`` and ``cancel``, see `Batch`. What cannot be done is answered by ``failed``, and a job that
the batch system does not want by ``refused``, in its own words.

Parsl knows how to write and submit jobs. How jobs are is asked here, because Parsl keeps its last word on all of them
when the batch system cannot be asked, takes some for ended that are not, and tells no reasons.
"""

from __future__ import annotations

import contextlib
import getpass
import importlib
import inspect
import json
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

#: Seconds that one of a batch system's commands may take, unless the option ``cmd_timeout`` says otherwise: busy ones
#: take their time, and what was submitted too late for us is a job that nobody knows.
LIMIT = 60
#: Characters of a batch system's words that are passed on.
WORDS = 2000
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

PENDING, RUNNING, ENDED = "pending", "running", "ended"


class BatchError(Exception):
    """What was asked for could not be done, or nobody knows whether it was."""


class RefusedError(Exception):
    """The batch system does not want a job; its own words."""


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


@dataclass(frozen=True)
class Job:
    """How a job is."""

    state: str
    words: str = ""


GONE = Job(ENDED)


class Batch:
    """A batch system. Each kind is a class below this one."""

    #: Of Parsl's provider.
    module: ClassVar[str]
    provider: ClassVar[str]
    #: Those that have to be there.
    commands: ClassVar[tuple[str, ...]] = ()
    #: Options of Parsl's that have another default here.
    defaults: ClassVar[dict[str, Any]] = {"cmd_timeout": LIMIT}
    governed: ClassVar[dict[str, str]] = GOVERNED
    #: Whether a job can have several nodes.
    several: ClassVar[bool] = True
    #: What comes before the user's own ``scheduler_options``, so that those have the last word. A block that is over is
    #: over: the endpoint asks for another if it wants one.
    directives: ClassVar[str] = ""
    #: How a command says that it does not know a job, or not any more.
    unknown: ClassVar[re.Pattern[str]] = re.compile(r"(?!)")
    #: Seconds after its submission in which the batch system may not know a job yet.
    blind: ClassVar[float] = 0
    #: Whether walltimes are in whole minutes.
    minutes: ClassVar[bool] = False

    def __init__(self, options: dict[str, Any], directory: str) -> None:
        self._options = dict(options)
        self._directory = directory
        self._class = getattr(importlib.import_module(self.module), self.provider)
        self._last: Done | None = None
        self._last_command = ""
        self._made: tuple[tuple[int, float], Any] | None = None
        self._submitted: dict[str, float] = {}
        #: Names of jobs of which nobody knows whether they are there, and since when.
        self._lost: dict[str, float] = {}
        self._check()
        # By Parsl alone, a command that takes too long goes on for ever, and its words are lost.
        cluster: Any = importlib.import_module("parsl.providers.cluster_provider")
        cluster.execute_wait = self._execute_wait
        self._base = self._provider(1, 3600)

    def _check(self) -> None:
        for name in self.commands:
            if shutil.which(name) is None:
                raise BatchError(f"the command {name} is not there; the endpoint needs it in its PATH")
        parameters = inspect.signature(self._class.__init__).parameters
        known = [name for name in parameters if name != "self" and name not in self.governed]
        for name in self._options:
            if name in self.governed:
                raise BatchError(f"option {name} is the endpoint's own: {self.governed[name]}")
            if name not in known:
                raise BatchError(f"unknown option {name}; there are {', '.join(sorted(known))}")
        for name in known:
            if parameters[name].default is inspect.Parameter.empty and name not in self._options:
                raise BatchError(f"option {name} is needed")

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
        text = f"MAYFLY_RANK={self._rank(nodes)}; export MAYFLY_RANK; exec /bin/sh -c {shlex.quote(command)}"
        if self._launcher(nodes)[0] != "SimpleLauncher":
            # All others write it to a file by a here-document, in which the wrong shell would look at it.
            text = re.sub(r"([\\$`])", r"\\\1", text)
        return text

    def _ask(self, jobs: list[str]) -> dict[str, Job]:
        """How those of these jobs are that the batch system knows."""
        raise NotImplementedError

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

    def submit(self, name: str, command: str, nodes: int, walltime_s: float) -> dict[str, Any]:
        """A job in which the command runs once on each of its nodes; ``MAYFLY_RANK`` is 0 on the first of them."""
        if nodes > 1 and not self.several:
            raise RefusedError(f"a block has one node there: `nodes` of [blocks] cannot be {nodes}")
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
            raise BatchError(f"no job was named by what was submitted: {self._last.words if self._last else ''}")
        self._submitted[job] = time.monotonic()
        return {"job": job}

    def _check_last(self) -> None:
        if self._last is not None and self._last.code != 0:
            raise (BatchError if self._last.unreachable else RefusedError)(self._last.words)

    def jobs(self, jobs: list[str]) -> dict[str, Job]:
        """How these jobs are; those of an earlier process, too."""
        found = self._ask(jobs) if jobs or self._lost else {}
        for job in set(jobs) - set(found):
            too_early = time.monotonic() - self._submitted.get(job, -self.blind) < self.blind
            found[job] = Job(PENDING) if too_early else GONE
        for job in jobs:
            if found[job].state == ENDED:
                self._submitted.pop(job, None)
        return found

    def status(self, jobs: list[str]) -> dict[str, Any]:
        """``pending``, ``running`` or ``ended``, and words of the batch system on it. What it forgot has ended."""
        found = self.jobs(jobs)
        return {"jobs": {job: {"state": found[job].state, "words": found[job].words} for job in jobs}}

    def cancel(self, jobs: list[str]) -> dict[str, Any]:
        """Ends jobs, whoever submitted them; those that have ended are none less cancelled."""
        if jobs and not self._cancel(jobs):
            # One that is unknown lets some commands fail for all.
            if self._last is not None and self._last.unreachable:
                raise BatchError(self._last.words)
            for job, how in self.jobs(jobs).items():
                if how.state != ENDED and not self._cancel([job]):
                    words = self._last.words if self._last else ""
                    # It may have ended meanwhile.
                    if self.jobs([job])[job].state != ENDED:
                        raise BatchError(words)
        return {"cancelled": jobs}

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
            raise BatchError(done.words)
        return done.out

    def _each_sound(self, command: str, jobs: Iterable[str]) -> str:
        """What a command answers that fails for all of these jobs when it does not know one: then each is asked for."""
        jobs = list(jobs)
        done = self._execute(f"{command} {' '.join(jobs)}")
        if done.code == 0:
            return done.out
        if done.unreachable:
            raise BatchError(done.words)
        if len(jobs) > 1:
            return "\n".join(self._each_sound(command, [job]) for job in jobs)
        if self.unknown.search(done.words):
            return ""
        raise BatchError(done.words)


class Slurm(Batch):
    """By sbatch, squeue, scontrol, sacct if there is one, and scancel."""

    module = "parsl.providers.slurm.slurm"
    provider = "SlurmProvider"
    commands = ("sbatch", "squeue", "scancel", "scontrol")
    directives = "#SBATCH --no-requeue"
    minutes = True
    #: All others are running, as far as their nodes are concerned, or have ended.
    waiting: ClassVar[frozenset[str]] = frozenset(
        ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT")
    )
    over: ClassVar[frozenset[str]] = frozenset(
        ("CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT")
    ) | {"BOOT_FAIL", "NODE_FAIL"}

    def __init__(self, options: dict[str, Any], directory: str) -> None:
        super().__init__(options, directory)
        clusters = options.get("clusters")
        self._clusters = f" --clusters={shlex.quote(clusters)}" if clusters else ""
        #: How those ended of which it was said.
        self._ended: dict[str, str] = {}

    def _launcher(self, nodes: int) -> tuple[str, dict[str, Any]]:
        # For one node, too: Slurm's signals reach what srun started at once, but scripts only at their end. And all
        # CPUs of the job are for the command.
        return "SrunLauncher", {"overrides": "--cpu-bind=none"}

    def _rank(self, nodes: int) -> str:
        del nodes
        return "${SLURM_PROCID:-0}"

    def submit(self, name: str, command: str, nodes: int, walltime_s: float) -> dict[str, Any]:
        if self._lost:
            # What would be submitted again may be there.
            self._ask([])
        try:
            return super().submit(name, command, nodes, walltime_s)
        except BatchError:
            if self._last_command.startswith("sbatch "):
                self._lost[os.path.basename(self._last_command)] = time.monotonic()
            raise

    def _end_lost(self, there: dict[str, str]) -> None:
        """Ends jobs that were submitted when nobody answered any more: the endpoint does not know of them."""
        for name, since in list(self._lost.items()):
            ended = name in there and self._execute(f"scancel{self._clusters} {there[name]}").code == 0
            if ended or time.monotonic() - since > 600:
                del self._lost[name]

    def _ask(self, jobs: list[str]) -> dict[str, Job]:
        asked = f"squeue{self._clusters} --noheader --states=all --user={os.getuid()} --format='%i|%T|%r|%j'"
        lines = [line.strip().split("|", 3) for line in self._sound(asked).splitlines()]
        lines = [fields for fields in lines if len(fields) == 4]
        self._end_lost({name: job for job, state, _, name in lines if state not in self.over})
        known = {job: (state, reason) for job, state, reason, _ in lines if job in jobs}
        found = {}
        for job, (state, reason) in known.items():
            if state in self.waiting:
                found[job] = Job(PENDING, "" if reason == "None" else reason)
            elif state in self.over:
                if job not in self._ended:
                    self._ended[job] = self._how_it_ended(job, state)
                found[job] = Job(ENDED, self._ended[job])
            else:
                found[job] = Job(RUNNING, "" if state == "RUNNING" else state)
        if forgotten := [job for job in jobs if job not in known]:
            self._look_up([job for job in forgotten if job not in self._ended])
            found |= {job: Job(ENDED, self._ended[job]) for job in forgotten}
        return found

    def _how_it_ended(self, job: str, state: str) -> str:
        done = self._execute(f"scontrol{self._clusters} --oneliner show job {job}")
        about = dict(re.findall(r"(\S+?)=(\S*)", done.out)) if done.code == 0 else {}
        words = _with_exit(state, about.get("ExitCode", ""))
        # One that ends by itself when it is told to go has any state.
        told = about.get("PreemptTime", "None")[:1].isdigit()
        return f"PREEMPTED, {words}" if told and state != "PREEMPTED" else words

    def _look_up(self, jobs: list[str]) -> None:
        """Finds what became of jobs that the controller has forgotten, if accounts are kept."""
        self._ended |= dict.fromkeys(jobs, "")
        # Parsl found that out.
        if not jobs or not self._base._cmd.startswith("sacct"):
            return
        asked = f"sacct{self._clusters} -X --noheader --parsable2 --format=JobID,State,ExitCode --jobs={','.join(jobs)}"
        for line in self._execute(asked).out.splitlines():
            job, _, more = line.partition("|")
            if job in jobs:
                self._ended[job] = _with_exit(*more.rpartition("|")[::2])


def _with_exit(state: str, exited: str) -> str:
    """``FAILED exit 3`` for FAILED and Slurm's 3:0."""
    code, _, by = exited.partition(":")
    if state == "FAILED" and by not in ("", "0"):
        return f"{state} signal {by}"
    return f"{state} exit {code}" if state == "FAILED" and code else state


class Pbs(Batch):
    """OpenPBS and PBS Professional, by qsub, qstat and qdel."""

    module = "parsl.providers.pbspro.pbspro"
    provider = "PBSProProvider"
    commands = ("qsub", "qstat", "qdel")
    directives = "#PBS -r n"
    unknown = re.compile(r"unknown job|has finished", re.IGNORECASE)
    asked: ClassVar[str] = "qstat -x -f"
    states: ClassVar[dict[str, str]] = (
        dict.fromkeys("QWTH", PENDING) | dict.fromkeys("RBSUE", RUNNING) | dict.fromkeys("CFX", ENDED)
    )

    def _ask(self, jobs: list[str]) -> dict[str, Job]:
        # Long lines go on after a tab.
        answer = self._each_sound(self.asked, jobs).replace("\n\t", "")
        found = {}
        for part in re.split(r"^Job Id:\s*", answer, flags=re.MULTILINE)[1:]:
            about = dict(re.findall(r"^ +(\S+) = (.*)$", part, flags=re.MULTILINE))
            # It may be called by a longer name than it was submitted with, or a shorter one.
            number = part.split(None, 1)[0].partition(".")[0]
            for job in (job for job in jobs if job.partition(".")[0] == number):
                found[job] = self._how(about)
        return found

    def _how(self, about: dict[str, str]) -> Job:
        letter = about.get("job_state", "")
        state = self.states.get(letter, RUNNING)
        if state == ENDED:
            code = about.get("Exit_status", about.get("exit_status", ""))
            return Job(ENDED, f"exit {code}" if code else about.get("comment", ""))
        if state == PENDING:
            return Job(PENDING, about.get("comment", "held" if letter == "H" else ""))
        return Job(RUNNING, "" if letter in "RB" else f"state {letter}")


class Torque(Pbs):
    """Torque, which is a PBS as well."""

    module = "parsl.providers.torque.torque"
    provider = "TorqueProvider"
    asked = "qstat -f"


class Lsf(Batch):
    """LSF, by bsub, bjobs and bkill."""

    module = "parsl.providers.lsf.lsf"
    provider = "LSFProvider"
    commands = ("bsub", "bjobs", "bkill")
    # Without it, bsub does not read what the script says of the job.
    defaults: ClassVar[dict[str, Any]] = {"cmd_timeout": LIMIT, "bsub_redirection": True}
    governed: ClassVar[dict[str, str]] = GOVERNED | {"cores_per_block": "it follows from `nodes` of [blocks]"}
    directives = "#BSUB -rn"
    unknown = re.compile(r"is not found|no matching job|no unfinished job", re.IGNORECASE)
    # It answers from a copy that it makes now and then.
    blind = 30
    minutes = True
    states: ClassVar[dict[str, str]] = dict.fromkeys(("PEND", "PSUSP", "WAIT"), PENDING) | dict.fromkeys(
        ("DONE", "EXIT"), ENDED
    )

    def _arguments(self, nodes: int, walltime: float) -> dict[str, Any]:
        given = super()._arguments(nodes, walltime)
        if not given.get("request_by_nodes", True):
            if not given.get("cores_per_node"):
                raise BatchError("option cores_per_node is needed where request_by_nodes is false")
            given["cores_per_block"] = nodes * given["cores_per_node"]
        return given

    def _launcher(self, nodes: int) -> tuple[str, dict[str, Any]]:
        if nodes == 1:
            return super()._launcher(nodes)
        # Where nodes can be asked for there is jsrun; elsewhere mpirun finds the hosts of the job by itself.
        by_nodes = self._options.get("request_by_nodes", True)
        return ("JsrunLauncher" if by_nodes else "MpiRunLauncher"), {}

    def _ask(self, jobs: list[str]) -> dict[str, Job]:
        answer = self._each_sound("bjobs -a -noheader -o 'jobid stat exit_code'", jobs)
        found = {}
        for fields in (line.split() for line in answer.splitlines()):
            if len(fields) >= 2 and fields[0] in jobs:
                state = self.states.get(fields[1], RUNNING)
                words = "" if fields[1] in ("PEND", "RUN") else fields[1]
                exited = fields[1] == "EXIT" and len(fields) > 2 and fields[2].isdigit()
                found[fields[0]] = Job(state, f"{words} exit {fields[2]}" if exited else words)
        return found


class GridEngine(Batch):
    """Grid Engine, by qsub, qstat and qdel."""

    module = "parsl.providers.grid_engine.grid_engine"
    provider = "GridEngineProvider"
    commands = ("qsub", "qstat", "qdel")
    # Parsl does not say how many hosts are wanted.
    several = False
    # It kills at once, unless a job wants to be told.
    directives = "#$ -r n\n#$ -notify"

    def _directives(self, seconds: int) -> str:
        early = seconds - 60
        return f"{self.directives}\n#$ -l s_rt={early}" if early > 0 else self.directives

    def _wrapped(self, command: str, nodes: int) -> str:
        # What it tells by others becomes SIGTERM. They are sent to the command as well, which would die of them.
        told = "USR1 USR2 XCPU"
        return (
            f"trap 'kill -TERM $!' {told} TERM; (trap '' {told}; {super()._wrapped(command, nodes)}) & "
            "while wait $!; ended=$?; kill -0 $! 2>/dev/null; do :; done; exit $ended"
        )

    def _ask(self, jobs: list[str]) -> dict[str, Job]:
        found = {}
        for fields in (line.split() for line in self._sound(f"qstat -u {getpass.getuser()}").splitlines()):
            if len(fields) > 4 and fields[0] in jobs:
                letters = fields[4]
                words = "" if letters in ("qw", "r", "t") else f"state {letters}"
                found[fields[0]] = Job(PENDING if "w" in letters else RUNNING, words)
        return found


class Condor(Batch):
    """HTCondor, by condor_submit, condor_q and condor_rm."""

    module = "parsl.providers.condor.condor"
    provider = "CondorProvider"
    commands = ("condor_submit", "condor_q", "condor_rm")
    several = False
    states: ClassVar[dict[str, str]] = {"1": PENDING, "5": PENDING, "3": ENDED, "4": ENDED}

    def _directives(self, seconds: int) -> str:
        since = "(time() - EnteredCurrentStatus)"
        again = "(JobStatus == 1 && NumJobStarts > 0)"
        return (
            # Parsl leaves them there for ever, and has no use for the walltime.
            f"leave_in_queue = (JobStatus == 3 || JobStatus == 4) && {since} < 600\n"
            f"periodic_remove = {again} || (JobStatus == 2 && {since} > {seconds})"
        )

    def _ask(self, jobs: list[str]) -> dict[str, Job]:
        found = {}
        asked = f"condor_q {' '.join(jobs)} -af:jr JobStatus ExitCode HoldReason"
        for fields in (line.split(None, 3) for line in self._sound(asked).splitlines()):
            if len(fields) > 1 and fields[0] in jobs:
                state = self.states.get(fields[1], RUNNING)
                words = fields[3].strip('"') if fields[1] == "5" and len(fields) > 3 else ""
                if fields[1] == "3":
                    words = "removed"
                elif fields[1] == "4" and len(fields) > 2:
                    words = f"exit {fields[2]}"
                found[fields[0]] = Job(state, words)
        return found

    def _cancel(self, jobs: list[str]) -> bool:
        # Parsl would not let it end: it takes the job away from its node at the same moment.
        return self._execute(f"condor_rm {' '.join(jobs)}").code == 0


class Kubernetes(Batch):
    """Kubernetes, where a block is a pod; jobs have the names of their pods."""

    module = "parsl.providers.kubernetes.kube"
    provider = "KubernetesProvider"
    several = False
    defaults: ClassVar[dict[str, Any]] = {}

    def __init__(self, options: dict[str, Any], directory: str) -> None:
        if volumes := options.get("persistent_volumes"):
            options = {**options, "persistent_volumes": [tuple(volume) for volume in volumes]}
        super().__init__(options, directory)

    def _arguments(self, nodes: int, walltime: float) -> dict[str, Any]:
        return {**self._options, "nodes_per_block": nodes}

    def submit(self, name: str, command: str, nodes: int, walltime_s: float) -> dict[str, Any]:
        if nodes > 1:
            raise RefusedError(f"a block is one pod there: `nodes` of [blocks] cannot be {nodes}")
        provider = self._base
        client = provider.kube_client
        # Parsl's pods start again for ever, and have no limit.
        provider.kube_client = _Once(client, math.ceil(walltime_s))
        try:
            job = provider.submit(self._wrapped(command, nodes), 1, name)
        except Exception as error:
            if 400 <= getattr(error, "status", 0) < 500:
                raise RefusedError(_said(error)) from None
            raise BatchError(_said(error)) from None
        finally:
            provider.kube_client = client
        return {"job": provider.resources.pop(job)["pod_name"]}

    def _ask(self, jobs: list[str]) -> dict[str, Job]:
        found = {}
        for job in jobs:
            try:
                pod = self._base.kube_client.read_namespaced_pod(
                    name=job, namespace=self._base.namespace, _request_timeout=LIMIT
                )
            except Exception as error:
                if getattr(error, "status", 0) == 404:
                    continue
                raise BatchError(_said(error)) from None
            status = pod.status
            words = status.reason or ""
            for container in status.container_statuses or ():
                for part in (container.state.waiting, container.state.terminated):
                    words = words or (part.reason if part is not None else "") or ""
            state = {"Pending": PENDING, "Succeeded": ENDED, "Failed": ENDED}.get(status.phase, RUNNING)
            found[job] = Job(state, words)
        return found

    def _cancel(self, jobs: list[str]) -> bool:
        for job in jobs:
            try:
                self._base.kube_client.delete_namespaced_pod(
                    name=job, namespace=self._base.namespace, _request_timeout=LIMIT
                )
            except Exception as error:
                if getattr(error, "status", 0) != 404:
                    raise BatchError(_said(error)) from None
        return True


class _Once:
    """A client of Kubernetes whose pods run once, and not for longer than the walltime."""

    def __init__(self, client: Any, seconds: int) -> None:
        self._client = client
        self._seconds = seconds

    def create_namespaced_pod(self, namespace: str, body: Any) -> Any:
        body.spec.restart_policy = "Never"
        body.spec.active_deadline_seconds = self._seconds
        return self._client.create_namespaced_pod(namespace=namespace, body=body, _request_timeout=LIMIT)


def _said(error: Exception) -> str:
    """What Kubernetes says of a request that it did not take."""
    with contextlib.suppress(AttributeError, TypeError, ValueError):
        return str(json.loads(error.body)["message"])[:WORDS]  # type: ignore[attr-defined]
    return f"{type(error).__name__}: {error}"[:WORDS]


KINDS: dict[str, type[Batch]] = {
    "slurm": Slurm,
    "pbs": Pbs,
    "torque": Torque,
    "lsf": Lsf,
    "grid-engine": GridEngine,
    "htcondor": Condor,
    "kubernetes": Kubernetes,
}


def begin(request: dict[str, Any]) -> tuple[Batch, dict[str, Any]]:
    """The batch system of the first request, and its answer."""
    kind, options, directory = request.get("kind"), request.get("options", {}), request.get("directory")
    if not isinstance(kind, str) or kind not in KINDS:
        raise BatchError(f"unknown kind {kind!r}; there are {', '.join(KINDS)}")
    if not isinstance(options, dict):
        raise BatchError("options is not an object")
    # It becomes part of scripts and commands that are Parsl's.
    if not isinstance(directory, str) or not re.fullmatch(r"/[\w./+@%-]*", directory):
        raise BatchError(f"directory {directory!r} is not an absolute path of letters, digits and ./+@%-_")
    try:
        parsl = importlib.import_module("parsl")
    except ImportError as error:
        raise BatchError(
            f"batch systems need Parsl, which {sys.executable} does not have ({error}): "
            f"{sys.executable} -m pip install 'mayfly[providers]'"
        ) from None
    os.makedirs(directory, exist_ok=True)
    # Where jobs start, too, as most batch systems have it.
    os.chdir(directory)
    return KINDS[kind](options, directory), {"ready": kind, "parsl": parsl.__version__}


def answer(batch: Batch, request: dict[str, Any]) -> dict[str, Any]:
    """The answer to any request but the first."""
    match request:
        case {"submit": {"name": str(name), "command": str(command), "nodes": int(nodes), "walltime_s": seconds}}:
            if not re.fullmatch(r"[A-Za-z][\w.-]*", name) or "\0" in command:
                raise BatchError(f"{name!r} is not a name of letters, digits and .-_")
            if type(nodes) is not int or type(seconds) not in (int, float) or nodes < 1 or seconds <= 0:
                raise BatchError(f"{nodes} nodes for {seconds} s cannot be asked for")
            return batch.submit(name, command, nodes, seconds)
        case {"status": list(jobs)}:
            return batch.status(_named(jobs))
        case {"cancel": list(jobs)}:
            return batch.cancel(_named(jobs))
    raise BatchError(f"not a request: {json.dumps(request)[:200]}")


def _named(jobs: list[Any]) -> list[str]:
    for job in jobs:
        # They become part of commands.
        if not isinstance(job, str) or not re.fullmatch(r"\w[\w.@-]*", job):
            raise BatchError(f"{job!r} is not the id of a job")
    return jobs


def main() -> None:
    """Answers until there are no more requests."""
    # The protocol has descriptors of its own: neither Parsl nor the commands that it starts can read or write there.
    requests = os.fdopen(os.dup(0), encoding="utf-8", errors="replace")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    # Whoever interrupts the endpoint in a terminal leaves it to the endpoint how this ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    batch: Batch | None = None
    for line in requests:
        try:
            request = json.loads(line)
            if not isinstance(request, dict):
                raise BatchError("a request is an object")
            if batch is None:
                batch, said = begin(request)
            else:
                said = answer(batch, request)
        except BatchError as failure:
            said = {"failed": str(failure)}
        except RefusedError as refusal:
            said = {"refused": str(refusal)}
        except Exception as error:
            said = {"failed": f"{type(error).__name__}: {error}"[:WORDS]}
        try:
            print(json.dumps(said), file=answers, flush=True)
        except BrokenPipeError:
            # Nobody is there any more; what is buffered is not for anyone.
            os._exit(1)


if __name__ == "__main__":
    main()
