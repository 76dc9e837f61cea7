"""The base class of all providers."""

from __future__ import annotations

import importlib
import importlib.metadata
import math
import sys
import time
from dataclasses import dataclass
from typing import Any, ClassVar

#: Maximum seconds of one request to the batch system or cloud.
LIMIT = 60
#: Maximum characters of foreign error messages.
WORDS = 2000

PENDING, RUNNING, ENDED = "pending", "running", "ended"


class ProviderError(Exception):
    """A request failed, or its outcome is unknown."""


class RefusedError(Exception):
    """The provider refuses a job. The message is the provider's."""


@dataclass(frozen=True)
class Job:
    """The state of a job."""

    state: str
    words: str = ""


GONE = Job(ENDED)


class Provider:
    """A source of nodes. Each kind is a subclass."""

    #: Required modules, from packages of the same names.
    libraries: ClassVar[tuple[str, ...]]
    #: Whether a job can have several nodes.
    several: ClassVar[bool] = True
    #: Seconds after its submission in which a job may still be unknown.
    blind: ClassVar[float] = 0

    #: Why a job would be refused at present; empty if unknown.
    trouble: str = ""

    def __init__(self, options: dict[str, Any], directory: str) -> None:
        self._options = dict(options)
        #: Directory for files of jobs.
        self._directory = directory
        self._submitted: dict[str, float] = {}
        #: Identifiers of jobs that may or may not exist after a failed submission, with the times of the failures.
        self._lost: dict[str, float] = {}

    @classmethod
    def versions(cls) -> str:
        """Returns the versions of the libraries. Raises an error with the installation command if one is missing."""
        packages = [library.replace(".", "-") for library in cls.libraries]
        for library in cls.libraries:
            try:
                importlib.import_module(library)
            except ImportError as error:
                raise ProviderError(
                    f"this provider needs {library}, which {sys.executable} does not have ({error}): "
                    f"{sys.executable} -m pip install {' '.join(packages)}"
                ) from None
        return ", ".join(f"{package} {importlib.metadata.version(package)}" for package in packages)

    def submit(self, name: str, command: str, nodes: int, walltime_s: float) -> str:
        """Submits a job that runs the command once on each node. ``DAYFLY_RANK`` is 0 on the first node.

        Args:
            name: name of the job.
            command: the shell command.
            nodes: number of nodes.
            walltime_s: maximum seconds of the job.

        Returns:
            The id of the job.

        Raises:
            ProviderError: if the submission failed, or its outcome is unknown.
            RefusedError: if the provider does not accept the job.
        """
        if nodes > 1 and not self.several:
            raise RefusedError(f"a block has one node there: `nodes` of [blocks] cannot be {nodes}")
        job = self._submit(name, command, nodes, walltime_s)
        self._submitted[job] = time.monotonic()
        return job

    def jobs(self, jobs: list[str]) -> dict[str, Job]:
        """Returns the states of jobs, also of an earlier process's. A job that is no longer known has ended."""
        found = self._ask(jobs) if jobs or self._lost else {}
        for job in set(jobs) - set(found):
            found[job] = Job(PENDING) if self._is_new(job) else GONE
        for job in jobs:
            if found[job].state == ENDED:
                self._submitted.pop(job, None)
        return found

    def _is_new(self, job: str) -> bool:
        """Returns whether a job may still be unknown."""
        return time.monotonic() - self._submitted.get(job, -math.inf) < self.blind

    def cancel(self, jobs: list[str]) -> None:
        """Cancels jobs, also those of an earlier process. Ended jobs count as cancelled."""
        raise NotImplementedError

    def _submit(self, name: str, command: str, nodes: int, walltime_s: float) -> str:
        raise NotImplementedError

    def _ask(self, jobs: list[str]) -> dict[str, Job]:
        """Returns the states of those jobs that are known."""
        raise NotImplementedError
