"""Runs OSU's micro-benchmarks on Dayfly's MPI and on others in turn, on two pinned ranks of this host, and prints how
Dayfly's times compare with the best of the others.

    python tests/mpi/osu.py --programs /path/of/osu/c/mpi --peer mpich=/opt/mpich [--only osu_latency ...] [--tcp]
        [--programs-open-mpi /path/of/another/osu/c/mpi --peer open-mpi=/opt/openmpi] [--json FILE]

The programs are not in this repository. Build them twice: with an `mpicc` of MPICH's family, whose programs run on
Dayfly, MPICH and Intel MPI unchanged, and with Open MPI's. A peer is a directory that has `bin/mpiexec` and `lib`.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from harness.daemons import rendezvous  # noqa: E402 (the path is set above)
from harness.mpi_ranks import run_ranks  # noqa: E402

MIN_BYTES, MAX_BYTES = 8, 4 << 20
TIMEOUT_S = 120
OURS = "dayfly"

#: Programs, and whether a larger figure is better.
POINT_TO_POINT = {
    "osu_latency": False,
    "osu_bw": True,
    "osu_bibw": True,
    "osu_mbw_mr": True,
    "osu_latency_persistent": False,
}
COLLECTIVES = dict.fromkeys(
    (
        "osu_barrier",
        "osu_bcast",
        "osu_reduce",
        "osu_allreduce",
        "osu_gather",
        "osu_scatter",
        "osu_allgather",
        "osu_alltoall",
        "osu_reduce_scatter",
        "osu_allgatherv",
        "osu_alltoallv",
        "osu_gatherv",
        "osu_scatterv",
    ),
    False,
)
ONE_SIDED = {
    "osu_put_latency": False,
    "osu_get_latency": False,
    "osu_acc_latency": False,
    "osu_get_acc_latency": False,
    "osu_fop_latency": False,
    "osu_cas_latency": False,
    "osu_put_bw": True,
    "osu_get_bw": True,
}
PROGRAMS = POINT_TO_POINT | COLLECTIVES | ONE_SIDED
#: Figures by size. A program without sizes has one, under 0.
Figures = dict[int, float]


@dataclass(frozen=True)
class Row:
    """A program on all implementations: the medians of all rounds."""

    program: str
    is_rate: bool
    figures: dict[str, Figures]

    def ratios(self) -> Figures:
        """Returns Dayfly's time over that of the best peer, by size."""
        found = {}
        for size, ours in self.figures[OURS].items():
            peers = [theirs[size] for name, theirs in self.figures.items() if name != OURS and size in theirs]
            if peers:
                found[size] = max(peers) / ours if self.is_rate else ours / min(peers)
        return found

    def best(self, size: int) -> str:
        """Returns the fastest peer at a size."""
        peers = {name: theirs[size] for name, theirs in self.figures.items() if name != OURS and size in theirs}
        return (max if self.is_rate else min)(peers, key=lambda name: peers[name])


def parse(text: str) -> Figures:
    """Returns the first figure of each line of results."""
    figures: Figures = {}
    for line in text.splitlines():
        if re.fullmatch(r"\s*\d+(\s+[\d.]+)+\s*", line):
            size, figure = line.split()[:2]
            figures[int(size)] = float(figure)
        elif re.fullmatch(r"\s*[\d.]+\s*", line):
            figures[0] = float(line)
    return figures


def find(programs: Path, name: str) -> Path:
    """Returns the built program, which libtool may have put into a directory of its own."""
    found = [path for path in programs.rglob(name) if path.is_file() and os.access(path, os.X_OK)]
    if not found:
        raise SystemExit(f"no {name} in {programs}")
    return max(found, key=lambda path: path.parent.name == ".libs")


def arguments(name: str) -> list[str]:
    """Returns the sizes that a program is asked for."""
    if name in ("osu_barrier", "osu_fop_latency", "osu_cas_latency"):
        return []
    return ["-m", f"{MIN_BYTES}:{MAX_BYTES}"]


#: Begins a rank on its core, whose number is that of the rank.
PINNED = r"""rank=${DAYFLY_GROUP##*'"rank": '}; exec taskset -c "${rank%%[,\}]*}" "$@" """
#: The same where each rank takes itself for alone on its host.
PINNED_APART = f"echo $$ >$0.$$; mount --bind $0.$$ /proc/sys/kernel/random/boot_id; {PINNED}"


def run_ours(group: dict[str, Any], command: Sequence[str], is_tcp: bool) -> str:
    """Runs a program on Dayfly. Each rank has its core, and polls without end as those of other implementations do."""
    invitation = {"spin_us": None, "trust_fabric": is_tcp}
    with tempfile.TemporaryDirectory() as directory:
        words = ["unshare", "--mount", "sh", "-c", PINNED_APART] if is_tcp else ["sh", "-c", PINNED]
        words += [f"{directory}/boot", *command]
        done = run_ranks(group, words, 2, timeout=TIMEOUT_S, invitation=invitation)
    if any(status for status, _ in done):
        raise RuntimeError("\n".join(output for _, output in done))
    return "".join(output for _, output in done)


