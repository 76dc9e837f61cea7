"""Stand-alone nodes that belong to one process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from harness.leaks import living, wait_until

dayfly = pytest.importorskip("dayfly", reason="the package is not installed: make build")

from dayfly._leases import private_node  # noqa: E402 (only if it is installed)
from dayfly._leases.private_node import PrivateNode, client_of  # noqa: E402


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of temporary files, which holds those of nodes."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_clients_lease_from_private_node(directory: Path) -> None:
    node = PrivateNode(None)
    try:
        wait_until(node.allowance, "the node serves", 30)
        assert node.failure() is None
        with client_of(node.allowance()) as client, client.lease(mode="warm") as lease:
            assert lease.call(pow, 2, 10) == 1024
    finally:
        node.end()
    assert not list(directory.iterdir())
    node.end()


def test_other_hosts_reach_private_node(directory: Path) -> None:
    node = PrivateNode("localhost")
    try:
        wait_until(node.allowance, "the node serves", 30)
        assert json.loads(node.allowance())["node"]["tcp"].startswith("localhost:")
        with client_of(node.allowance()) as client, client.lease(mode="warm", transport="tls") as lease:
            assert (lease.transport, lease.call(pow, 2, 10)) == ("tls", 1024)
    finally:
        node.end()


START = """
import sys, time
from dayfly._leases.private_node import PrivateNode
node = PrivateNode(None)
while not node.allowance():
    assert node.failure() is None
    time.sleep(0.005)
print(node._process.pid, flush=True)
sys.stdin.read()
"""


def test_killed_process_takes_its_node_along(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", START],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    node = int(process.stdout.readline())
    assert living([node])
    process.kill()
    # The node holds no copy of its parent's pipes.
    assert process.stdout.read() == ""
    process.wait()
    process.stdin.close()
    process.stdout.close()
    wait_until(lambda: not living([node]), "the node ends", 20)
    assert not list(tmp_path.iterdir())


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def failure_of(node: PrivateNode) -> dayfly.Error:
    wait_until(node.failure, "the node fails", 30)
    failure = node.failure()
    assert failure is not None
    node.end(0)
    return failure


def test_failed_node_gives_its_reason(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAYFLY_BIN", script(directory / "failing", "echo no memory left >&2; exit 3"))
    failure = failure_of(PrivateNode(None))
    assert failure.code == "executor_failed"
    assert failure.message == "the private node ended with status 3: no memory left"


def test_node_that_never_serves_is_late(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAYFLY_BIN", script(directory / "waiting", "exec sleep 300"))
    monkeypatch.setattr(private_node, "MAX_START_S", 0.05)
    assert "did not serve within 0 s" in failure_of(PrivateNode(None)).message


def test_missing_program_raises_typed_error(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAYFLY_BIN", str(directory / "missing"))
    with pytest.raises(dayfly.Error, match="cannot be started") as raised:
        PrivateNode(None)
    assert raised.value.code == "executor_failed"
    assert not list(directory.iterdir())


def test_node_does_not_inherit_rank_of_its_parent(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = directory / "found"
    monkeypatch.setenv("DAYFLY_BIN", script(directory / "printing", f"env > {found}.part; mv {found}.part {found}"))
    for name in ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "DAYFLY_MANAGER"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("DAYFLY_GROUP", json.dumps({"rank": 1}))
    monkeypatch.setenv("KEPT", "1")
    failure_of(PrivateNode(None))
    names = {line.partition("=")[0] for line in found.read_text().splitlines()}
    assert "KEPT" in names
    assert not [name for name in names if name.startswith(("OMPI_", "PMI", "DAYFLY_MANAGER", "DAYFLY_GROUP"))]


def test_text_that_is_no_allowance_is_refused() -> None:
    with pytest.raises(dayfly.RequestError, match="no usable allowance"):
        client_of("{}")
