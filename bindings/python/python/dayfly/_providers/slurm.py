"""Slurm."""

from __future__ import annotations

import os
import re
import shlex
import time
from typing import Any, ClassVar

from .batch import Batch
from .provider import ENDED, PENDING, RUNNING, Job, ProviderError


class Slurm(Batch):
    """Slurm, by sbatch, squeue, scancel, scontrol, and sacct if there is one."""

    module = "parsl.providers.slurm.slurm"
    provider = "SlurmProvider"
    commands = ("sbatch", "squeue", "scancel", "scontrol")
    directives = "#SBATCH --no-requeue"
    minutes = True
    #: States of waiting jobs. All other jobs run, as far as their nodes are concerned, or have ended.
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
        #: Final states of jobs, by id.
        self._ended: dict[str, str] = {}

    def _launcher(self, nodes: int) -> tuple[str, dict[str, Any]]:
        # Also for one node: Slurm's signals reach processes of srun immediately, but scripts only at their end. The
        # command may use all CPUs of the job.
        return "SrunLauncher", {"overrides": "--cpu-bind=none"}

    def _rank(self, nodes: int) -> str:
        del nodes
        return "${SLURM_PROCID:-0}"

    def _submit(self, name: str, command: str, nodes: int, walltime_s: float) -> str:
        if self._lost:
            # The job may exist already, from a submission whose outcome is unknown.
            self._ask([])
        try:
            return super()._submit(name, command, nodes, walltime_s)
        except ProviderError:
            if self._last_command.startswith("sbatch "):
                self._lost[os.path.basename(self._last_command)] = time.monotonic()
            raise

    def _end_lost(self, there: dict[str, str]) -> None:
        """Cancels jobs whose submission failed without a response. The endpoint does not know them."""
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
        # A preempted job that ends by itself may have any state.
        is_preempted = about.get("PreemptTime", "None")[:1].isdigit()
        return f"PREEMPTED, {words}" if is_preempted and state != "PREEMPTED" else words

    def _look_up(self, jobs: list[str]) -> None:
        """Asks the accounting for jobs that the controller has forgotten, if accounting is enabled."""
        self._ended |= dict.fromkeys(jobs, "")
        # Parsl has already found out whether sacct works.
        if not jobs or not self._base._cmd.startswith("sacct"):
            return
        asked = f"sacct{self._clusters} -X --noheader --parsable2 --format=JobID,State,ExitCode --jobs={','.join(jobs)}"
        for line in self._execute(asked).out.splitlines():
            job, _, more = line.partition("|")
            if job in jobs:
                self._ended[job] = _with_exit(*more.rpartition("|")[::2])


def _with_exit(state: str, exited: str) -> str:
    """Returns the state with Slurm's exit status: ``FAILED exit 3`` for FAILED and 3:0."""
    code, _, by = exited.partition(":")
    if state == "FAILED" and by not in ("", "0"):
        return f"{state} signal {by}"
    return f"{state} exit {code}" if state == "FAILED" and code else state
