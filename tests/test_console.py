"""The web console in Chromium: logins, what each view shows, to whom, at which width, and while the manager is away."""

from __future__ import annotations

import json
import time
import urllib.parse
from collections.abc import Callable
from pathlib import Path

import pytest
from harness import browser, identity
from harness.browser import Page
from harness.console import FLOW, Answer, Console, axe, is_built
from harness.daemons import Daemon, free_port
from harness.identity import Provider

VIEWS = [
    "#/", "#/tasks", "#/functions", "#/functions/report", "#/triggers", "#/triggers/nightly", "#/flows", "#/queries",
    "#/endpoints", "#/endpoints/local", "#/nodes", "#/leases", "#/groups", "#/contents", "#/usage", "#/usage/bills",
    "#/admin", "#/admin/tokens", "#/admin/teams", "#/admin/prices", "#/admin/audit", "#/nowhere",
]  # fmt: skip


def test_session_cookie_is_hidden_and_guarded(console: Console) -> None:
    manager, token = console.manager, console.manager.connection["token"]
    assert Answer(manager, "POST", "/v1/session", {"token": "wrong"}).status == 401
    assert Answer(manager, "POST", "/v1/session", {"token": token, "ticket": token}).status == 400
    opened = Answer(manager, "POST", "/v1/session", {"token": token})
    cookie = opened.headers["Set-Cookie"]
    assert all(f"; {word}" in cookie for word in ("Path=/", "Secure", "HttpOnly", "SameSite=Strict"))
    assert token not in opened.body
    sent = {"Cookie": cookie.split(";")[0]}
    host = urllib.parse.urlsplit(manager.connection["manager"]).netloc
    own, other = f"https://{host}", "https://elsewhere.example"
    change = {"Dayfly_Console": "1"}
    put = ("PUT", "/v1/tenants/astro", {})
    assert Answer(manager, "GET", "/v1/tenants", **sent).status == 200
    assert Answer(manager, *put, **sent).status == 403
    assert Answer(manager, *put, **sent, Origin=own).status == 403
    assert Answer(manager, *put, **sent, **change, Origin=other).status == 403
    assert Answer(manager, *put, **sent, **change, Sec_Fetch_Site="same-site").status == 403
    assert Answer(manager, *put, **sent, **change, Origin=own).status == 200
    # Another page must neither read nor listen.
    assert Answer(manager, "GET", "/v1/tenants", **sent, Sec_Fetch_Site="cross-site").status == 403
    socket = {"Connection": "Upgrade", "Upgrade": "websocket"}
    socket |= {"Sec_WebSocket_Version": "13", "Sec_WebSocket_Key": "a" * 22 + "=="}
    assert Answer(manager, "GET", "/v1/events", **sent, **socket, Origin=other).status == 403
    assert Answer(manager, "GET", "/v1/events", **sent, **socket).status == 403
    shown = Answer(manager, "GET", "/v1/tenants", **sent)
    assert "sandbox" in shown.headers["Content-Security-Policy"]
    assert shown.headers["X-Content-Type-Options"] == "nosniff"
    page = Answer(manager, "GET", "/console/")
    assert "script-src 'self'" in page.headers["Content-Security-Policy"]
    assert "unsafe" not in page.headers["Content-Security-Policy"]
    assert "require-trusted-types-for 'script'" in page.headers["Content-Security-Policy"]
    assert "<script>" not in page.body
    assert "style=" not in page.body


def test_person_logs_in_by_token_and_out(console: Console) -> None:
    page = console.page()
    page.fill("Token", "wrong")
    page.press("Enter")
    page.sees("unknown, has expired")
    page.fill("Token", console.manager.connection["token"])
    page.press("Enter")
    page.sees("default, administrator")
    assert page.run("document.cookie") == ""
    assert page.run("JSON.stringify(localStorage) + JSON.stringify(sessionStorage)") == "{}{}"
    page.open(f"{console.address}/console/#/nodes")
    page.run("location.reload()")
    page.until("document.title.startsWith('Nodes')")
    page.click("Log out")
    page.sees("Log in")
    page.run("location.reload()")
    page.sees("Token")
    assert page.run("fetch('/v1/tenants').then((r) => r.status)") == 401
    assert page.errors == []


def test_page_address_logs_in_once(console: Console) -> None:
    address = console.manager.cli("page")["page"]
    token = console.manager.connection["token"]
    assert token not in address
    first = console.page()
    first.open(address)
    first.sees("may only read")
    assert "ticket" not in first.run("location.href")
    first.go("#/admin")
    first.sees("default")
    assert "New tenant" not in first.text()
    # Another browser comes too late.
    second = console.page()
    second.open(address)
    second.sees("was used already")
    tokens = len(console.manager.cli("token", "list"))
    first.click("Log out")
    first.sees("Log in")
    assert len(console.manager.cli("token", "list")) == tokens - 1
    third = console.page()
    third.open(console.manager.cli("page", "--write")["page"])
    # Only then has the page read its address, which the next line changes.
    third.sees("Overview")
    third.go("#/admin")
    third.sees("New tenant")