def run_peer(name: str, prefix: Path, command: Sequence[str], is_tcp: bool) -> str:
    """Runs a program on another MPI. Each rank has its core."""
    library = {"LD_LIBRARY_PATH": str(prefix / "lib")} if prefix != Path("/usr") else {}
    words = [str(prefix / "bin" / ("mpirun" if name.startswith("open") else "mpiexec"))]
    if name.startswith("open"):
        words += ["--allow-run-as-root", "--oversubscribe", "--bind-to", "core"]
        words += ["--mca", "pml", "ob1", "--mca", "btl", "self,tcp"] if is_tcp else []
        words += ["--mca", "btl_tcp_if_include", "lo"] if is_tcp else []
    elif name.startswith("intel"):
        library |= {"I_MPI_PIN_PROCESSOR_LIST": "0,1", "I_MPI_FABRICS": "ofi" if is_tcp else "shm"}
        library |= {"I_MPI_ROOT": str(prefix), "FI_PROVIDER_PATH": str(prefix / "lib"), "FI_TCP_IFACE": "lo"}
        library |= {"FI_PROVIDER": "tcp"} if is_tcp else {}
    else:
        words += ["-bind-to", "core"]
        library |= {"MPIR_CVAR_NOLOCAL": "1", "FI_PROVIDER": "tcp", "FI_TCP_IFACE": "lo"} if is_tcp else {}
    environment = {"PATH": f"{prefix}/bin:{os.environ['PATH']}", "HOME": os.environ["HOME"]} | library
    done = subprocess.run(
        [*words, "-n", "2", *command],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{name}: {done.stdout}\n{done.stderr}")
    return done.stdout


def measure(program: str, runs: dict[str, Callable[[str], str]], rounds: int) -> Row:
    """Runs a program on all implementations in turn."""
    readings: dict[str, dict[int, list[float]]] = {name: {} for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            try:
                figures = parse(run(program))
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                print(f"{program} on {name}: {str(error)[-400:]}", file=sys.stderr)
                continue
            for size, figure in figures.items():
                readings[name].setdefault(size, []).append(figure)
    medians = {
        name: {size: statistics.median(values) for size, values in sizes.items()} for name, sizes in readings.items()
    }
    return Row(program, PROGRAMS[program], medians)


def line(row: Row) -> str:
    """Returns a line of the table: geometric mean and worst of the ratios, and the peer that is best there."""
    ratios = row.ratios()
    if not ratios:
        return f"| {row.program} | no figures | | | |"
    mean = statistics.geometric_mean(ratios.values())
    worst = max(ratios, key=lambda size: ratios[size])
    ours = row.figures[OURS]
    shown = ", ".join(f"{ours[size]:g}" for size in sorted(ours) if size in (0, MIN_BYTES, 1 << 16, MAX_BYTES))
    return f"| {row.program} | {mean:.2f} | {ratios[worst]:.2f} at {worst} B, {row.best(worst)} | {shown} |"


def main() -> int:
    """Measures the chosen programs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=Path, required=True)
    parser.add_argument("--programs-open-mpi", type=Path)
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=PREFIX")
    parser.add_argument("--only", nargs="+", choices=PROGRAMS, default=list(PROGRAMS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tcp", action="store_true", help="between the ranks, in place of shared memory")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    peers = {name: Path(prefix) for name, _, prefix in (peer.partition("=") for peer in chosen.peer)}

    def peer(name: str, prefix: Path) -> Callable[[str], str]:
        programs = chosen.programs_open_mpi if name.startswith("open") else chosen.programs
        return lambda program: run_peer(name, prefix, [str(find(programs, program)), *arguments(program)], chosen.tcp)

    rows = []
    with rendezvous() as group:
        runs = {
            OURS: lambda program: run_ours(
                group, [str(find(chosen.programs, program)), *arguments(program)], chosen.tcp
            )
        } | {name: peer(name, prefix) for name, prefix in peers.items()}
        print("| program | mean | worst | ours at 8 B, 64 KiB, 4 MiB |\n|---|---|---|---|")
        for program in chosen.only:
            rows.append(measure(program, runs, chosen.rounds))
            print(line(rows[-1]), flush=True)
    means = [statistics.geometric_mean(ratios.values()) for ratios in (row.ratios() for row in rows) if ratios]
    if means:
        print(f"| all: geometric mean | {math.exp(statistics.mean(map(math.log, means))):.2f} | | |")
    if chosen.json:
        chosen.json.write_text(
            json.dumps([{"program": row.program, "figures": row.figures, "ratios": row.ratios()} for row in rows])
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
