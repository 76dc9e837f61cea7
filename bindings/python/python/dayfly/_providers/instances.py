"""The common part of clouds. A block is an instance, which ends by itself, even without its endpoint."""

from __future__ import annotations

import hashlib
import math
import re
import shlex
import time
from typing import Any, ClassVar

from .provider import ENDED, GONE, Job, Provider, ProviderError, RefusedError
from .rest import Response, Rest

#: Seconds that a command has to end after its walltime, and maximum seconds that the instance stays after that.
KILL_AFTER = 60
#: The script of an instance. It shuts down at the end, and before that goes ``away`` if more is needed to stop the
#: costs. Every step before is limited by the walltime, so the end is always reached.
SCRIPT = """#!/bin/sh
{away}trap '{goes}shutdown -P now' EXIT
shutdown -P +{minutes}
export HOME="${{HOME:-/root}}"
DAYFLY_RANK=0 timeout --kill-after={kill_after} {seconds} /bin/sh -c {command}
"""
#: Shell function by which an instance deletes itself. It uses a token that every process on the instance can get.
AWAY = """away() {{
token=$(curl -sf -m 20 --retry 3 -H {header} {token} | sed 's/.*"access_token" *: *"\\([^"]*\\)".*/\\1/')
curl -sf -m 20 --retry 3 -o /dev/null -X DELETE -H "Authorization: Bearer $token" {instance}
}}
"""
#: Seconds for which a request without a response is checked for an instance.
LOOKED_FOR = 600
#: Maximum characters of an instance's name that all clouds accept.
LONGEST_NAME = 60


class Cloud(Provider):
    """Any cloud."""

    several = False
    # An instance may be unknown for this long after its request.
    blind: ClassVar[float] = 60

    #: Options and their types.
    takes: ClassVar[dict[str, type]]
    #: Required options.
    needs: ClassVar[tuple[str, ...]] = ()
    #: Maximum bytes of a script.
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
    """Returns the minutes after which an instance shuts down, whatever its script does."""
    return math.ceil((walltime_s + 2 * KILL_AFTER) / 60)


class Named(Cloud):
    """A cloud that lets requests choose the names of instances. The id of a job is the name of its instance."""

    _rest: Rest

    def __init__(self, options: dict[str, Any], directory: str) -> None:
        super().__init__(options, directory)
        #: Label value that marks the instances of this endpoint.
        self._owner = hashlib.sha256(directory.encode()).hexdigest()[:32]

    def _submit(self, name: str, command: str, nodes: int, walltime_s: float) -> str:
        del nodes
        self._end_lost()
        # The name is a hash of the request, so submitting twice creates one instance.
        what = hashlib.sha256(f"{name}\n{self._script(command, walltime_s)}".encode()).hexdigest()
        stem = re.sub(r"[^a-z0-9-]", "-", name.lower())[: LONGEST_NAME - 13].rstrip("-")
        job = f"{stem}-{what[:12]}"
        try:
            response = self._make(job, self._script(command, walltime_s, self._away(job)), walltime_s)
            if response.is_busy:
                raise ProviderError(response.words)
        except ProviderError:
            # The instance may have started despite the failure.
            self._lost[job] = time.monotonic()
            raise
        if not response.is_granted and not self._is_there(response):
            raise RefusedError(response.words)
        return job

    def _ask(self, jobs: list[str]) -> dict[str, Job]:
        self._end_lost()
        found = self._look(jobs)
        for job, how in found.items():
            # Once an instance was known, an unknown one has ended.
            self._submitted.pop(job, None)
            if how.state == ENDED and how is not GONE:
                # It still costs something. Report its end only when the deletion has been requested.
                self._delete(job)
        return found

    def cancel(self, jobs: list[str]) -> None:
        for job in jobs:
            if self._delete(job):
                self._submitted.pop(job, None)
            elif self._is_new(job):
                raise ProviderError(f"{job} is not known yet")

    def _end_lost(self) -> None:
        """Deletes instances whose request failed without a response. The endpoint does not know them."""
        for job, since in list(self._lost.items()):
            if self._delete(job) or time.monotonic() - since > LOOKED_FOR:
                del self._lost[job]

    def _make(self, job: str, script: str, walltime_s: float) -> Response:
        """Requests an instance."""
        raise NotImplementedError

    def _away(self, job: str) -> str:
        """Returns the commands by which an instance deletes itself; empty if it cannot."""
        raise NotImplementedError

    def _is_there(self, response: Response) -> bool:
        """Returns whether a request was refused because the same instance exists already."""
        raise NotImplementedError

    def _look(self, jobs: list[str]) -> dict[str, Job]:
        """Returns the states of the known instances; ``GONE`` for those that need no deletion."""
        raise NotImplementedError

    def _delete(self, job: str) -> bool:
        """Deletes an instance with all its resources. Returns whether it existed."""
        raise NotImplementedError


def away(header: str, token: str, instance: str) -> str:
    """Returns the shell function by which an instance deletes itself, with a token from that address and header."""
    return AWAY.format(header=shlex.quote(header), token=shlex.quote(token), instance=shlex.quote(instance))
