"""The Python part of ``dayfly bench harvest``, which measures what lending idle cores gives and costs.

One lease owns a core and makes calls of the functions of a file (``--functions``), with pauses; it lends. Another owns
a core and could always use more; it borrows. Blocks of both modes, ``watch`` (nothing is lent) and ``on``, alternate in
one run, with the same calls in the same order.
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dayfly._bench_tasks import quantile

if TYPE_CHECKING:
    import dayfly

#: What a lender's calls get as their sizes, or as the names of their contents. Each call takes some tenths of a
#: core-second, so that a block has many calls.
SIZES = {
    "dynamic_html": (300, 600, 1_000),
    "thumbnail": (1, 2, 3),
    "compress": (128 << 10, 256 << 10, 512 << 10),
    "visualise_dna": (500_000, 1_000_000, 2_000_000),
    "upload": (2 << 20, 6 << 20, 12 << 20),
    "encode_video": (3,),
    "recognise": (1, 6, 12),
    "pagerank": (3, 8, 11),
    "spanning_tree": (1, 3, 10),
    "breadth_first": (1, 3, 8),
}
#: Calls of a function before the node predicts it: the first one, and the profile.
LEARNING = 22
#: Seconds between the lender's calls, on average.
PAUSE_S = 0.1
#: Seconds of one block in which the lender only waits.
WAITING_BLOCK_S = 2.0
#: What one worker of this measurement owns, in cores.
OWNED = 1.0
#: Seconds that a sudden call waits before it computes, and computes.
QUIET_S, SUDDEN_S = 0.4, 0.3
#: Tries of each burst. On a busy machine, a lender waits even if nobody borrows, and then lends nothing.
MAX_TRIES = 4
#: Length of the window in which a lender has its own again, and the share of it.
BACK_S, BACK_SHARE = 0.010, 0.95
#: Seconds in which a node surely sends a heartbeat.
BEAT_S = 30.0
#: Calls that run at once when the node's own use is measured.
MANY = 32
#: Seconds of each of them.
MANY_S = 8.0


def load(path: str) -> Any:
    """Imports the file of functions. It has ``FUNCTIONS`` and ``arguments``."""
    name = Path(path).stem
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{path} is no Python file. Name one by --functions")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except ImportError as error:
        raise SystemExit(f"{path} needs a module that is missing: {error}. Install NumPy and Pillow") from None
    return module


def wait(seconds: float) -> None:
    """Uses no processor."""
    time.sleep(seconds)


def spin(seconds: float, threads: int) -> int:
    """Could use as many cores as threads. Returns how much it did."""
    import hashlib
    from concurrent.futures import ThreadPoolExecutor

    until = time.monotonic() + seconds

    def work(_: int) -> int:
        done, block = 0, b"x" * (1 << 18)
        while time.monotonic() < until:
            # Without Python's global lock.
            hashlib.sha256(block).digest()
            done += 1
        return done

    with ThreadPoolExecutor(threads) as pool:
        return sum(pool.map(work, range(threads)))


SUDDEN = '''
def sudden_{number}(quiet, busy):
    """Waits, and then computes. Returns when it began to compute, and its processor time by the time."""
    import time
    time.sleep(quiet)
    begin, used, points = time.monotonic(), time.thread_time(), [(0.0, 0.0)]
    while (now := time.monotonic() - begin) < busy:
        if now - points[-1][0] >= 0.001:
            points.append((now, time.thread_time() - used))
    return begin, points
'''


def sudden(number: int) -> Callable[..., Any]:
    """Returns a function of its own profile."""
    namespace: dict[str, Any] = {}
    exec(SUDDEN.format(number=number), namespace)
    function: Callable[..., Any] = namespace[f"sudden_{number}"]
    return function


def back_ms(points: list[tuple[float, float]]) -> float:
    """Returns the milliseconds until a call had its core: the start of the first window in which it got its share."""
    for at, (begin, used) in enumerate(points):
        for end, used_then in points[at:]:
            if end - begin >= BACK_S:
                if used_then - used >= BACK_SHARE * (end - begin):
                    return begin * 1e3
                break
    return points[-1][0] * 1e3


def used_s(pid: int) -> float:
    """Returns the processor time of a process and of its ended children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return sum(int(field) for field in fields[11:15]) / os.sysconf("SC_CLK_TCK")


