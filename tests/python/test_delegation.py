"""Functions that call functions: delegated parts of a lease, used by its own workers and by others."""

import pickle
import re
import time

import dayfly
import pytest
from harness.leaks import wait_until
from harness.programs import run_python


@pytest.fixture(scope="module")
def client():
    with dayfly.connect() as client:
        yield client


@pytest.fixture(params=["process", "isolated"])
def sandbox(request):
    return request.param


def total_of_squares(part, numbers):
    """Runs on a worker, and calls functions on others."""
    with part.open() as workers:
        return workers.transport, sum(workers.map(lambda number: number * number, numbers))


def call_until_taken_back(workers):
    """Calls until a call fails. The last call may have been executed."""
    until = time.monotonic() + 20
    while time.monotonic() < until:
        try:
            workers.call(pow, 2, 10)
        except dayfly.WorkerDied:
            continue
        except dayfly.LeaseError as error:
            assert "took" in str(error)  # noqa: PT017
            return
    raise AssertionError("the workers were not taken back")


def test_function_calls_functions_on_delegated_workers(client, sandbox):
    with client.lease(workers=3, mode="warm", sandbox=sandbox) as lease, lease.delegate(workers=2) as part:
        assert part.workers == 2
        found = lease.submit(total_of_squares, part, range(1000)).result(timeout=60)
    assert found == ("shm", sum(number * number for number in range(1000)))


def test_functions_nest_up_to_the_number_of_workers(client, sandbox):
    def depth(part, left):
        if part is None:
            return 0
        with part.open() as workers:
            if left == 1:
                return 1 + workers.call(depth, None, 0)
            with workers.delegate(workers=left - 1) as rest:
                return 1 + workers.call(depth, rest, left - 1)

    # A function defined here calls itself by its local name.
    depth.__globals__["depth"] = depth
    with client.lease(workers=4, mode="warm", sandbox=sandbox) as lease, lease.delegate(workers=3) as part:
        assert lease.submit(depth, part, 3).result(timeout=60) == 3


def test_workers_of_one_lease_call_anothers_workers(client, sandbox):
    with (
        client.lease(workers=1, mode="warm", sandbox=sandbox) as parents,
        client.lease(workers=2, mode="warm", sandbox="process") as lease,
        lease.delegate(workers=1, users=parents) as part,
    ):
        assert parents.submit(total_of_squares, part, range(10)).result(timeout=60) == ("shm", 285)
        # The rest of the lease is in use meanwhile.
        assert lease.submit(pow, 2, 10).result(timeout=60) == 1024


def test_leases_are_shown_by_what_differs(client):
    # Ids of one minute begin alike.
    with client.lease() as one, client.lease() as other, other.delegate() as part:
        shown = [re.search(r"\.\.\.([0-9a-f]{12})\b", repr(of)) for of in (one, other, part)]
        assert [found and found[1] for found in shown] == [one.id[-12:], other.id[-12:], other.id[-12:]]
        assert one.id[-12:] != other.id[-12:]


def test_sandbox_sees_its_node_only_with_a_delegation(client):
    def look():
        import os

        # The socket for groups is in the same directory; it does not lead to a node.
        return sorted(name for name in os.listdir("/dayfly/code") if name.endswith(".sock"))

    with client.lease(workers=2, mode="warm", sandbox="isolated") as lease:
        assert lease.call(look) == ["group.sock"]
        with lease.delegate():
            assert lease.call(look) == ["group.sock", "node.sock"]


def test_node_socket_refuses_requests_without_token(client):
    def knock():
        import socket

        door = socket.socket(socket.AF_UNIX)
        door.connect("/dayfly/code/node.sock")
        door.settimeout(10)
        door.sendall(b"\0" * 4096)
        try:
            return door.recv(4096)[8:]
        except ConnectionResetError:
            return b""

    with client.lease(workers=2, mode="warm", sandbox="isolated") as lease, lease.delegate():
        assert b"malformed" in lease.call(knock) or lease.call(knock) == b""
        assert lease.call(pow, 2, 3) == 8


