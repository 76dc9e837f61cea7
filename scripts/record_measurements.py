"""Renders the results of `make bench` as a page of docs/measurements.

    scripts/record_measurements.py --date 2026-11-23 --machine two-core-vm build/bench/invoke-*.json
    scripts/record_measurements.py --date 2026-11-23 --machine two-core-vm --check

NAME.json is the output of one `dayfly bench invoke`, `cold` or `frames` with `--json`. NAME.command beside it is the
command. The page has both sides of each measurement, Dayfly and the raw limit of the machine in the same run, with
medians and tails. An existing page is never overwritten. `--check`, before the measurements, fails if the page cannot
have its name.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

#: Columns of the page's table.
HEAD = ("command", "side", "p50", "p99", "p99.9", "slowest", "samples")


def time_of(nanoseconds: float) -> str:
    """Returns a duration with its unit, rounded to four digits."""
    for unit, scale in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if abs(nanoseconds) >= scale:
            return f"{nanoseconds / scale:.4g} {unit}"
    return f"{nanoseconds:.4g} ns"


def latencies(side: dict[str, Any]) -> dict[str, float]:
    """Returns the percentiles of one side in nanoseconds. A file has them in nanoseconds or in milliseconds."""
    found = {}
    for name in ("p50", "p99", "p999", "max"):
        if f"{name}_ns" in side:
            found[name] = float(side[f"{name}_ns"])
        elif f"{name}_ms" in side:
            found[name] = float(side[f"{name}_ms"]) * 1e6
    return found


def row(command: str, side: str, of: dict[str, Any]) -> str:
    found = latencies(of)
    times = [time_of(found[name]) if name in found else "" for name in ("p50", "p99", "p999", "max")]
    return "| " + " | ".join([command, side, *times, f"{of['samples']:,}"]) + " |"


def frame_row(command: str, side: str, value: str, worst: str, runs: int) -> str:
    return "| " + " | ".join([command, side, value, "", "", worst, f"{runs:,}"]) + " |"


def frame_rows(command: str, compared: list[dict[str, Any]]) -> list[str]:
    """Returns the rows of `dayfly bench frames`: each comparison has two sides, a unit of its own, and more engines."""
    found = []
    for each in compared:
        unit = each["unit"]
        sides = [("Dayfly", each["value"], each["worst"], each["runs"])]
        sides.append((each["baseline"], each["baseline_value"], each["baseline_worst"], each["runs"]))
        sides += [(other["name"], other["value"], other["worst"], other["runs"]) for other in each.get("others", [])]
        for number, (side, value, worst, runs) in enumerate(sides):
            name = "" if number else f"{command} {each['name']}"
            found.append(frame_row(name, side, f"{value:.4g} {unit}", f"{worst:.4g} {unit}", runs))
    return found


def rows(command: str, result: dict[str, Any]) -> list[str]:
    """Returns the rows of one result: Dayfly, each baseline of the same run, and the stages of a cold start."""
    if "rows" in result:
        return frame_rows(f"`{command}`", result["rows"])
    command, baseline = f"`{command}`", result["baseline"]
    found = [row(command, "Dayfly", result.get("invoke", result))]
    if "after_idle" in result:
        found.append(row("", "Dayfly, after idling", result["after_idle"]))
    found.append(row("", baseline["name"], baseline))
    found += [row("", other["name"], other) for other in result.get("others", [])]
    found += [row("", f"stage `{name}`", stage) for name, stage in result.get("stages", {}).items()]
    return found


def remarks(command: str, result: dict[str, Any]) -> list[str]:
    """Returns the differences, rates, shares and warnings of one result as a list item; empty if there are none."""
    if "rows" in result:
        return [
            f"- `{each['name']}`: ratio {each['ratio']:.3f}" + (f"; {each['note']}." if each.get("note") else ".")
            for each in result["rows"]
        ]
    found = []
    if "overhead_p50_ns" in result:
        found.append(f"difference {time_of(result['overhead_p50_ns'])} p50, {time_of(result['overhead_p99_ns'])} p99")
    for name, what in (
        ("invocations_per_s", "invocations/s"),
        ("starts_per_s", "starts/s"),
        ("futures_per_s", "futures/s"),
    ):
        if result.get(name):
            found.append(f"{result[name]:,.0f} {what}")
    if "share_of_baseline_bandwidth" in result:
        found.append(f"{result['share_of_baseline_bandwidth']} of the baseline's bandwidth")
    if "sandbox_adds_p50_ns" in result:
        found.append(f"isolation adds {time_of(result['sandbox_adds_p50_ns'])} p50")
    if warning := result.get("noise", {}).get("warning"):
        found.append(f"warning: {warning}")
    return [f"- `{command}`: {'; '.join(found)}."] if found else []


def heading(machine: dict[str, Any]) -> str:
    kind = "a virtual machine" if machine["virtual_machine"] else "no virtual machine"
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_mib']:,} MiB, {kind}; "
        f"Linux {machine['kernel']}, {machine['arch']}; Dayfly {machine['dayfly']}."
    )


def name_of(machine: dict[str, Any]) -> str:
    """Returns the default name of a machine."""
    return f"{machine['cores']}-core-{'vm' if machine['virtual_machine'] else 'host'}"


def this_machine() -> dict[str, Any]:
    """Returns the properties of this machine that its name needs, as `dayfly bench` reports them."""
    flags = re.search(r"^flags\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    is_virtual = flags is not None and "hypervisor" in flags[1].split()
    return {"cores": os.sysconf("SC_NPROCESSORS_ONLN"), "virtual_machine": is_virtual}


def page(date: str, machine: str, results: list[tuple[str, dict[str, Any]]], peers: str = "") -> str:
    about = {heading(result["machine"]) for _, result in results}
    if len(about) != 1:
        raise SystemExit(f"The results are from {len(about)} machines or versions. Measure all on one.")
    lines = [
        f"# {date}, {machine}",
        "",
        about.pop(),
        "",
        "`scripts/bench --record` measured both sides in the same run.",
        "",
    ]
    lines += ["| " + " | ".join(HEAD) + " |", "|---|---|" + "---:|" * (len(HEAD) - 2)]
    for command, result in results:
        lines += rows(command, result)
    lines += ["", *(line for command, result in results for line in remarks(command, result))]
    if peers:
        lines += ["", "## Beside other systems", "", peers.strip()]
    return "\n".join(lines).rstrip() + "\n"


def read(path: Path) -> tuple[str, dict[str, Any]]:
    command = path.with_suffix(".command")
    return (command.read_text().strip() if command.exists() else path.stem), json.loads(path.read_text())


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("results", nargs="*", type=Path, help="JSON files in the order of the page")
    parser.add_argument("--check", action="store_true", help="only check the name of the page")
    parser.add_argument("--date", required=True, help="day of the run, as in 2026-11-23")
    parser.add_argument("--machine", default="", help="name of the machine; by default its cores and kind")
    parser.add_argument("--peers", type=Path, help="table of other systems in the same run, in Markdown")
    parser.add_argument("--out", type=Path, default=Path("docs/measurements"), help="directory of the page")
    given = parser.parse_args(arguments)
    results = [read(path) for path in given.results]
    if not results and not given.check:
        parser.error("name the files with the results, or use --check")
    machine = given.machine or name_of(results[0][1]["machine"] if results else this_machine())
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", given.date) or not re.fullmatch(r"[a-z0-9][a-z0-9-]*", machine):
        parser.error("a date is YYYY-MM-DD; the name of a machine has lower-case letters, digits and hyphens")
    place = given.out / f"{given.date}-{machine}.md"
    if place.exists():
        print(f"{place} exists. Choose another name with --machine, or remove the file.", file=sys.stderr)
        return 1
    if given.check:
        return 0
    peers = given.peers.read_text() if given.peers and given.peers.exists() else ""
    text = page(given.date, machine, results, peers)
    given.out.mkdir(parents=True, exist_ok=True)
    place.write_text(text)
    print(place)
    return 0


if __name__ == "__main__":
    sys.exit(main())
