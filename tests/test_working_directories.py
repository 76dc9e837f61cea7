"""Where functions begin: in a directory of their worker, or where their node was started."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from harness.daemons import Daemon
from harness.leaks import wait_until

dayfly = pytest.importorskip("dayfly", reason="the package is not installed: make build")


def leave_a_file(name: str) -> tuple[str, list[str]]:
    """Where it runs, and what was there before."""
    before = os.listdir()
    Path(name).write_text("written")
    return os.getcwd(), before


def test_daemons_workers_have_their_own_directories(tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    daemon = Daemon(
        "up",
        *("--listen", "127.0.0.1:0", "--python", sys.executable),
        state=tmp_path / "state",
        env={"TMPDIR": str(temporary)},
        cwd=Path("/"),
    )
    with dayfly.connect(config=daemon.state) as client:
        with client.lease(workers=2, mode="warm") as lease:
            found = [lease.options(worker=worker).call(leave_a_file, "mine") for worker in range(2)]
            places = [Path(place) for place, _ in found]
            assert [before for _, before in found] == [[], []]
            assert places[0] != places[1]
            assert all(place.is_relative_to(temporary) for place in places)
            assert all((place / "mine").read_text() == "written" for place in places)
            # A worker that takes another's place begins anew, and what was there is gone.
            with pytest.raises(dayfly.WorkerDied):
                lease.options(worker=0).call(os._exit, 1)
            place, before = lease.options(worker=0).call(leave_a_file, "mine")
            assert before == []
            assert not places[0].exists()
        task, _ = client.run(leave_a_file, "of a task").result(30)
        assert Path(task).is_relative_to(temporary)
        wait_until(lambda: not Path(place).exists(), "the directories of a lease end with it")
    daemon.stop()
    assert list(temporary.iterdir()) == []


def test_workers_start_in_their_nodes_directory(tmp_path: Path) -> None:
    daemon = Daemon("up", "--listen", "127.0.0.1:0", "--python", sys.executable, state=tmp_path / "state", cwd=tmp_path)
    with dayfly.connect(config=daemon.state) as client:
        assert client.run(os.getcwd).result(30) == str(tmp_path)
    daemon.stop()
