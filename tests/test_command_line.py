"""Functions and tasks from a shell alone: registered, run, waited for, followed, found and counted."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.daemons import Daemon
from harness.leaks import wait_until
from harness.managers import manager_here
from harness.programs import program, run

dayfly = pytest.importorskip("dayfly", reason="the package is not installed: make build")

SOURCE = '''
import sys
import time
from pathlib import Path


def extract(path, pages=1):
    """What a person would copy out."""
    return {"path": path, "pages": pages}


def fail(why):
    print("about to fail", flush=True)
    raise ValueError(why)


def wait_for(path):
    print("waits", flush=True)
    while not Path(path).exists():
        time.sleep(0.01)
    return "it is there"
'''


@pytest.fixture(scope="module")
def manager() -> Iterator[Daemon]:
    with manager_here() as manager:
        yield manager


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("source") / "work.py"
    path.write_text(SOURCE)
    return path


def say(manager: Daemon, *args: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """``dayfly ARGS``, as a person types it."""
    return run(program(), *args, env=manager.client_environment(), check=check)


def test_function_of_a_file_takes_json_and_strings(manager: Daemon, source: Path) -> None:
    made = manager.cli("function", "register", f"{source}:extract", "--walltime", "1m", "--share", "*")
    assert (made["name"], made["version"], made["shared_with"]) == ("extract", 1, ["*"])
    assert made["source"] == SOURCE
    text = say(manager, "function", "register", f"{source}:extract", "--name", "copied", "--repeatable").stdout
    assert text.startswith("Function copied\n  version     1\n  id          ")
    done = say(manager, "task", "run", "extract", "report.pdf", "--keyword", "pages=[1, 2]", "--wait")
    assert json.loads(done.stdout) == {"path": "report.pdf", "pages": [1, 2]}
    done = say(manager, "task", "run", made["id"], "7", '"7"', "--wait=20")
    assert json.loads(done.stdout) == {"path": 7, "pages": "7"}
    task = say(manager, "task", "run", "copied", "-1", "--retries", "2", "--deadline", "1m", "--memoize").stdout.strip()
    assert json.loads(say(manager, "task", "result", task, "--wait", "20").stdout) == {"path": -1, "pages": 1}
    outcome = manager.cli("task", "run", "extract", "x", "--wait")
    assert outcome["result"]["path"] == "x"


def test_failed_task_sets_exit_status_and_stderr(manager: Daemon, source: Path) -> None:
    say(manager, "function", "register", f"{source}:fail")
    for how, printed in (("--wait", ""), ("--follow", "about to fail\n")):
        done = say(manager, "task", "run", "fail", "it is late", how, check=False)
        assert (done.returncode, done.stdout) == (1, printed)
        assert done.stderr.startswith("error [function_error]: ")
        assert "ValueError: it is late" in done.stderr
    done = say(manager, "task", "run", "fail", "--input", "-", "--wait", check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--input is for functions of shared libraries" in done.stderr


def fail_late(why: str) -> None:
    """Raises what only the worker saw."""
    raise LookupError(why)


def test_failed_task_shows_what_the_worker_raised(manager: Daemon) -> None:
    with dayfly.connect(config=manager.state) as client:
        future = client.run(fail_late, "not in the catalogue")
        assert isinstance(future.exception(30), LookupError)
        task = future.id
    failed = json.loads(manager.ask("GET", f"/v1/tasks/{task}")[1])["error"]
    assert failed["message"] == "the function raised LookupError: not in the catalogue"
    assert (failed["exception"]["type"], failed["exception"]["message"]) == ("LookupError", "not in the catalogue")
    for command in ("result", "show"):
        done = say(manager, "task", command, task, check=command == "show")
        shown = done.stdout if command == "show" else done.stderr
        assert done.returncode == (0 if command == "show" else 1)
        for expected in (
            "the function raised LookupError: not in the",
            "Traceback (most recent call last)",
            "in fail_late",
        ):
            assert expected in shown
    [row] = [row for row in say(manager, "task", "list").stdout.splitlines() if "fail_late" in row]
    assert row.endswith("the function raised LookupError: not in the catalogue")
    assert "exception" not in json.loads(manager.ask("GET", "/v1/tasks")[1])[0]["error"], "lists are short"


def test_misspelt_option_suggests_no_hidden_one(manager: Daemon) -> None:
    done = say(manager, "up", "--port", "1", check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "unexpected argument '--port'" in done.stderr
    assert "--parent" not in done.stderr


def test_missing_requirements_file_is_named(manager: Daemon) -> None:
    done = say(manager, "env", "build", "nosuch.txt", "--python", sys.executable, check=False)
    assert (done.returncode, done.stderr) == (1, "dayfly env: there is no file nosuch.txt\n")


def test_bill_shows_days_and_latest_leases_with_dates(manager: Daemon) -> None:
    for _ in range(3):
        manager.cli("lease", "release", manager.cli("lease", "create")["grant"]["lease"])
    done = say(manager, "bill", "--limit", "2")
    days, leases, total = done.stdout.split("\n\n")
    assert days.startswith("DAY ")
    rows = leases.splitlines()
    assert (rows[0].split()[0], len(rows)) == ("LEASE", 3)
    granted = [row[-19:] for row in rows[1:]]
    assert granted == sorted(granted, reverse=True)
    assert total.endswith("in all\n")
    assert "--limit shows more" in done.stderr
    assert manager.cli("bill", "--since", "1h") == manager.cli("bill")


def test_command_function_runs_without_a_shell(manager: Daemon) -> None:
    command = "printf '%s|' {first} {{x}} {second}; echo beside >&2"
    made = manager.cli("function", "register", "--command", command)
    assert made["name"] == "printf"
    words = ("task", "run", "printf", "$(id) 'a'", "--keyword", "second=b c")
    assert json.loads(say(manager, *words, "--wait").stdout) == "$(id) 'a'|{x}|b c|"
    assert say(manager, *words, "--wait", "--raw").stdout == "$(id) 'a'|{x}|b c|"
    done = say(manager, *words, "--follow")
    assert (done.stdout, done.stderr) == ("", "beside\n")
    manager.cli("function", "register", "--command", "exit 7", "--name", "ends")
    done = say(manager, "task", "run", "ends", "--wait", check=False)
    assert done.returncode == 1
    assert "ended with status 7" in done.stderr


def test_tasks_are_filtered_and_counted_by_tag(manager: Daemon, source: Path, tmp_path: Path) -> None:
    for name in ("wait_for", "extract", "fail"):
        manager.cli("function", "register", f"{source}:{name}", "--name", f"{name}-here")
    gate = tmp_path / "gate"

    def submit(*words: str) -> str:
        [task] = manager.cli("task", "run", *words, "--tag", "mine & yours")["tasks"]
        return str(task)

    def listed(*words: str) -> list[str]:
        return [task["id"] for task in manager.cli("task", "list", "--tag", "mine & yours", *words)]

    def counts() -> dict[str, Any]:
        return dict(manager.cli("task", "counts", "--tag", "mine & yours"))

    waits = submit("wait_for-here", str(gate))
    ends = [submit("extract-here", "a"), submit("extract-here", "b")]
    fails = submit("fail-here", "now")
    wait_until(lambda: listed("--state", "running") == [waits], "one runs", 30)
    wait_until(lambda: counts()["done"] == 3, "the others have ended", 30)
    assert listed("--failed") == [fails]
    assert listed("--state", "done") == [fails, *reversed(ends)]
    assert listed("--function", "extract-here", "--limit", "1") == ends[1:]
    assert listed("--function", "wait_for-here", "--state", "done") == []
    assert listed("--endpoint", "local") == [fails, *reversed(ends), waits]
    assert manager.cli("task", "list", "--state", "waiting") == []
    found = counts()
    assert {state: found[state] for state in ("queued", "waiting", "running", "done", "failed")} == {
        "queued": 0,
        "waiting": 0,
        "running": 1,
        "done": 3,
        "failed": 1,
    }
    with dayfly.connect(config=manager.state) as client:
        batch = client.tasks("mine & yours")
        assert batch.counts() == {"queued": 0, "waiting": 0, "environment": 0, "running": 1, "done": 3}
        before = batch.times()["running"]
        # What runs counts so far.
        wait_until(lambda: batch.times()["running"] > before, "time passes", 30)
    gate.touch()
    assert json.loads(say(manager, "task", "result", waits, "--wait", "20").stdout) == "it is there"
    assert counts()["running"] == 0
    status, said = manager.ask("GET", "/v1/tasks?state=asleep")
    assert (status, json.loads(said)["error"]["code"]) == (400, "invalid_request")
    assert json.loads(manager.ask("GET", "/v1/tasks?state=running&failed=true")[1]) == []
