"""``dayfly doctor``, on this machine with some of its rights taken away."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from harness.programs import clean_environment, program, run

NOBODY = "65534"


def checked(*prefix: str, home: Path, **variables: str) -> dict[str, dict[str, str]]:
    """Runs the command after a prefix, and returns its findings by name."""
    variables.setdefault("HOME", str(home))
    environment = clean_environment(XDG_STATE_HOME=str(home / "state"), **variables)
    done = run(*prefix, program(), "doctor", "--json", env=environment)
    answer = json.loads(done.stdout)
    assert answer["works"]
    return {finding["name"]: finding for finding in answer["checks"]}


def test_machine_that_runs_tests_is_well(tmp_path: Path) -> None:
    findings = checked(home=tmp_path)
    assert {findings[name]["state"] for name in ("kernel", "processors", "state directory")} == {"works"}
    assert all(finding["remedy"] for finding in findings.values() if finding["state"] != "works")
    assert not (tmp_path / "state").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_refused_namespaces_are_told(tmp_path: Path) -> None:
    script = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"'
    findings = checked("unshare", "--user", "--map-root-user", "sh", "-c", script, "sh", home=tmp_path)
    assert findings["isolation"]["state"] == "limited"
    assert "refuses user namespaces" in findings["isolation"]["found"]
    assert "max_user_namespaces" in findings["isolation"]["remedy"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_account_without_control_groups_is_told(tmp_path: Path) -> None:
    home = Path(shutil.copytree(tmp_path, f"/tmp/dayfly-doctor-{os.getpid()}"))
    try:
        # Programs below the home of root are out of this account's sight.
        shutil.copy(program(), home / "dayfly")
        shutil.chown(home, int(NOBODY), int(NOBODY))
        command = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
        done = run(*command, home / "dayfly", "doctor", "--json", env={"HOME": str(home), "PATH": "/usr/bin:/bin"})
    finally:
        shutil.rmtree(home)
    findings = {finding["name"]: finding for finding in json.loads(done.stdout)["checks"]}
    assert findings["control groups"]["state"] == "limited"
    assert "Delegate=yes" in findings["control groups"]["remedy"]


def test_low_limits_are_told(tmp_path: Path) -> None:
    findings = checked("prlimit", "--nofile=256:256", home=tmp_path)
    assert findings["open files"]["state"] == "limited"
    assert "ulimit -Hn" in findings["open files"]["remedy"]


def test_python_without_the_package_is_told(tmp_path: Path) -> None:
    (tmp_path / "python3").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "python3").chmod(0o755)
    findings = checked(home=tmp_path, DAYFLY_PYTHON=str(tmp_path / "python3"))
    assert findings["Python"]["state"] == "absent"
    assert "DAYFLY_PYTHON" in findings["Python"]["remedy"]
