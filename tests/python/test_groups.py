"""Functions that exchange messages: `dayfly.run`, with MPI and with groups of Dayfly alone."""

from __future__ import annotations

import json
import operator
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import cloudpickle
import dayfly
import numpy as np
import pytest
from dayfly import MPI, groups
from dayfly._groups.run import invitation_to, pack_call, start_ranks
from dayfly._native import Communicator
from harness.leaks import die_with_parent
from harness.programs import run_python

cloudpickle.register_pickle_by_value(sys.modules[__name__])

#: Class of MPI's errors for lost ranks, `MPIX_ERR_PROC_FAILED`. mpi4py's wheels have no name for it.
PROC_FAILED = 101


@pytest.fixture(scope="module")
def client():
    with dayfly.connect() as client:
        yield client


def buffers(size_of):
    """Every operation on buffers, compared on every rank with NumPy's result for all data."""
    comm = MPI.COMM_WORLD
    rank, size = comm.Get_rank(), comm.Get_size()
    n = size_of
    everybody = [np.arange(n, dtype="d") * (r + 1) + r for r in range(size)]
    own = everybody[rank]

    def same(found, expected):
        np.testing.assert_allclose(found, expected, rtol=1e-12)

    copy = own.copy() if rank == 1 % size else np.zeros(n)
    comm.Bcast(copy, root=1 % size)
    same(copy, everybody[1 % size])
    total = np.empty(n)
    comm.Allreduce(own, total)
    same(total, sum(everybody))
    comm.Allreduce([own, MPI.DOUBLE], [total, n, MPI.DOUBLE], op=MPI.MAX)
    same(total, np.max(everybody, axis=0))
    in_place = own.copy()
    comm.Allreduce(MPI.IN_PLACE, in_place, op=MPI.PROD)
    same(in_place, np.prod(everybody, axis=0))
    root_only = np.full(n, -1.0)
    comm.Reduce(own, root_only if rank == 0 else None, op=MPI.SUM, root=0)
    same(root_only, sum(everybody) if rank == 0 else np.full(n, -1.0))
    gathered = np.empty((size, n))
    comm.Allgather(own, gathered)
    same(gathered, everybody)
    comm.Gather(own, gathered if rank == 0 else None, root=0)
    part = np.empty(n)
    comm.Scatter(np.array(everybody) if rank == 0 else None, part, root=0)
    same(part, own)
    mixed = np.empty((size, n))
    comm.Alltoall(np.array([own + 100 * r for r in range(size)]), mixed)
    same(mixed, [everybody[r] + 100 * rank for r in range(size)])
    counts = [r + 1 for r in range(size)]
    mine = np.full(rank + 1, rank, dtype="i4")
    packed = np.empty(sum(counts), dtype="i4")
    comm.Allgatherv(mine, [packed, counts, MPI.INT])
    same(packed, np.repeat(np.arange(size), counts))
    comm.Gatherv(mine, [packed, counts, MPI.INT] if rank == 0 else None, root=0)
    comm.Scatterv([packed, counts, MPI.INT] if rank == 0 else None, mine, root=0)
    same(mine, rank)
    out = np.repeat(np.arange(size, dtype="i4") + 10 * rank, counts)
    came = np.empty((rank + 1) * size, dtype="i4")
    comm.Alltoallv([out, counts, MPI.INT], [came, [rank + 1] * size, MPI.INT])
    same(came, np.repeat([rank + 10 * r for r in range(size)], rank + 1))
    starts = [4 * sum(counts[:r]) for r in range(size)]
    places = [4 * (rank + 1) * r for r in range(size)]
    came[:] = -1
    types = [MPI.INT] * size
    comm.Ialltoallw([out, counts, starts, types], [came, ([rank + 1] * size, places), types]).Wait()
    same(came, np.repeat([rank + 10 * r for r in range(size)], rank + 1))
    up_to = np.empty(n)
    comm.Scan(own, up_to)
    same(up_to, sum(everybody[: rank + 1]))
    before = np.full(n, -7.0)
    comm.Exscan(own, before)
    same(before, sum(everybody[:rank]) if rank else np.full(n, -7.0))
    slice_of = np.empty(n)
    comm.Reduce_scatter_block(np.array(everybody), slice_of)
    same(slice_of, everybody[rank] * size)
    pairs = np.array([(own[0] if n else 0.0, rank)], dtype=np.dtype([("v", "f8"), ("at", "i4")], align=True))
    largest = np.empty_like(pairs)
    comm.Allreduce([pairs, 1, MPI.DOUBLE_INT], [largest, 1, MPI.DOUBLE_INT], op=MPI.MAXLOC)
    assert largest["at"][0] == (size - 1 if n else 0)
    # All operations at once in the background.
    a, b, c = np.empty(n), own.copy() if rank == 0 else np.empty(n), np.empty((size, n))
    requests = [comm.Iallreduce(own, a), comm.Ibcast(b, root=0), comm.Iallgather(own, c), comm.Ibarrier()]
    MPI.Request.Waitall(requests)
    same(a, sum(everybody))
    same(b, everybody[0])
    same(c, everybody)
    return rank


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("count", [0, 3, 20_000])
def test_buffer_collectives_match_a_single_process(client, ranks, count):
    assert dayfly.run(buffers, ranks=ranks, args=(count,), client=client, timeout=60) == list(range(ranks))


