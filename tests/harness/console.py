"""The web console of a manager, in Chromium."""

from __future__ import annotations

import http.client
import json
import os
import ssl
import sys
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness import browser
from harness.browser import Page
from harness.daemons import Daemon
from harness.programs import ROOT, cache_dir

#: Functions that tests register.
FUNCTIONS = """
import time

def report(pages, title="none"):
    print("report of", pages, "pages")
    return {"pages": pages, "title": title}

def fails(text):
    print("about to fail")
    raise ValueError(text)

def slow(seconds):
    for step in range(int(seconds * 10)):
        print("step", step, flush=True)
        time.sleep(0.1)
    return seconds

def double(x):
    return 2 * x

def numbers(n):
    return list(range(n))

def total(xs):
    return sum(xs)
"""
#: A flow of two of them.
FLOW = """
name = "doubling"

[[step]]
name = "numbers"
function = "numbers"

[[step]]
name = "double"
function = "double"
map = true
"""
NAMES = ("report", "fails", "slow", "double", "numbers", "total")


def axe() -> str | None:
    """Returns the script of the checker of accessibility, or None if the console's packages are not installed."""
    places = [*cache_dir().glob("console-*/source"), ROOT / "console"]
    files = [place / "node_modules" / "axe-core" / "axe.min.js" for place in places]
    found = next((file for file in files if file.exists()), None)
    return found.read_text() if found else None


class Answer:
    """What a manager responds to a request as a browser, or something that poses as one, sends it."""

    def __init__(self, manager: Daemon, method: str, path: str, body: Any = None, **headers: str) -> None:
        parts = urllib.parse.urlsplit(manager.connection["manager"])
        context = ssl.create_default_context(cadata=manager.connection["ca_pem"])
        connection = http.client.HTTPSConnection(parts.netloc, timeout=20, context=context)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if body is not None:
            named["Content-Type"] = "application/json"
        connection.request(method, path, None if body is None else json.dumps(body), named)
        response = connection.getresponse()
        self.status = response.status
        self.headers = response.headers
        self.body = response.read().decode()
        connection.close()


class Console:
    """A manager with functions, and pages of its console."""

    def __init__(self, manager: Daemon, page: Callable[..., Page], directory: Path) -> None:
        self.manager = manager
        self.address: str = manager.connection["manager"]
        self.directory = directory
        self._page = page
        #: Ids of the registered functions, by name.
        self.functions: dict[str, str] = {}

    def register(self) -> None:
        """Registers functions of the manager's own tenant."""
        file = self.directory / "functions.py"
        file.write_text(FUNCTIONS)
        for name in NAMES:
            self.functions[name] = self.manager.cli("function", "register", f"{file}:{name}")["id"]

    def page(self, **options: Any) -> Page:
        """Opens a page that nobody is logged in to."""
        page = self._page(**options)
        page.open(f"{self.address}/console/")
        return page

    def logged_in(self, token: str = "", **options: Any) -> Page:
        """Opens a page with the session of a token."""
        page = self._page(**options)
        page.open(f"{self.address}/console/#token={token or self.manager.connection['token']}")
        page.sees("Overview")
        return page

    def token(self, name: str, tenant: str, *more: str) -> str:
        """Makes a tenant, and a token of it."""
        self.manager.cli("tenant", "set", tenant)
        return str(self.manager.cli("token", "create", name, "--tenant", tenant, *more)["token"])

    def submit(self, function: str, calls: list[list[Any]], *, token: str = "", **more: Any) -> list[str]:
        """Submits tasks. Returns their ids."""
        body = {"function": function, "tasks": [{"call": {"arguments": call}} for call in calls], **more}
        status, said = self.manager.ask(
            "POST", "/v1/tasks", json.dumps(body).encode(), token=token, Content_Type="application/json"
        )
        assert status == 201, said
        return list(json.loads(said)["tasks"])


def is_built(manager: Daemon) -> bool:
    """Whether the manager has the console."""
    return manager.ask("GET", "/console/")[0] == 200


@pytest.fixture
def console(start: Callable[..., Daemon], tmp_path: Path) -> Iterator[Console]:
    """A running manager with a node, and a browser. Functions that it runs come with no interpreter of a client."""
    if browser.CHROMIUM is None:
        pytest.skip("chromium not found; install it")
    up = start("up", "--listen", "127.0.0.1:0", "--python", sys.executable)
    if not is_built(up):
        assert not os.environ.get("DAYFLY_CONSOLE"), "the console was built, and the manager without it"
        pytest.skip("the manager was built without the console; install Node.js and npm, and run `make build`")
    with browser.running(tmp_path / "chromium") as page:
        yield Console(up, page, tmp_path)
