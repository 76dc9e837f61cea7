"""The tests of sandboxes on a kernel with control groups of version 2 alone: as root, and as a user given some."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from harness.guest import boot, kernel
from harness.programs import ROOT

#: As a service manager does it: a group with nobody else in it, the controllers handed out above it, and for a user
#: the files that are his to write.
SCRIPT = """
cd /sys/fs/cgroup
echo "CONTROLLERS $(cat cgroup.controllers)"
echo "+cpu +memory +pids" > cgroup.subtree_control
export DAYFLY_TEST_CGROUPS=required TMPDIR=/tmp HOME=/tmp
mkdir -p /tmp && chmod 1777 /tmp
useradd --uid 4242 someone
chmod 755 /guest/*
# An emulated processor takes longer than a test of times allows.
options="--color never --skip takes_about"
for who in root someone; do
    for test in /guest/test-*; do
        mkdir $who
        [ $who = root ] || chown $who $who $who/cgroup.procs $who/cgroup.subtree_control $who/cgroup.threads
        (
            echo 0 > $who/cgroup.procs
            cd /tmp
            [ $who = root ] && exec $test $options
            exec setpriv --reuid $who --regid $who --clear-groups $test $options
        )
        echo "RESULT $who ${test#/guest/} $?"
        find $who -depth -mindepth 1 -type d ! -name dayfly-daemons | sed 's/^/LEFT /'
        find $who -depth -type d -exec rmdir {} \\;
    done
done
"""


def compiled() -> dict[str, Path]:
    """The test programs of the crate."""
    command = ["cargo", "test", "--locked", "-p", "dayfly-sandbox", "--no-run", "--message-format", "json"]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, env=dict(os.environ))
    messages = [json.loads(line) for line in done.stdout.splitlines()]
    return {
        f"test-{message['target']['name']}": Path(message["executable"])
        for message in messages
        if message.get("executable") and message["profile"]["test"]
    }


@pytest.mark.soak
def test_sandboxes_hold_with_cgroups_version_2(tmp_path: Path) -> None:
    _, why = kernel()
    if why:
        pytest.skip(why)
    programs = compiled()
    console = boot(SCRIPT, programs, tmp_path)
    # The firmware leaves the first line of the console half written.
    controllers = [line.partition("CONTROLLERS ")[2].split() for line in console.splitlines()]
    assert {"cpu", "memory", "pids"} <= {name for line in controllers for name in line}, console
    results = sorted(line for line in console.splitlines() if line.startswith("RESULT"))
    assert results == sorted(f"RESULT {who} {name} 0" for who in ["root", "someone"] for name in programs), console
    assert [line for line in console.splitlines() if line.startswith("LEFT")] == [], console
    assert "test limits_cover_all_processes_of_a_sandbox ... ok" in console
    assert "GUEST ENDED" in console
