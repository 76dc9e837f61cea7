"""Measures the functions of examples/python/harvest_functions.py, and writes data/functions.json.

    nice -n 15 python crates/simulate/measure.py              all functions, some ten minutes on two idle cores
    python crates/simulate/measure.py --only compress --sizes 4 --out /tmp/some.json

Each run has a process of its own, as on a worker that starts: the Python modules are imported before, the arguments are
made before. A run is divided into the phases that the function marks. For each phase:

- `core_us`: user and system time of the process and its children. It depends less on other load than the
  wall time does. Yet of 103 runs above 0.1 core-seconds, the median took 1.05 times as long under load as on idle
  cores, and a tenth took more than 1.31 times. Measure on an idle machine;
- `milli_cores`: 1000 times the threads or processes that the function runs in this phase, and which are all runnable:
  pieces of work are handed out one by one. Above the measuring machine's cores the use itself cannot be seen, and what
  threads cost each other at the memory or at Python's global lock beyond that is not part of it. A phase that mostly
  waits has 1000 times processor time by wall time of its fastest run instead;
- `memory_bytes`: the highest resident memory of the process in this phase (the kernel's peak, reset between phases),
  and in the widest phase that of its children too (proportional shares, sampled ten times a second).

A related function is measured at sizes in geometric progression, an unrelated one for contents 1, 2, 3 and so on. Short
runs are repeated.
"""

import argparse
import ctypes
import gc
import importlib.util
import itertools
import json
import os
import platform
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
MODULE = HERE.parent.parent / "examples" / "python" / "harvest_functions.py"
MIB = 1 << 20

#: Memory of each function in MiB as the suite SeBS configures the application that it follows.
CONFIGURED_MIB = {
    "dynamic_html": 128,
    "thumbnail": 256,
    "compress": 256,
    "visualise_dna": 2048,
    "upload": 128,
    "encode_video": 512,
    "recognise": 512,
    "pagerank": 512,
    "spanning_tree": 512,
    "breadth_first": 512,
}
#: The largest allocation, 1,024 MiB, has eight cores; others have cores in proportion, as OpenWhisk gives them.
MAX_MIB = 1024
MIB_A_CORE = 128
#: Runs of one size: three of short ones, two of middle ones, one of long ones, by core-seconds of the first.
REPEATS = ((0.6, 3), (2.5, 2), (float("inf"), 1))


