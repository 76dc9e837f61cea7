"""Compares Dayfly with its peers, in one run on the same two cores: `main.py --out DIRECTORY [--only NAME ...]`.

The standard library comes first, as the baseline. Each peer is a process of its own with a deadline; everything that it
started is gone before the next. Writes peers.json and peers.md, and a table to the terminal.
"""

import argparse
import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import environment
import machine
import processes
import report

HERE = Path(__file__).resolve().parent
DEADLINE = 90.0
ALL = 345.0  # seconds; a peer that would exceed this is not started


@dataclass
class Entry:
    module: str
    package: str = ""  # package to install; empty for the standard library and Dayfly
    shared: tuple[str, ...] = ("psm_", "sem.mp-")  # prefixes of files that it may leave in /dev/shm


PEERS = {
    "ProcessPoolExecutor": Entry("peer_executor"),
    "multiprocessing.Pool": Entry("peer_pool"),
    "Dayfly, hot": Entry("peer_dayfly_hot"),
    "Dayfly, warm": Entry("peer_dayfly_warm"),
    "DragonHPC pool": Entry("peer_dragon", "dragonhpc", ("DD", "psm_", "sem.mp-")),
    "Ray actor": Entry("peer_ray_actor", "ray", ("plasma", "ray")),
    "Ray task": Entry("peer_ray_task", "ray", ("plasma", "ray")),
    "Parsl HTEX": Entry("peer_parsl", "parsl"),
    "Dask distributed": Entry("peer_dask", "distributed"),
}

# Disables telemetry, and restricts the peers to the loopback interface.
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DISABLE_IMPORT_WARNING": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "PARSL_TRACKING": "false",
    "DASK_DISTRIBUTED__SCHEDULER__DASHBOARD__STATUS__TASK_STREAM_LENGTH": "0",
    "PYTHONUNBUFFERED": "1",
    "OMP_NUM_THREADS": "1",
}


def run_one(entry: Entry, python: Path, deadline: float, cores: list[int], results: Path) -> dict[str, Any]:
    output = results / f"{entry.module}.json"
    own = Path(sys.executable) if not entry.package else python
    command = [str(own), str(HERE / "one.py"), entry.module, str(len(cores)), str(output)]
    env = {name: value for name, value in os.environ.items() if not name.startswith("DAYFLY_MANAGER")}
    env |= {**QUIET, "PYTHONPATH": str(HERE), "PATH": f"{own.parent}{os.pathsep}{os.environ.get('PATH', '')}"}
    if entry.package == "dragonhpc":
        command = [str(own.parent / "dragon"), "-s", *command]
    before = machine.quiet(cores)
    start = time.monotonic()
    problem, left = processes.run(command, env, deadline, entry.shared)
    seconds = time.monotonic() - start
    after = machine.quiet(cores)
    found: dict[str, Any] = json.loads(output.read_text()) if output.exists() else {}
    found |= {"seconds": seconds, "processes_left": left, "busy_share": [before, after]}
    found["busy"] = max(before, after) > machine.BUSY
    if problem or "p50_ns" not in found:
        found["problem"] = problem or "wrote no result"
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="directory of peers.json and peers.md")
    parser.add_argument("--only", nargs="+", choices=PEERS, metavar="NAME", help=f"of: {', '.join(PEERS)}")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    out = options.out.resolve()
    chosen = {name: entry for name, entry in PEERS.items() if not options.only or name in options.only}

    python, missing = Path(sys.executable), {}
    if packages := sorted({entry.package for entry in chosen.values() if entry.package}):
        python, missing = environment.prepare(packages)
    cores = machine.take_cores()
    processes.become_subreaper()
    parts = out / "peers"
    parts.mkdir(exist_ok=True)
    results: dict[str, dict[str, Any]] = {}
    end = time.monotonic() + ALL
    for name, entry in chosen.items():
        (parts / f"{entry.module}.json").unlink(missing_ok=True)
        deadline = min(DEADLINE, end - time.monotonic())
        if entry.package in missing:
            results[name] = {"problem": f"could not be installed: {missing[entry.package]}"}
        elif entry.module.startswith("peer_dayfly") and not environment.has_dayfly():
            results[name] = {"problem": f"the package dayfly is not installed in {sys.executable}; run make build"}
        elif deadline < 10:
            results[name] = {"problem": f"the {ALL:.0f} s of all peers together were used up"}
        else:
            print(f"    {name} ...", file=sys.stderr, flush=True)
            results[name] = run_one(entry, python, deadline, cores, parts)
    about = machine.describe(cores)
    (out / "peers.json").write_text(json.dumps({"machine": about, "peers": results}, indent=2) + "\n")
    (out / "peers.md").write_text(report.markdown(about, results))
    print(report.table(about, results))
    # A peer that does not run is reported but is no failure. Dayfly and the baseline must run.
    return int(any("p50_ns" not in results[name] for name, entry in chosen.items() if not entry.package))


if __name__ == "__main__":
    try:
        sys.exit(main())
    finally:
        processes.end_all()
