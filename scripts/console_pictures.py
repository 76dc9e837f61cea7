"""Rewrites the pictures of the console in its guide: each view, wide and light, and as narrow as a phone and dark.

Starts a manager with a node, gives it work, and takes the pictures with Chromium, by the harness of the tests:

    eval "$(make -s env)"; $(scripts/bootstrap) scripts/console_pictures.py [DIRECTORY]
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import dayfly  # noqa: E402
from harness import browser  # noqa: E402
from harness.console import FLOW, Console  # noqa: E402
from harness.daemons import Daemon  # noqa: E402
from PIL import Image  # noqa: E402

#: Names of the pictures, the views, and a text of each that shows that it is there.
VIEWS = {
    "overview": ("#/", "Overview"),
    "tasks": ("#/tasks", "succeeded"),
    "task": ("{task}", "Traceback"),
    "functions": ("#/functions", "report"),
    "function": ("#/functions/report", "Versions"),
    "endpoints": ("#/endpoints", "local"),
    "endpoint": ("#/endpoints/local", "Queue"),
    "triggers": ("#/triggers", "nightly"),
    "trigger": ("#/triggers/nightly", "History"),
    "flows": ("#/flows", "doubling"),
    "flow": ("{flow}", "numbers"),
    "queries": ("#/queries", "SELECT"),
    "query": ("{query}", "Ranks"),
    "nodes": ("#/nodes", "Take back"),
    "leases": ("#/leases", "Leases"),
    "groups": ("#/groups", "Groups"),
    "contents": ("#/contents", "result of 1 task"),
    "usage": ("#/usage", "Usage and bills"),
    "bills": ("#/usage/bills", "Cost by day"),
    "tenants": ("#/admin", "astro"),
    "tokens": ("#/admin/tokens", "laptop"),
    "prices": ("#/admin/prices", "Prices"),
    "audit": ("#/admin/audit", "prices.set"),
}
#: Names of the appearances, with width, height and whether the system prefers dark colours.
APPEARANCES = {"wide": (1280, 800, False), "narrow": (390, 780, True)}
#: Colours of a picture. The console has few, and charts are lines.
COLOURS = 64
#: The flow of the tests, with a third step, so that its picture has one that brings parts together.
SUMMED = (
    FLOW
    + """
[[step]]
name = "total"
function = "total"
from = ["double"]
"""
)


#: A query of data frames, as its client reported it last.
QUERY = "0199c0ffee" + "5" * 22


def query() -> dict[str, Any]:
    """A report of a query of two stages on four ranks, of which one has most of the rows."""

    def part(number: int, tasks: int, rows: int, spilled: int, seconds: float) -> dict[str, int]:
        done = {"rows": rows, "received_bytes": 16 * rows, "spilled_bytes": spilled, "core_us": round(1e6 * seconds)}
        return {"number": number, "tasks": tasks, "ended": tasks, **done}

    ranks = [(5_200_000, 0, 9.1), (4_900_000, 0, 8.7), (14_300_000, 310 << 20, 31.4), (5_100_000, 0, 9.0)]
    return {
        "text": "SELECT zone, sum(fare) AS fare\nFROM trips JOIN zones USING (zone)\nGROUP BY zone\nORDER BY fare DESC",
        "state": "done",
        "elapsed_ms": 38_200,
        "leases": ["0199c0ffee" + "7" * 22],
        "stages": [part(1, 4, 29_000_000, 0, 22.0), part(2, 4, 500_000, 310 << 20, 36.2)],
        "ranks": [part(number, 2, *done) for number, done in enumerate(ranks)],
        "cost": 1_528_000,
    }


def area(width: int, height: int) -> int:
    return width * height


def fill(console: Console, directory: Path) -> dict[str, str]:
    """Gives the manager something to show. Returns the views of a task, of a flow and of a query."""
    console.register()
    console.token("laptop", "astro")
    manager = console.manager
    manager.cli("prices", "--price-computing", "0.00001")
    manager.cli("trigger", "timer", "nightly", "30 2 * * *", "--zone", "Europe/Berlin", "--function", "report")
    manager.cli("trigger", "webhook", "pushed", "--function", "report")
    failed = console.submit(
        console.functions["fails"], [["the input has 3 columns, and 4 were expected"]], tag="imports"
    )
    file = directory / "doubling.toml"
    file.write_text(SUMMED)
    manager.cli("flow", "run", str(file), "--input", "6")
    flows = json.loads(manager.ask("GET", "/v1/flows")[1])
    report = json.dumps(query()).encode()
    manager.ask("PUT", f"/v1/queries/{QUERY}", report, Content_Type="application/json")
    with dayfly.connect(config=manager.state) as client:
        list(client.map(area, range(200), range(200), tag="areas").results(timeout=60))
        # Long arguments and results are contents.
        client.run(str.upper, "a" * 400_000).result(60)
        client.run(len, "b" * 600_000).result(60)
    # These are computing while the pictures are taken.
    console.submit(console.functions["slow"], [[60]] * 3, tag="simulation")
    return {
        "task": f"#/tasks/{failed[0]}",
        "flow": f"#/flows/{flows[0]['id']}",
        "query": f"#/queries/{QUERY}",
    }


def main() -> None:
    out = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "docs" / "_static" / "console")
    out.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="dayfly-pictures-") as name,
        browser.running(Path(name) / "chromium") as page,
    ):
        directory = Path(name)
        manager = Daemon("up", "--listen", "127.0.0.1:0", "--python", sys.executable, state=directory / "state")
        try:
            console = Console(manager, page, directory)
            places = fill(console, directory)
            for appearance, (width, height, dark) in APPEARANCES.items():
                shown = console.logged_in(width=width, height=height, dark=dark)
                for view, (address, text) in VIEWS.items():
                    shown.go(address.format(**places))
                    shown.sees(text)
                    # Charts are drawn after the first samples.
                    shown.until("new Promise((done) => setTimeout(() => done(true), 700))")
                    file = out / f"{view}-{appearance}.png"
                    shown.picture(file)
                    Image.open(file).quantize(COLOURS).save(file, optimize=True)
                if shown.errors:
                    sys.exit(f"the console reported errors: {shown.errors}")
        finally:
            manager.stop()


if __name__ == "__main__":
    main()
