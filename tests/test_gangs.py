"""Gangs: ranks on several nodes of a site, leased together or not at all."""

from __future__ import annotations

import collections
import concurrent.futures as cf
import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import cloudpickle
import dayfly
import pytest
from dayfly._groups.run import invitation_to, pack_call, start_ranks
from harness.daemons import Daemon
from harness.leaks import wait_until
from harness.programs import program, run
from harness.sites import several_nodes, up

cloudpickle.register_pickle_by_value(sys.modules[__name__])

Site = tuple[Daemon, list[Daemon]]


@pytest.fixture
def site(start: Callable[..., Daemon]) -> Site:
    """A manager and three nodes of two warm workers each."""
    return several_nodes(start, nodes=3, workers=2)


def sum_of_ranks() -> tuple[int, int]:
    from dayfly import MPI

    comm = MPI.COMM_WORLD
    return comm.rank, comm.allreduce(comm.rank)


def test_function_runs_on_ranks_of_several_nodes(site: Site) -> None:
    manager, _ = site
    with dayfly.connect(manager.state) as client:
        assert dayfly.run(sum_of_ranks, ranks=5, client=client) == [(rank, 10) for rank in range(5)]
        assert client.leases() == [] or all(lease["state"] == "released" for lease in client.leases())


def pass_around(length: int) -> list[bool]:
    """Everybody's bytes to everybody else, in messages short and long."""
    from dayfly import MPI

    comm = MPI.COMM_WORLD
    right = []
    for size in (100, length):
        requests = [comm.isend(bytes([comm.rank]) * size, other) for other in range(comm.size)]
        right += [comm.recv(source=other) == bytes([other]) * size for other in range(comm.size)]
        MPI.Request.waitall(requests)
    return right


def test_isolated_ranks_form_groups_across_nodes(start: Callable[..., Daemon]) -> None:
    manager, _ = several_nodes(start, 2, 2, "isolated", "--python", sys.executable)
    with dayfly.connect(manager.state) as client:
        assert dayfly.run(sum_of_ranks, ranks=4, client=client, timeout=60) == [(rank, 6) for rank in range(4)]
        assert dayfly.run(pass_around, ranks=4, args=(3 << 20,), client=client, timeout=60) == [[True] * 8] * 4


def test_placement_decides_number_of_nodes(site: Site) -> None:
    manager, _ = site
    with dayfly.connect(manager.state) as client:
        with client.gang(3, mode="warm") as packed:
            assert sorted(collections.Counter(packed.nodes).values()) == [1, 2]
        with client.gang(3, placement="spread", mode="warm") as spread:
            assert sorted(spread.nodes) == ["n0", "n1", "n2"]
            assert spread.rank(2).call(pow, 2, 10) == 1024
        with client.gang(2, placement="together", mode="warm") as together:
            assert len(together.leases) == 1
        with pytest.raises(dayfly.RequestError, match="room for 2"):
            client.gang(3, placement="together", mode="warm")
        with pytest.raises(ValueError, match="spread"):
            client.gang(2, placement="near", mode="warm")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="bogus"):
            client.gang(2, bogus=1)


def test_gang_uses_nodes_of_one_fabric(start: Callable[..., Daemon]) -> None:
    manager, _ = several_nodes(start, 1, 2, "process", "--on-fabric", "east")
    for name, fabrics in (("n1", ("west",)), ("n2", ("east", "west"))):
        join = manager.state / f"join-{name}.json"
        join.write_text(json.dumps(manager.cli("manager", "join-token", "--for", "10m")))
        on = [option for fabric in fabrics for option in ("--on-fabric", fabric)]
        start(
            "node", "--join", str(join), "--name", name, "--cores", "0", "--workers", "2", "--sandbox", "process", *on
        )
    wait_until(lambda: len(up(manager)) == 3, "three nodes")
    with dayfly.connect(manager.state) as client:
        assert {node["address"]["name"]: node["address"]["fabrics"] for node in client.nodes()}["n2"] == [
            "east",
            "west",
        ]
        with client.gang(3, placement="fabric", mode="warm") as gang:
            assert set(gang.nodes) in ({"n0", "n2"}, {"n1", "n2"})
        with pytest.raises(dayfly.RequestError, match="room for 4"):
            client.gang(5, placement="fabric", mode="warm")
        assert dayfly.run(sum_of_ranks, ranks=4, client=client, placement="fabric") == [(rank, 6) for rank in range(4)]


def test_fabric_gang_needs_nodes_with_known_fabric(site: Site) -> None:
    manager, _ = site
    with dayfly.connect(manager.state) as client, pytest.raises(dayfly.RequestError, match="--on-fabric"):
        client.gang(2, placement="fabric", mode="warm")


def test_gang_without_room_holds_no_resources(site: Site) -> None:
    manager, _ = site
    with dayfly.connect(manager.state) as client:
        first = client.gang(4, mode="warm")
        with pytest.raises(dayfly.CapacityError, match="room for 2"):
            client.gang(3, mode="warm")
        with client.lease(2, mode="warm"):
            pass  # nothing of the refused one is held
        waiting: list[dayfly.Gang] = []
        waiter = threading.Thread(target=lambda: waiting.append(client.gang(6, mode="warm", wait=30)))
        waiter.start()
        first.shutdown()
        waiter.join(30)
        assert [len(gang) for gang in waiting] == [6]
        waiting[0].shutdown()