@pytest.mark.skipif(identity.unavailable() is not None, reason=str(identity.unavailable()))
def test_person_logs_in_at_the_provider(start: Callable[..., Daemon], tmp_path: Path) -> None:
    port = free_port()
    back = f"https://127.0.0.1:{port}/v1/session/callback"
    people = {"ada": {"preferred_username": "ada", "groups": ["astro"]}, "eve": {"groups": ["none"]}}
    provider = Provider(tmp_path, people, back=back)
    try:
        file = tmp_path / "oidc.json"
        site = {"issuer": provider.issuer, "client_id": "dayfly", "scopes": ["profile", "groups"]}
        rules = [{"claim": "groups", "value": "astro", "tenant": "astro"}]
        file.write_text(json.dumps(site | {"ca_file": provider.ca.name, "rules": rules}))
        manager = start("manager", "--listen", f"127.0.0.1:{port}", "--oidc", str(file))
        if browser.CHROMIUM is None or not is_built(manager):
            pytest.skip("the console cannot be shown")
        manager.cli("tenant", "set", "astro")
        with browser.running(tmp_path / "chromium") as open_page:
            for person, sees in (("eve", "no rule of this site lets you in"), ("ada", "astro, user")):
                page = open_page()
                page.open(f"{manager.connection['manager']}/console/")
                page.click("Log in with")
                page.until("!!document.querySelector('[name=login]')")
                page.run(f"document.querySelector('[name=login]').value = '{person}'")
                page.run("document.querySelector('[name=password]').value = 'any'")
                page.run("document.querySelector('form').submit()")
                page.until("!!document.querySelector('form') && !document.querySelector('[name=login]')")
                page.run("document.querySelector('form').submit()")
                page.sees(sees)
            # A code of another login, or of none, opens nothing.
            page.open(f"{manager.connection['manager']}/v1/session/callback?code=a&state=b")
            page.sees("began no such login")
    finally:
        provider.stop()


@pytest.fixture
def work(console: Console) -> Console:
    """A manager with tasks that succeeded, failed and run, triggers, a flow and a bill."""
    console.register()
    console.manager.cli("trigger", "timer", "nightly", "30 2 * * *", "--zone", "Europe/Berlin", "--function", "report")
    flow = console.directory / "flow.toml"
    flow.write_text(FLOW)
    console.manager.cli("flow", "run", str(flow), "--input", "3")
    console.submit(console.functions["fails"], [["<img src=x onerror=document.title='hacked'>"]], tag="bad")
    console.submit(console.functions["double"], [[n] for n in range(20)], tag="doubles")
    return console


def check_views(page: Page, views: list[str], script: str | None) -> None:
    """Opens views, each as people see it: with a heading, without an error, and as wide as the window."""
    for view in views:
        page.go(view)
        page.until("!document.body.innerText.includes('Loading…') && !!document.querySelector('main h1')")
        assert page.run("document.documentElement.scrollWidth <= innerWidth"), f"{view} is wider than the window"
        if script:
            assert page.axe(script) == [], view
    assert page.errors == []


def test_every_view_is_accessible(work: Console) -> None:
    script = axe()
    (flow,) = work.manager.cli("flow", "list")
    (task,) = work.manager.cli("task", "list", "--tag", "bad")
    views = [*VIEWS, f"#/flows/{flow['id']}", f"#/tasks/{task['id']}", "#/tasks?tag=doubles"]
    page = work.logged_in()
    check_views(page, views, script)
    page.appear(width=390, height=844, dark=True)
    check_views(page, views, script)
    # The navigation of a phone.
    page.go("#/tasks")
    page.until("document.title.startsWith('Tasks')")
    page.click("Menu")
    page.click("Functions")
    page.until("document.title.startsWith('Functions')")
    nobody = work.page(width=390, dark=True)
    nobody.sees("Token")
    assert not script or nobody.axe(script) == []


def test_foreign_text_is_never_markup(work: Console) -> None:
    evil = "<img src=x onerror=document.title='hacked'>"
    page = work.logged_in()
    page.go("#/tasks?state=failed")
    page.sees("ValueError: <img src=x")
    page.click("…")
    page.sees("Traceback of ValueError")
    page.sees(f"ValueError: {evil}")
    assert "hacked" not in page.run("document.title")
    assert page.run("document.images.length") == 0
    assert page.errors == []


