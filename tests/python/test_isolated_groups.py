"""Groups of isolated ranks without a network: their node joins for them."""

from __future__ import annotations

import collections
import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path

import cloudpickle
import dayfly
import pytest
from dayfly._groups.rank import run_rank
from dayfly._groups.run import invitation_to, pack_call, start_ranks
from harness.daemons import rendezvous
from harness.leaks import descendants, wait_until
from harness.programs import program, run
from python.test_groups import lose_one_of

cloudpickle.register_pickle_by_value(sys.modules[__name__])

#: The connector's socket in a sandbox.
SOCKET = "/dayfly/code/group.sock"


@pytest.fixture(scope="module")
def client():
    with dayfly.connect() as client:
        yield client


def connectors() -> list[int]:
    """Process ids of the connectors of nodes below this process."""
    return [pid for pid, command in descendants().items() if command.endswith("dayfly connector")]


def places():
    from dayfly import groups

    with open("/proc/net/dev") as file:
        interfaces = [line.split(":")[0].strip() for line in file if ":" in line]
    return groups.world().allgather((os.getpid(), interfaces))


def test_ranks_without_network_form_one_group(client, level):
    found = dayfly.run(places, ranks=2, client=client, timeout=60, **level)
    assert found[0] == found[1]
    assert [interfaces for _, interfaces in found[0]] == [["lo"], ["lo"]]


def sockets_held():
    """Returns the address families of this rank's sockets, once the group has formed."""
    import os
    import socket
    import stat

    from dayfly import groups

    groups.world().barrier()
    families = set()
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        try:
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                with socket.socket(fileno=os.dup(descriptor)) as held:
                    families.add(held.family.name)
        except OSError:
            pass
    return sorted(families)


def test_no_rank_gets_a_host_network_socket(client, level):
    assert dayfly.run(sockets_held, ranks=2, client=client, timeout=60, **level) == [["AF_UNIX"]] * 2


def test_killed_rank_is_reported_and_others_continue(client, tmp_path):
    tmp_path.chmod(0o777)
    lose_one_of(3, tmp_path, client, sandbox="isolated", writable=[tmp_path])


def waits_for_a_message(place):
    from pathlib import Path

    from dayfly import groups

    group = groups.world()
    group.barrier()
    Path(place, str(group.rank)).touch()
    try:
        group.recv()
    except dayfly.GroupError as error:
        return str(error.code)
    return "a message from nobody"


def test_killed_connector_reports_its_ranks_as_lost(client, tmp_path):
    """Half of the group is isolated, half is not."""
    tmp_path.chmod(0o777)
    group = invitation_to(client, 4)
    work = pack_call(waits_for_a_message, (str(tmp_path),))
    before = connectors()
    with (
        client.gang(2, mode="warm", sandbox="isolated", writable=[tmp_path]) as within,
        client.gang(2, mode="warm", sandbox="process") as outside,
    ):
        workers = [within.rank(0), within.rank(1), outside.rank(0), outside.rank(1)]
        futures = [
            worker.submit(run_rank, json.dumps({**group, "rank": rank}), work, {})
            for rank, worker in enumerate(workers)
        ]
        wait_until(lambda: len(os.listdir(tmp_path)) == 4, "all ranks wait")
        (connector,) = set(connectors()) - set(before)
        os.kill(connector, signal.SIGKILL)
        assert [future.result(timeout=20) for future in futures[2:]] == ["rank_lost"] * 2
        assert [future.result(timeout=20) for future in futures[:2]] == ["rank_lost"] * 2
    # The next group has its own connector.
    assert len(dayfly.run(places, ranks=2, client=client, timeout=60, sandbox="isolated")) == 2


def asks(path, words, count=1):
    """Returns the node's response to a message."""
    import socket

    said = []
    for _ in range(count):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as node:
            node.settimeout(10)
            node.connect(path)
            # Connections above the limit are refused before they send anything.
            with contextlib.suppress(BrokenPipeError):
                node.send(words)
            said.append(node.recv(1 << 16).decode())
    return said


