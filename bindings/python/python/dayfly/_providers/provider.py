"""What all kinds of providers are."""

from __future__ import annotations

import importlib
import importlib.metadata
import math
import sys
import time
from dataclasses import dataclass
from typing import Any, ClassVar

#: Seconds that a question may take.
LIMIT = 60
#: Characters of others' words that are passed on.
WORDS = 2000

PENDING, RUNNING, ENDED = "pending", "running", "ended"


class ProviderError(Exception):
    """What was asked for could not be done, or nobody knows whether it was."""


class RefusedError(Exception):
    """A job is not wanted; the words of whoever does not want it."""


@dataclass(frozen=True)
class Job:
    """How a job is."""

    state: str
    words: str = ""


GONE = Job(ENDED)


class Provider:
    """Whatever nodes come from. Each kind is a class below this one."""

    #: What it is asked by: modules of packages that are called alike.
    libraries: ClassVar[tuple[str, ...]]
    #: Whether a job can have several nodes.
    several: ClassVar[bool] = True
    #: Seconds after its submission in which a job may not be known yet.
    blind: ClassVar[float] = 0

    #: Why a job would be refused just now, as far as that was found out.
    trouble: str = ""

    def __init__(self, options: dict[str, Any], directory: str) -> None:
        self._options = dict(options)
        #: Where jobs may leave files.
        self._directory = directory
        self._submitted: dict[str, float] = {}
        #: What jobs of which nobody knows whether they are there are known by, and since when.
        self._lost: dict[str, float] = {}

    @classmethod
    def versions(cls) -> str:
        """Its libraries with their versions; how to get them where they are not there."""
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
        """A job in which the command runs once on each of its nodes; ``DAYFLY_RANK`` is 0 on the first of them."""
        if nodes > 1 and not self.several:
            raise RefusedError(f"a block has one node there: `nodes` of [blocks] cannot be {nodes}")
        job = self._submit(name, command, nodes, walltime_s)
        self._submitted[job] = time.monotonic()
        return job

    def jobs(self, jobs: list[str]) -> dict[str, Job]:
        """How these jobs are; those of an earlier process, too. What is not known any more has ended."""
        found = self._ask(jobs) if jobs or self._lost else {}
        for job in set(jobs) - set(found):
            found[job] = Job(PENDING) if self._is_new(job) else GONE
        for job in jobs:
            if found[job].state == ENDED:
                self._submitted.pop(job, None)
        return found

    def _is_new(self, job: str) -> bool:
        """Whether one may not be known yet."""
        return time.monotonic() - self._submitted.get(job, -math.inf) < self.blind

    def cancel(self, jobs: list[str]) -> None:
        """Ends jobs, whoever submitted them; those that have ended are none less cancelled."""
        raise NotImplementedError

    def _submit(self, name: str, command: str, nodes: int, walltime_s: float) -> str:
        raise NotImplementedError

    def _ask(self, jobs: list[str]) -> dict[str, Job]:
        """How those of these jobs are that are known."""
        raise NotImplementedError
