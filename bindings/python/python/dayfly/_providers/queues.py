"""PBS, Torque, LSF, Grid Engine and HTCondor."""

from __future__ import annotations

import getpass
import re
from typing import Any, ClassVar

from .batch import GOVERNED, Batch
from .provider import ENDED, LIMIT, PENDING, RUNNING, Job, ProviderError


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
        # Long lines continue after a tab.
        response = self._each_sound(self.asked, jobs).replace("\n\t", "")
        found = {}
        for part in re.split(r"^Job Id:\s*", response, flags=re.MULTILINE)[1:]:
            about = dict(re.findall(r"^ +(\S+) = (.*)$", part, flags=re.MULTILINE))
            # The reported id may be longer or shorter than the id at submission.
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
    """Torque, a variant of PBS."""

    module = "parsl.providers.torque.torque"
    provider = "TorqueProvider"
    asked = "qstat -f"


class Lsf(Batch):
    """LSF, by bsub, bjobs and bkill."""

    module = "parsl.providers.lsf.lsf"
    provider = "LSFProvider"
    commands = ("bsub", "bjobs", "bkill")
    # Otherwise bsub ignores the directives in the script.
    defaults: ClassVar[dict[str, Any]] = {"cmd_timeout": LIMIT, "bsub_redirection": True}
    governed: ClassVar[dict[str, str]] = GOVERNED | {"cores_per_block": "it follows from `nodes` of [blocks]"}
    directives = "#BSUB -rn"
    unknown = re.compile(r"is not found|no matching job|no unfinished job", re.IGNORECASE)
    # Responses come from a copy that LSF updates periodically.
    blind = 30
    minutes = True
    states: ClassVar[dict[str, str]] = dict.fromkeys(("PEND", "PSUSP", "WAIT"), PENDING) | dict.fromkeys(
        ("DONE", "EXIT"), ENDED
    )

    def _arguments(self, nodes: int, walltime: float) -> dict[str, Any]:
        given = super()._arguments(nodes, walltime)
        if not given.get("request_by_nodes", True):
            if not given.get("cores_per_node"):
                raise ProviderError("option cores_per_node is needed where request_by_nodes is false")
            given["cores_per_block"] = nodes * given["cores_per_node"]
        return given

    def _launcher(self, nodes: int) -> tuple[str, dict[str, Any]]:
        if nodes == 1:
            return super()._launcher(nodes)
        # jsrun exists on systems that allocate by nodes. Elsewhere mpirun finds the hosts of the job itself.
        by_nodes = self._options.get("request_by_nodes", True)
        return ("JsrunLauncher" if by_nodes else "MpiRunLauncher"), {}

    def _ask(self, jobs: list[str]) -> dict[str, Job]:
        response = self._each_sound("bjobs -a -noheader -o 'jobid stat exit_code'", jobs)
        found = {}
        for fields in (line.split() for line in response.splitlines()):
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
    # Parsl does not request a number of hosts.
    several = False
    # Without -notify, Grid Engine kills jobs without a warning.
    directives = "#$ -r n\n#$ -notify"

    def _directives(self, seconds: int) -> str:
        early = seconds - 60
        return f"{self.directives}\n#$ -l s_rt={early}" if early > 0 else self.directives

    def _wrapped(self, command: str, nodes: int) -> str:
        # Convert Grid Engine's warning signals to SIGTERM. They also reach the command, which would die of them.
        signals = "USR1 USR2 XCPU"
        return (
            f"trap 'kill -TERM $!' {signals} TERM; (trap '' {signals}; {super()._wrapped(command, nodes)}) & "
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
            # Otherwise Parsl leaves ended jobs in the queue forever, and ignores the walltime.
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
        # Parsl would also remove the job's node, so that the job could not end in order.
        return self._execute(f"condor_rm {' '.join(jobs)}").code == 0
