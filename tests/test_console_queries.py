"""Queries of data frames in the web console, in Chromium: the list, one query, and how it is cancelled."""

from __future__ import annotations

import json
from typing import Any

from harness.console import Console, axe
from harness.daemons import Daemon
from harness.leaks import wait_until
from test_console import check_views

#: Rows of the table of ranks.
RANKS = '[aria-label="Ranks of the query"] tbody tr'
RUNNING, FAILED = "0" * 24 + "11112222", "0" * 24 + "33334444"


def part(number: int, **done: int) -> dict[str, int]:
    return {"number": number, "tasks": 2, "ended": 1, **done}


def report(manager: Daemon, query: str, token: str = "", **more: Any) -> dict[str, Any]:
    """Reports a query as its client does. Returns what it is told."""
    body = {
        "text": "SELECT zone,\n  count(*) FROM trips <b>bold</b> GROUP BY zone",
        "state": "running",
        "elapsed_ms": 61_000,
        "leases": ["0" * 32],
        "stages": [part(1, rows=5_000_000, received_bytes=3 << 20), part(2)],
        "ranks": [
            part(0, rows=4_000_000, core_us=9_000_000, spilled_bytes=7 << 20),
            part(1, rows=1_000_000, core_us=1_000_000, received_bytes=3 << 20),
        ],
        **more,
    }
    status, said = manager.ask(
        "PUT", f"/v1/queries/{query}", json.dumps(body).encode(), token=token, Content_Type="application/json"
    )
    assert status == 200, said
    told: dict[str, Any] = json.loads(said)
    return told


def test_query_is_shown_with_its_ranks(console: Console) -> None:
    page = console.logged_in()
    page.go("#/queries")
    page.sees("No query of data frames runs")
    report(console.manager, FAILED, state="failed", error="[rank_lost] <img src=x>", elapsed_ms=2_000, cost=1_500_000)
    report(console.manager, RUNNING)
    page.sees("SELECT zone, count(*) FROM trips <b>bold</b> GROUP BY zone")
    page.until("document.querySelectorAll('tbody tr').length === 2")
    # The one that runs is the first.
    assert "running" in page.run("document.querySelector('tbody tr').innerText")
    page.sees("1.80")
    page.fill("State", "failed")
    page.until("document.querySelectorAll('tbody tr').length === 1")
    page.click("SELECT")
    page.sees("[rank_lost] <img src=x>")
    page.sees("0.0015")
    page.go(f"#/queries/{RUNNING}")
    for text in ("2 of 4 have ended", "5,000,000", "7 MiB", "10 s", "not known"):
        page.sees(text)
    ranks = f"document.querySelectorAll({json.dumps(RANKS)})"
    page.until(f"{ranks}.length === 2")
    # Of two ranks, one computes nine times as long as the other.
    assert page.run(f"[...{ranks}].map((row) => row.innerText.includes('slow'))") == [True, False]
    bars = f"[...{ranks}].map((row) => row.children[2].querySelector('.meter span').style.width)"
    assert page.run(bars) == ["100%", "25%"]
    assert page.run("document.images.length") == 0
    assert page.errors == []


def test_query_is_cancelled_from_the_console(console: Console) -> None:
    page = console.logged_in()
    report(console.manager, RUNNING)
    page.go(f"#/queries/{RUNNING}")
    page.click("Cancel")
    page.confirm("Cancel the query")
    page.sees("The query is being cancelled.")
    page.sees("cancelling")
    assert report(console.manager, RUNNING) == {"cancel": True}
    assert report(console.manager, RUNNING, state="cancelled") == {"cancel": False}
    page.until("document.querySelector('.head .badge')?.innerText === 'cancelled'")
    wait_until(lambda: "Cancel the query" not in page.text(), "nothing is left to cancel")
    assert page.errors == []


def test_queries_of_others_are_not_shown(console: Console) -> None:
    report(console.manager, RUNNING)
    page = console.logged_in(console.token("laptop", "astro"))
    page.go("#/queries")
    page.sees("No query of data frames runs")
    page.go(f"#/queries/{RUNNING}")
    page.sees("you have no query")
    token = console.token("desk", "bio", "--role", "operator")
    operator = console.logged_in(token)
    operator.go("#/queries")
    operator.sees("default")
    assert page.errors + operator.errors == []


def test_views_of_queries_are_accessible(console: Console) -> None:
    report(console.manager, RUNNING)
    report(console.manager, FAILED, state="failed", error="it has failed")
    views = ["#/queries", f"#/queries/{RUNNING}", f"#/queries/{FAILED}", "#/queries?state=done"]
    page = console.logged_in()
    check_views(page, views, axe())
    page.appear(width=390, height=844, dark=True)
    check_views(page, views, axe())
