"""Text that a tenant chose reaches terminals and logs as text only: no control characters, no forged lines."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from harness.daemons import Daemon
from harness.leaks import wait_until
from harness.people import Person
from harness.programs import program, run
from harness.terminal import on_terminal

#: Clears the screen, sets the window's title, and reverses what follows.
HOSTILE = "\x1b[2J\x1b]0;owned\x07\u009b2J\u202egnp.exe"
#: What a terminal obeys, but for line feeds and tabs.
UNSAFE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
FORGED = "9999    2026-11-24 00:00:00  0123456789abcdef  token.create  mallory  {}"


@pytest.fixture(scope="module")
def hostile_task(people: dict[str, Person], tmp_path_factory: pytest.TempPathFactory) -> str:
    """A task of alice's whose tag, name, output and exception are hostile."""
    source = tmp_path_factory.mktemp("hostile") / "hostile.py"
    source.write_text(
        "def hostile(text):\n"
        "    print(text + 'printed', flush=True)\n"
        "    raise ValueError(text + '\\n2026-11-24T00:00:00Z ERROR forged: ' + text)\n"
    )
    alice = people["alice"]
    environment = {**alice.manager.client_environment(), "DAYFLY_MANAGER": str(alice.connection)}
    run(program(), "function", "register", f"{source}:hostile", env=environment)
    tag = f"{HOSTILE}\n{FORGED}"
    done = run(program(), "task", "run", "hostile", HOSTILE, "--tag", tag, "--follow", env=environment, check=False)
    assert done.returncode == 1
    [task] = alice.ask("GET", "/v1/tasks")[1]
    assert task["tag"] == tag, "JSON stays exact"
    return str(task["id"])


def as_alice(alice: Person) -> dict[str, str]:
    """Her environment."""
    return {**alice.manager.client_environment(), "DAYFLY_MANAGER": str(alice.connection)}


def test_line_break_in_subject_adds_no_audit_row(manager: Daemon, alice: Person) -> None:
    for path, body in (
        ("/v1/tasks/cancel", {"tag": f"x\n{FORGED}"}),
        ("/v1/tasks/forget", {"tag": f"x\r\n{HOSTILE}{FORGED}"}),
    ):
        alice.ask("POST", path, body)
    alice.ask("DELETE", "/v1/functions/x%0A" + FORGED.replace(" ", "%20").replace("{}", "%7B%7D"))
    entries = manager.cli("audit")
    assert any("\n" in entry["subject"] for entry in entries)
    shown = run(program(), "audit", env=manager.client_environment()).stdout
    assert len(shown.splitlines()) == len(entries) + 1
    assert not UNSAFE.search(shown)
    assert not any(line.strip().startswith("9999") for line in shown.splitlines())


@pytest.mark.parametrize("command", [("list",), ("show", "ID"), ("result", "ID"), ("output", "ID")])
def test_hostile_task_sends_no_escape_to_terminal(alice: Person, hostile_task: str, command: tuple[str, ...]) -> None:
    words = [hostile_task if word == "ID" else word for word in command]
    _, shown = on_terminal(program(), "task", *words, env=as_alice(alice))
    assert not UNSAFE.search(shown), shown
    assert "\\u{1b}[2J" in shown, "it is shown, as text"


def test_printed_output_is_raw_where_that_is_wanted(alice: Person, hostile_task: str) -> None:
    _, shown = on_terminal(program(), "task", "output", hostile_task, "--raw", env=as_alice(alice))
    piped = run(program(), "task", "output", hostile_task, env=as_alice(alice)).stdout
    assert shown == piped == f"{HOSTILE}printed\n"


def test_long_cell_is_cut_in_table(alice: Person) -> None:
    spec = {"members": [f"t{number:0120d}" for number in range(200)], "description": "x" * 1000}
    assert alice.ask("PUT", "/v1/teams/long", spec)[0] == 200
    shown = run(program(), "team", "list", env=as_alice(alice)).stdout
    assert "long" in shown
    assert max(map(len, shown.splitlines())) < 2000


def test_printed_line_break_forges_no_log_entry(manager: Daemon, hostile_task: str) -> None:
    wait_until(lambda: "printed" in manager.output(), "the log has what the task printed", 20)
    log = manager.output()
    assert not UNSAFE.search(log)
    assert not any(line.startswith(("\\u", "printed")) for line in log.splitlines())


def test_direct_call_shows_no_escape(manager: Daemon, tmp_path: Path) -> None:
    (tmp_path / "direct.py").write_text(
        f"def give():\n    return {HOSTILE!r}\n\n\ndef fail():\n    raise ValueError({HOSTILE!r})\n"
    )
    environment = {**manager.client_environment(), "PYTHONPATH": str(tmp_path)}
    for name, expected in (("give", 0), ("fail", 1)):
        status, shown = on_terminal(program(), "invoke", f"direct:{name}", "--python", sys.executable, env=environment)
        assert status == expected, shown
        assert not UNSAFE.search(shown), shown
        assert "\\u{1b}[2J" in shown or "\\x1b[2J" in shown
