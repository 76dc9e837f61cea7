"""Durable tasks of several ranks, and tasks that find room beside them, on an endpoint."""

from __future__ import annotations

import base64
import concurrent.futures as cf
import itertools
import json
import os
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from harness.daemons import Daemon, free_port
from harness.endpoints import Endpoint, endpoints_of, manager_alone
from harness.leaks import wait_until
from harness.programs import run

dayfly = pytest.importorskip("dayfly", reason="the package is not installed: make build")
cloudpickle.register_pickle_by_value(sys.modules[__name__])

#: Two nodes of two workers come together.
TWO_NODES = ("--nodes-per-block", "2")

needs_open_mpi = pytest.mark.skipif(
    not (shutil.which("mpirun") and shutil.which("mpicc")),
    reason="no Open MPI here. Install with: sudo apt-get install openmpi-bin libopenmpi-dev",
)


@pytest.fixture
def manager(state: Path) -> Iterator[Daemon]:
    with manager_alone(state / "manager", free_port()) as manager:
        yield manager


@pytest.fixture
def endpoint(manager: Daemon, state: Path) -> Iterator[Callable[..., Endpoint]]:
    with endpoints_of(manager, state / "home") as make:
        yield make


@pytest.fixture
def client(manager: Daemon) -> Iterator[dayfly.Client]:
    with dayfly.connect(config=manager.state) as client:
        yield client


def executor_of_rank() -> int:
    """Workers of one lease on one node have the same parent."""
    return os.getppid()


def sum_up(number: int) -> tuple[int, int, int]:
    """The rank, the sum of all ranks' numbers, and where it is."""
    from dayfly import MPI

    comm = MPI.COMM_WORLD
    print(f"rank {comm.rank} has {number}")
    return comm.rank, comm.allreduce(number + comm.rank), executor_of_rank()


def test_ranks_of_a_task_run_at_once(client: dayfly.Client, endpoint: Any) -> None:
    endpoint(*TWO_NODES)
    function = client.register(sum_up, ranks=4)
    assert function.status["resources"]["ranks"] == 4
    batch = client.map(function, range(20), endpoint="here")
    for number, result in enumerate(batch.results(60)):
        assert [rank for rank, _, _ in result] == [0, 1, 2, 3]
        assert {total for _, total, _ in result} == {4 * number + 6}
        assert sorted(Counter(where for _, _, where in result).values()) == [2, 2]
    future = batch[0]
    wait_until(lambda: client.output(future).count("rank") == 4, "all ranks are heard")
    assert sorted(client.output(future).splitlines()) == [f"rank {rank} has 0" for rank in range(4)]


def test_ranks_are_placed_as_requested(client: dayfly.Client, endpoint: Any) -> None:
    endpoint(*TWO_NODES)
    for placement, nodes in (("spread", 2), ("together", 1)):
        with dayfly.Executor("here", client=client, ranks=2, placement=placement) as executor:
            result = executor.submit(sum_up, 1).result(60)
            assert len({where for _, _, where in result}) == nodes


def fail_on_one(rank: int) -> None:
    from dayfly import MPI

    if MPI.COMM_WORLD.rank == rank:
        raise KeyError("only here")
    # Whoever waits for it hears that it has gone.
    MPI.COMM_WORLD.barrier()


def test_exception_of_one_rank_fails_the_task(client: dayfly.Client, endpoint: Any) -> None:
    endpoint(*TWO_NODES)
    with dayfly.Executor("here", client=client, ranks=4) as executor:
        with pytest.raises(KeyError, match="only here"):
            executor.submit(fail_on_one, 2).result(60)
        # The same workers go on.
        assert len(executor.submit(sum_up, 1).result(60)) == 4


def die_at_first(path: str) -> int:
    from dayfly import MPI

    comm = MPI.COMM_WORLD
    if comm.rank == 1 and not os.path.exists(path):
        Path(path).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    comm.barrier()
    return int(comm.size)


def test_only_idempotent_task_is_repeated_after_rank_loss(client: dayfly.Client, endpoint: Any, tmp_path: Path) -> None:
    endpoint(*TWO_NODES)
    with dayfly.Executor("here", client=client, ranks=3) as executor, pytest.raises(dayfly.Error) as raised:
        executor.submit(die_at_first, str(tmp_path / "once")).result(60)
    assert raised.value.code == "maybe_executed"
    with dayfly.Executor("here", client=client, ranks=3, repeatable=True) as executor:
        assert executor.submit(die_at_first, str(tmp_path / "twice")).result(60) == [3, 3, 3]


