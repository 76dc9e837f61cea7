"""Formats the figures as a table for the terminal and as Markdown."""

from typing import Any

HEAD = ("", "workers", "p50", "p99", "futures/s", "map items/s", "chunk", "version")


def _time(nanoseconds: float) -> str:
    return f"{nanoseconds / 1e3:,.1f} us" if nanoseconds < 1e7 else f"{nanoseconds / 1e6:,.1f} ms"


def _row(name: str, result: dict[str, Any]) -> tuple[str, ...]:
    if "p50_ns" not in result:
        return (name, "-", "-", "-", "-", "-", "-", "not run, see below")
    return (
        name + (" *" if result.get("busy") or result.get("problem") else ""),
        str(result["workers"]),
        _time(result["p50_ns"]),
        _time(result["p99_ns"]),
        f"{result['futures_per_s']:,.0f}",
        f"{result['map_per_s']:,.0f}",
        f"{result['map_chunk']:,}" if result["map_chunk"] else "none",
        result["version"],
    )


def remarks(results: dict[str, dict[str, Any]]) -> list[str]:
    said = []
    busy = [name for name, result in results.items() if result.get("busy")]
    if busy:
        said.append(f"* The machine was busy with other work, so these figures are unreliable: {', '.join(busy)}.")
    said += [f"{name}: {result['note']}" for name, result in results.items() if result.get("note")]
    said += [f"{name}: {result['problem']}" for name, result in results.items() if result.get("problem")]
    return said


def _heading(machine: dict[str, Any]) -> str:
    cores = ", ".join(map(str, machine["cores"]))
    return (
        f"{machine['cpu']}, cores {cores} of {machine['cores_of_machine']}, Linux {machine['kernel']}, "
        f"Python {machine['python']}. Round trip of a function that does nothing with 1 KiB, one at a time; "
        "such calls as futures; a map of a small function over a million integers with the best chunk size of a sweep."
    )


def table(machine: dict[str, Any], results: dict[str, dict[str, Any]]) -> str:
    rows = [HEAD, *(_row(name, result) for name, result in results.items())]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        lines.append("  ".join(cells).rstrip())
    lines.insert(1, "-" * max(map(len, lines)))
    return "\n".join([_heading(machine), "", *lines, "", *remarks(results)]).rstrip()


def markdown(machine: dict[str, Any], results: dict[str, dict[str, Any]]) -> str:
    lines = [_heading(machine), "", "| " + " | ".join(HEAD) + " |", "|---|" + "---:|" * (len(HEAD) - 1)]
    lines += [
        "| " + " | ".join(cell.replace("*", r"\*") for cell in _row(name, result)) + " |"
        for name, result in results.items()
    ]
    for remark in remarks(results):
        lines += ["", remark.splitlines()[0].replace("*", r"\*")]
    return "\n".join(lines) + "\n"
