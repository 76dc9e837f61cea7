"""The real mpi4py in tasks of several ranks: each task has a world of its own, also in workers that serve many."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import cloudpickle
import dayfly
import pytest
from dayfly._groups.rank import run_rank
from dayfly._groups.run import group_settings, invitation_to, pack_call
from harness.daemons import Daemon, free_port
from harness.endpoints import endpoints_of, manager_alone
from harness.sites import several_nodes

cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture
def manager(start: Callable[..., Daemon]) -> Daemon:
    """A manager with a node of two warm workers."""
    return several_nodes(start, nodes=1, workers=2)[0]


def results_of(
    client: dayfly.Client, gang: dayfly.Gang, function: Callable[..., Any], *args: Any, ranks: tuple[int, ...] = (0, 1)
) -> list[Any]:
    """Runs a function as a group on the workers of a gang, which have these ranks. Returns results or exceptions."""
    group = invitation_to(client, len(ranks)) | group_settings(0.0005, None, None, "direct")
    futures = [
        gang.rank(place).submit(run_rank, json.dumps(group | {"rank": rank}), pack_call(function, args), {})
        for place, rank in enumerate(ranks)
    ]
    return [future.exception(60) or future.result() for future in futures]


def describe() -> tuple[int, int, int, str]:
    """The process, its rank, the rank that the other one sent, and the library."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    other = comm.sendrecv(comm.rank, dest=1 - comm.rank, source=1 - comm.rank)
    assert comm.allreduce(comm.rank) == 1
    return os.getpid(), comm.rank, other, MPI.Get_library_version().split()[0]


def test_warm_workers_serve_tasks_with_other_ranks(manager: Daemon) -> None:
    with dayfly.connect(manager.state) as client, client.gang(2, mode="warm") as gang:
        first = results_of(client, gang, describe)
        second = results_of(client, gang, describe)
        third = results_of(client, gang, describe, ranks=(1, 0))
    assert [one[1:] for one in first] == [(0, 1, "Dayfly"), (1, 0, "Dayfly")]
    assert second == first
    assert [one[0] for one in third] == [one[0] for one in first], "the same processes"
    assert [one[1:3] for one in third] == [(1, 0), (0, 1)]


def keep() -> None:
    """Makes objects that outlive the task, and messages that nobody receives."""
    import mpi4py
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    world.Set_name("mine")
    memory = bytearray(64)
    mpi4py.kept = [  # type: ignore[attr-defined]
        world.Dup(),
        MPI.Win.Create(memory, comm=world),
        world.irecv(source=1 - world.rank, tag=7),
        MPI.INT.Create_vector(2, 1, 2).Commit(),
    ]
    world.isend("lost", dest=1 - world.rank, tag=8)
    MPI.Attach_buffer(bytearray(1 << 16))


def use_kept() -> tuple[list[int], str, int]:
    """The classes of the errors of what another task has kept, the name of the world, and the size of a datatype."""
    import mpi4py
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    own = world.Dup()
    comm, window, _, datatype = mpi4py.kept  # type: ignore[attr-defined]
    classes = []
    for use in (comm.Get_rank, window.Get_attr, comm.Barrier):
        try:
            use(MPI.WIN_BASE) if use == window.Get_attr else use()
        except MPI.Exception as error:
            classes.append(error.Get_error_class())
    assert not world.iprobe(tag=8)
    assert own.allreduce(1) == 2
    MPI.Attach_buffer(bytearray(1 << 16))
    return classes, world.Get_name(), datatype.Get_size()


def test_objects_of_earlier_tasks_are_invalid(manager: Daemon) -> None:
    with dayfly.connect(manager.state) as client, client.gang(2, mode="warm") as gang:
        assert results_of(client, gang, keep) == [None, None]
        for classes, name, size in results_of(client, gang, use_kept):
            assert (classes, name, size) == ([5, 45, 5], "MPI_COMM_WORLD", 8)


def fail_on_rank_1(how: str) -> str:
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    comm.Barrier()
    if comm.rank == 1:
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise ValueError("for a reason")
    try:
        comm.recv(source=1)
    except MPI.Exception as error:
        return str(error)
    return "a message from nobody"


@pytest.mark.parametrize("how", ["raise", "kill"])
def test_failed_task_leaves_next_a_fresh_world(manager: Daemon, how: str) -> None:
    with dayfly.connect(manager.state) as client, client.gang(2, mode="warm") as gang:
        first = results_of(client, gang, describe)
        survivor, failed = results_of(client, gang, fail_on_rank_1, how)
        assert "rank 1" in survivor
        assert isinstance(failed, ValueError if how == "raise" else dayfly.WorkerDied)
        after = results_of(client, gang, describe)
    assert [one[1:3] for one in after] == [(0, 1), (1, 0)]
    assert after[0][0] == first[0][0]


