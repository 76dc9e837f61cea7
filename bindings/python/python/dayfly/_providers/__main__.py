"""Responds to requests, one in each line."""

from __future__ import annotations

import json
import os
import re
import signal
from typing import Any

from .aws import Aws
from .azure import Azure
from .google import Google
from .kubernetes import Kubernetes
from .provider import WORDS, Provider, ProviderError, RefusedError
from .queues import Condor, GridEngine, Lsf, Pbs, Torque
from .slurm import Slurm

KINDS: dict[str, type[Provider]] = {
    "slurm": Slurm,
    "pbs": Pbs,
    "torque": Torque,
    "lsf": Lsf,
    "grid-engine": GridEngine,
    "htcondor": Condor,
    "kubernetes": Kubernetes,
    "aws": Aws,
    "google": Google,
    "azure": Azure,
}


def begin(request: dict[str, Any]) -> tuple[Provider, dict[str, Any]]:
    """Returns the provider of the first request, and the response."""
    kind, options, directory = request.get("kind"), request.get("options", {}), request.get("directory")
    if not isinstance(kind, str) or kind not in KINDS:
        raise ProviderError(f"unknown kind {kind!r}; there are {', '.join(KINDS)}")
    if not isinstance(options, dict):
        raise ProviderError("options is not an object")
    # Parsl inserts the directory into scripts and commands.
    if not isinstance(directory, str) or not re.fullmatch(r"/[\w./+@%-]*", directory):
        raise ProviderError(f"directory {directory!r} is not an absolute path of letters, digits and ./+@%-_")
    versions = KINDS[kind].versions()
    os.makedirs(directory, exist_ok=True)
    # Most batch systems start jobs in the directory of the submission.
    os.chdir(directory)
    provider = KINDS[kind](options, directory)
    trouble = {"trouble": provider.trouble} if provider.trouble else {}
    return provider, {"ready": kind, "libraries": versions, **trouble}


def respond(provider: Provider, request: dict[str, Any]) -> dict[str, Any]:
    """Returns the response to any request but the first."""
    match request:
        case {"submit": {"name": str(name), "command": str(command), "nodes": int(nodes), "walltime_s": seconds}}:
            if not re.fullmatch(r"[A-Za-z][\w.-]*", name) or "\0" in command:
                raise ProviderError(f"{name!r} is not a name of letters, digits and .-_")
            if type(nodes) is not int or type(seconds) not in (int, float) or nodes < 1 or seconds <= 0:
                raise ProviderError(f"{nodes} nodes for {seconds} s cannot be asked for")
            return {"job": provider.submit(name, command, nodes, seconds)}
        case {"status": list(jobs)}:
            found = provider.jobs(_named(jobs))
            return {"jobs": {job: {"state": found[job].state, "words": found[job].words} for job in jobs}}
        case {"cancel": list(jobs)}:
            provider.cancel(_named(jobs))
            return {"cancelled": jobs}
    raise ProviderError(f"not a request: {json.dumps(request)[:200]}")


def _named(jobs: list[Any]) -> list[str]:
    for job in jobs:
        # The ids become part of commands.
        if not isinstance(job, str) or not re.fullmatch(r"\w[\w.@-]*", job):
            raise ProviderError(f"{job!r} is not the id of a job")
    return jobs


def main() -> None:
    """Responds to requests until the input ends."""
    # Give the protocol its own descriptors, which Parsl and the commands that it starts cannot use.
    requests = os.fdopen(os.dup(0), encoding="utf-8", errors="replace")
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    # On Ctrl-C in a terminal, the endpoint decides how this process ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    provider: Provider | None = None
    for line in requests:
        try:
            request = json.loads(line)
            if not isinstance(request, dict):
                raise ProviderError("a request is an object")
            if provider is None:
                provider, reply = begin(request)
            else:
                reply = respond(provider, request)
        except ProviderError as failure:
            reply = {"failed": str(failure)}
        except RefusedError as refusal:
            reply = {"refused": str(refusal)}
        except Exception as error:
            reply = {"failed": f"{type(error).__name__}: {error}"[:WORDS]}
        try:
            print(json.dumps(reply), file=output, flush=True)
        except BrokenPipeError:
            # The endpoint is gone. Discard the buffered responses.
            os._exit(1)


if __name__ == "__main__":
    main()
