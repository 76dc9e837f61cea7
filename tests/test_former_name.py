"""What was left under the project's former name is told, with the command that moves it."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from harness.daemons import Daemon
from harness.programs import program, run

FORMER = "mayfly"


@pytest.fixture
def home(state: Path) -> Path:
    """A home directory whose state is of the former name."""
    base = state / "state"
    daemon = Daemon("up", "--sandbox", "process", "--listen", "127.0.0.1:0", state=base / FORMER)
    daemon.stop()
    return base


@pytest.mark.parametrize(
    "command",
    [
        *(("up",), ("manager",), ("node", "--standalone")),
        ("endpoint", "setup", "here"),
    ],
    ids=" ".join,
)
def test_former_state_directory_is_refused_with_move_command(home: Path, command: tuple[str, ...]) -> None:
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "XDG_STATE_HOME": str(home)}
    refused = run(program(), *command, "--json", check=False, env=environment)
    assert refused.returncode != 0
    message = json.loads(refused.stderr.splitlines()[-1])["error"]["message"]
    assert f"{home / FORMER} is a state directory of Mayfly" in message
    (move,) = re.findall(r"`(mv .*?)`", message)
    assert not (home / "dayfly").exists()
    subprocess.run(move, shell=True, check=True)
    assert (home / "dayfly" / "manager.db").exists()
    assert not (home / FORMER).exists()
