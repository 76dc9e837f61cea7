"""What clouds have in common: a block is an instance, which ends by itself whoever is still there to see that."""

from __future__ import annotations

import hashlib
import math
import re
import shlex
import time
from typing import Any, ClassVar

from .provider import ENDED, GONE, Job, Provider, ProviderError, RefusedError
from .rest import Answer, Rest

#: Seconds that a command has for its end when its walltime is over, and that an instance is there for at most after it.
KILL_AFTER = 60
#: What an instance does. It shuts down at its end, and goes ``away`` before that where more is to be done so that
#: nothing is paid for any more. All between has its walltime and no more: so the end is reached.
SCRIPT = """#!/bin/sh
{away}trap '{goes}shutdown -P now' EXIT
shutdown -P +{minutes}
export HOME="${{HOME:-/root}}"
DAYFLY_RANK=0 timeout --kill-after={kill_after} {seconds} /bin/sh -c {command}
"""
#: How an instance has itself deleted: by a token for what it may do, which is there for whatever else runs on it, too.
AWAY = """away() {{
token=$(curl -sf -m 20 --retry 3 -H {header} {token} | sed 's/.*"access_token" *: *"\\([^"]*\\)".*/\\1/')
curl -sf -m 20 --retry 3 -o /dev/null -X DELETE -H "Authorization: Bearer $token" {instance}
}}
"""
#: Seconds for which an instance is looked for that was asked for when nobody answered.
LOOKED_FOR = 600
#: Characters of an instance's name, as far as all clouds take them.
LONGEST_NAME = 60


class Cloud(Provider):
    """Any cloud."""

    several = False
    # What it was just told of, it may not know yet.
    blind: ClassVar[float] = 60

    #: Options, and what they are.
    takes: ClassVar[dict[str, type]]
    #: Those that there must be.
    needs: ClassVar[tuple[str, ...]] = ()
    #: Bytes that it takes of a script.
    longest: ClassVar[int]

    def __init__(self, options: dict[str, Any], directory: str) -> None:
        super().__init__(options, directory)
        self._check()

    def _check(self) -> None:
        for name, value in self._options.items():
            if name not in self.takes:
                raise ProviderError(f"unknown option {name}; there are {', '.join(sorted(self.takes))}")
            if not isinstance(value, self.takes[name]):
                raise ProviderError(
                    f"option {name} is a {type(value).__name__}, and should be a {self.takes[name].__name__}"
                )
        for name in self.needs:
            if name not in self._options:
                raise ProviderError(f"option {name} is needed")

    def _script(self, command: str, walltime_s: float, away: str = "") -> str:
        script = SCRIPT.format(
            away=away,
            goes="away; " if away else "",
            minutes=lasts(walltime_s),
            kill_after=KILL_AFTER,
            seconds=math.ceil(walltime_s),
            command=shlex.quote("\n".join(part for part in (self._options.get("worker_init"), command) if part)),
        )
        if len(script.encode()) > self.longest:
            raise RefusedError(f"an instance's script has {self.longest} bytes at most: make worker_init shorter")
        return script


def lasts(walltime_s: float) -> int:
    """Minutes after which an instance shuts down, whatever becomes of its script."""
    return math.ceil((walltime_s + 2 * KILL_AFTER) / 60)


class Named(Cloud):
    """A cloud whose instances have the names that they are asked for by: jobs have the names of their instances."""

    _rest: Rest

    def __init__(self, options: dict[str, Any], directory: str) -> None:
        super().__init__(options, directory)
        #: What instances are marked with, by which those of this endpoint are found again.
        self._owner = hashlib.sha256(directory.encode()).hexdigest()[:32]

    def _submit(self, name: str, command: str, nodes: int, walltime_s: float) -> str:
        del nodes
        self._end_lost()
        # The same for the same, so that it is asked for once however often it is submitted.
        what = hashlib.sha256(f"{name}\n{self._script(command, walltime_s)}".encode()).hexdigest()
        stem = re.sub(r"[^a-z0-9-]", "-", name.lower())[: LONGEST_NAME - 13].rstrip("-")
        job = f"{stem}-{what[:12]}"
        try:
            answer = self._make(job, self._script(command, walltime_s, self._away(job)), walltime_s)
            if answer.is_busy:
                raise ProviderError(answer.words)
        except ProviderError:
            # It may have begun all the same.
            self._lost[job] = time.monotonic()
            raise
        if not answer.is_granted and not self._is_there(answer):
            raise RefusedError(answer.words)
        return job

    def _ask(self, jobs: list[str]) -> dict[str, Job]:
        self._end_lost()
        found = self._look(jobs)
        for job, how in found.items():
            # Once it was there, it is not there any more when nobody knows it.
            self._submitted.pop(job, None)
            if how.state == ENDED and how is not GONE:
                # It still costs something, and is not told to be over before that is sure to end.
                self._delete(job)
        return found

    def cancel(self, jobs: list[str]) -> None:
        for job in jobs:
            if self._delete(job):
                self._submitted.pop(job, None)
            elif self._is_new(job):
                raise ProviderError(f"{job} is not known yet")

    def _end_lost(self) -> None:
        """Ends instances that were asked for when nobody answered any more: the endpoint does not know of them."""
        for job, since in list(self._lost.items()):
            if self._delete(job) or time.monotonic() - since > LOOKED_FOR:
                del self._lost[job]

    def _make(self, job: str, script: str, walltime_s: float) -> Answer:
        """Asks for an instance."""
        raise NotImplementedError

    def _away(self, job: str) -> str:
        """What an instance has itself deleted by, if it can."""
        raise NotImplementedError

    def _is_there(self, answer: Answer) -> bool:
        """Whether an instance was refused for there being one of that name, which is the same then."""
        raise NotImplementedError

    def _look(self, jobs: list[str]) -> dict[str, Job]:
        """How those of these instances are that are known; ``GONE`` are those that nobody need delete any more."""
        raise NotImplementedError

    def _delete(self, job: str) -> bool:
        """Has an instance deleted, with all that belongs to it; whether there was one."""
        raise NotImplementedError


def away(header: str, token: str, instance: str) -> str:
    """What an instance has itself deleted by: a token from that address, which is for whoever sends that header."""
    return AWAY.format(header=shlex.quote(header), token=shlex.quote(token), instance=shlex.quote(instance))