def test_tenants_see_only_their_own(work: Console) -> None:
    token = work.token("laptop", "astro")
    page = work.logged_in(token)
    page.go("#/tasks")
    page.sees("No task fits these filters.")
    empty = {"triggers": "You have no trigger.", "flows": "You have no flow.", "functions": "no such function"}
    for view, text in empty.items():
        page.go(f"#/{view}")
        page.sees(text)
    page.go("#/admin")
    page.sees("astro")
    assert "New tenant" not in page.text()
    assert "Audit" not in page.text()
    assert "default" not in page.run("document.querySelector('main').innerText")
    page.go("#/nodes")
    page.until("document.querySelectorAll('tbody tr').length === 1")
    assert "Take back" not in page.text()
    page.go("#/groups")
    page.sees("No group of yours meets here now.")
    page.go("#/contents")
    page.sees("Nothing is stored.")
    # Neither by its address.
    (task,) = work.manager.cli("task", "list", "--tag", "bad")
    page.go(f"#/tasks/{task['id']}")
    page.sees("you have no task")
    operator = work.logged_in(work.token("desk", "astro", "--role", "operator"))
    operator.go("#/tasks?everybody=1&tag=bad")
    operator.sees("failed")
    assert page.errors == []


def test_console_waits_for_an_absent_manager(start: Callable[..., Daemon], tmp_path: Path) -> None:
    manager = start("manager", "--listen", f"127.0.0.1:{free_port()}")
    if browser.CHROMIUM is None or not is_built(manager):
        pytest.skip("the console cannot be shown")
    with browser.running(tmp_path / "chromium") as open_page:
        page = open_page()
        page.open(f"{manager.connection['manager']}/console/#token={manager.connection['token']}")
        page.sees("Overview")
        page.go("#/admin")
        page.sees("default")
        manager.stop()
        page.sees("The manager does not respond.", 20)
        assert "default" in page.text()
        again = manager.restart()
        try:
            page.loses("The manager does not respond.", 20)
            again.cli("tenant", "set", "astro")
            page.sees("astro")
        finally:
            again.stop()


def test_long_lists_are_read_in_pages(console: Console) -> None:
    console.register()
    status, said = console.manager.post("/v1/endpoints", {"name": "far", "provider": "slurm"})
    assert status == 201, said
    for number in range(150):
        assert console.manager.post("/v1/endpoints", {"name": f"site-{number:04}"})[0] == 201
    tasks = console.submit(console.functions["double"], [[n] for n in range(3_000)], endpoint="far", tag="many")
    page = console.logged_in()
    page.go("#/tasks?tag=many")
    page.sees("0 of 3,000 tasks have ended.")
    rows = "document.querySelectorAll('main .table tbody tr:not(.spacer)').length"
    page.until(f"{rows} > 10")
    assert page.run(rows) < 100
    # Down to the first task, page by page.
    page.until(
        "(() => { const t = document.querySelector('main .table'); t.scrollTop = t.scrollHeight;"
        f" return !!document.querySelector('[title=\"{tasks[0]}\"]'); }})()",
        30,
    )
    assert page.run(rows) < 100
    page.go("#/tasks?tag=many&text=nothing")
    page.sees("No task fits")
    page.go(f"#/tasks?text={tasks[1234][-8:]}")
    page.until(f"!!document.querySelector('[title=\"{tasks[1234]}\"]')")
    page.go("#/endpoints")
    page.sees("152 of 152 endpoints")
    assert page.run(rows) < 100
    page.fill("Text", "site-0123")
    page.sees("1 of 152 endpoints")
    page.go("#/endpoints/far")
    page.sees("The endpoint is not connected.")
    page.go("#/tasks?tag=many")
    page.click("Cancel the batch")
    page.click("Cancel its tasks")
    page.sees("3,000 of 3,000 tasks have ended.")
    assert page.errors == []


def test_filters_by_state_and_time_narrow(work: Console) -> None:
    page = work.logged_in()
    page.go("#/tasks")
    page.fill("State", "failed")
    page.until("document.querySelectorAll('tbody tr').length === 1")
    page.fill("State", "succeeded")
    page.until("document.querySelectorAll('tbody tr').length > 20")
    page.fill("Tag", "doubles")
    page.until("document.querySelectorAll('main > .table tbody tr').length === 20")
    page.click("Clear filters")
    page.fill("Function", "fails")
    page.until("document.querySelectorAll('tbody tr').length === 1")
    page.click("Clear filters")
    page.fill("Endpoint", "local")
    page.until("document.querySelectorAll('tbody tr').length > 20")
    page.fill("Until", "2026-01-01T00:00")
    page.sees("No task fits")
    page.click("Clear filters")
    tomorrow = time.strftime("%Y-%m-%dT00:00", time.localtime(time.time() + 86_400))
    page.fill("From", tomorrow)
    page.sees("No task fits")
    page.fill("Until", "")
    page.fill("From", "2026-01-01T00:00")
    page.until("document.querySelectorAll('tbody tr').length > 20")
