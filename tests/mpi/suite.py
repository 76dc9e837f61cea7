"""Runs mpi4py's own test suite on Dayfly's MPI, file by file, and writes the table of docs/internals/mpi-suite.md.

    python tests/mpi/suite.py /path/of/mpi4py-4.1.2/test --ranks 1 2 [--files test_comm.py ...] [--write]

The suite is not in this repository: it is the folder `test` of mpi4py's source distribution.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from harness.daemons import rendezvous  # noqa: E402 (the path is set above)
from harness.mpi_ranks import run_ranks  # noqa: E402

TABLE = ROOT / "docs" / "internals" / "mpi-suite.md"

HEAD = """# mpi4py's test suite

What each file of mpi4py 4.1.2's own test suite gives on Dayfly's MPI, on ranks of one host. `tests/mpi/suite.py` runs
the suite and writes this table. A file that does not end in time, or that ends with an error outside of its tests, has
that in place of its figures.

"""


def outcome(outputs: Sequence[tuple[int, str]]) -> str:
    """Returns what a file gave: passed, failed and skipped tests of rank 0, or why there are none."""
    text = outputs[0][1]
    ran = re.search(r"^Ran (\d+) tests? in", text, re.MULTILINE)
    if any("\nkilled after" in output for _, output in outputs):
        return "hangs"
    if ran is None:
        return f"ends with status {next((status for status, _ in outputs if status), 0)}"

    def number(name: str) -> int:
        found = re.search(rf"\b{name}=(\d+)", text)
        return int(found[1]) if found else 0

    # A test may fail in several of its subtests.
    bad = len(set(re.findall(r"^(?:ERROR|FAIL): (\S+ \(\S+\))", text, re.MULTILINE)))
    skipped = number("skipped")
    return f"{int(ran[1]) - bad - skipped}, {bad}, {skipped}"


def failures(outputs: Sequence[tuple[int, str]]) -> list[str]:
    """Returns the failed tests of all ranks, and the last lines of their errors."""
    found = set()
    for _, text in outputs:
        for part in re.split(r"^={60,}$", text, flags=re.MULTILINE)[1:]:
            lines = [line for line in part.strip().splitlines() if line.strip()]
            errors = [line for line in lines[1:] if not line.startswith((" ", "-", "Traceback"))]
            found.add(f"{lines[0]}: {errors[0][:150] if errors else ''}")
    return sorted(found)


def written(rows: dict[str, str], ranks: Sequence[int]) -> str:
    """Returns the table with these rows. Rows of other files are kept if they are for the same numbers of ranks."""
    columns = " | ".join(f"{number} rank{'s' * (number > 1)}" for number in ranks)
    head = f"{HEAD}| file: passed, failed, skipped | {columns} |\n|---|{'---|' * len(ranks)}\n"
    earlier = TABLE.read_text()
    kept = {}
    if earlier.startswith(head):
        kept = {line.split(" | ")[0]: f"{line}\n" for line in earlier.removeprefix(head).splitlines()}
    return head + "".join(row for _, row in sorted((kept | rows).items()))


def main() -> int:
    """Runs the chosen files on the chosen numbers of ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", type=Path)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--files", nargs="*")
    parser.add_argument("--timeout", type=float, default=60)
    parser.add_argument("--show", action="store_true", help="print each failed test")
    parser.add_argument("--write", action="store_true", help="write the rows of these files into the table")
    options = parser.parse_args()
    names = options.files or sorted(path.name for path in options.suite.glob("test_*.py"))
    rows = {}
    with rendezvous() as meeting:
        for name in names:
            cells = []
            for ranks in options.ranks:
                command = [sys.executable, name, "-q"]
                try:
                    done = run_ranks(meeting, command, ranks, timeout=options.timeout, cwd=options.suite)
                except subprocess.SubprocessError as error:
                    done = [(1, str(error))]
                cells.append(outcome(done))
                if options.show:
                    print(*failures(done), sep="\n")
                    if "," not in cells[-1]:
                        print(done[0][1][-1500:])
            print(name, *cells, sep=" | ", flush=True)
            first = f"| {name.removeprefix('test_').removesuffix('.py')}"
            rows[first] = f"{first} | {' | '.join(cells)} |\n"
    if options.write:
        TABLE.write_text(written(rows, options.ranks))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
