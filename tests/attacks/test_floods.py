"""Strangers without a token who take what everybody needs: descriptors, places, time."""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import dayfly
import pytest
from harness.daemons import Daemon
from harness.leaks import wait_until
from harness.people import Observer

Start = Callable[..., Daemon]

#: Seconds in which a connection without a token that sends nothing whole is closed, also on slow machines.
SOON_S = 30


class Descriptors:
    """Starts a daemon with so many descriptors."""

    def __init__(self, limit: int, *, soft: bool = False) -> None:
        self.prefix = ["sh", "-c", f'ulimit {"-S" if soft else ""} -n {limit}; exec "$@"', "sh"]


def half_head(observer: Observer) -> socket.socket:
    """A connection with half a request."""
    connection = observer.connect_tls()
    connection.sendall(b"GET /v1/version HTTP/1.1\r\nHost: may")
    return connection


def half_body(observer: Observer) -> socket.socket:
    """A connection with a request of which the end does not come."""
    connection = observer.connect_tls()
    connection.sendall(b"POST /v1/login HTTP/1.1\r\nHost: dayfly\r\nContent-Length: 100\r\n\r\n{")
    return connection


def half_handshake(observer: Observer) -> socket.socket:
    """A connection with the beginning of a handshake."""
    connection = observer.connect()
    connection.sendall(b"\x16\x03\x01")
    return connection


HALVES = [half_head, half_body, half_handshake]


@contextlib.contextmanager
def flood(observer: Observer, half: Callable[[Observer], socket.socket], count: int) -> Iterator[list[socket.socket]]:
    """So many such connections at once; those that were refused are closed."""

    def refused_or_open(_: int) -> socket.socket | None:
        try:
            return half(observer)
        except (OSError, ssl.SSLError):
            return None

    # Some wait for a place before they are refused.
    with ThreadPoolExecutor(count) as threads:
        opened = [one for one in threads.map(refused_or_open, range(count)) if one is not None]
    yield opened
    for one in opened:
        one.close()


def answers(connect: Callable[[], socket.socket]) -> bool:
    """Whether a request on such a connection is answered."""
    try:
        with connect() as connection:
            connection.sendall(b"GET /v1/version HTTP/1.1\r\nHost: dayfly\r\nConnection: close\r\n\r\n")
            return connection.recv(16).startswith(b"HTTP/1.1 200")
    except OSError:
        return False


def is_closed(connection: socket.socket) -> bool:
    """Whether the other side has closed it."""
    connection.settimeout(0.01)
    try:
        return not connection.recv(1 << 16)
    except TimeoutError:
        return False
    except OSError:
        return True


@pytest.mark.parametrize("half", HALVES)
def test_half_requests_block_no_other_client(start: Start, half: Callable[[Observer], socket.socket]) -> None:
    manager = start("manager", "--listen", "127.0.0.1:0", host=Descriptors(1024))
    observer = Observer(manager)
    elsewhere = Observer(manager, source="127.0.0.2")
    with flood(observer, half, 768) as opened:
        # Its own administrator, by the local socket, and everybody from another address.
        assert answers(observer.connect_local)
        assert answers(elsewhere.connect_tls)
        assert manager.cli("status")["nodes"] == []
        # What is not finished is closed, and then there is room from that address as well.
        wait_until(lambda: all(is_closed(one) for one in opened), "the manager closes them", SOON_S)
        assert answers(observer.connect_tls)


def test_connection_above_the_address_share_waits(start: Start) -> None:
    observer = Observer(start("manager", "--listen", "127.0.0.1:0", host=Descriptors(1024)))
    # Many more than an address has places for, and than may wait.
    with flood(observer, half_head, 256) as opened:
        waiting = observer.connect()
        waiting.settimeout(0.5)
        # It is not closed, and waits for longer than this.
        with pytest.raises(TimeoutError):
            waiting.recv(1)
        waiting.settimeout(SOON_S)
        for one in opened:
            one.close()
        assert answers(lambda: observer.tls.wrap_socket(waiting, server_hostname=observer.address[0]))


def test_connection_with_a_token_may_rest(start: Start) -> None:
    manager = start("manager", "--listen", "127.0.0.1:0")
    observer = Observer(manager)
    request = b"GET /v1/leases HTTP/1.1\r\nHost: dayfly\r\nAuthorization: Bearer %s\r\n\r\n"
    with observer.connect_tls() as known, observer.connect_tls() as unknown:
        known.sendall(request % manager.connection["token"].encode())
        unknown.sendall(request % b"00")
        assert known.recv(16).startswith(b"HTTP/1.1 200")
        assert unknown.recv(16).startswith(b"HTTP/1.1 401")
        until = time.monotonic() + SOON_S
        while not is_closed(unknown):
            assert time.monotonic() < until, "the connection without a token stays"
        assert not is_closed(known)


def limits_of(pid: int) -> tuple[int, int]:
    """Soft and hard limit on the descriptors of a process."""
    found = re.search(r"Max open files +(\d+) +(\d+)", Path(f"/proc/{pid}/limits").read_text())
    assert found is not None
    return int(found[1]), int(found[2])


def has_limit(pid: int, soft: int) -> bool:
    """Whether a process has this soft limit; one that has ended a moment ago has no other."""
    try:
        return limits_of(pid)[0] == soft
    except OSError:
        return True


@pytest.mark.parametrize("sandbox", ["process", "isolated"])
def test_workers_have_their_daemons_descriptor_limit(start: Start, sandbox: str) -> None:
    few = Descriptors(777, soft=True)
    up = start("up", "--listen", "127.0.0.1:0", "--python", sys.executable, "--sandbox", sandbox, host=few)
    soft, hard = limits_of(up.pid)
    assert soft == hard > 777
    with dayfly.connect(config=up.state) as client, client.lease(runtime="native"):
        # A process that was forked a moment ago has it before its program begins.
        wait_until(lambda: (below := up.processes()) and all(has_limit(pid, 777) for pid in below), "all have it", 10)
