"""The demo: functions on leased workers with real input, each checked against the same computation in this process, and
then the latency of an invocation compared with the limits of this machine. Run by `make demo`."""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path

import dayfly
import options
import photos
import terminal


def binaries() -> Path:
    """Returns the directory of the programs and the C library: DAYFLY_BIN_DIR, else that of `dayfly` on the PATH."""
    named = os.environ.get("DAYFLY_BIN_DIR")
    found = Path(named) / "dayfly" if named else shutil.which("dayfly")
    if found is None or not Path(found).exists():
        raise terminal.DemoError("the programs are not there: run `make build`, or set DAYFLY_BIN_DIR")
    return Path(found).parent


def latencies(directory: Path, out: Path) -> None:
    terminal.title("What an invocation costs here")
    command = [str(directory / "dayfly"), "bench", "table", "--out", str(out), "--python", sys.executable]
    quiet = subprocess.run(command, capture_output=True, text=True, check=False, timeout=180)
    if quiet.returncode != 0:
        terminal.say("a busy machine", quiet.stderr.strip().partition("]: ")[2] or quiet.stderr.strip())
        terminal.say("", "Measured all the same; believe the differences rather than the times.")
        print(flush=True)
        subprocess.run([*command, "--force"], check=True, timeout=180)
        return
    print(quiet.stdout, end="", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/demo"), help="directory for pictures")
    out: Path = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    try:
        directory = binaries()
        os.environ["DAYFLY_BIN"] = str(directory / "dayfly")
        cores = len(os.sched_getaffinity(0))
        workers = max(1, min(4, cores))
        print(terminal.paint(f"Dayfly {dayfly.__version__}", "1") + f" on {platform.node()}, {cores} cores", flush=True)
        with dayfly.connect() as client:
            photos.run(client, workers, out)
            options.run(client, workers, directory, out)
        latencies(directory, out)
    except terminal.DemoError as error:
        print(f"\ndemo: {error}", file=sys.stderr)
        return 1
    print(f"\nDone in {terminal.seconds(time.perf_counter() - start)}; the pictures are in {out}/")
    return 0


if __name__ == "__main__":
    sys.exit(main())
