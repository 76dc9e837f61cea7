"""The part of ``dayfly bench harvest`` that a node records, so that the simulator can run the same calls.

The same lender and borrower as in `dayfly._bench_harvest` run on a node of their own, which records its events.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dayfly._bench_harvest import LEARNING, Pair, Site, block, chosen, note, plan, repeated
from dayfly._program import binary

if TYPE_CHECKING:
    import dayfly

#: The largest record.
MAX_RECORD = "1G"
#: Seconds for the node to stop.
STOP_S = 30.0


@contextmanager
def recording_node(state: Path) -> Iterator[dayfly.Client]:
    """Starts a manager with a node that lends and records, and connects to it."""
    import dayfly

    options = ["--listen", "127.0.0.1:0", "--state-dir", str(state), "--sandbox", "process", "--python", sys.executable]
    harvest = ["--harvest", "on", "--harvest-log", MAX_RECORD]
    program = binary()
    if program is None:
        raise SystemExit("No dayfly program is installed. Name one in DAYFLY_BIN.")
    command = [program, "up", "--json", *options, *harvest]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        if not process.stdout.readline():
            raise SystemExit(f"The recording node did not start: {process.stderr.read().decode().strip()}")
        with dayfly.connect(config=state / "connection.json") as client:
            yield client
    finally:
        process.terminate()
        try:
            process.communicate(timeout=STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def record(options: Any) -> None:
    """Runs a lender and a borrower for some rounds, and writes the node's record of their calls to a file."""
    note("recording calls for the simulator")
    module, names = chosen(options)
    plans = [plan(module, names, seed) for seed in range(3)]
    with tempfile.TemporaryDirectory() as directory:
        state = Path(directory) / "state"
        with recording_node(state) as client:
            pair = Pair(Site(client), client, len(os.sched_getaffinity(0)))
            try:
                for number in range(LEARNING):
                    block(pair, module, [(name, arguments, 0.0) for name, arguments, _ in plans[number % len(plans)]])
                    pair.borrow()
                with repeated(pair.borrow):
                    for number in range(options.rounds):
                        block(pair, module, plans[number % len(plans)])
            finally:
                pair.close()
        records = list(state.rglob("harvest.jsonl"))
        if not records:
            raise SystemExit("The node recorded nothing.")
        shutil.copyfile(records[0], options.record)
