"""Applications in C++: OpenMP and MPI alone, and the same with leased workers on a core of their own."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measure import MIN_ROUNDS, Measured, WrongResultError, note, row
from model import Model, divided, scanned, sentence
from processes import EXAMPLES, ROOT, cores, dayfly, on, site

#: Seconds for a compiler, and for one program.
COMPILE_S, RUN_S = 180.0, 600.0
#: Parts into which the rounds of programs that cannot take turns in one process are cut.
BLOCKS = 3
OPEN_MPI = [
    *("mpirun", "--oversubscribe", "--bind-to", "none"),
    *("--mca", "btl", "self,vader", "--mca", "btl_vader_single_copy_mechanism", "none"),
    # Everything stays on this host, and no remote shell is used.
    *("--mca", "oob_tcp_if_include", "lo", "--mca", "plm", "isolated"),
]
MPI, MPI_LEASE, MPI_TWO = "MPI, one rank", "MPI, one rank and a leased worker", "MPI, two ranks"


@dataclass(frozen=True)
class Application:
    """A program of examples/apps that uses MPI."""

    name: str
    #: Arguments after the library and before the rounds, and after them.
    size: int
    quick_size: int
    paper: str
    model: Callable[[int, Mapping[str, float]], Mapping[str, Any]]
    won: str
    steps: int | None = None
    quick_steps: int | None = None


def library_directory() -> Path:
    """Returns the directory of libdayfly: that of the program, if it is a path."""
    named = os.environ.get("DAYFLY_BIN_DIR")
    return Path(named) if named else Path(shutil.which(dayfly()) or dayfly()).resolve().parent


def compile_app(source: Path, out: Path, *flags: str, compiler: str, quick: bool) -> Path:
    """Compiles a program or, if its name ends in .so, a library of functions."""
    includes = [f"-I{ROOT / 'bindings' / name / 'include'}" for name in ("c", "cxx")]
    command = [compiler, "-O1" if quick else "-O3", *includes, *flags, "-o", str(out), str(source)]
    if out.suffix == ".so":
        command += ["-shared", "-fPIC", "-lm"]
    else:
        where = library_directory()
        # By its path: beside it may be a libmpi.so, which is not the one of the compiler.
        command += ["-std=c++17", str(where / "libdayfly.so"), f"-Wl,-rpath,{where}", "-pthread", "-lm"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_S, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{source.name} does not compile:\n{done.stderr}")
    return out


def run_app(command: Sequence[str | Path], manager: Path | None, **variables: str) -> dict[str, Any]:
    """Runs a program and returns what it measured."""
    environment = {name: value for name, value in os.environ.items() if name != "DAYFLY_MANAGER"} | variables
    if manager is not None:
        environment["DAYFLY_MANAGER"] = str(manager)
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, timeout=RUN_S, env=environment, check=False)
    if not done.stdout.strip():
        raise SystemExit(f"{' '.join(words)} ended with {done.returncode}: {done.stderr.strip()}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    if not found["checked"] or done.returncode != 0:
        raise WrongResultError(f"{' '.join(words)} computed a wrong result")
    return found


def mpirun(ranks: int) -> list[str]:
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    return [*OPEN_MPI, *root, "-n", str(ranks)]


def blackscholes(quick: bool, program: Path, library: Path, rounds: int) -> list[dict[str, Any]]:
    """OpenMP alone, with a leased worker, and a leased worker alone."""
    count = 400_000 if quick else 10_000_000
    note(f"Black-Scholes of {count} options")
    with site(cores()[1:2]) as state, on(cores()[:2]):
        settings = {"OMP_WAIT_POLICY": "passive", "OMP_DYNAMIC": "false"}
        found = run_app([program, library, str(count), str(rounds)], state, **settings)
    names = {
        "openmp-1": "OpenMP, one thread",
        "openmp-1+lease": "OpenMP, one thread and a leased worker",
        "openmp-2": "OpenMP, two threads",
        "lease": "a leased worker alone",
    }
    times = {names[name]: each for name, each in found["rounds"].items()}
    megabytes = f"{count * 24 / 1e6:.0f} MB"
    shared = {"checked": True, "input": megabytes, "sent": found["sent"]}
    one, hybrid, two, alone = (names[name] for name in ("openmp-1", "openmp-1+lease", "openmp-2", "lease"))
    first = row(
        *("blackscholes", hybrid, one, times),
        why={
            "won": f"the worker priced {found['sent']:.0%} of the options on a second core",
            "lost": "the options cost more to send than to price",
        },
        **{"cores": 1, "leased_cores": 1, "paper": "half of the work on as many leased cores: further speedup"}
        | shared,
    )
    model = Model(
        alone_ms=first["against_ms"],
        call_ms=found["call_ms"],
        ns_per_byte=found["ns_per_byte"],
        # A step of the shared loop waits for one call at most; its others are under way at once.
        calls=count / (8192 * 64),
        bytes_each=0,
        bytes_divided=28 * count,
    )
    first["model"] = model.beside(first["speedup"])
    first["said"] += " " + sentence(first["model"])
    return [
        first,
        row(
            *("blackscholes", hybrid, two, times),
            why={
                "won": "the planner divides the loop by measured times, OpenMP into equal halves",
                "lost": "a thread reads the options where they are, and a worker gets them copied",
            },
            **{"cores": 2, "leased_cores": 1} | shared,
        ),
        row(
            *("blackscholes", alone, one, times),
            why={
                "won": "the program copies options while the worker prices others",
                "lost": "the options travel to the worker, and nothing is computed here meanwhile",
            },
            **{"cores": 1, "leased_cores": 1, "paper": "within network time of OpenMP"} | shared,
        ),
    ]


APPLICATIONS = [
    Application(
        name="matmul",
        size=768,
        quick_size=256,
        paper="1.88 to 1.94 times",
        model=lambda n, _: {"calls": 1, "bytes_each": 8 * n * n, "bytes_divided": 16 * n * n},
        won="half of the rows are multiplied on the second core, and sending the matrices takes little beside that",
    ),
    Application(
        name="jacobi",
        size=2048,
        quick_size=512,
        steps=200,
        quick_steps=40,
        paper="1.7 to 2.2 times",
        model=lambda n, found: {
            "calls": found["steps"],
            "bytes_each": 8 * n * found["steps"],
            "bytes_divided": 8 * n * found["steps"],
        },
        won="the worker keeps its half of the matrix, so that only the approximation travels in each step",
    ),
    Application(
        name="scan",
        size=300,
        quick_size=45,
        paper="no figure; the width of the graph decides",
        model=lambda n, _: {"calls": 2, "bytes_each": 0, "bytes_divided": 2 * 8 * 64 * 64 * n, "share": scanned},
        won="the wide form of the scan needs two thirds of the time on two cores",
    ),
]


def with_mpi(app: Application, quick: bool, program: Path, library: Path, rounds: int) -> list[dict[str, Any]]:
    """One rank on the first core, the same with a leased worker on the second, and two ranks."""
    size, steps = (app.quick_size, app.quick_steps) if quick else (app.size, app.steps)
    note(f"{app.name} of {size} with MPI and leases")
    blocks = 1 if quick else BLOCKS
    arguments = [str(size), str(-(-rounds // blocks))] + ([str(steps)] if steps else [])
    times: dict[str, list[float]] = {MPI: [], MPI_LEASE: [], MPI_TWO: []}
    costs: dict[str, list[float]] = {"call_ms": [], "ns_per_byte": []}
    sent = []
    for _ in range(blocks):
        with site(cores()[1:2]) as state, on(cores()[:2]):
            found = run_app([*mpirun(1), program, library, *arguments], state)
        times[MPI] += found["rounds"]["mpi-1"]
        times[MPI_LEASE] += found["rounds"]["mpi-1+lease"]
        for name, values in costs.items():
            values.append(found[name])
        sent.append(found.get("sent", 0))
        with on(cores()[:2]):
            times[MPI_TWO] += run_app([*mpirun(2), program, library, *arguments], None)["rounds"]["mpi-2"]
    more: dict[str, Any] = {"checked": True, "input": str(size), "paper": app.paper}
    if app.name == "jacobi":
        more |= {"matrix_sent": max(sent), "matrix_sent_after_loss": lose(program, library)}
    first = row(
        *(app.name, MPI_LEASE, MPI, times),
        why={"won": app.won, "lost": "the call and what it sends cost more than the second core gives"},
        **{"cores": 1, "leased_cores": 1} | more,
    )
    known = {name: statistics.median(values) for name, values in costs.items()}
    of_model: dict[str, Any] = {"share": divided, **app.model(size, {"steps": steps or 1})}
    first["model"] = Model(alone_ms=first["against_ms"], **known, **of_model).beside(first["speedup"])
    first["said"] += " " + sentence(first["model"])
    second = row(
        *(app.name, MPI_LEASE, MPI_TWO, times),
        why={
            "won": "memory that both share takes fewer copies than messages",
            "lost": "ranks poll for messages, a warm worker is woken, and the client's threads share the rank's core",
            "even": "both use the same two cores, and send about the same",
        },
        **{"cores": 2, "leased_cores": 1} | more,
    )
    return [first, second]


def lose(program: Path, library: Path) -> int:
    """Ends the worker of a small run of Jacobi's method half-way. Returns how many times the matrix was sent."""
    with site(cores()[1:2]) as state, on(cores()[:2]):
        found = run_app([*mpirun(1), program, library, "64", "2", "20", "lose"], state)
    return int(found["sent"])