def test_invalid_join_request_of_a_rank_is_refused(client, level):
    invitation = invitation_to(client, 2) | {"rank": 0}
    here = json.dumps({"is": "join", "version": 1, "invitation": invitation | {"rendezvous": "127.0.0.1:22"}})
    with client.lease(workers=2, mode="warm", **level) as lease:
        for words in [b"garbage", b"{}", b"\xff" * 6000, json.dumps({"is": "leave"}).encode()]:
            (said,) = lease.call(asks, SOCKET, words)
            assert json.loads(said)["failure"]["code"] == "protocol_violation"
        (said,) = lease.call(asks, SOCKET, here.encode())
        failure = json.loads(said)["failure"]
        assert failure["code"] == "forbidden"
        assert "--rendezvous" in failure["message"]
        assert connectors()


def test_flooding_rank_blocks_no_other_group(client):
    with client.lease(workers=1, mode="warm", sandbox="isolated") as hostile:
        future = hostile.submit(asks, SOCKET, b"garbage", 2000)
        begin = time.monotonic()
        assert len(dayfly.run(places, ranks=2, client=client, timeout=60, sandbox="isolated")) == 2
        assert time.monotonic() - begin < 20
        said = future.result(timeout=60)
    refused = collections.Counter(json.loads(text)["failure"]["code"] for text in said)
    assert refused["no_capacity"] > 1500, refused


def dies_while_joining(path, text):
    import os
    import signal
    import socket
    import time

    node = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    node.connect(path)
    node.send(text.encode())
    # The group forms for a while before the rank dies.
    time.sleep(1)
    os.kill(os.getpid(), signal.SIGKILL)


def test_rank_that_dies_while_joining_is_reported(client):
    group = invitation_to(client, 3)
    text = json.dumps({"is": "join", "version": 1, "invitation": group | {"rank": 1}})
    with client.gang(2, mode="warm", sandbox="isolated") as gang:
        gang.rank(0).call(lambda: bool(__import__("dayfly.groups")))
        waiting = gang.rank(0).submit(run_rank, json.dumps(group | {"rank": 0}), pack_call(places), {})
        with pytest.raises(dayfly.WorkerDied):
            gang.rank(1).submit(dies_while_joining, SOCKET, text).result(timeout=20)
        begin = time.monotonic()
        with pytest.raises(dayfly.Error, match="rank 1 was lost"):
            waiting.result(timeout=20)
        assert time.monotonic() - begin < 5


def test_program_on_isolated_ranks_leaves_nothing_behind(start, tmp_path: Path):
    up = start("up", "--listen", "127.0.0.1:0", "--python", sys.executable)
    script = tmp_path / "sum.py"
    script.write_text("from dayfly import MPI; print(MPI.COMM_WORLD.allreduce(1))")
    environment = up.client_environment() | {"DAYFLY_PYTHON": sys.executable}
    asked = ("--ranks", "3", "--sandbox", "isolated")
    done = run(program(), "run", *asked, str(script), env=environment, cwd=tmp_path)
    assert sorted(done.stdout.splitlines()) == [f"[{rank}] 3" for rank in range(3)]
    wait_until(lambda: not connectors(), "the connector ends with its lease")


def test_ranks_are_refused_with_no_groups_option(start):
    up = start("up", "--listen", "127.0.0.1:0", "--python", sys.executable, "--no-groups")
    with dayfly.connect(up.state) as client, client.gang(2, mode="warm", sandbox="isolated") as gang:
        futures = start_ranks(gang, invitation_to(client, 2), pack_call(places))
        for future in futures:
            came = outcome(future)
            assert came is not None
            assert came.startswith("forbidden")
            assert "--no-groups" in came


def test_isolated_ranks_use_an_allowed_rendezvous(start):
    with rendezvous() as allowed, rendezvous() as other:
        place = f"{allowed['addresses'][0]}={allowed['key']}"
        up = start("up", "--listen", "127.0.0.1:0", "--python", sys.executable, "--rendezvous", place)
        with dayfly.connect(up.state) as client, client.gang(2, mode="warm", sandbox="isolated") as gang:
            for there, meets in ((allowed, True), (other, False)):
                group = {
                    "rendezvous": there["addresses"][0],
                    "key": there["key"],
                    "name": "mine",
                    "secret": "ab" * 16,
                    "size": 2,
                }
                futures = start_ranks(gang, group, pack_call(places))
                found = [outcome(future) for future in futures]
                assert all(meets == (came is None) for came in found), found
                assert meets or all("no manager of this site vouches" in (came or "") for came in found)


def outcome(future):
    """Returns the outcome of a call as text: a raised exception would keep its lease alive."""
    error = future.exception(timeout=30)
    return None if error is None else f"{error.code}: {error}"
