"""A disk that is full beneath durable tasks: a small one of memory, which grows again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import cloudpickle
import pytest
from harness.leaks import wait_until
from harness.managers import Manager

dayfly = pytest.importorskip("dayfly", reason="the package is not installed: make build")
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounting takes root")

# Workers cannot import what pytest made of this file.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

MIB = 1 << 20
#: A task with arguments that are kept in the database.
LONG = {"call": {"arguments": ["x" * 100_000]}}


class Disk:
    """A file system of so many MiB."""

    def __init__(self, place: Path, mib: int) -> None:
        place.mkdir(parents=True)
        self.place = place
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", place], check=True)

    def grow(self, mib: int) -> None:
        """It has so many from now on."""
        subprocess.run(["mount", "-o", f"remount,size={mib}m", self.place], check=True)

    def free(self) -> int:
        """Bytes that are free."""
        about = os.statvfs(self.place)
        return about.f_bavail * about.f_frsize

    def fill(self, left: int) -> Path:
        """A file that takes all but so many bytes."""
        file = self.place / "filling"
        with open(file, "wb") as filling:
            while (free := self.free()) > left:
                filling.write(bytes(min(MIB, free - left)))
                filling.flush()
        return file


@pytest.fixture
def disk(state: Path) -> Iterator[Disk]:
    disk = Disk(state / "disk", 64)
    yield disk
    subprocess.run(["umount", disk.place], check=True)


@pytest.fixture
def manager(disk: Disk) -> Iterator[Manager]:
    manager = Manager(disk.place / "state")
    yield manager
    manager.stop()


def note(path: str, number: int) -> bytes:
    """Of what is kept in the database, among the longest. Waits for a gate."""
    open(f"{path}/begun", "a").close()
    while not os.path.exists(f"{path}/gate"):
        time.sleep(0.01)
    with open(f"{path}/{number}", "a") as file:
        file.write("x")
    return number.to_bytes(4, "little") * 10_000


def test_full_disk_delays_outcomes_and_loses_none(manager: Manager, disk: Disk, tmp_path: Path) -> None:
    with dayfly.connect(config=manager.state) as client:
        with dayfly.Executor(client=client, tag="before") as executor:
            assert executor.submit(pow, 2, 10).result(30) == 1024
        batch = client.batch("noted")
        for number in range(1, 200):
            batch.submit(note, str(tmp_path), number)
        batch.flush()
        # A node without room for the code would execute nothing.
        wait_until((tmp_path / "begun").exists, "a task runs", 60)
        filling = disk.fill(left=0)
        (tmp_path / "gate").touch()
        wait_until(lambda: "cannot write outcomes" in manager.daemon.output(), "the disk is full", 60)
        # What cannot be kept is refused, by name, and what is known can be asked.
        with pytest.raises(dayfly.Error) as refused:
            client._native.post("/v1/tasks", json.dumps({"function": client.functions()[0].id, "tasks": [LONG] * 100}))
        assert refused.value.code == "store_failed"
        assert client.tasks("before")[0].result(30) == 1024
        filling.unlink()
        results = list(batch.results(timeout=60))
        assert results == [number.to_bytes(4, "little") * 10_000 for number in range(1, 200)]
        assert "the store can write outcomes again" in manager.daemon.output()
    # None was executed twice for it.
    executed = [path.stat().st_size for path in tmp_path.iterdir() if path.name.isdigit()]
    assert executed == [1] * 199


def test_manager_with_full_disk_stops_on_request(manager: Manager, disk: Disk, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with dayfly.connect(config=manager.state) as client:
        batch = client.batch("noted")
        gate.touch()
        batch.submit(note, str(tmp_path), 0).result(30)
        gate.unlink()
        for number in range(1, 200):
            batch.submit(note, str(tmp_path), number)
        batch.flush()
        filling = disk.fill(left=0)
        gate.touch()
        wait_until(lambda: "cannot write outcomes" in manager.daemon.output(), "the disk is full", 60)
        manager.daemon.stop(timeout=30)
        filling.unlink()
        manager.start_again()
        # What was executed and could not be written down is in doubt, and nothing else.
        ended = outcomes_of(batch)
        assert sum(ended.values()) == 200
        assert set(ended) <= {"well", "maybe_executed"}
        assert ended["well"] > 0
    executed = [path.stat().st_size for path in tmp_path.iterdir() if path.name.isdigit()]
    # None twice. One that was cut off at the end may have opened its file alone.
    assert max(executed) == 1


def outcomes_of(batch: dayfly.Batch) -> Counter[str]:
    """How many ended well, and with which codes the others."""
    ended = Counter[str]()
    for future in batch.futures:
        try:
            future.result(60)
        except dayfly.Error as error:
            ended[error.code] += 1
        else:
            ended["well"] += 1
    return ended


def test_full_content_store_delays_long_values(manager: Manager, disk: Disk) -> None:
    def double(data: bytes) -> bytes:
        return data * 2

    with dayfly.connect(config=manager.state) as client:
        assert len(client.run(double, bytes(MIB)).result(30)) == 2 * MIB
        # Room for arguments, not for results.
        future = client.run(double, os.urandom(22 * MIB))
        wait_until(lambda: "cannot be transferred now" in manager.daemon.output(), "there is no room", 60)
        # However little time it took.
        wait_until(lambda: client.task_status(future.id)["state"] == "running", "the task to show as running")
        # Others go on meanwhile.
        assert client.run(pow, 2, 10).result(30) == 1024
        disk.grow(256)
        assert len(future.result(60)) == 44 * MIB
        # Arguments wait for room as well.
        filling = disk.fill(left=30 * MIB)
        late = client.run(len, os.urandom(60 * MIB))
        filling.unlink()
        assert late.result(60) == 60 * MIB