def linger(directory: str) -> None:
    from dayfly import MPI

    Path(directory, f"{MPI.COMM_WORLD.rank}.{os.getpid()}").touch()
    time.sleep(1000)


def test_all_ranks_end_with_their_task(client: dayfly.Client, endpoint: Any, tmp_path: Path) -> None:
    endpoint(*TWO_NODES)

    def are_gone() -> bool:
        return not any(Path(f"/proc/{path.name.split('.')[1]}").exists() for path in tmp_path.iterdir())

    with dayfly.Executor("here", client=client, ranks=4, walltime=1) as executor:
        with pytest.raises(dayfly.DeadlineExceeded):
            executor.submit(linger, str(tmp_path)).result(60)
        wait_until(are_gone, "no rank is left")
    with dayfly.Executor("here", client=client, ranks=4) as executor:
        future = executor.submit(linger, str(tmp_path))
        wait_until(lambda: len(list(tmp_path.iterdir())) == 8, "all run", 60)
        future.kill()
        with pytest.raises(cf.CancelledError):
            future.result(30)
        wait_until(are_gone, "no rank is left")


def test_reclaimed_node_ends_tasks_of_its_ranks(client: dayfly.Client, endpoint: Any, tmp_path: Path) -> None:
    here = endpoint(*TWO_NODES, "--max-blocks", "2")
    with dayfly.Executor("here", client=client, ranks=4, repeatable=True) as executor:
        future = executor.submit(die_with_its_node, str(tmp_path / "first"))
        assert future.result(100) == [4, 4, 4, 4]
    assert len(here.blocks) >= 1


def die_with_its_node(path: str) -> int:
    from dayfly import MPI

    comm = MPI.COMM_WORLD
    if comm.rank == 3 and not os.path.exists(path):
        Path(path).touch()
        process = os.getpid()
        while True:
            if b"--join" in Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0"):
                os.kill(process, signal.SIGKILL)
                time.sleep(100)
            status = Path(f"/proc/{process}/status").read_text()
            process = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("PPid:"))
    comm.barrier()
    return int(comm.size)


def test_too_many_ranks_are_refused(client: dayfly.Client, endpoint: Any) -> None:
    here = endpoint(*TWO_NODES)
    for asked, words in (
        ({"ranks": 5}, "5 workers of 1 cores, packed, and this endpoint has 2 nodes of 2 cores at most"),
        ({"ranks": 3, "placement": "together"}, "3 workers of 1 cores, together"),
        ({"cores": 3}, "1 workers of 3 cores"),
    ):
        with (
            dayfly.Executor("here", client=client, **asked) as executor,
            pytest.raises(dayfly.Error, match=words) as refused,
        ):
            executor.submit(abs, 1).result(30)
        assert refused.value.code == "too_large"
    assert here.blocks == []
    with pytest.raises(dayfly.Error, match="4096 are allowed"):
        client.register(sum_up, ranks=5000)
    with dayfly.Executor("here", client=client, ranks=2) as executor, pytest.raises(ValueError, match="chunksize"):
        executor.map(abs, range(3), chunksize=2)


def note(directory: str, task: int, seconds: float) -> tuple[float, float]:
    """When it began and ended."""
    began = time.monotonic()
    time.sleep(seconds)
    Path(directory, str(task)).touch()
    return began, time.monotonic()


def test_tasks_never_use_more_cores_than_exist(client: dayfly.Client, endpoint: Any, tmp_path: Path) -> None:
    endpoint("--max-blocks", "1")
    wide = client.map(note, [str(tmp_path)] * 4, range(4), [0.2] * 4, endpoint="here", cores=2)
    times = sorted(wide.results(60))
    for (_, before), (after, _) in itertools.pairwise(times):
        assert before <= after, "two at once on the cores of one"


def test_later_tenant_gets_a_fair_share(client: dayfly.Client, endpoint: Any, tmp_path: Path) -> None:
    endpoint(*TWO_NODES)
    places = {name: tmp_path / name for name in ("many", "wide", "gang")}
    for place in places.values():
        place.mkdir()
    many = client.batch(endpoint="here")
    many.extend(note, [str(places["many"])] * 3_000, range(3_000), [0.05] * 3_000)
    wait_until(lambda: many.done() > 20, "they go on", 60)
    # Each of these is of another kind, for which workers are to be found first.
    wide = client.map(note, [str(places["wide"])] * 3, range(3), [0.05] * 3, endpoint="here", cores=2, priority=1)
    assert len(list(wide.results(60))) == 3
    gang = client.map(sum_up, range(3), endpoint="here", ranks=4, priority=1)
    assert [len(result) for result in gang.results(60)] == [4, 4, 4]
    assert many.done() < 3_000
    done = many.done()
    wait_until(lambda: many.done() > done + 100, "the many go on", 60)
    many.kill()


