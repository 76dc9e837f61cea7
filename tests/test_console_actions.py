"""Every action of the web console, in Chromium, on real tasks, leases and nodes."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import dayfly
import pytest
from harness.browser import Page
from harness.console import Console, axe
from harness.programs import program


def until(look: Any, limit: float = 20) -> Any:
    """The first true value of ``look``."""
    deadline = time.monotonic() + limit
    while not (found := look()):
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.05)
    return found


def flaws(page: Page) -> list[str]:
    """What the checker of accessibility finds in what is open; nothing if it is not installed."""
    script = axe()
    return page.axe(script) if script else []


def saved(page: Page, directory: Path, name: str) -> Path:
    """Clicks a link or button that saves a file. Returns the file."""
    directory.mkdir(exist_ok=True)
    before = set(directory.iterdir())
    page.browser.send(
        "Browser.setDownloadBehavior", behavior="allow", downloadPath=str(directory), browserContextId=page.context
    )
    page.click(name)

    def done() -> Path | None:
        new = [file for file in set(directory.iterdir()) - before if file.suffix != ".crdownload"]
        return new[0] if new and new[0].stat().st_size > 0 else None

    file: Path = until(done)
    return file


def test_function_is_run_followed_and_repeated(console: Console) -> None:
    console.register()
    page = console.logged_in()
    page.go("#/functions")
    page.click("report")
    page.sees('return {"pages": pages, "title": title}')
    page.click("Run")
    page.fill("Arguments", "no json")
    page.click("Run")
    page.sees("The arguments is not valid JSON")
    page.fill("Arguments", "[7]")
    page.fill("Keyword arguments", '{"title": "<b>bold</b>"}')
    page.fill("Tag", "by hand")
    page.click("Run")
    page.sees("succeeded")
    page.sees("report of 7 pages")
    page.sees('"title": "<b>bold</b>"')
    file = saved(page, console.directory / "results", "Download the result")
    assert json.loads(file.read_text()) == {"pages": 7, "title": "<b>bold</b>"}
    # What was sent from this tab is offered again.
    page.click("Run again")
    page.until("window.__field('Arguments')?.value === '[7]'")
    page.fill("Arguments", "[8]")
    page.click("Run")
    page.sees("report of 8 pages")
    page.click("Delete")
    page.confirm("Delete")
    page.sees("The task was deleted.")
    assert len(console.manager.cli("task", "list", "--tag", "by hand")) == 1
    assert page.errors == []


def test_failed_task_is_shown_and_retried(console: Console) -> None:
    console.register()
    (task,) = console.submit(console.functions["fails"], [["no luck"]])
    page = console.logged_in()
    page.go(f"#/tasks/{task}")
    page.sees("function_error")
    page.sees("Traceback of ValueError")
    page.sees("about to fail")
    page.click("Retry")
    page.confirm("Retry")
    page.sees("The task was submitted again.")
    page.until(f"!location.hash.includes('{task}')")
    page.sees("ValueError: no luck")
    page.click("Retry with")
    page.sees("Give them again.")
    page.fill("Arguments", '["once more"]')
    page.click("Run")
    page.sees("ValueError: once more")
    assert page.errors == []


def test_long_arguments_are_sized_and_retried(console: Console) -> None:
    console.register()
    text = "long " * 20_000
    (task,) = console.submit(console.functions["fails"], [[text]])
    page = console.logged_in()
    page.go(f"#/tasks/{task}")
    page.sees("Traceback of ValueError")
    page.sees("97.7 KiB")
    page.click("Retry")
    page.confirm("Retry")
    page.until(f"!location.hash.includes('{task}')")
    page.sees("Traceback of ValueError")
    page.sees("97.7 KiB")
    # The size of a task that succeeded is known too.
    (done,) = console.submit(console.functions["double"], [[text]])
    page.go(f"#/tasks/{done}")
    page.sees("succeeded")
    page.sees("97.7 KiB")
    assert page.errors == []


def test_running_task_prints_and_is_cancelled(console: Console) -> None:
    console.register()
    (task,) = console.submit(console.functions["slow"], [[60]], tag="slow")
    page = console.logged_in()
    page.go(f"#/tasks/{task}")
    page.sees("step 3")
    page.sees("live")
    page.sees("step 9")
    page.click("Cancel")
    page.click("Cancel the task")
    page.sees("cancelled")
    more = console.submit(console.functions["slow"], [[60]] * 4, tag="slower")
    page.go("#/tasks?tag=slower")
    page.sees("0 of 4 tasks have ended.")
    page.click("Cancel the batch")
    page.click("Cancel its tasks")
    page.sees("4 of 4 tasks have ended.")
    page.click("Delete results")
    page.click("Delete")
    page.sees("4 tasks were deleted")
    assert more
    assert page.errors == []


def test_function_is_shared_and_removed(console: Console) -> None:
    console.register()
    token = console.token("laptop", "astro")
    page = console.logged_in()
    page.go("#/functions/double")
    page.click("Share")
    page.fill("Who may run it", "astro")
    page.click("Set")
    page.sees("Sharing was set.")
    guest = console.logged_in(token)
    guest.go("#/functions")
    guest.click("default/double")
    guest.click("Run")
    guest.fill("Arguments", "[21]")
    guest.click("Run")
    # An id may have the digits of the result.
    guest.sees("succeeded")
    guest.sees("42")
    page.click("Remove")
    page.confirm("Remove")
    page.sees("The version was removed.")
    assert page.errors + guest.errors == []


def test_trigger_is_made_fired_and_removed(console: Console) -> None:
    console.register()
    page = console.logged_in()
    page.go("#/triggers")
    page.click("New trigger")
    page.fill("Name", "pushed")
    page.fill("Starts at", "webhook")
    page.fill("Function", "report")
    page.click("Make")
    page.sees("It is shown once.")
    page.sees("/v1/hooks/")
    page.click("Close")
    page.click("pushed")
    page.click("Send an event")
    page.fill("Event", '{"commit": "<i>abc</i>"}')
    page.click("Send")
    page.sees("Event 1 was accepted")
    page.sees("<i>abc</i>")
    page.until("document.querySelectorAll('tbody .badge').length >= 2")
    page.until("document.querySelector('tbody').innerText.includes('done')")
    page.click("Pause")
    page.confirm("Pause")
    page.sees("paused")
    page.click("Resume")
    page.confirm("Resume")
    page.sees("The trigger is active.")
    page.click("Remove")
    page.confirm("Remove")
    page.sees("You have no trigger.")
    page.click("New trigger")
    page.fill("Name", "nightly")
    page.fill("Times", "61 2 * * *")
    page.fill("Function", "report")
    page.click("Make")
    page.until("!!document.querySelector('dialog [role=alert]')")
    page.fill("Times", "30 2 * * *")
    page.click("Make")
    page.sees("timer 30 2 * * * UTC")
    assert page.errors == []


def test_flow_is_drawn_and_cancelled(console: Console) -> None:
    console.register()
    file = console.directory / "flow.toml"
    steps = [("a", "numbers", '["input"]'), ("b", "double", '["a"]\nmap = true')]
    steps += [("c", "total", '["b"]'), ("d", "slow", '["input"]')]
    texts = [f'[[step]]\nname = "{name}"\nfunction = "{of}"\nfrom = {source}\n' for name, of, source in steps]
    file.write_text('name = "fork"\n' + "".join(texts))
    console.manager.cli("flow", "start", str(file), "--input", "60")
    page = console.logged_in()
    page.go("#/flows")
    page.click("fork")
    page.until("document.querySelectorAll('.dag g').length === 5")
    # From the input to two steps, and from a to b to c.
    assert page.run("document.querySelectorAll('.dag svg > path').length") == 4
    page.until("document.querySelectorAll('.dag g.done').length === 3")
    page.sees("60 of 60")
    page.click("Cancel")
    page.click("Cancel the flow")
    page.sees("The flow was cancelled.")
    page.sees("failed")
    assert page.errors == []


def test_flow_is_typed_started_and_followed(console: Console) -> None:
    console.register()
    page = console.logged_in()
    page.go("#/flows")
    page.click("Start a flow")
    page.fill("Name of the flow", "typed")
    page.fill("Input", "4")
    page.fill("Name of step 1", "count")
    page.fill("Function of step 1", "numbers")
    page.click("Add a step")
    page.fill("Name of step 2", "twice")
    page.fill("Function of step 2", "double")
    page.fill("Call step 2 for each", "on")
    page.click("Add a step")
    page.fill("Name of step 3", "sum")
    page.fill("Function of step 3", "nothing")
    page.fill("Results that step 3 takes", "twice, elsewhere")
    # As it is typed: the input, and three steps.
    page.until("document.querySelectorAll('dialog .dag g').length === 4")
    assert flaws(page) == []
    page.click("Start")
    page.until("!!document.querySelector('dialog [role=alert]')")
    page.fill("Function of step 3", "total")
    page.click("Start")
    page.until("/elsewhere/.test(document.querySelector('dialog [role=alert]')?.textContent)")
    page.fill("Results that step 3 takes", "twice")
    page.click("Start")
    page.sees("The flow was started.")
    page.until("document.querySelectorAll('.dag g.done').length === 3")
    page.sees("4 of 4")
    page.until("document.querySelector('pre[aria-label=Result], [aria-label=Result]')?.textContent.includes('12')")
    assert page.errors == []


def test_trigger_with_further_steps_starts_flows(console: Console) -> None:
    console.register()
    page = console.logged_in()
    page.go("#/triggers")
    page.click("New trigger")
    page.fill("Name", "chain")
    page.fill("Starts at", "webhook")
    page.fill("Function", "report")
    page.click("More options")
    page.fill("Description", "reports and more")
    page.fill("Hours of validity", "2")
    page.click("Steps that follow")
    page.click("Add a step")
    page.fill("Name of step 1", "again")
    page.fill("Function of step 1", "report")
    page.fill("Results that step 1 takes", "event, input")
    assert flaws(page) == []
    page.click("Make")
    page.sees("It is shown once.")
    page.click("Close")
    page.click("chain")
    page.sees("reports and more")
    # The input, the trigger's function, and the step.
    page.until("document.querySelectorAll('.dag g').length === 3")
    page.sees("event, input")
    page.click("Send an event")
    page.fill("Event", "5")
    page.click("Send")
    page.sees("Event 1 was accepted")
    page.until("[...document.querySelectorAll('tbody a')].some((a) => a.textContent.startsWith('flow …'))")
    page.click("flow …")
    page.until("document.querySelectorAll('.dag g.done').length === 2")
    (shown,) = [one for one in console.manager.cli("trigger", "list") if one["name"] == "chain"]
    assert [step["from"] for step in shown["then"]] == [["event", "input"]]
    assert shown["expires_at_ms"] - shown["created_at_ms"] == pytest.approx(7_200_000, abs=60_000)
    assert page.errors == []


def test_contents_are_listed_with_their_tasks(console: Console) -> None:
    console.register()
    token = console.token("laptop", "astro")
    big = "x" * 300_000
    with dayfly.connect(config=console.manager.state) as client:
        assert client.run(len, big).result(30) == 300_000
        assert client.run(str.upper, big).result(30) == big.upper()
    page = console.logged_in()
    page.go("#/contents")
    page.sees("result of 1 task")
    page.sees("not used by a task")
    page.sees("293 KiB")
    file = saved(page, console.directory / "contents", "Download")
    assert file.stat().st_size > 290_000
    page.click("…", "main table a")
    other = console.logged_in(token)
    other.go("#/contents")
    other.sees("Nothing is stored.")
    assert page.errors + other.errors == []


def test_lease_is_watched_and_revoked(console: Console) -> None:
    page = console.logged_in()
    page.go("#/leases")
    page.sees("There is no such lease.")
    with dayfly.connect(config=console.manager.state) as client, client.lease(workers=2, mode="warm") as lease:
        # At once, by the event, and not by the next look.
        page.sees(f"…{lease.id[-10:]}", 3)
        list(lease.map(abs, range(100)))
        page.until("/\\b(100|[1-9]\\d)\\b.*warm/s.test(document.querySelector('tbody').innerText)")
        page.click("Revoke")
        page.fill("Seconds", "0")
        page.click("Revoke")
        page.sees("The lease has ended.")
    page.fill("State", "revoked")
    page.sees("revoked")
    page.go("#/usage/bills")
    page.sees("calls")
    file = saved(page, console.directory / "bills", "Export CSV")
    (row,) = csv.DictReader(file.open())
    assert row["tenant"] == "default"
    assert int(row["calls"]) > 0
    page.click("Table of Cost by day", "button")
    page.until("!!document.querySelector('.chart table')")
    assert page.errors == []


def test_usage_is_drawn_and_exported(console: Console) -> None:
    console.register()
    prices = {"allocation_per_gib_s": 1_000, "computing_per_s": 2_000_000_000, "polling_per_s": 0}
    body = json.dumps(prices).encode()
    assert console.manager.ask("PUT", "/v1/prices", body, Content_Type="application/json")[0] == 200
    console.submit(console.functions["slow"], [[0.2]] * 3)
    page = console.logged_in()
    page.go("#/usage")
    page.until("!!document.querySelector('.plot canvas')", 30)
    page.sees("slow")
    # Something is drawn in the colour of the first series.
    page.until("window.__has(document.querySelectorAll('.plot canvas')[2], 0x1f5fa8)")
    file = saved(page, console.directory / "usage", "Export JSON")
    (line,) = json.loads(file.read_text())
    assert (line["name"], line["tasks"]) == ("slow", 3)
    assert page.errors == []


def test_tenants_tokens_and_prices_are_administered(console: Console) -> None:
    page = console.logged_in()
    page.go("#/admin")
    page.click("New tenant")
    page.fill("Name", "astro")
    page.fill("Budget", "12.5")
    page.fill("Most workers", "4")
    page.click("Make")
    page.sees("The tenant astro was made.")
    page.click("Change astro")
    page.fill("Suspended", "on")
    page.click("Change")
    page.sees("suspended")
    (astro,) = [t for t in console.manager.cli("tenant", "list") if t["name"] == "astro"]
    assert (astro["budget"], astro["quota"]["workers"], astro["suspended"]) == (12_500_000_000, 4, True)
    page.click("Tokens")
    page.click("New token")
    page.fill("Name", "laptop")
    page.fill("Tenant", "astro")
    page.click("Make")
    page.sees("it is shown once")
    token = page.run("document.querySelector('.secret').textContent")
    page.click("Close")
    assert console.manager.ask("GET", "/v1/nodes", token=token)[0] == 200
    page.click("Narrow laptop")
    page.click("Replace")
    page.sees("it is shown once")
    narrow = page.run("document.querySelector('.secret').textContent")
    page.click("Close")
    page.sees("user, read-only")
    assert console.manager.ask("GET", "/v1/nodes", token=token)[0] == 401
    assert console.manager.ask("POST", "/v1/tasks", b"{}", token=narrow, Content_Type="application/json")[0] == 403
    page.fill("Text", "laptop")
    page.until("document.querySelectorAll('tbody tr').length === 1")
    page.click("Revoke")
    page.confirm("Revoke")
    page.sees("The token was revoked.")
    assert console.manager.ask("GET", "/v1/nodes", token=narrow)[0] == 401
    page.click("Prices")
    page.click("Change the prices")
    page.fill("Computing", "0.25")
    page.click("Set the prices")
    page.sees("0.25")
    page.click("Audit")
    page.sees("prices.set")
    page.fill("Text", "token.revoke")
    page.loses("prices.set")
    page.sees("token.revoke")
    assert page.errors == []


def test_teams_are_made_changed_and_removed(console: Console) -> None:
    token = console.token("laptop", "astro")
    page = console.logged_in()
    page.go("#/admin/teams")
    page.sees("You are in no team.")
    page.click("New team")
    page.fill("Name", "sky")
    page.fill("Members", "astro, nobody-yet")
    assert flaws(page) == []
    page.click("Make")
    page.sees("The team sky was made.")
    member = console.logged_in(token)
    member.go("#/admin/teams")
    member.sees("astro, nobody-yet")
    assert "Change" not in member.run("document.querySelector('main table').innerText")
    page.click("Change sky")
    page.fill("Members", "astro")
    page.fill("Description", "<b>the telescope</b>")
    page.click("Set")
    page.sees("<b>the telescope</b>")
    (team,) = console.manager.cli("team", "list")
    assert (team["name"], team["members"]) == ("sky", ["astro"])
    page.click("Remove sky")
    page.confirm("Remove")
    page.sees("The team was removed.")
    page.sees("You are in no team.")
    member.loses("sky")
    assert page.errors + member.errors == []


def test_versions_are_compared_and_learning_is_explained(console: Console) -> None:
    console.register()
    file = console.directory / "functions.py"
    file.write_text(file.read_text().replace("return 2 * x", "y = 3 * x\n    return y"))
    console.manager.cli("function", "register", f"{file}:double")
    page = console.logged_in()
    page.go("#/functions/double")
    page.sees("since version 1")
    shown = page.until("document.querySelector('.difference')?.textContent")
    assert [line for line in shown.splitlines() if line[:1] in "+-"] == [
        "-     return 2 * x", "+     y = 3 * x", "+     return y",
    ]  # fmt: skip
    page.sees("What nodes learnt")
    page.sees("no node")
    assert page.errors == []


def test_node_is_taken_back_and_given(console: Console) -> None:
    page = console.logged_in()
    page.go("#/nodes")
    page.click("Take back")
    page.fill("Seconds", "0")
    page.click("Take back")
    page.sees("reclaimed")
    (node,) = json.loads(console.manager.ask("GET", "/v1/nodes")[1])
    assert node["state"] == "reclaimed"
    page.click("Give back")
    page.confirm("Give back")
    page.sees("is in service again")
    page.click("Resize")
    page.fill("Memory", "0.5")
    page.fill("Seconds", "0")
    page.confirm("Offer")
    page.sees("512 MiB")
    (node,) = json.loads(console.manager.ask("GET", "/v1/nodes")[1])
    assert node["capacity"]["memory_bytes"] == 1 << 29
    page.click("Let a node join")
    page.click("Make a token")
    page.sees("It is shown once.")
    page.click("Harvesting")
    page.click("Set")
    page.until("!document.querySelector('dialog[open]') || !!document.querySelector('dialog [role=alert]')")
    assert page.errors == []


def test_endpoint_is_shown_and_removed(console: Console) -> None:
    console.register()
    assert console.manager.post("/v1/endpoints", {"name": "far", "provider": "slurm"})[0] == 201
    console.submit(console.functions["double"], [[1]], endpoint="far")
    page = console.logged_in()
    page.go("#/endpoints")
    page.click("far")
    page.sees("The endpoint is not connected.")
    page.click("Cancel my tasks")
    page.click("Cancel")
    page.sees("1 tasks ended")
    # The endpoint has the task until its end is written.
    page.sees("Failed 1")
    page.click("Remove")
    page.confirm("Remove")
    page.sees("The endpoint was removed.")
    page.sees("1 of 1 endpoints")
    assert page.errors == []


def test_groups_show_their_ranks_to_their_tenant(console: Console) -> None:
    work = "import time\nfrom dayfly import MPI\nMPI.COMM_WORLD.Barrier()\ntime.sleep(5)\n"
    file = console.directory / "ranks.py"
    file.write_text(work)
    connection = console.directory / "astro.json"
    console.manager.cli("tenant", "set", "astro")
    console.manager.cli("token", "create", "desk", "--tenant", "astro", "--output", str(connection))
    ranks = subprocess.Popen(
        [program(), "run", "--ranks", "2", file],
        env=console.manager.client_environment() | {"DAYFLY_PYTHON": sys.executable, "DAYFLY_MANAGER": str(connection)},
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        own = console.logged_in(json.loads(connection.read_text())["token"])
        own.go("#/groups")
        page = console.logged_in()
        page.go("#/groups")
        other = console.logged_in(console.token("laptop", "bio"))
        other.go("#/groups")
        for one in (own, page):
            one.sees("2 of 2 ranks are present.", 30)
            one.sees("formed")
            one.sees("Group run-")
            one.until("document.querySelectorAll('.ranks .there').length >= 2")
        page.sees("Tenant astro.")
        assert "Tenant" not in own.run("document.querySelector('main').innerText")
        other.sees("No group of yours meets here now.")
        places = [json.loads(console.manager.ask("GET", "/v1/rendezvous", token=token)[1]) for token in tokens(console)]
        assert len({place["group_prefix"] for place in places}) == 3
        # The ranks end by themselves.
        page.sees("No group meets here now.", 30)
    finally:
        ranks.terminate()
        ranks.wait(20)
    assert own.errors + page.errors + other.errors == []


def tokens(console: Console) -> list[str]:
    """Tokens of three tenants."""
    return [console.manager.connection["token"], console.token("one", "astro"), console.token("two", "bio")]


def test_keyboard_alone_opens_and_runs(console: Console) -> None:
    console.register()
    page = console.page()
    page.until("!!window.__field('Token')")

    def focus(name: str) -> None:
        for _ in range(60):
            page.press("Tab")
            if page.run("window.__focused()") == name:
                return
        raise AssertionError(f"Tab does not reach {name}")

    page.run("document.querySelector('input').focus()")
    page.send("Input.insertText", text=console.manager.connection["token"])
    page.press("Enter")
    page.sees("Overview")
    focus("Functions")
    page.press("Enter")
    page.until("document.activeElement?.tagName === 'H1' && document.activeElement.textContent === 'Functions'")
    page.sees("report")
    focus("report")
    page.press("Enter")
    page.until("document.title.startsWith('report') || document.querySelector('h1').textContent === 'report'")
    focus("Run")
    page.press("Enter")
    page.until("!!document.querySelector('dialog[open]')")
    page.press("Escape")
    page.until("!document.querySelector('dialog')")
    # The focus returns to what opened the dialog.
    page.until("document.activeElement?.textContent === 'Run'")
    assert page.errors == []
