"""An OpenID Connect provider (the npm package ``oidc-provider``), and a browser that logs in there."""

from __future__ import annotations

import html
import http.cookiejar
import json
import re
import shutil
import ssl
import subprocess
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

from harness.certificates import certify
from harness.daemons import free_port
from harness.leaks import die_with_parent
from harness.programs import ROOT, cache_dir

HERE = ROOT / "tests" / "oidc"


def _modules() -> Path:
    return cache_dir() / "oidc" / "node_modules"


def unavailable() -> str | None:
    """Returns why the provider is unavailable, or None."""
    if not shutil.which("node"):
        return "Node.js is not installed: sudo apt-get install nodejs npm"
    if not (_modules() / "oidc-provider").is_dir():
        return "the package oidc-provider is not installed: scripts/bootstrap tests"
    return None


class Provider:
    """A provider on loopback, with its own certificate authority."""

    def __init__(self, directory: Path, people: dict[str, dict[str, Any]], **settings: Any) -> None:
        self.directory = directory
        self.people = people
        self.port = free_port()
        self.issuer = f"https://localhost:{self.port}"
        self.ca = certify(directory, "provider")
        self.start(**settings)

    def start(self, **settings: Any) -> None:
        """Starts the provider, with new keys."""
        told = {
            "port": self.port,
            "cert": str(self.directory / "provider.pem"),
            "key": str(self.directory / "provider.key"),
            "kid": "first",
            "alg": "RS256",
            "people": self.people,
        } | settings
        self.log = open(self.directory / "provider.log", "ab")  # noqa: SIM115 (closed when it stops)
        self.process = subprocess.Popen(
            ["node", HERE / "provider.mjs", _modules(), json.dumps(told)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509 (one call, loaded before)
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        assert line == "ready", (self.directory / "provider.log").read_text()

    def stop(self) -> None:
        """Stops the provider."""
        self.process.kill()
        self.process.wait(10)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.log.close()


class Browser:
    """A browser without a screen: it handles cookies, redirects and forms."""

    def __init__(self, provider: Provider) -> None:
        cookies = http.cookiejar.CookieJar()
        tls = ssl.create_default_context(cafile=str(provider.ca))
        self.opener = urllib.request.build_opener(
            urllib.request.HTTPSHandler(context=tls),
            urllib.request.HTTPCookieProcessor(cookies),
            self._redirections(),
        )
        self.url = ""
        self.text = ""
        #: The target of the last redirect, reachable or not.
        self.sent = ""

    def _redirections(self) -> urllib.request.HTTPRedirectHandler:
        browser = self

        class Followed(urllib.request.HTTPRedirectHandler):
            def redirect_request(self, *args: Any) -> urllib.request.Request | None:
                browser.sent = args[-1]
                return super().redirect_request(*args)

        return Followed()

    def open(self, url: str, form: dict[str, str] | None = None) -> None:
        """Opens an address and follows redirects."""
        data = urllib.parse.urlencode(form).encode() if form is not None else None
        with self.opener.open(url, data, timeout=20) as response:
            self.url, self.text = response.url, response.read().decode()

    def submit(self, **fields: str) -> None:
        """Fills in and submits the form of the page."""
        found = re.search(r"<form[^>]*>", self.text)
        assert found, self.text
        action = re.search(r'action="([^"]*)"', found[0])
        target = urllib.parse.urljoin(self.url, html.unescape(action[1])) if action else self.url
        hidden = re.findall(r'<input[^>]*type="hidden"[^>]*>', self.text)
        form = {}
        for field in hidden:
            name, value = re.search(r'name="([^"]*)"', field), re.search(r'value="([^"]*)"', field)
            if name:
                form[name[1]] = html.unescape(value[1]) if value else ""
        self.open(target, form | fields)

    def log_in(self, person: str) -> None:
        """Logs in on the current page, and grants the program's request."""
        self.submit(login=person, password="any")
        self.submit()