def test_program_runs_on_ranks_of_several_nodes(site: Site, tmp_path: Path) -> None:
    manager, _ = site
    script = tmp_path / "sum.py"
    script.write_text("from dayfly import MPI; print(MPI.COMM_WORLD.allreduce(1))")
    environment = manager.client_environment() | {"DAYFLY_PYTHON": sys.executable}
    done = run(program(), "run", "-n", "6", "--placement", "spread", str(script), env=environment, cwd=tmp_path)
    assert sorted(done.stdout.splitlines()) == [f"[{rank}] 6" for rank in range(6)]


def test_surviving_ranks_learn_which_ranks_are_lost(site: Site, tmp_path: Path) -> None:
    manager, nodes = site

    def wait_for_the_lost(place: str) -> str:
        from dayfly import groups

        group = groups.world()
        group.barrier()
        Path(place, str(group.rank)).touch()
        try:
            group.recv()
        except dayfly.GroupError as error:
            return str(error.code)
        return "a message from nobody"

    with dayfly.connect(manager.state) as client, client.gang(3, placement="spread", mode="warm") as gang:
        invitation = invitation_to(client, 3)
        futures = start_ranks(gang, invitation, pack_call(wait_for_the_lost, (str(tmp_path),)))
        wait_until(lambda: len(os.listdir(tmp_path)) == 3, "all ranks wait")
        lost = gang.nodes.index("n1")
        nodes[1].kill_tree()
        # Nobody asks for a result: the lease's helper alone finds out.
        assert cf.wait(futures, timeout=30).not_done == set()
        told = [future.result() for rank, future in enumerate(futures) if rank != lost]
        assert told == ["rank_lost", "rank_lost"]
        assert isinstance(futures[lost].exception(), dayfly.WorkerDied)


def add_up(steps: int, place: str) -> int:
    """Adds numbers up, saves every third step, and waits after the seventh until it may go on."""
    import time

    from dayfly import MPI

    comm, signs = MPI.COMM_WORLD, Path(place)
    checkpoint = dayfly.Checkpoint()
    step, total = checkpoint.load(default=(0, 0))
    (signs / f"from-{step}").touch()
    while step < steps:
        total += comm.allreduce(comm.rank + step)
        step += 1
        if step % 3 == 0:
            checkpoint.save((step, total))
        if step == 7:
            (signs / f"seven-{comm.rank}").touch()
            patience = time.monotonic() + 60
            while not (signs / "go").exists() and time.monotonic() < patience:
                time.sleep(0.005)
    return total


#: What `add_up` of ten steps is on four ranks.
SUM = sum(sum(range(4)) + 4 * step for step in range(10))


@pytest.mark.parametrize("taken", ["reclaimed", "killed"])
def test_run_resumes_elsewhere_from_its_checkpoint(site: Site, tmp_path: Path, taken: str) -> None:
    manager, nodes = site
    with dayfly.connect(manager.state) as client, cf.ThreadPoolExecutor(1) as background:
        running = background.submit(
            dayfly.run,
            add_up,
            ranks=4,
            args=(10, str(tmp_path)),
            client=client,
            checkpoint=tmp_path / "run",
            restarts=1,
        )
        wait_until(lambda: len(list(tmp_path.glob("seven-*"))) == 4, "all ranks are at the seventh step")
        name = next(lease["node"] for lease in client.leases() if lease["state"] == "active")
        node = next(node for node in nodes if node.ready["node"] == name)
        if taken == "reclaimed":
            manager.cli("node", "reclaim", name)
        else:
            node.kill_tree()
        (tmp_path / "go").touch()
        assert running.result(timeout=90) == [SUM] * 4
    assert (tmp_path / "from-6").exists()


def test_run_continues_with_a_new_lease(site: Site, tmp_path: Path) -> None:
    manager, _ = site
    script = tmp_path / "count.py"
    script.write_text(
        "import dayfly, time\n"
        "checkpoint = dayfly.Checkpoint()\n"
        "step = checkpoint.load(0)\n"
        "print('from', step)\n"
        "while step < 40:\n"
        "    time.sleep(0.1)\n"
        "    step += 1\n"
        "    checkpoint.save(step)\n"
        "print('done')\n"
    )
    environment = manager.client_environment() | {"DAYFLY_PYTHON": sys.executable}
    asked = ("--duration", "3s", "--checkpoint", "run", "--restarts", "9")
    done = run(program(), "run", "-n", "2", *asked, str(script), env=environment, cwd=tmp_path)
    lines = [line for line in done.stdout.splitlines() if line.startswith("[0]")]
    assert lines[0] == "[0] from 0"
    assert lines[-1] == "[0] done"
    begun = [int(line.split()[-1]) for line in lines if "from" in line]
    assert len(begun) > 1
    assert begun == sorted(set(begun))
    assert "started again" in done.stderr