def fail_alone(how: str) -> None:
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    if how == "misuse":
        comm.send(None, dest=5)
    if comm.rank == 1:
        raise ValueError("for a reason")
    comm.recv(source=1)


def test_exceptions_of_mpi4py_reach_the_caller(manager: Daemon) -> None:
    with dayfly.connect(manager.state) as client:
        with client.gang(2, mode="warm") as gang:
            lost, failed = results_of(client, gang, fail_alone, "raise")
            misused, _ = results_of(client, gang, fail_alone, "misuse")
        assert isinstance(lost, dayfly.GroupError)
        assert lost.code == "rank_lost"
        assert isinstance(failed, ValueError)
        assert isinstance(misused, dayfly.RemoteError)
        assert "MPI_ERR_RANK" in str(misused)
        with pytest.raises(ValueError, match="for a reason"):
            dayfly.run(fail_alone, ranks=2, args=("raise",), client=client)


def finalize_itself() -> int:
    from mpi4py import MPI

    total: int = MPI.COMM_WORLD.allreduce(1)
    MPI.Finalize()
    assert MPI.Is_finalized()
    return total


def alone() -> tuple[int, str, bool]:
    """The size of the world, the library, and whether a variable names it."""
    from mpi4py import MPI

    return MPI.COMM_WORLD.size, MPI.Get_library_version().split()[0], "MPI4PY_LIBMPI" in os.environ


def test_functions_may_finalize_or_be_alone(manager: Daemon) -> None:
    with dayfly.connect(manager.state) as client, client.gang(2, mode="warm") as gang:
        # The first import in the process is that of a function that is no rank.
        assert gang.rank(0).call(alone) == (1, "Dayfly", False)
        assert results_of(client, gang, finalize_itself) == [2, 2]
        assert gang.rank(0).call(alone) == (1, "Dayfly", False)
        assert results_of(client, gang, finalize_itself) == [2, 2]


def join_twice() -> tuple[int, list[int], bool]:
    import mpi4py.MPI
    from dayfly import MPI, groups

    group = groups.world()
    assert group.rank == MPI.COMM_WORLD.rank
    return MPI.COMM_WORLD.allreduce(group.rank), group.allgather(group.rank), MPI is mpi4py.MPI


def test_function_uses_mpi_and_own_groups(manager: Daemon) -> None:
    with dayfly.connect(manager.state) as client, client.gang(2, mode="warm") as gang:
        for _ in range(2):
            assert results_of(client, gang, join_twice) == [(1, [0, 1], True)] * 2


def test_group_that_cannot_be_joined_spares_workers(manager: Daemon) -> None:
    """Neither the first import of MPI in a process nor a later task ends it."""
    with dayfly.connect(manager.state) as client, client.gang(2, mode="warm") as gang:
        for _ in range(2):
            group = invitation_to(client, 2) | {"patience_s": 1, "rank": 1}
            alone = gang.rank(0).submit(run_rank, json.dumps(group), pack_call(describe), {})
            error = alone.exception(60)
            assert isinstance(error, dayfly.Error), error
            assert (error.code, "rank 0" in str(error) or ": 0" in str(error)) == ("timed_out", True), error
            found = results_of(client, gang, describe)
            assert [one[1:3] for one in found] == [(0, 1), (1, 0)]


def test_mpi4py_runs_in_isolated_sandboxes(start: Callable[..., Daemon]) -> None:
    manager, _ = several_nodes(start, 2, 2, "isolated", "--python", sys.executable)
    with dayfly.connect(manager.state) as client, client.gang(2, mode="warm", placement="spread") as gang:
        for ranks in ((0, 1), (1, 0)):
            found = results_of(client, gang, describe, ranks=ranks)
            assert [one[1:] for one in found] == [(rank, 1 - rank, "Dayfly") for rank in ranks]
            assert results_of(client, gang, join_twice, ranks=ranks) == [(1, [0, 1], True)] * 2


def test_endpoint_tasks_have_worlds_of_mpi4py(state: Any) -> None:
    with (
        manager_alone(state / "manager", free_port()) as manager,
        endpoints_of(manager, state / "home") as endpoint,
        dayfly.connect(config=manager.state) as client,
    ):
        endpoint()
        with dayfly.Executor("here", client=client, ranks=2) as executor:
            tasks = [executor.submit(describe).result(60) for _ in range(3)]
    for task in tasks:
        assert [one[1:] for one in task] == [(0, 1, "Dayfly"), (1, 0, "Dayfly")]
    assert len({tuple(one[0] for one in task) for task in tasks}) == 1, "the same processes"