class Repeated(threading.Thread):
    """Calls again and again until it is stopped."""

    def __init__(self, call: Callable[[], object]) -> None:
        super().__init__()
        self._call, self._stopped = call, threading.Event()
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            while not self._stopped.is_set():
                self._call()
        except BaseException as error:
            self._error = error

    def stop(self) -> None:
        self._stopped.set()
        self.join()
        if self._error is not None:
            raise self._error


@contextmanager
def repeated(call: Callable[[], object]) -> Iterator[None]:
    """Calls again and again in another thread."""
    thread = Repeated(call)
    try:
        yield
    finally:
        thread.stop()


class Limits(threading.Thread):
    """Watches the limits of measured workers, which are files of control groups."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.raised: list[tuple[float, bool]] = []
        self._files = [
            os.open(file, os.O_RDONLY)
            for name in ("cpu.cfs_quota_us", "cpu.max")
            for file in Path("/sys/fs/cgroup").glob(f"**/dayfly-*/**/worker-*/{name}")
        ]
        self._stopped = threading.Event()
        self.start()

    def run(self) -> None:
        owned = 100_000 * OWNED
        # Cheap, so that it does not take the lender's core itself.
        while not self._stopped.wait(0.002):
            quotas = [os.pread(file, 32, 0).split()[0] for file in self._files]
            self.raised.append((time.monotonic(), any(quota.isdigit() and int(quota) > owned for quota in quotas)))

    def stop(self) -> None:
        self._stopped.set()
        self.join()
        for file in self._files:
            os.close(file)

    def recalled_s(self, begin: float) -> float | None:
        """Returns the seconds from `begin` until no limit was raised; None if none was then."""
        before = [is_raised for at, is_raised in self.raised if at <= begin]
        if not before or not before[-1]:
            return None
        return next((at - begin for at, is_raised in self.raised if at > begin and not is_raised), None)


class Site:
    """An embedded manager with one node, whose mode can be switched."""

    def __init__(self, client: dayfly.Client) -> None:
        self._client = client
        self._node = self.status()["address"]["id"]
        harvest = self.status().get("harvest", {})
        if "why" in harvest:
            raise SystemExit(f"This machine lends nothing. {harvest['why']}")

    def status(self) -> dict[str, Any]:
        """Returns the node as the manager sees it."""
        return self._client.nodes()[0]

    def switch(self, mode: str) -> None:
        """Switches the node."""
        self._client._native.put(f"/v1/nodes/{self._node}/harvest", json.dumps({"mode": mode}))

    def owned_ms(self) -> int:
        """Returns the processor time that measured calls owned so far, by a heartbeat from now on."""
        begin = time.monotonic()
        while (node := self.status())["heartbeat_age_ms"] >= (time.monotonic() - begin) * 1e3:
            if time.monotonic() - begin > BEAT_S:
                raise SystemExit("The node sends no heartbeats.")
            time.sleep(0.05)
        owned: int = node["harvest"]["core_ms"]["owned"]
        return owned


class Pair:
    """A lender and a borrower, each with one worker that owns one core."""

    def __init__(self, site: Site, client: dayfly.Client, threads: int) -> None:
        self.site, self.threads = site, threads
        self.lender = client.lease(cores=1, mode="warm", spin=0.0)
        self.borrower = client.lease(cores=1, mode="warm", spin=0.0)
        self._pids = [lease.call(os.getpid) for lease in (self.lender, self.borrower)]

    def close(self) -> None:
        self.lender.shutdown()
        self.borrower.shutdown()

    def borrow(self) -> int:
        """Makes one call that could use all cores. Returns how much it did."""
        done: int = self.borrower.call(spin, 0.2, self.threads)
        return done

    def used(self) -> list[float]:
        """Returns the processor time of both workers."""
        return [used_s(pid) for pid in self._pids]


def plan(module: Any, names: list[str], seed: int) -> list[tuple[str, tuple[Any, ...], float]]:
    """Returns the calls of one block: function, arguments, and the pause before it."""
    drawn = random.Random(seed)
    calls = []
    for name in names:
        size = drawn.choice(SIZES[name])
        calls.append((name, module.arguments(name, size), drawn.expovariate(1 / PAUSE_S)))
    drawn.shuffle(calls)
    return calls


def block(pair: Pair, module: Any, calls: list[tuple[str, tuple[Any, ...], float]]) -> list[float]:
    """Makes the lender's calls. Returns the seconds of each."""
    seconds = []
    for name, arguments, pause in calls:
        time.sleep(pause)
        begin = time.perf_counter()
        pair.lender.call(getattr(module, name), *arguments)
        seconds.append(time.perf_counter() - begin)
    return seconds


