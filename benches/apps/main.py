"""Compares applications with leased workers with the same applications without: `dayfly bench apps` runs this.

    python benches/apps/main.py [--only NAME]... [--quick] [--out build/apps]

Prints one JSON object with `rows`, writes it to OUT/apps.json, and draws OUT/apps.svg. Every row has the medians
and intervals of both sides, which took turns, and every result was compared with the same computation without leases.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import platform
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import curves
import functions
import native
from measure import WrongResultError
from picture import draw
from processes import cores

APPS = ("thumbnails", "recognition", "blackscholes", "matmul", "jacobi", "scan", "payload", "workers", "cold")


def measure(wanted: set[str], quick: bool) -> dict[str, Any]:
    left_out: list[dict[str, str]] = []
    rows: list[dict[str, Any]] = []
    for part in (functions.measure, native.measure, curves.measure):
        # A part forks processes, so it must not have the threads of another.
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as alone:
            found, missing = alone.submit(part, wanted, quick).result()
        rows += found
        left_out += missing
    return {"rows": rows, "left_out": left_out, "quick": quick, "cores": len(cores())}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", default=[], choices=APPS, help="may be repeated")
    parser.add_argument("--quick", action="store_true", help="small inputs: whether it works, not how fast")
    parser.add_argument("--out", type=Path, default=Path("build/apps"), help="directory for apps.json and apps.svg")
    options = parser.parse_args()
    try:
        found = measure(set(options.only or APPS), options.quick)
    except WrongResultError as error:
        print(f"A result is wrong, so nothing is reported: {error}", file=sys.stderr)
        return 1
    subtitle = f"{platform.machine()}, {found['cores']} cores" + (", small inputs" if options.quick else "")
    options.out.mkdir(parents=True, exist_ok=True)
    found["picture"] = str(options.out / "apps.svg")
    Path(found["picture"]).write_text(draw(found["rows"], subtitle))
    text = json.dumps(found, indent=1)
    (options.out / "apps.json").write_text(text + "\n")
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
