"""The Python part of ``dayfly bench tasks``, which measures durable tasks.

With ``--parsl PYTHON`` this file also runs in that interpreter, which has Parsl and not Dayfly. There it measures the
same in alternation: it prints a line of JSON for each line of input.
"""

from __future__ import annotations

import functools
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import dayfly

#: Calls before each measurement.
WARM_UP = 50


def noop(argument: bytes) -> None:
    """Does nothing."""


def latencies(call: Callable[[], object], count: int) -> list[float]:
    """Returns the milliseconds from submission to result of each call, made one after the other."""
    for _ in range(WARM_UP):
        call()
    samples = []
    gc.collect()
    gc.disable()
    try:
        for _ in range(count):
            start = time.perf_counter_ns()
            call()
            samples.append((time.perf_counter_ns() - start) / 1e6)
    finally:
        gc.enable()
    return samples


def run_and_wait(submit: Callable[[], Any]) -> object:
    """Returns the result of one task."""
    return submit().result()


def rate(submit: Callable[[], Any], count: int) -> float:
    """Returns tasks per second, from the first submission to the last result."""
    start = time.perf_counter()
    for future in [submit() for _ in range(count)]:
        future.result()
    return count / (time.perf_counter() - start)


def repeated(client: dayfly.Client, argument: bytes, count: int) -> float:
    """Returns tasks per second if all tasks are the same and may take each other's results."""
    start = time.perf_counter()
    batch = client.map(noop, [argument] * count, memoize=True)
    for _ in batch.results():
        pass
    return count / (time.perf_counter() - start)


def first(client: dayfly.Client) -> float:
    """Returns the milliseconds to the first result of a new function, if workers are available."""
    namespace: dict[str, Any] = {}
    exec(f"def fresh():\n    return {time.perf_counter_ns()}", namespace)
    start = time.perf_counter()
    client.run(namespace["fresh"]).result()
    return (time.perf_counter() - start) * 1e3


def arguments(size: int) -> Callable[[], bytes]:
    """Returns a function that makes distinct arguments of this size, so that they cannot be deduplicated."""
    rest = os.urandom(max(0, size - 8))
    return lambda: os.urandom(min(size, 8)) + rest


def quantile(samples: list[float], part: float) -> float:
    """Returns the smallest sample that at least this part of the samples does not exceed; 0 without samples."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else 0.0


class Parsl:
    """Parsl in its own interpreter, for comparison."""

    def __init__(self, python: str, workers: int) -> None:
        self.process = subprocess.Popen(
            [python, __file__, str(workers)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.version = self.ask("version", 0)

    def ask(self, what: str, count: int, size: int = 0) -> Any:
        """Requests a measurement and returns its result."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{what} {count} {size}\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("Parsl ended before the measurement was complete; its output is above")
        return json.loads(line)

    def close(self) -> None:
        """Ends the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()


def measure(options: Any) -> dict[str, Any]:
    """Returns the results that ``dayfly bench tasks`` prints."""
    import dayfly

    fresh = arguments(options.size)
    own: dict[str, list[float]] = {"latency": [], "rate": []}
    other: dict[str, list[float]] = {"latency": [], "rate": []}
    peer = Parsl(options.parsl, options.workers) if options.parsl else None
    try:
        # A typical setup of one user: manager, node and dispatcher in one process, on this machine's disk.
        with dayfly.Client._own() as client, dayfly.Executor(client=client) as executor:

            def submit() -> Any:
                return executor.submit(noop, fresh())

            for _ in range(options.rounds):
                own["latency"] += latencies(functools.partial(run_and_wait, submit), options.calls)
                own["rate"].append(rate(submit, options.tasks))
                if peer is not None:
                    other["latency"] += peer.ask("latency", max(20, options.calls // 4), options.size)
                    other["rate"].append(peer.ask("rate", max(50, options.tasks // 20), options.size))
            workers = max(endpoint["workers"] for endpoint in client.endpoints())
            repeats = [repeated(client, fresh(), options.tasks) for _ in range(options.rounds)]
            firsts = [first(client) for _ in range(options.rounds)]
    finally:
        if peer is not None:
            peer.close()
    found: dict[str, Any] = {
        "durable": True,
        "workers": workers,
        "argument_bytes": options.size,
        "tasks": options.tasks,
        "rounds": options.rounds,
        "latency_p50_ms": quantile(own["latency"], 0.5),
        "latency_p99_ms": quantile(own["latency"], 0.99),
        "tasks_per_s": quantile(own["rate"], 0.5),
        "tasks_per_s_rounds": own["rate"],
        "memoized_per_s": quantile(repeats, 0.5),
        "first_task_ms": quantile(firsts, 0.5),
    }
    if peer is not None:
        found |= {
            "parsl_version": peer.version,
            "parsl_durable": False,
            "parsl_latency_p50_ms": quantile(other["latency"], 0.5),
            "parsl_latency_p99_ms": quantile(other["latency"], 0.99),
            "parsl_tasks_per_s": quantile(other["rate"], 0.5),
            "parsl_tasks_per_s_rounds": other["rate"],
        }
    return found


def serve(workers: int) -> None:
    """Measures Parsl's high-throughput executor, on requests from standard input."""
    # Only the other interpreter has Parsl.
    import parsl
    from parsl.config import Config
    from parsl.executors import HighThroughputExecutor
    from parsl.providers import LocalProvider

    # Parsl looks its programs up in PATH.
    os.environ["PATH"] = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]
    executor = HighThroughputExecutor(
        label="peer",
        address="127.0.0.1",
        loopback_address="127.0.0.1",
        max_workers_per_node=workers,
        encrypted=False,
        provider=LocalProvider(init_blocks=1, min_blocks=1, max_blocks=1),
    )
    with tempfile.TemporaryDirectory() as directory:
        config = Config(
            executors=[executor], run_dir=directory, usage_tracking=0, strategy="none", initialize_logging=False
        )
        with parsl.load(config):
            nothing = parsl.python_app(noop)
            for line in sys.stdin:
                what, count, size = line.split()
                fresh = arguments(int(size))

                def submit(fresh: Callable[[], bytes] = fresh) -> Any:
                    return nothing(fresh())

                if what == "version":
                    measured: Any = parsl.__version__
                elif what == "latency":
                    measured = latencies(functools.partial(run_and_wait, submit), int(count))
                else:
                    measured = rate(submit, int(count))
                print(json.dumps(measured), flush=True)


if __name__ == "__main__":
    # Modules in this directory have the same names as packages.
    del sys.path[0]
    serve(int(sys.argv[1]))
