"""Two ranks or more under mpirun, for tests/test_mpi_accelerator.py. Takes what to do, as bindings/cxx/tests/mpi.cpp:

pair   until the ranks with a lease and the ranks with private workers are all that there are, then compute
alone  compute without any leased worker
hang   as `pair`; then print the process ids of all ranks and wait to be killed
lose   as `pair`; then compute while the node of a private worker is killed, and until all ranks have workers again
end    as `pair`; then compute while the node of the lease is killed, and until no rank has workers
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import dayfly
from dayfly.accelerator import Accelerator, Pairing
from mpi4py import MPI

STEPS = 10
ITEMS = 200
LIMIT_S = 60
comm = MPI.COMM_WORLD


def place_and_square(number: int) -> tuple[int, int]:
    """Returns the process that computes, and the square."""
    time.sleep(0.0005)  # work
    return os.getpid(), number * number


def kill_node(number: int) -> tuple[int, int]:
    """Kills the node of this worker, and waits to be ended with it."""
    # The node starts an executor, which forks workers.
    executor = Path(f"/proc/{os.getppid()}/stat").read_text()
    os.kill(int(executor.rpartition(")")[2].split()[1]), 9)
    time.sleep(LIMIT_S)
    return os.getpid(), number * number


def square_or_kill_node(item: tuple[int, int]) -> tuple[int, int]:
    """As `place_and_square` in the process of the item, and `kill_node` elsewhere."""
    process, number = item
    return place_and_square(number) if os.getpid() == process else kill_node(number)


def compute(accelerator: Accelerator) -> int:
    """Runs supersteps over numbers of this rank. Returns how many of them workers computed."""
    remote = 0
    for step in range(STEPS):
        accelerator.exchange()
        numbers = [number + step + 1000 * comm.rank for number in range(ITEMS)]
        call = accelerator.submit(pow, step, 2)
        results = accelerator.share(place_and_square, numbers)
        assert [value for _, value in results] == [number * number for number in numbers]
        assert call.result() == step * step
        remote += sum(place != os.getpid() for place, _ in results)
    return remote


def exchange_until(accelerator: Accelerator, what: str, is_so: Callable[[Pairing], bool]) -> Pairing:
    """Runs supersteps without work until all ranks find that something is so."""
    until = time.monotonic() + LIMIT_S
    while True:
        pairing = accelerator.exchange()
        if is_so(pairing):
            return pairing
        # One rank decides for all.
        if comm.bcast(time.monotonic() > until):
            print(f"rank {comm.rank}: not {what}: {pairing}; {accelerator.refusal}", file=sys.stderr, flush=True)
            comm.Abort(1)
        time.sleep(0.005)


def all_served(pairing: Pairing) -> bool:
    return pairing.with_lease + pairing.with_private == comm.size


def lose(accelerator: Accelerator, is_loser: bool) -> None:
    """Has a worker of this rank, if it is a loser, kill its node in the middle of a superstep."""
    is_lost = not is_loser
    until = time.monotonic() + LIMIT_S
    while not comm.allreduce(is_lost, MPI.LAND):
        assert time.monotonic() < until, "no worker was lost"
        if is_lost:
            continue
        results = accelerator.share(square_or_kill_node, [(os.getpid(), number) for number in range(ITEMS)])
        assert results == [(os.getpid(), number * number) for number in range(ITEMS)]
        assert accelerator.workers is not None
        is_lost = accelerator.workers.workers == 0


def run(what: str, accelerator: Accelerator) -> Pairing:
    if what == "alone":
        assert compute(accelerator) == 0
        return accelerator.exchange()
    pairing = exchange_until(accelerator, "all served", all_served)
    assert accelerator.has_lease == (pairing.partner is None)
    if what == "hang":
        pids = comm.gather(os.getpid())
        if pids is not None:  # on one rank, as mpirun mixes what ranks print
            print(*pids, flush=True)
        time.sleep(300)
    assert compute(accelerator) > 0
    if what == "lose":
        lose(accelerator, is_loser=not accelerator.has_lease)
        # A private node that has ended is started again.
        pairing = exchange_until(accelerator, "all served again", all_served)
        assert compute(accelerator) > 0
    if what == "end":
        lose(accelerator, is_loser=accelerator.has_lease)
        pairing = exchange_until(accelerator, "without leases", lambda pairing: pairing.with_lease == 0)
        assert accelerator.workers is None
        assert accelerator.refusal is not None
        assert compute(accelerator) == 0
    return pairing


client = dayfly.connect() if sys.argv[1] == "lose" else None
with Accelerator(comm, client=client, mode="hot") as accelerator:
    pairing = run(sys.argv[1], accelerator)
if client is not None:
    assert client.nodes(), "the accelerator leaves it open"
    client.close()
if comm.rank == 0:
    print(f"{pairing.with_lease} with a lease, {pairing.with_private} with private workers: all held")