@pytest.mark.parametrize("count", [3, 20_000])
def test_collectives_without_network_match_a_single_process(client, count):
    found = dayfly.run(buffers, ranks=3, args=(count,), client=client, timeout=60, sandbox="isolated")
    assert found == [0, 1, 2]


def objects():
    comm = MPI.COMM_WORLD
    rank, size = comm.rank, comm.size
    assert comm.bcast({"from": rank}, root=size - 1) == {"from": size - 1}
    assert comm.gather("x" * rank, root=0) == (["x" * r for r in range(size)] if rank == 0 else None)
    assert comm.allgather((rank, None)) == [(r, None) for r in range(size)]
    assert comm.scatter([[r] * r for r in range(size)] if rank == 0 else None, root=0) == [rank] * rank
    assert comm.alltoall([f"{rank}>{r}" for r in range(size)]) == [f"{r}>{rank}" for r in range(size)]
    assert comm.allreduce(rank, op=MPI.MAX) == size - 1
    assert comm.allreduce([rank], op=operator.add) == list(range(size)), "in the order of the ranks"
    assert comm.reduce(rank + 1, op=MPI.PROD, root=0) == (np.prod(range(1, size + 1)) if rank == 0 else None)
    assert comm.scan(rank) == sum(range(rank + 1))
    # Messages in a circle, from any source, and as futures.
    assert comm.sendrecv({"r": rank}, (rank + 1) % size, source=(rank - 1) % size) == {"r": (rank - 1) % size}
    if rank == 0:
        status = MPI.Status()
        seen = {comm.recv(source=MPI.ANY_SOURCE, tag=7, status=status) + status.Get_source() for _ in range(size - 1)}
        assert seen == {2 * r for r in range(1, size)}
    else:
        comm.send(rank, 0, tag=7)
    requests = [comm.isend([rank, r], r, tag=1) for r in range(size)] + [
        comm.irecv(source=r, tag=1) for r in range(size)
    ]
    assert MPI.Request.waitall(requests)[size:] == [[r, rank] for r in range(size)]
    large = comm.bcast(np.arange(300_000) if rank == 0 else None)
    assert large.sum() == np.arange(300_000).sum()
    half = comm.Split(rank % 2, key=-rank)
    assert half.allgather(rank) == sorted((r for r in range(size) if r % 2 == rank % 2), reverse=True)
    assert (comm.Split(MPI.UNDEFINED if rank else 0) == MPI.COMM_NULL) == (rank > 0)
    other = comm.Dup()
    comm.send("for the first", (rank + 1) % size)
    other.send("for the second", (rank + 1) % size)
    assert (other.recv(), comm.recv()) == ("for the second", "for the first")
    assert comm.Split_type(MPI.COMM_TYPE_SHARED).size == size
    return "done"


@pytest.mark.parametrize(("ranks", "sandbox"), [(2, "process"), (4, "process"), (4, "isolated")])
def test_objects_travel_and_communicators_split(client, ranks, sandbox):
    assert dayfly.run(objects, ranks=ranks, client=client, timeout=60, sandbox=sandbox) == ["done"] * ranks


def composed(left, right, datatype):
    """Multiplies two-by-two matrices, whose order matters."""
    a, b = np.frombuffer(left, "d").reshape(-1, 2, 2), np.frombuffer(right, "d").reshape(-1, 2, 2)
    b[:] = a @ b


def products():
    comm = MPI.COMM_WORLD
    matrices = [np.array([[1.0, r + 1], [0.5, 1.0]]) for r in range(comm.size)]
    found = np.empty((2, 2))
    comm.Allreduce(matrices[comm.rank], found, op=MPI.Op.Create(composed, commute=False))
    return found.tolist(), np.linalg.multi_dot(matrices).tolist()


def test_user_operation_keeps_the_rank_order(client):
    for found, expected in dayfly.run(products, ranks=3, client=client, timeout=60):
        np.testing.assert_allclose(found, expected)


def test_exception_on_one_rank_ends_all_ranks(client):
    def work():
        comm = MPI.COMM_WORLD
        if comm.rank == 1:
            raise ValueError("on purpose")
        comm.Barrier()

    begin = time.monotonic()
    with pytest.raises(ValueError, match="on purpose"):
        dayfly.run(work, ranks=3, client=client, timeout=60)
    assert time.monotonic() - begin < 20