def test_worker_that_floods_its_socket_blocks_no_other(client):
    def knock():
        import socket
        import time

        doors = []
        for _ in range(100):
            door = socket.socket(socket.AF_UNIX)
            door.settimeout(0.1)
            try:
                door.connect("/dayfly/code/node.sock")
            except OSError:
                continue
            doors.append(door)
        time.sleep(0.5)
        return len(doors)

    with client.lease(workers=2, mode="warm", sandbox="isolated") as hostile, hostile.delegate():
        knocking = hostile.submit(knock)
        with client.lease(workers=1, mode="warm") as honest:
            assert honest.call(pow, 2, 3) == 8
        assert knocking.result(timeout=60) > 0


def test_delegation_cannot_be_released_or_renewed_elsewhere(client):
    with client.lease(workers=2, mode="warm") as lease, lease.delegate() as part:
        program = """
            import dayfly, os, pickle
            part = pickle.loads(bytes.fromhex(os.environ["PART"]))
            with part.open() as workers:
                print(workers.workers, workers.call(pow, 2, 10))
                try:
                    workers.renew(3600)
                except dayfly.AccessError as error:
                    print(error.code)
            with part.open() as workers:
                print(workers.call(pow, 2, 5))
        """
        done = run_python(program, PART=pickle.dumps(part).hex())
        assert done.stdout.splitlines() == ["1 1024", "unauthorized", "32"], done.stderr
        assert lease.call(pow, 2, 3) == 8


def test_revoked_delegation_is_unusable_and_serves_its_lease(client):
    with client.lease(workers=2, mode="warm") as lease:
        part = lease.delegate(workers=1)
        workers = part.open()
        assert workers.call(pow, 2, 10) == 1024
        with pytest.raises(dayfly.Error, match="delegated"):
            lease.options(worker=1).call(pow, 2, 2)
        part.take_back()
        call_until_taken_back(workers)
        workers.shutdown()
        with pytest.raises(dayfly.LeaseError, match="taken back"):
            part.open()
        assert lease.options(worker=1).call(pow, 2, 2) == 4


def test_expired_delegation_returns_to_its_lease(client):
    with client.lease(workers=2, mode="warm") as lease:
        part = lease.delegate(duration=3)
        with part.open() as workers:
            assert workers.call(pow, 2, 10) == 1024
            call_until_taken_back(workers)
        part.take_back()
        assert lease.options(worker=1).call(pow, 2, 2) == 4


def test_running_call_ends_before_its_worker_is_delegated(client):
    def slowly(length):
        import time

        time.sleep(length)
        return "done"

    with client.lease(workers=1, mode="warm") as lease:
        running = lease.submit(slowly, 0.3)
        with pytest.raises(dayfly.Error, match="did not end their calls"):
            lease.delegate(wait=0.05)
        with lease.delegate() as part:
            assert running.result(timeout=0) == "done"
            with pytest.raises(dayfly.Error, match="every worker is delegated"):
                lease.call(pow, 2, 2)
            with part.open() as workers:
                assert workers.call(pow, 2, 4) == 16
        assert lease.call(pow, 2, 2) == 4


@pytest.mark.parametrize("workers", [0, 3, 65535])
def test_delegation_beyond_the_workers_is_refused(client, workers):
    with client.lease(workers=2, mode="warm") as lease:
        with pytest.raises(dayfly.RequestError, match="cannot be delegated"):
            lease.delegate(workers=workers)
        assert lease.call(pow, 2, 2) == 4


def test_dead_delegated_worker_is_replaced(client, sandbox):
    def die():
        import os

        os._exit(3)

    def parent(part):
        import dayfly

        with part.open() as workers:
            try:
                workers.call(die)
            except dayfly.WorkerDied as error:
                return error.code, workers.call(pow, 2, 3)

    with client.lease(workers=2, mode="warm", sandbox=sandbox) as lease, lease.delegate() as part:
        assert lease.submit(parent, part).result(timeout=60) == ("maybe_executed", 8)


def test_delegated_calls_are_billed_to_their_lease(client):
    with client.lease(workers=2, mode="warm") as lease:
        with lease.delegate() as part, part.open() as workers:
            for _ in range(10):
                workers.call(pow, 2, 3)
        used = lease.id

    def calls():
        (entry,) = [entry for entry in client.leases() if entry["lease"] == used]
        return entry["usage"]["calls"]

    wait_until(lambda: calls() >= 10, "the part's calls on the bill", 20)