def measure_lender(pair: Pair, module: Any, names: list[str], rounds: int) -> dict[str, Any]:
    """Compares the lender's calls in both modes, and sums up what of its idle core was used."""
    plans = [plan(module, names, seed) for seed in range(3)]
    note(f"learning {len(names)} functions")
    for number in range(LEARNING):
        block(pair, module, [(name, arguments, 0.0) for name, arguments, _ in plans[number % len(plans)]])
    slower: list[float] = []
    noise: list[float] = []
    idle = taken = 0.0
    times: dict[str, list[float]] = {}
    for number in range(rounds):
        calls = plans[number % len(plans)]
        found: dict[str, list[list[float]]] = {"watch": [], "on": []}
        # Each mode twice, mirrored, so that a drift of the machine affects both alike.
        for mode in ("watch", "on", "on", "watch"):
            pair.site.switch(mode)
            with repeated(pair.borrow):
                time.sleep(0.3)
                begin, before = time.monotonic(), pair.used()
                found[mode].append(block(pair, module, calls))
                length = time.monotonic() - begin
                lender, borrower = (now - then for now, then in zip(pair.used(), before, strict=True))
            if mode == "on":
                idle += max(0.0, OWNED * length - lender)
                taken += max(0.0, borrower - OWNED * length)
        first, last = found["watch"]
        noise += [abs(b / a - 1) for a, b in zip(first, last, strict=True)]
        for (name, _, _), a, b, c, d in zip(calls, first, last, *found["on"], strict=True):
            change = (c + d) / (a + b) - 1
            slower.append(change)
            times.setdefault(name, []).append(change)
        note(f"round {number + 1} of {rounds}: lender {100 * statistics.median(slower):+.1f} %")
    return {
        "lender_calls": len(slower),
        "lender_slowdown_p50": quantile(slower, 0.5),
        "lender_slowdown_p99": quantile(slower, 0.99),
        "noise_p50": quantile(noise, 0.5),
        "noise_p99": quantile(noise, 0.99),
        "idle_used_share": taken / idle if idle else 0.0,
        "slowdown_p50_by_function": {name: quantile(all_of, 0.5) for name, all_of in times.items()},
    }


def measure_borrower(pair: Pair, rounds: int) -> dict[str, Any]:
    """Compares a borrower with one that has the same cores by hand: no lender, and no limit."""
    for _ in range(LEARNING):
        pair.lender.call(wait, 0.05)
        pair.borrow()
    shares, gains = [], []
    for number in range(rounds):
        done: dict[str, float] = {}
        for mode in ("off", "on", "watch"):
            pair.site.switch(mode)
            with repeated(lambda: pair.lender.call(wait, 0.5)):
                time.sleep(0.3)
                pair.borrow()
                begin, totals = time.monotonic(), pair.used()[1]
                work = sum(pair.borrow() for _ in range(round(WAITING_BLOCK_S / 0.2)))
                done[mode] = work / (time.monotonic() - begin)
                done[mode + "_cores"] = (pair.used()[1] - totals) / (time.monotonic() - begin)
        shares.append(done["on"] / done["off"])
        gains.append(done["on"] / done["watch"])
        note(f"block {number + 1} of {rounds}: borrower {gains[-1]:.2f} times faster, {shares[-1]:.2f} of by hand")
    return {"borrower_share": statistics.median(shares), "borrower_gain": statistics.median(gains)}


