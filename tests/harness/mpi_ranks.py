"""Starts unmodified MPI programs on ranks that meet at a rendezvous, with Dayfly's MPI library."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.leaks import die_with_parent
from harness.programs import clean_environment, program

#: Name by which programs of MPICH's family ask for their library.
SONAME = "libmpi.so.12"


def library_directory() -> Path:
    """Returns the directory of the library, under the name that programs ask for."""
    return program(f"mpi/{SONAME}").parent


def environment(group: dict[str, Any]) -> dict[str, str]:
    """Returns the environment of a rank of a group."""
    directory = library_directory()
    return clean_environment(
        DAYFLY_GROUP=json.dumps(group),
        LD_LIBRARY_PATH=str(directory),
        MPI4PY_LIBMPI=str(directory / SONAME),
    )


def run_ranks(
    rendezvous: dict[str, Any],
    command: Sequence[str | os.PathLike[str]],
    ranks: int,
    *,
    timeout: float = 60,
    cwd: Path | None = None,
    invitation: dict[str, Any] | None = None,
    **variables: str,
) -> list[tuple[int, str]]:
    """Runs a program on all ranks, with an invitation that has these fields too. Returns their exit statuses and their
    output; after the timeout, all are killed."""
    group = {
        "rendezvous": rendezvous["addresses"][0],
        "key": rendezvous["key"],
        "name": secrets.token_hex(4),
        "secret": secrets.token_hex(32),
        "size": ranks,
        "spin_us": 500,
    } | (invitation or {})
    processes = [
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=cwd,
            env=environment(group | {"rank": rank}) | variables,
            preexec_fn=die_with_parent,  # noqa: PLW1509 (one call, loaded before)
        )
        for rank in range(ranks)
    ]
    until = time.monotonic() + timeout
    done = []
    for process in processes:
        try:
            output, _ = process.communicate(timeout=max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            output = f"{process.communicate()[0]}\nkilled after {timeout} s"
        done.append((process.returncode, output))
    return done