def test_mismatched_calls_of_ranks_are_reported(client):
    def work():
        comm = MPI.COMM_WORLD
        if comm.rank == 0:
            comm.Bcast(np.zeros(4), root=0)
        else:
            comm.Allreduce(np.zeros(4), np.zeros(4))

    with pytest.raises(dayfly.GroupError) as caught:
        dayfly.run(work, ranks=2, client=client, timeout=60)
    assert caught.value.code == "mismatch"


def outlive_a_killed_rank(folder, *, met):
    """Kills rank 1 before or after the ranks connect. The others continue, and store what they observed."""
    comm, group = MPI.COMM_WORLD, groups.world()
    if met:
        comm.Barrier()
        # A rank that left may be ahead of others, which would notice the loss too soon.
        Path(folder, f"met-{comm.rank}").touch()
        until = time.monotonic() + 30
        while comm.rank == 1 and len(list(Path(folder).glob("met-*"))) < comm.size and time.monotonic() < until:
            time.sleep(0.01)
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        comm.Barrier()
    except MPI.Exception as error:
        left = comm.Create_group(comm.group.Incl(group.shrink().members))
        found = error.Get_error_class() == PROC_FAILED, str(error), left.allreduce(comm.rank)
        Path(folder, str(comm.rank)).write_text(json.dumps(found))


def lose_one_of(ranks, folder, client, *, met=True, **options):
    """Kills one rank. All others learn which one, and form a group without it."""
    with pytest.raises(dayfly.WorkerDied):
        dayfly.run(
            outlive_a_killed_rank,
            ranks=ranks,
            args=(str(folder),),
            kwargs={"met": met},
            client=client,
            timeout=60,
            **options,
        )
    others = [rank for rank in range(ranks) if rank != 1]
    for rank in others:
        is_lost, text, total = json.loads((folder / str(rank)).read_text())
        assert is_lost
        assert "rank 1" in text
        assert total == sum(others)


def test_killed_rank_is_reported_and_others_continue(client, tmp_path):
    lose_one_of(3, tmp_path, client)


@pytest.mark.parametrize("sandbox", ["process", "isolated"])
def test_lazily_connected_ranks_support_all_operations(client, sandbox):
    options = {"client": client, "sandbox": sandbox, "lazy_connect": True, "timeout": 60}
    assert dayfly.run(buffers, ranks=3, args=(1000,), **options) == [0, 1, 2]
    assert dayfly.run(objects, ranks=4, **options) == ["done"] * 4


def test_lazy_ranks_have_only_needed_connections(client):
    def work():
        group = groups.world()
        before = group.ways
        if group.rank < 2:
            group.send(group.rank, 1 - group.rank)
            group.recv(1 - group.rank)
        return before, group.ways

    found = dayfly.run(work, ranks=3, client=client, timeout=60, lazy_connect=True)
    assert [before for before, _ in found] == [[None] * 3] * 3
    assert [after for _, after in found] == [[None, "local", None], ["local", None, None], [None] * 3]


def test_rank_killed_before_its_first_contact_is_reported(client, tmp_path):
    lose_one_of(4, tmp_path, client, met=False, lazy_connect=True)


def objects_of_a_group():
    group = groups.world()
    rank, size = group.rank, group.size
    assert group.bcast({"from": rank}, root=size - 1) == {"from": size - 1}
    assert group.gather("x" * rank, root=0) == (["x" * r for r in range(size)] if rank == 0 else None)
    assert group.allgather((rank, None)) == [(r, None) for r in range(size)]
    large = group.bcast(np.arange(300_000) if rank == 0 else None)
    assert large.sum() == np.arange(300_000).sum()
    if rank == 0:
        found = [group.receive(tag=7) for _ in range(size - 1)]
        assert sorted(found) == [(2 * r, r, 7) for r in range(1, size)]
    else:
        group.send("first", 0, tag=6)
        group.send(2 * rank, 0, tag=7)
    group.barrier()
    assert group.has_message() == (rank == 0 and size > 1)
    assert rank or [group.recv(r, 6) for r in range(1, size)] == ["first"] * (size - 1)
    half = group.split(rank % 2, key=-rank)
    assert half.allgather(rank) == sorted((r for r in range(size) if r % 2 == rank % 2), reverse=True)
    assert (group.split(None if rank else 0) is None) == (rank > 0)
    return "done"


@pytest.mark.parametrize(("ranks", "sandbox"), [(1, "process"), (4, "process"), (3, "isolated")])
def test_groups_exchange_objects_without_mpi(client, ranks, sandbox):
    assert dayfly.run(objects_of_a_group, ranks=ranks, client=client, timeout=60, sandbox=sandbox) == ["done"] * ranks