def functions():
    spec = importlib.util.spec_from_file_location("harvest_functions", MODULE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def used_us():
    """Returns the processor time of this process and of its children that ended, in microseconds."""
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return round(1e6 * (own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime))


def kernel_value(process, file, name):
    """Returns a value in bytes from a file of /proc/PROCESS; 0 if the process ended."""
    try:
        for line in Path(f"/proc/{process}/{file}").read_text().splitlines():
            if line.startswith(name + ":"):
                return int(line.split()[1]) << 10
    except (OSError, ValueError):
        pass
    return 0


def run_here(name, size, seed):
    """Runs one call in this process, and returns its measurements."""
    module = functions()
    function = module.FUNCTIONS[name][0]
    arguments = module.arguments(name, size, seed)
    if name == "thumbnail":
        import PIL.JpegImagePlugin  # noqa: F401
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    marks = []

    def mark(width):
        at = (used_us(), time.monotonic_ns(), kernel_value("self", "status", "VmHWM"))
        # Resets the peak.
        Path("/proc/self/clear_refs").write_text("5")
        marks.append((width, *at))

    module.watch = mark
    # The parent samples the memory of children from here on.
    print("begin", flush=True)
    function(*arguments)
    mark(None)
    phases = []
    for (width, used, began, _), (_, used_end, ended, peak) in itertools.pairwise(marks):
        phases.append(
            {
                "core_us": used_end - used,
                "wall_us": (ended - began) // 1000,
                "threads": width,
                "memory_bytes": peak,
            }
        )
    sizes = (len(value) if isinstance(value, bytes) else 8 for value in arguments)
    print(json.dumps({"argument_bytes": sum(sizes), "phases": phases}))


def children_memory(process, until, found):
    """Samples the memory that the children of a process hold, until an event is set. Appends the highest sum."""
    highest = 0
    while not until.wait(0.1):
        try:
            children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
        except OSError:
            children = []
        if children:
            highest = max(highest, sum(kernel_value(child, "smaps_rollup", "Pss") for child in children))
    found.append(highest)


def run(name, size, seed):
    """Runs one call in a process of its own, and returns its measurements."""
    command = [sys.executable, __file__, "--run", name, str(size), str(seed)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        process.stdout.readline()
        until, found = threading.Event(), []
        sampler = threading.Thread(target=children_memory, args=(process.pid, until, found))
        sampler.start()
        output = process.stdout.read()
        until.set()
        sampler.join()
    if process.returncode != 0:
        raise SystemExit(f"{name} failed at size {size}.")
    measured = json.loads(output)
    widest = max(measured["phases"], key=lambda phase: (phase["threads"], phase["core_us"]))
    widest["memory_bytes"] += found[0]
    return measured


def finish(runs):
    """Turns the threads of each phase into thousandths of a core, over all runs of a size."""
    for number, first in enumerate(runs[0]["phases"]):
        alike = [measured["phases"][number] for measured in runs]
        if first["threads"] == 0:
            shares = [round(1000 * phase["core_us"] / max(1, phase["wall_us"])) for phase in alike]
            width = max(1, min(999, max(shares)))
        for phase in alike:
            phase["milli_cores"] = 1000 * phase.pop("threads") or width
    return [{"phases": measured["phases"]} for measured in runs]


def sizes_of(module, name, count):
    _, related, least, largest = module.FUNCTIONS[name]
    if not related:
        return list(range(1, count + 1))
    return [round(least * (largest / least) ** (step / (count - 1))) for step in range(count)]


def measure(module, name, count, kept):
    """Returns a function with its points: those that are kept, and those that are measured now."""
    points = [point for point in kept if point["size"] in sizes_of(module, name, count)]
    for size in sizes_of(module, name, count):
        if any(point["size"] == size for point in points):
            continue
        runs, wanted = [], 1
        while len(runs) < wanted:
            runs.append(run(name, size, len(runs)))
            core_s = sum(phase["core_us"] for phase in runs[0]["phases"]) / 1e6
            wanted = next(repeats for limit, repeats in REPEATS if core_s <= limit)
        points.append({"size": size, "argument_bytes": runs[0]["argument_bytes"], "runs": finish(runs)})
        print(f"{name} {size}: {core_s:.2f} core-seconds", file=sys.stderr, flush=True)
    points.sort(key=lambda point: point["size"])
    peak = max(phase["memory_bytes"] for point in points for one in point["runs"] for phase in one["phases"])
    # Who configures too little memory sees the call killed, and configures more; too few cores are only slow.
    steps = max(min(MAX_MIB, CONFIGURED_MIB[name]) * MIB, peak) / (MIB_A_CORE * MIB)
    steps = min(MAX_MIB // MIB_A_CORE, -int(-steps // 1))
    return {
        "name": name,
        "related": module.FUNCTIONS[name][1],
        "configured_milli_cores": 1000 * steps,
        "configured_memory_bytes": steps * MIB_A_CORE * MIB,
        "points": points,
    }


def machine():
    model = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        platform.machine(),
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 30
    return f"{os.cpu_count()} cores ({model}), {memory} GiB, Linux {platform.release().split('-')[0]}"


def about(wall_s):
    """Returns when, how and on what was measured."""
    import numpy as np
    import PIL

    ffmpeg = subprocess.run(["ffmpeg", "-version"], capture_output=True, text=True, check=False)
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": machine(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "pillow": PIL.__version__,
        "ffmpeg": ffmpeg.stdout.split()[2] if ffmpeg.returncode == 0 else None,
        "how": "crates/simulate/measure.py: its first lines state what each value means and what it does not show. "
        "Threads above the number of this machine's cores were started but could not all run at the same time.",
        "wall_s": wall_s,
    }


def write(path, measured, functions_by_name):
    """Writes the file, one point a line, so that changes can be read."""
    lines = []
    for function in functions_by_name.values():
        points = ",\n   ".join(json.dumps(point, separators=(",", ":")) for point in function["points"])
        head = {key: value for key, value in function.items() if key != "points"}
        lines.append(json.dumps(head)[:-1] + f', "points": [\n   {points}]}}')
    text = '{"measured": ' + json.dumps(measured, indent=1) + ',\n"functions": [\n' + ",\n".join(lines) + "\n]}\n"
    json.loads(text)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", help="names of functions; all by default")
    parser.add_argument("--sizes", type=int, default=13, help="sizes, or contents, of each function; two at least")
    parser.add_argument("--keep", action="store_true", help="keep the sizes that the file has already")
    parser.add_argument("--out", type=Path, default=HERE / "data" / "functions.json")
    parser.add_argument("--run", nargs=3, metavar=("NAME", "SIZE", "SEED"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.run:
        name, size, seed = given.run
        run_here(name, int(size), int(seed))
        return
    module = functions()
    earlier = json.loads(given.out.read_text()) if given.keep and given.out.exists() else {}
    kept = {function["name"]: function for function in earlier.get("functions", [])}
    before_s = earlier.get("measured", {}).get("wall_s", 0)
    began = time.monotonic()
    for name in given.only or list(module.FUNCTIONS):
        points = kept[name]["points"] if name in kept else []
        kept[name] = measure(module, name, max(2, given.sizes), points)
        ordered = {name: kept[name] for name in module.FUNCTIONS if name in kept}
        write(given.out, about(before_s + round(time.monotonic() - began)), ordered)


if __name__ == "__main__":
    main()
