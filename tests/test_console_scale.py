"""The web console in Chromium with many endpoints and tasks, and in a browser that was suspended or cut off."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from harness.browser import Page
from harness.console import Console

ENDPOINTS = 1_000
TASKS = 100_000
#: Tasks of one submission.
CHUNK = 10_000
#: Rows of a table that a page may draw, whatever the list has.
MAX_ROWS = 60
#: Seconds until a view shows its list.
MAX_SHOW = 5.0
ROWS = "document.querySelectorAll('main .table tbody tr:not(.spacer)').length"


def shown(page: Page, view: str, text: str, limit: float = MAX_SHOW) -> None:
    """Opens a view, and checks that it soon shows a text in few rows."""
    begun = time.monotonic()
    page.go(view)
    page.sees(text, limit)
    assert time.monotonic() - begun < limit, view
    assert page.run(ROWS) <= MAX_ROWS, view
    assert page.run("document.querySelectorAll('*').length") < 4_000, view


def test_thousand_endpoints_and_many_tasks_stay_quick(console: Console) -> None:
    console.register()

    def register(number: int) -> None:
        status, said = console.manager.post("/v1/endpoints", {"name": f"site-{number:04}", "provider": "slurm"})
        assert status == 201, said

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(register, range(ENDPOINTS)))
    function = console.functions["double"]
    first = [console.submit(function, [[n] for n in range(CHUNK)], endpoint=f"site-{n:04}", tag="many")[0]
             for n in range(TASKS // CHUNK)]  # fmt: skip
    page = console.logged_in()
    shown(page, "#/", "100,000")
    shown(page, "#/endpoints", f"{ENDPOINTS + 1:,} of {ENDPOINTS + 1:,} endpoints")
    page.fill("Text", "site-0777")
    page.sees(f"1 of {ENDPOINTS + 1:,} endpoints")
    shown(page, "#/endpoints/site-0003", "The endpoint is not connected.")
    shown(page, "#/tasks?tag=many", "0 of 100,000 tasks have ended.")
    page.until(f"{ROWS} > 10")
    # To the end of what is loaded, some times: further pages come, and the rows stay few.
    for _ in range(5):
        before = page.run("document.querySelector('main .table').scrollHeight")
        page.run("(() => { const t = document.querySelector('main .table'); t.scrollTop = t.scrollHeight; })()")
        page.until(f"document.querySelector('main .table').scrollHeight > {before}")
        assert page.run(ROWS) <= MAX_ROWS
    shown(page, "#/tasks?tag=many&endpoint=site-0009", "site-0009")
    # The first task is the last one that a search finds.
    page.go(f"#/tasks?text={first[0][-10:]}")
    page.until(f"!!document.querySelector('[title=\"{first[0]}\"]')")
    shown(page, "#/tasks?text=nothing+like+this", "No task fits these filters.", 15)
    # So is it when all have ended.
    shown(page, "#/tasks?tag=many", "0 of 100,000 tasks have ended.")
    page.click("Cancel the batch")
    page.confirm("Cancel its tasks")
    page.sees("100,000 of 100,000 tasks have ended.", 30)
    page.go(f"#/tasks?text={first[0][-10:]}&state=failed")
    page.until(f"!!document.querySelector('[title=\"{first[0]}\"]')")
    assert page.errors == []


def ended(console: Console, tag: str) -> int:
    """How many tasks with this tag have ended."""
    counts: dict[str, Any] = json.loads(console.manager.ask("GET", f"/v1/tasks/counts?tag={tag}")[1])
    return int(counts["done"])


def until_ended(console: Console, tag: str, number: int) -> None:
    """Waits until so many tasks with this tag have ended."""
    deadline = time.monotonic() + 30
    while ended(console, tag) < number:
        assert time.monotonic() < deadline, "the tasks did not end"
        time.sleep(0.05)


def test_suspended_page_catches_up(console: Console) -> None:
    console.register()
    function = console.functions["double"]
    page = console.logged_in()
    page.go("#/tasks?tag=work")
    page.sees("No task fits these filters.")
    page.freeze(frozen=True)
    console.submit(function, [[n] for n in range(30)], tag="work")
    until_ended(console, "work", 30)
    # Nothing has reached the page.
    assert "30 of 30" not in page.text()
    page.freeze(frozen=False)
    page.sees("30 of 30 tasks have ended.")
    page.until("document.querySelectorAll('main > .table tbody tr').length === 30")
    assert page.errors == []


def test_page_without_network_catches_up(console: Console) -> None:
    console.register()
    function = console.functions["double"]
    page = console.logged_in()
    page.go("#/tasks?tag=work")
    page.sees("No task fits these filters.")
    page.cut_off(offline=True)
    page.sees("The manager does not respond.", 20)
    console.submit(function, [[n] for n in range(30)], tag="work")
    until_ended(console, "work", 30)
    # What was shown stays.
    page.sees("No task fits these filters.")
    page.cut_off(offline=False)
    page.loses("The manager does not respond.", 20)
    page.sees("30 of 30 tasks have ended.")
    page.until("document.querySelectorAll('main > .table tbody tr').length === 30")
    # Also over the events, whose connection was lost.
    page.go("#/leases")
    page.until("document.title.startsWith('Leases')")
    assert page.errors == []