def measure(wanted: set[str], quick: bool) -> Measured:
    """Measures the wanted ones of Black-Scholes, the product, Jacobi's method and the scan."""
    apps = [app for app in APPLICATIONS if app.name in wanted]
    names = (["blackscholes"] if "blackscholes" in wanted else []) + [app.name for app in apps]
    left_out: list[dict[str, str]] = []
    if not names:
        return [], []
    missing = ""
    if len(cores()) < 2:
        missing = "there is no second core"
    elif not (shutil.which("cc") and shutil.which("c++")):
        missing = "there is no compiler. Install with: sudo apt-get install build-essential"
    elif not (library_directory() / "libdayfly.so").exists():
        missing = f"libdayfly.so is not in {library_directory()}. `make build` makes it"
    if missing:
        left_out.extend({"app": name, "against": "all", "why": missing} for name in names)
        return [], left_out
    if apps and not (shutil.which("mpicxx") and shutil.which("mpirun")):
        why = "Open MPI is not installed. Install with: sudo apt-get install openmpi-bin libopenmpi-dev"
        left_out.extend({"app": app.name, "against": MPI, "why": why} for app in apps)
        apps = []
    rounds = MIN_ROUNDS if quick else 12
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="dayfly-apps-") as made, ThreadPoolExecutor(len(cores())) as compilers:
        directory = Path(made)

        def start(name: str, *flags: str, out: str = "", compiler: str) -> Future[Path]:
            target = directory / (out or Path(name).stem)
            return compilers.submit(compile_app, EXAMPLES / name, target, *flags, compiler=compiler, quick=quick)

        compiled = {app.name: start(f"{app.name}.cpp", compiler="mpicxx") for app in apps}
        if "blackscholes" in wanted:
            compiled["blackscholes"] = start("blackscholes.cpp", "-fopenmp", compiler="c++")
        library = start("functions.c", out="libapps.so", compiler="cc").result()
        programs = {name: each.result() for name, each in compiled.items()}
        if "blackscholes" in wanted:
            found += blackscholes(quick, programs["blackscholes"], library, rounds)
        for app in apps:
            found += with_mpi(app, quick, programs[app.name], library, rounds)
    return found, left_out