def test_program_without_python_runs_ranks(manager: Daemon, endpoint: Any) -> None:
    endpoint()
    source = (
        "def share(total):\n"
        "    from dayfly import MPI\n"
        "    world = MPI.COMM_WORLD\n"
        "    return {'rank': world.rank, 'part': total / world.size}\n"
    )
    function = {
        "form": {"form": "source", "entry": "share"},
        "code": base64.b64encode(source.encode()).decode(),
        "resources": {"ranks": 2},
    }
    status, registered = manager.post("/v1/functions", function)
    assert status == 201, registered
    assert registered["resources"]["ranks"] == 2
    call = {"function": registered["id"], "endpoint": "here", "tasks": [{"call": {"arguments": [10]}}]}
    status, accepted = manager.post("/v1/tasks", call)
    assert status == 201, accepted
    _, outcome = manager.ask("GET", f"/v1/tasks/{accepted['tasks'][0]}/outcome?wait_ms=30000")
    assert json.loads(outcome)["result"] == [{"rank": 0, "part": 5.0}, {"rank": 1, "part": 5.0}]
    # A library is called by no rank.
    library = function | {"form": {"form": "plain", "symbol": "f"}, "runtime": {"kind": "native"}}
    status, refused = manager.post("/v1/functions", library)
    assert (status, refused["error"]["code"]) == (422, "load_failed")


HELLO = r"""
#include <mpi.h>
#include <stdio.h>
#include <unistd.h>
int main(int count, char **words) {
    int rank, size, sum;
    char host[64];
    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    gethostname(host, sizeof host);
    printf("%s: rank %d of %d on %s, %d\n", words[1], rank, size, host, sum);
    MPI_Finalize();
    return 0;
}
"""


@needs_open_mpi
def test_mpi_program_runs_on_ranks_without_ssh(client: dayfly.Client, endpoint: Any, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("a host name of its own for each node needs root")
    (tmp_path / "hello.c").write_text(HELLO)
    run("mpicc", str(tmp_path / "hello.c"), "-o", str(tmp_path / "hello"))
    # Nodes that take themselves for two hosts, which reach each other by the loopback.
    script = tmp_path / "dayfly"
    script.write_text(
        "#!/bin/sh\n"
        "export OMPI_MCA_oob_tcp_if_include=lo OMPI_MCA_btl_tcp_if_include=lo\n"
        f'exec unshare --uts sh -c \'hostname host-$DAYFLY_RANK; exec {shutil.which("dayfly")} "$@"\' dayfly "$@"\n'
    )
    script.chmod(0o755)
    here = endpoint(*TWO_NODES, start=False)
    configuration = here.directory / "endpoint.toml"
    configuration.write_text(configuration.read_text().replace('program = ""', f'program = "{script}"'))
    here.start()
    hello = client.register(dayfly.MPICommand(f"{tmp_path}/hello {{word}}"), ranks=4)
    with dayfly.Executor("here", client=client) as executor:
        first, *others = executor.submit(hello, "two words").result(60)
        assert others == [None] * 3
        lines = sorted(line for line in first.splitlines() if "rank" in line)
        assert [line.split(" on ")[0] for line in lines] == [f"two words: rank {rank} of 4" for rank in range(4)]
        assert Counter(line.split(" on ")[1] for line in lines) == {"host-0, 6": 2, "host-1, 6": 2}
        failing = client.register(dayfly.MPICommand("/bin/false"), ranks=4)
        with pytest.raises(dayfly.CommandError, match="ended with status 1"):
            executor.submit(failing).result(60)
        # What has its own launcher is started by that.
        own = client.register(dayfly.MPICommand("echo", launcher="echo {ranks} on {hosts}: "), ranks=4)
        first = executor.submit(own).result(60)[0]
        assert sorted(first.split(": ")[0].split(" ", 2)[2].split(",")) == ["host-0", "host-0", "host-1", "host-1"]
