"""Curves of an echo: payloads of 1 B to 5 MB, 1 to 32 workers, and cold starts, beside sockets and a function server.

All sides are called from Python, one after the other in one process, so that the differences are those of the ways.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from measure import MIN_ROUNDS, Measured, WrongResultError, in_turns, note, row
from processes import HttpServer, RawEcho, cores, end, function_servers, has, listening, raw_echoes, start_server

SIZES = {"1 B": 1, "1 kB": 1_000, "4 kB": 4_000, "64 kB": 64_000, "1 MB": 1_000_000, "5 MB": 5_000_000}
QUICK_SIZES = {"1 B": 1, "1 MB": 1_000_000}
WORKERS, QUICK_WORKERS = (1, 2, 4, 8, 16, 32), (4,)
OF_WORKERS = {"1 kB": 1_000, "1 MB": 1_000_000}
RAW, HTTP = "raw TCP", "HTTP function server"


def echo(body: bytes) -> bytes:
    return body


def _calls(size: int, quick: bool) -> int:
    calls = 300 if size < 100_000 else 40 if size < 2_000_000 else 15
    return max(calls // 10, 3) if quick else calls


def _one(call: Callable[[bytes], Any], body: bytes) -> float:
    begun = time.perf_counter()
    out = call(body)
    took = (time.perf_counter() - begun) * 1e3
    if out != body:
        raise WrongResultError(f"an echo of {len(body)} bytes returned something else")
    return took


def _median(call: Callable[[bytes], Any], body: bytes, calls: int) -> float:
    """Milliseconds of a call, after some that are not counted."""
    for _ in range(max(calls // 10, 2)):
        _one(call, body)
    return statistics.median(_one(call, body) for _ in range(calls))


def payloads(client: Any, raw: RawEcho, http: HttpServer | None, quick: bool) -> list[dict[str, Any]]:
    """One call at a time. The hot worker polls only while it is measured: it would take a core from the others."""
    found = []
    for name, size in (QUICK_SIZES if quick else SIZES).items():
        body, calls = bytes(index % 251 for index in range(min(size, 251))) * (size // 251 + 1), _calls(size, quick)
        body = body[:size]
        note(f"an echo of {name}")
        times: dict[str, list[float]] = {"hot": [], "warm": [], RAW: [], HTTP: []}

        def leased(mode: str, body: bytes = body, calls: int = calls) -> float:
            with client.lease(mode=mode, sandbox="process", spin=None if mode == "hot" else 50e-6) as lease:
                return _median(lambda sent: lease.call(echo, sent), body, calls)

        for _ in range(MIN_ROUNDS):
            times["warm"].append(leased("warm"))
            times[RAW].append(_median(raw.call, body, calls))
            if len(cores()) > 1:
                times["hot"].append(leased("hot"))
            if http is not None:
                times[HTTP].append(_median(lambda sent: http.call("/echo", sent), body, calls))
        found += _payload_rows(name, times)
    return found


def _payload_rows(name: str, times: dict[str, list[float]]) -> list[dict[str, Any]]:
    why = {
        RAW: {
            "won": "shared memory needs neither the socket's copies nor, when hot, a wake-up",
            "lost": "a call encodes its arguments and finds its function, and raw bytes need neither",
        },
        HTTP: {
            "won": "no HTTP is parsed, and the payload is not copied through a socket",
            "lost": "the calls cost more than the requests",
        },
    }
    found = []
    for mode in ("hot", "warm"):
        for against in (RAW, HTTP):
            if times[mode] and times[against]:
                settings = {"cores": min(2, len(cores())), "leased_cores": 1, "checked": True, "input": name}
                found.append(row("payload", mode, against, times, why=why[against], **settings))
    return found


def _together(sends: Sequence[Callable[[], Any]], receives: Sequence[Callable[[], Any]], body: bytes) -> None:
    for send in sends:
        send()
    for receive in receives:
        if receive() != body:
            raise WrongResultError(f"an echo of {len(body)} bytes returned something else")


def parallel(client: Any, raw: Sequence[RawEcho], http: Sequence[HttpServer], quick: bool) -> list[dict[str, Any]]:
    """A call on each of 1 to 32 warm workers at once. More workers than cores share them."""
    found = []
    for workers in QUICK_WORKERS if quick else WORKERS:
        note(f"an echo on {workers} workers at once")
        with client.lease(workers=workers, mode="warm", sandbox="process") as lease:
            for name, size in OF_WORKERS.items():
                body = b"x" * size
                repeats = 2 if quick else 10

                def leased(body: bytes = body, workers: int = workers, lease: Any = lease) -> None:
                    futures = [lease.submit(echo, body) for _ in range(workers)]
                    _together([], [future.result for future in futures], body)

                def sockets(body: bytes = body, workers: int = workers) -> None:
                    used = raw[:workers]
                    receives = [lambda each=each: each.receive(len(body)) for each in used]  # type: ignore[misc]
                    _together([lambda each=each: each.send(body) for each in used], receives, body)  # type: ignore[misc]

                def requests(body: bytes = body, workers: int = workers) -> None:
                    used = http[:workers]
                    sends = [lambda each=each: each.send("/echo", body) for each in used]  # type: ignore[misc]
                    _together(sends, [each.receive for each in used], body)

                sides = {"leases": leased, RAW: sockets} | ({HTTP: requests} if http else {})
                repeated = {key: _repeat(side, repeats) for key, side in sides.items()}
                for side in repeated.values():
                    side()
                times = in_turns(repeated, MIN_ROUNDS)
                found += _parallel_rows(name, workers, times)
    return found


def _repeat(side: Callable[[], None], times: int) -> Callable[[], None]:
    def run() -> None:
        for _ in range(times):
            side()

    return run


def _parallel_rows(name: str, workers: int, times: dict[str, list[float]]) -> list[dict[str, Any]]:
    here = len(cores())
    crowded = f"; {workers} workers share {here} cores" if workers > here else ""
    why = {
        RAW: {
            "won": f"payloads lie in shared memory, and sockets copy them{crowded}",
            "lost": f"a call encodes, sends and wakes, and a socket sends and wakes{crowded}",
        },
        HTTP: {
            "won": f"no HTTP is parsed, and no payload is copied through a socket{crowded}",
            "lost": f"two servers took turns better than the workers{crowded}",
        },
    }
    settings = {"cores": here, "leased_cores": min(workers, here), "workers": workers, "oversubscribed": workers > here}
    return [
        row(
            "workers", "leases", against, times, why=why[against], checked=True, input=f"{name} x {workers}", **settings
        )
        for against in (RAW, HTTP)
        if against in times
    ]


def cold(client: Any, quick: bool) -> list[dict[str, Any]]:
    """From nothing to the first result: a lease with a new worker, and a new function server."""

    def leased() -> None:
        with client.lease(mode="warm", sandbox="process") as lease:
            _one(lambda sent: lease.call(echo, sent), b"x" * 1000)

    def served() -> None:
        with listening() as (listener, port):
            process = start_server(listener)
            http = HttpServer(port)
            try:
                _one(lambda sent: http.call("/echo", sent), b"x" * 1000)
            finally:
                http.close()
                end(process)

    note("cold starts")
    leased()
    times = in_turns({"cold": leased, HTTP: served}, MIN_ROUNDS if quick else 12)
    why = {
        "won": "the node forks a worker from a parent that has started already, and a server starts Python",
        "lost": "the lease waited for its worker",
    }
    settings = {"cores": len(cores()), "leased_cores": 1, "checked": True, "input": "1 kB"}
    return [row("cold", "cold", HTTP, times, why=why, **settings)]


def measure(wanted: set[str], quick: bool) -> Measured:
    """Measures the wanted ones of payloads, workers and cold starts."""
    apps = [name for name in ("payload", "workers", "cold") if name in wanted]
    left_out: list[dict[str, str]] = []
    if not apps:
        return [], []
    has_server = has("uvicorn")
    if not has_server:
        left_out.extend({"app": app, "against": HTTP, "why": "uvicorn is not installed"} for app in apps)
    if "payload" in apps and len(cores()) < 2:
        left_out.append({"app": "payload", "against": "hot", "why": "a hot worker needs a second core"})
    most = max(QUICK_WORKERS if quick else WORKERS) if "workers" in apps else 1
    found: list[dict[str, Any]] = []
    with ExitStack() as stack:
        raw = stack.enter_context(raw_echoes(most))
        http = stack.enter_context(function_servers(min(2, len(cores())), most)) if has_server else []
        import dayfly

        client = stack.enter_context(dayfly.Client._own())
        if "payload" in apps:
            found += payloads(client, raw[0], http[0] if http else None, quick)
        if "workers" in apps:
            found += parallel(client, raw, http, quick)
        if "cold" in apps and has_server:
            found += cold(client, quick)
    return found, left_out
