"""Measures what this machine can measure of the papers, and writes their figures beside ours: `make papers` runs this.

    python benches/apps/papers.py [--out docs/measurements/papers.md] [--results build/papers] [--force] [--quick]

Each command runs once, and its JSON is kept in the directory of results. A command that fails, for example because the
machine was busy, is named on the page with its error.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measure import note
from processes import ROOT, cores, dayfly

#: Seconds for one command.
COMMAND_S = 3600.0
Found = Mapping[str, Any]
Results = Mapping[str, Found | str]

RFAAS = "rFaaS: leases and invocations in microseconds"
FUNCX = "funcX: durable tasks"
LIBRA = "Libra: lending idle resources"
CYLON = "Serverless Cylon: groups and data frames"


@dataclass(frozen=True)
class Line:
    """One figure of a paper."""

    paper: str
    subject: str
    theirs: str
    #: Words after `dayfly bench`.
    command: str
    ours: Callable[[Found], str]


def _overhead(found: Found) -> str:
    return f"{found['overhead_p50_ns']:+.0f} ns over the raw limit (call: {found['invoke']['p50_ns'] / 1e3:.2f} us)"


def _bandwidth(found: Found) -> str:
    return f"{found['share_of_baseline_bandwidth']:.2f} of the raw bandwidth"


def _cold(found: Found) -> str:
    return f"{found['p50_ms']:.2f} ms p50, {found['p99_ms']:.2f} ms p99"


def app(name: str, against: str, given: str = "", ours: str = "") -> Callable[[Found], str]:
    """Returns a function that describes the row of an application, or why there is none. ``given`` begins its input,
    and ``ours`` its own side."""

    def describe(found: Found) -> str:
        for row in found["rows"]:
            if row["app"] == name and row["against"] == against and given in row.get("input", ""):
                bounds = f"95 %: {row['low']:.2f} to {row['high']:.2f}"
                return f"{row['speedup']:.2f} times ({bounds}), {row['ours']} / {against}"
        for each in found["left_out"]:
            if each["app"] == name:
                return f"left out: {each['why']}"
        return "left out"

    return describe


def model(name: str, against: str) -> Callable[[Found], str]:
    """Returns a function that describes what the model predicts for an application."""

    def describe(found: Found) -> str:
        for row in found["rows"]:
            if row["app"] == name and row["against"] == against and "model" in row:
                of = row["model"]
                more = ", ".join(f"{speedup:.1f} with {workers}" for workers, speedup in of["more"].items())
                one = f"predicted {of['predicted']:.2f}, measured {of['measured']:.2f} with one leased core"
                return f"{one}; predicted {more}"
        return "left out"

    return describe


def number(name: str, unit: str) -> Callable[[Found], str]:
    return lambda found: f"{found[name]:,.4g} {unit}"


def frame(name: str, what: str) -> Callable[[Found], str]:
    def describe(found: Found) -> str:
        for row in found["rows"]:
            if row["name"] == name:
                return f"{row['value']:.3g} {row['unit']}, {what}"
        return "left out"

    return describe


ONE_RANK, ONE_THREAD = "MPI, one rank", "OpenMP, one thread"
LINES = [
    Line(
        RFAAS, "hot call over the transport, shared memory", "+326 ns over RDMA writes", "invoke --size 64", _overhead
    ),
    Line(RFAAS, "hot call, TCP", "+326 ns over RDMA writes", "invoke --transport tcp --size 64", _overhead),
    Line(RFAAS, "warm call, shared memory", "+4.67 us over RDMA writes", "invoke --mode warm --size 64", _overhead),
    Line(RFAAS, "bandwidth, 1 MiB", "the bandwidth of the link", "invoke --size 1048576", _bandwidth),
    Line(RFAAS, "cold start of a process", "single-digit ms beside the start of the worker", "cold", _cold),
    Line(RFAAS, "cold start, isolated", "2.7 s in Docker with SR-IOV", "cold --sandbox isolated", _cold),
    Line(
        RFAAS,
        "thumbnail of 97 kB",
        "faster than AWS Lambda",
        "apps",
        app("thumbnails", "HTTP function server", "97 kB"),
    ),
    Line(
        RFAAS,
        "thumbnail of 3.6 MB",
        "faster than AWS Lambda",
        "apps",
        app("thumbnails", "HTTP function server", "3.6 MB"),
    ),
    Line(
        RFAAS,
        "inference on 53 kB (there ResNet-50)",
        "faster than AWS Lambda",
        "apps",
        app("recognition", "HTTP function server", "53 kB"),
    ),
    Line(
        RFAAS,
        "inference on 230 kB (there ResNet-50)",
        "faster than AWS Lambda",
        "apps",
        app("recognition", "HTTP function server", "230 kB"),
    ),
    Line(
        RFAAS,
        "Black-Scholes, all offloaded",
        "within network time of OpenMP",
        "apps",
        app("blackscholes", ONE_THREAD, ours="a leased"),
    ),
    Line(
        RFAAS,
        "Black-Scholes, half offloaded",
        "further speedup",
        "apps",
        app("blackscholes", ONE_THREAD, ours="OpenMP"),
    ),
    Line(RFAAS, "Black-Scholes, model", "", "apps", model("blackscholes", ONE_THREAD)),
    Line(RFAAS, "matrix product, MPI and leases", "1.88 to 1.94 times", "apps", app("matmul", ONE_RANK)),
    Line(RFAAS, "matrix product, model", "", "apps", model("matmul", ONE_RANK)),
    Line(RFAAS, "Jacobi, MPI and leases", "1.7 to 2.2 times", "apps", app("jacobi", ONE_RANK)),
    Line(RFAAS, "Jacobi, model", "", "apps", model("jacobi", ONE_RANK)),
    Line(RFAAS, "prefix scan by width", "", "apps", app("scan", ONE_RANK)),
    Line(
        RFAAS,
        "echo of 1 kB, over a function server",
        "23 to 39 times Nightcore",
        "apps",
        app("payload", "HTTP function server", "1 kB", "hot"),
    ),
    Line(
        RFAAS,
        "echo of 5 MB, over a function server",
        "23 to 39 times Nightcore",
        "apps",
        app("payload", "HTTP function server", "5 MB", "hot"),
    ),
    Line(RFAAS, "32 workers at once, 1 MB", "bounded by the network", "apps", app("workers", "raw TCP", "1 MB x 32")),
    Line(FUNCX, "a warm task", "75.9 ms over 20.5 ms of network", "tasks", number("latency_p50_ms", "ms")),
    Line(FUNCX, "the first task of a function", "2,886 ms", "tasks", number("first_task_ms", "ms")),
    Line(FUNCX, "tasks a second", "1,694/s", "tasks", number("tasks_per_s", "/s")),
    Line(FUNCX, "memoized tasks a second", "1,582/s (100,000 in 63.2 s)", "tasks", number("memoized_per_s", "/s")),
    Line(LIBRA, "rate of the borrower", "response times 39 % shorter", "harvest", number("borrower_gain", "times")),
    Line(
        LIBRA,
        "lender's slowdown, p99",
        "no significant degradation",
        "harvest",
        number("lender_slowdown_p99", "(share)"),
    ),
    Line(
        LIBRA,
        "cost of lending",
        "1.0 and 0.6 cores of profiler and scheduler",
        "harvest",
        number("overhead_core_share", "cores"),
    ),
    Line(
        CYLON,
        "join of 4.5 million rows, 2 ranks",
        "10.41 s for ten joins on Lambda, 4.83 s on a cluster",
        "frames --only paper-join-2",
        frame("paper-join-2", "for one join"),
    ),
    Line(
        CYLON,
        "speedup of that join by 2 ranks",
        "1.71 on Lambda, 1.87 on a cluster",
        "frames --only paper-speedup",
        frame("paper-speedup", "two ranks over one"),
    ),
    Line(
        CYLON,
        "efficiency with as many rows on each rank",
        "0.72 on Lambda, 0.89 on a cluster",
        "frames --only paper-weak",
        frame("paper-weak", "two ranks"),
    ),
    Line(
        CYLON,
        "allreduce of 2 ranks over TCP",
        "converges with MPI on EC2",
        "comm --op allreduce --transport tcp",
        lambda found: f"{found['geometric_mean']:.2f} of Open MPI's time, geometric mean over all sizes",
    ),
]

NOT_HERE = [
    ("RDMA", "network cards with RoCE or InfiniBand at 100 Gb/s: the transports here are shared memory and TCP"),
    ("scaling to 36 cores and several nodes", "4 nodes of 36 cores: workers beyond the cores here share them"),
    ("containers with a network card of their own", "SR-IOV and Docker"),
    ("AWS Lambda, Azure, Google", "accounts in those clouds; a function server of HTTP stands for them"),
    ("OpenWhisk and Nightcore", "their clusters; a function server of HTTP stands for them"),
    ("ResNet-50", "its weights, which are in no package; a perceptron of scikit-learn's digits runs"),
    ("131,072 containers", "the supercomputers Theta and Cori; a test attaches as many workers that do not compute"),
    ("64 ranks on EC2, Lambda and a cluster", "as many cores"),
    ("utilisation of a supercomputer", "the records of its batch system"),
    ("GPUs in functions", "GPUs"),
]


def commands(quick: bool) -> list[str]:
    """Returns the commands, each once."""
    found = list(dict.fromkeys(line.command for line in LINES))
    return [f"{each} --quick" if quick and each.split()[0] in ("apps", "frames") else each for each in found]


def measure(words: str, results: Path, force: bool) -> Found | str:
    """Runs a command. Returns its JSON, or its error."""
    note(f"dayfly bench {words}")
    command = [dayfly(), "bench", *words.split(), "--json"]
    # Ranks of `comm` are not refused on a busy machine.
    command += ["--force"] if force and not words.startswith("comm") else []
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_S, check=False, cwd=ROOT)
    except subprocess.TimeoutExpired:
        return f"it did not end within {COMMAND_S:.0f} s"
    if done.returncode != 0:
        return reason(done.stderr) or f"it ended with {done.returncode}"
    results.mkdir(parents=True, exist_ok=True)
    (results / f"{words.replace(' ', '_').replace('--', '')}.json").write_text(done.stdout)
    found: Found = json.loads(done.stdout)
    return found


def reason(printed: str) -> str:
    """Returns the message of an error that was printed as JSON, else the last line."""
    last = next(reversed(printed.strip().splitlines()), "")
    try:
        return str(json.loads(last)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return last


def cell(text: str) -> str:
    return " ".join(text.replace("|", "/").split())


def ours(line: Line, results: Results) -> str:
    result = results.get(line.command, "not run")
    if isinstance(result, str):
        return f"not measured: {result}"
    try:
        return line.ours(result)
    except (KeyError, TypeError, ValueError) as missing:
        return f"not measured: the report has no {missing}"


def page(results: Results, machine: str, date: str, lines: Sequence[Line] = LINES) -> str:
    """Returns the page in Markdown."""
    parts = [
        "# The papers' figures beside ours",
        "",
        f"`make papers` wrote this page on {date} on {machine}. The papers measured on clusters and in clouds: compare",
        "what the systems add and gain, and not the machines. On two cores, a program and its leased worker share what",
        "there is. The rows named *model* have what [the model](../../benches/apps/model.py) predicts for more cores,",
        "and how well it predicts the step from one to two.",
        "",
    ]
    for paper in dict.fromkeys(line.paper for line in lines):
        parts += [f"## {paper}", "", "| subject | the paper | here | command |", "|---|---|---|---|"]
        for line in lines:
            if line.paper == paper:
                here = cell(ours(line, results))
                parts.append(f"| {line.subject} | {line.theirs} | {here} | `dayfly bench {line.command}` |")
        parts.append("")
    parts += ["## What needs other hardware", "", "| subject | what it needs |", "|---|---|"]
    parts += [f"| {subject} | {needed} |" for subject, needed in NOT_HERE]
    return "\n".join(parts) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "measurements" / "papers.md")
    parser.add_argument("--results", type=Path, default=ROOT / "build" / "papers", help="directory for the JSON")
    parser.add_argument("--force", action="store_true", help="report even if the machine was busy")
    parser.add_argument("--quick", action="store_true", help="small inputs: whether it works, not how fast")
    options = parser.parse_args()
    named = commands(options.quick)
    results = {words.removesuffix(" --quick"): measure(words, options.results, options.force) for words in named}
    machine = f"{platform.machine()} with {len(cores())} cores"
    options.out.write_text(page(results, machine, f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}"))
    print(options.out)
    failed = [words for words, result in results.items() if isinstance(result, str)]
    for words in failed:
        note(f"dayfly bench {words} failed: {results[words]}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