def continue_without_the_lost():
    group = groups.world()
    if group.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        group.recv(1)
    except dayfly.GroupError as error:
        left = group.shrink()
        return error.code, sum(left.allgather(group.rank))


def test_group_reports_lost_rank_and_shrinks(client):
    with client.gang(3, mode="warm") as gang:
        futures = start_ranks(gang, invitation_to(client, 3), pack_call(continue_without_the_lost))
        assert [futures[rank].result(30) for rank in (0, 2)] == [("rank_lost", 2)] * 2


def test_process_without_group_has_one_rank():
    run_python(
        """
        from dayfly import MPI, groups
        import dayfly.MPI, mpi4py.MPI
        assert dayfly.MPI is mpi4py.MPI is MPI
        comm = MPI.COMM_WORLD
        assert (comm.rank, comm.size) == (0, 1)
        assert comm.allreduce(5) == 5
        assert comm.bcast("x") == "x"
        assert groups.world().allgather("x") == ["x"]
        """
    )


def test_mpi_without_mpi4py_names_the_extra():
    run_python(
        """
        import sys
        sys.modules["mpi4py"] = None
        import dayfly
        try:
            from dayfly import MPI
        except ImportError as error:
            assert "dayfly[mpi]" in str(error), error
        else:
            raise AssertionError("imported")
        """
    )


def test_other_library_in_mpi4py_is_refused(tmp_path):
    # Stands for an mpi4py that was compiled with another MPI.
    module = tmp_path / "mpi4py"
    module.mkdir()
    (module / "__init__.py").touch()
    (module / "MPI.py").write_text("def Get_library_version(): return 'Other MPI v4.1, and more'")
    run_python(
        """
        try:
            from dayfly import MPI
        except ImportError as error:
            assert "mpi4py uses Other MPI v4.1 in this process" in str(error), error
        else:
            raise AssertionError("imported")
        """,
        PYTHONPATH=str(tmp_path),
    )


@pytest.mark.parametrize("order", ["MPI, groups", "groups, MPI"])
def test_foreign_processes_form_groups_by_shared_secret(client, order):
    place = client.rendezvous()
    invitation = {"rendezvous": place["address"], "key": place["key"], "name": order, "secret": "ab" * 16, "size": 3}
    program = textwrap.dedent(
        f"""
        import importlib
        for name in {order.split(", ")!r}:
            module = importlib.import_module("dayfly." + name)
            if name == "MPI":
                comm = module.COMM_WORLD
            else:
                group = module.world()
        # Both number the ranks in the same way, though the invitation does not.
        assert group.rank == comm.rank
        print(comm.allreduce(comm.rank), group.allgather(comm.rank))
        """
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"DAYFLY_GROUP": json.dumps(invitation)},
            preexec_fn=die_with_parent,  # noqa: PLW1509 (one call, loaded before)
        )
        for _ in range(3)
    ]
    assert [process.communicate(timeout=60)[0] for process in processes] == ["3 [0, 1, 2]\n"] * 3


def test_incomplete_group_names_the_missing_ranks(client):
    place = client.rendezvous()
    invitation = {"rendezvous": place["address"], "key": place["key"], "name": "lonely", "secret": "ab" * 16, "size": 3}
    text = json.dumps(invitation | {"rank": 1, "patience_s": 1})
    with pytest.raises(dayfly.Error, match="0, 2") as caught:
        Communicator.join(text)
    assert caught.value.code == "timed_out"
    run_python(
        """
        import dayfly
        try:
            from dayfly import MPI
        except dayfly.Error as error:
            assert error.code == "timed_out" and "0, 2" in str(error), error
        else:
            raise AssertionError("imported")
        """,
        DAYFLY_GROUP=text,
    )


def beyond_what_32_bits_count(length):
    """A message and a collective of more bytes than a signed 32-bit number counts."""
    comm, status = MPI.COMM_WORLD, MPI.Status()
    data = np.zeros(length, dtype="u1")
    places = [0, length // 2, length - 1]
    if comm.rank == 0:
        data[places] = [7, 3, 9]
    comm.Bcast(data, root=0)
    found = [data[places].tolist(), int(np.count_nonzero(data))]
    if comm.rank == 0:
        comm.Send(data, 1)
        return found
    data[:] = 0
    comm.Recv(data, 0, status=status)
    return [*found, data[places].tolist(), status.Get_count(MPI.BYTE)]


@pytest.mark.soak
def test_message_of_more_than_2_gib_arrives(client):
    length = (1 << 31) + 4097
    first, second = dayfly.run(beyond_what_32_bits_count, ranks=2, client=client, args=(length,), memory=10 << 30)
    assert first == [[7, 3, 9], 3]
    assert second == [[7, 3, 9], 3, [7, 3, 9], length]
