"""A program with its own manager leaves nothing in the temporary directory, however it ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.leaks import die_with_parent, wait_until
from harness.programs import bin_dir, program, run

PROGRAM = """
import sys, dayfly
with dayfly.connect() as client, client.lease(mode="warm") as lease:
    assert lease.call(abs, -1) == 1
    print("ready", flush=True)
    sys.stdin.read()
"""


def closed(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.close()


def killed(process: subprocess.Popen[str]) -> None:
    process.kill()


def terminated(process: subprocess.Popen[str]) -> None:
    process.terminate()


def group_terminated(process: subprocess.Popen[str]) -> None:
    """As batch systems and service managers do."""
    os.killpg(process.pid, signal.SIGTERM)


def group_interrupted(process: subprocess.Popen[str]) -> None:
    """As Ctrl-C does."""
    os.killpg(process.pid, signal.SIGINT)


@pytest.mark.parametrize("end", [closed, killed, terminated, group_terminated, group_interrupted])
def test_ended_program_leaves_no_temporary_file(end: Callable[[subprocess.Popen[str]], None], tmp_path: Path) -> None:
    variables = {"TMPDIR": str(tmp_path), "DAYFLY_BIN": str(bin_dir() / "dayfly")}
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        env=os.environ | variables,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
        preexec_fn=die_with_parent,  # noqa: PLW1509 (one call, loaded before)
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        # Its keys exist.
        assert list(tmp_path.glob("dayfly-*/connection.json"))
        end(process)
        process.wait(20)
    wait_until(lambda: os.listdir(tmp_path) == [], "its temporary files to go", 20)


def test_ephemeral_node_that_cannot_start_leaves_no_state(tmp_path: Path) -> None:
    state = tmp_path / "node"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        node = ("node", "--standalone", "--ephemeral", "--state-dir", state, "--listen-tcp", address)
        done = run(program(), *node, check=False)
    assert done.returncode != 0
    assert address in done.stderr
    assert not state.exists()
