"""Plain ``dayfly up``, as the Python package starts it: the README's commands work after it, with no option."""

from __future__ import annotations

import json
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.daemons import Daemon, private_directory
from harness.leaks import wait_until
from harness.programs import clean_environment, program, run

pytest.importorskip("dayfly", reason="the package is not installed: make build")

#: The console script of the package, with the words that come after it.
LAUNCHER = (sys.executable, "-c", "import sys; from dayfly._program import main; sys.argv = sys.argv[1:]; main()")

FUNCTIONS = """
def extract(source):
    return f"text of {source}"

def build(event):
    return event["kind"]
"""

FLOW = """
name = "album"

[[step]]
name = "first"
function = "extract"

[[step]]
name = "second"
function = "extract"
"""


@pytest.fixture(scope="module")
def plain() -> Iterator[Daemon]:
    """``dayfly up``, by the launcher."""
    with private_directory() as directory:
        daemon = Daemon(
            *("up", "--listen", "127.0.0.1:0"),
            state=Path(directory) / "state",
            env={"DAYFLY_BIN": str(program())},
            prefix=LAUNCHER,
        )
        yield daemon
        daemon.stop()


def dayfly(daemon: Daemon, *words: str, cwd: Path) -> str:
    """What a command prints, by the launcher."""
    return run(*LAUNCHER, "dayfly", *words, env=daemon.client_environment(), cwd=cwd).stdout


def test_commands_of_the_readme_work_after_plain_up(plain: Daemon, tmp_path: Path) -> None:
    (tmp_path / "extract.py").write_text(FUNCTIONS)
    (tmp_path / "album.toml").write_text(FLOW)
    dayfly(plain, "function", "register", "extract.py:extract", cwd=tmp_path)
    printed = dayfly(plain, "task", "run", "extract", "report.pdf", "--wait", cwd=tmp_path)
    assert json.loads(printed) == "text of report.pdf"
    dayfly(plain, "flow", "run", "album.toml", "--input", '"photos"', "--wait", "60", cwd=tmp_path)
    dayfly(plain, "function", "register", "extract.py:build", cwd=tmp_path)
    hook = json.loads(dayfly(plain, "trigger", "webhook", "pushed", "--function", "build", "--json", cwd=tmp_path))
    context = ssl.create_default_context(cadata=hook["ca_pem"])
    urllib.request.urlopen(urllib.request.Request(hook["url"], b"{}"), timeout=30, context=context).close()

    def is_done() -> bool:
        tasks = json.loads(dayfly(plain, "task", "list", "--json", cwd=tmp_path))
        return len(tasks) == 4 and {task["state"] for task in tasks} == {"done"}

    wait_until(is_done, "the task that the webhook started", 60)


def test_program_without_an_interpreter_says_what_is_missing(state: Path) -> None:
    """As cargo builds it, where no Python has the package; in one line, and the node starts all the same."""
    bin_directory = state / "bin"
    bin_directory.mkdir()
    python = bin_directory / "python3"
    python.write_text("#!/bin/sh\necho 'this Python 3.12 has no package dayfly' >&2\nexit 1\n")
    python.chmod(0o755)
    variables = {"PATH": f"{bin_directory}:/usr/bin:/bin"}
    daemon = Daemon("up", "--listen", "127.0.0.1:0", state=state / "up", env=variables)
    try:
        lines = [line for line in daemon.output().splitlines() if "--python" in line]
        assert len(lines) == 1
        assert "has no package dayfly" in lines[0]
        (state / "extract.py").write_text(FUNCTIONS)
        run(program(), "function", "register", "extract.py:extract", env=daemon.client_environment(), cwd=state)
        done = subprocess.run(
            [program(), "task", "run", "extract", "x", "--wait"],
            capture_output=True,
            text=True,
            env=clean_environment(DAYFLY_MANAGER=str(daemon.state)),
            timeout=60,
            check=False,
        )
        assert "python_mismatch" in done.stderr
        assert "--python" in done.stderr
    finally:
        daemon.stop()