def measure_return(pair: Pair, rounds: int) -> dict[str, Any]:
    """Measures how soon a lender that suddenly computes has its core, and when all that it lent is recalled.

    Without lending, it does not have it at once either, as other processes run beside it.
    """
    backs: dict[str, list[float]] = {"on": [], "watch": []}
    recalls: list[float] = []
    with repeated(pair.borrow):
        for number in range(2 * rounds * MAX_TRIES):
            if number % 2 == 0 and len(recalls) >= rounds:
                break
            mode = ("on", "watch")[number % 2]
            pair.site.switch(mode)
            function = sudden(number)
            for _ in range(LEARNING):
                pair.lender.call(function, 0.03, 0.0)
            limits = Limits()
            begin, points = pair.lender.call(function, QUIET_S, SUDDEN_S)
            limits.stop()
            recalled = limits.recalled_s(begin)
            if mode == "on" and recalled is None:
                # Nothing was lent.
                continue
            backs[mode].append(back_ms(points))
            if recalled is not None:
                recalls.append(recalled * 1e3)
                note(f"burst {len(recalls)}: core after {backs[mode][-1]:.1f} ms, recalled after {recalls[-1]:.1f} ms")
    if not recalls:
        raise SystemExit("A waiting call lent nothing in any round: the machine is too busy to measure its return.")
    return {
        "bursts": len(recalls),
        "owner_back_ms": quantile(backs["on"], 0.5),
        "owner_back_p99_ms": quantile(backs["on"], 0.99),
        "owner_back_watch_ms": quantile(backs["watch"], 0.5),
        "owner_back_watch_p99_ms": quantile(backs["watch"], 0.99),
        "recall_ms": quantile(recalls, 0.5),
        "recall_p99_ms": quantile(recalls, 0.99),
    }


def harvest_threads() -> list[Path]:
    """Returns the threads of nodes below this process that harvest."""
    pending, found = [os.getpid()], []
    while pending:
        process = Path(f"/proc/{pending.pop()}")
        for thread in process.glob("task/*"):
            try:
                pending += [int(child) for child in (thread / "children").read_text().split()]
                if (thread / "comm").read_text().strip() == "dayfly-harvest":
                    found.append(thread)
            except OSError:
                continue
    return found


def measure_node(client: dayfly.Client, site: Site) -> dict[str, Any]:
    """Measures what the node's own thread uses while many calls are measured."""
    site.switch("on")
    owned_ms = site.owned_ms()
    with client.lease(workers=MANY, mode="warm", spin=0.0) as lease:
        for _ in range(2):
            for future in [lease.submit(wait, 0.2) for _ in range(MANY)]:
                future.result()
        futures = [lease.submit(wait, MANY_S) for _ in range(MANY)]
        time.sleep(1.0)
        threads = harvest_threads()
        if not threads:
            raise SystemExit("The node's harvesting thread was not found.")

        def used_ns() -> int:
            return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads)

        begin, before = time.monotonic(), used_ns()
        time.sleep(MANY_S / 2)
        share = (used_ns() - before) / 1e9 / (time.monotonic() - begin)
        for future in futures:
            future.result()
        owned_ms = site.owned_ms() - owned_ms
    # Those of the second round are measured, too, for 0.2 s each.
    return {"overhead_core_share": share, "overhead_calls": round(owned_ms / 1e3 / (MANY_S + 0.2))}


def chosen(options: Any) -> tuple[Any, list[str]]:
    """Returns the functions' module and the names of those to call."""
    names = options.only or list(SIZES)
    if unknown := [name for name in names if name not in SIZES]:
        raise SystemExit(f"There is no function {unknown[0]}. Choose from {', '.join(SIZES)}")
    return load(options.functions), names


def note(text: str) -> None:
    """Reports progress."""
    print(text, file=sys.stderr, flush=True)


def measure(options: Any) -> dict[str, Any]:
    """Returns the results that ``dayfly bench harvest`` prints."""
    import dayfly

    cores = len(os.sched_getaffinity(0))
    if cores < 2:
        raise SystemExit("This measurement needs two cores.")
    module, names = chosen(options)
    os.environ["DAYFLY_HARVEST"] = "watch"
    found: dict[str, Any] = {"cores": cores, "rounds": options.rounds}
    with dayfly.Client._own() as client:
        site = Site(client)
        pair = Pair(site, client, cores)
        try:
            found |= measure_return(pair, options.bursts)
            found |= measure_borrower(pair, options.rounds)
            found |= measure_lender(pair, module, names, options.rounds)
        finally:
            pair.close()
        found |= measure_node(client, site)
    return found
