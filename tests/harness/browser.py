"""Chromium, driven over its own protocol through a pipe: pages that are clicked and typed into like a person's."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from harness.leaks import die_with_parent

CHROMIUM = shutil.which("chromium")
#: Time limit for one command, in seconds.
COMMAND_LIMIT = 30.0
#: Time limit for what a page should come to show, in seconds.
SHOW_LIMIT = 15.0
KEYS = {
    "Enter": ("Enter", 13, "\r"),
    "Escape": ("Escape", 27, ""),
    "Tab": ("Tab", 9, ""),
    "Space": (" ", 32, " "),
    "End": ("End", 35, ""),
}

#: Finds what a person would call by its name: a button, a link, a field or a tab.
FINDERS = """
window.__visible = (e) => e.checkVisibility({ visibilityProperty: true }) && e.getClientRects().length > 0;
window.__scope = () => [...document.querySelectorAll("dialog[open]")].pop() ?? document;
window.__shown = () => window.__plain(document.body?.innerText);
window.__plain = (text) => (text ?? "").replace(/\\s+/g, " ").trim();
window.__middle = (e) => {
  const box = e.getBoundingClientRect();
  return [box.x + box.width / 2, box.y + box.height / 2];
};
window.__set = (e, value) => {
  e.value = value;
  for (const name of ["input", "change"]) e.dispatchEvent(new Event(name, { bubbles: true }));
};
window.__focused = () => {
  const e = document.activeElement;
  return window.__plain(e?.getAttribute("aria-label") ?? e?.textContent);
};
window.__axe = () => axe.run(document, { resultTypes: ["violations"] }).then((found) =>
  found.violations.map(({ id, nodes }) => `${id}: ${nodes.slice(0, 3).map((n) => n.html.slice(0, 200)).join(" | ")}`));
window.__has = (canvas, colour) => {
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  for (let i = 0; i < data.length; i += 4)
    if (((data[i] << 16) | (data[i + 1] << 8) | data[i + 2]) === colour) return true;
  return false;
};
window.__named = (name, kinds) => {
  const all = [...window.__scope().querySelectorAll(kinds)].filter(window.__visible);
  const of = (e) => window.__plain(e.getAttribute("aria-label") ?? e.textContent);
  return all.find((e) => of(e) === name) ?? all.find((e) => of(e).startsWith(name)) ?? null;
};
window.__field = (label) => {
  const labels = [...window.__scope().querySelectorAll("label")].filter(window.__visible);
  const of = (l) => window.__plain(l.querySelector("span")?.textContent ?? l.textContent);
  const found = labels.find((l) => of(l) === label) ?? labels.find((l) => of(l).startsWith(label));
  return found?.querySelector("input, select, textarea") ?? null;
};
"""


class BrowserError(AssertionError):
    """A page did not come to show something."""


class Browser:
    """A Chromium process. Each of its pages has cookies and storage of its own."""

    def __init__(self, profile: Path) -> None:
        assert CHROMIUM is not None
        read_end, self._write = os.pipe()
        self._read, write_end = os.pipe()
        self._buffer = b""
        self._last = 0
        self._answers: dict[int, dict[str, Any]] = {}
        self._pages: dict[str, Page] = {}
        self._log = open(profile.parent / f"{profile.name}.log", "wb")  # noqa: SIM115 (closed at the end)

        def descriptors() -> None:
            die_with_parent()
            # The ends may be 3 and 4 already, or each other's.
            first, second = os.dup(read_end), os.dup(write_end)
            os.dup2(first, 3)
            os.dup2(second, 4)

        self.process = subprocess.Popen(
            [
                *(CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
                *("--ignore-certificate-errors", "--remote-debugging-pipe", f"--user-data-dir={profile}"),
                *("--disable-background-networking", "--no-first-run", "--window-size=1280,900"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            close_fds=False,
            preexec_fn=descriptors,  # noqa: PLW1509 (one call, loaded before)
        )
        os.close(read_end)
        os.close(write_end)

    def send(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """Sends a command and returns its result."""
        self._last += 1
        number = self._last
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + COMMAND_LIMIT
        while number not in self._answers:
            self._receive(deadline - time.monotonic(), method)
        answer = self._answers.pop(number)
        if "error" in answer:
            raise BrowserError(f"{method}: {answer['error']}")
        result: dict[str, Any] = answer["result"]
        return result

    def _receive(self, limit: float, what: str) -> None:
        while b"\0" not in self._buffer:
            if limit <= 0 or not select.select([self._read], [], [], limit)[0]:
                raise BrowserError(f"Chromium did not respond to {what}")
            piece = os.read(self._read, 1 << 20)
            if not piece:
                raise BrowserError("Chromium ended")
            self._buffer += piece
        one, _, self._buffer = self._buffer.partition(b"\0")
        message = json.loads(one)
        if "id" in message:
            self._answers[message["id"]] = message
        elif page := self._pages.get(message.get("sessionId", "")):
            page.on_event(message["method"], message["params"])

    def page(self, *, width: int = 1280, height: int = 900, dark: bool = False) -> Page:
        """Opens a page with cookies and storage of its own."""
        context = self.send("Target.createBrowserContext")["browserContextId"]
        target = self.send("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session, context)
        self._pages[session] = page
        page.prepare()
        page.appear(width=width, height=height, dark=dark)
        return page

    def stop(self) -> None:
        """Ends the process."""
        with contextlib.suppress(AssertionError, OSError):
            self.send("Browser.close")
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)
        os.close(self._read)
        os.close(self._write)
        self._log.close()


class Page:
    """One page."""

    def __init__(self, browser: Browser, session: str, context: str) -> None:
        self.browser = browser
        self.session = session
        #: What has the page's cookies.
        self.context = context
        #: Messages of errors: exceptions of scripts, and what the content security policy refused.
        self.errors: list[str] = []

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Sends a command to this page."""
        return self.browser.send(method, self.session, **parameters)

    def prepare(self) -> None:
        """Begins to listen to the page."""
        for domain in ("Page", "Runtime", "Log"):
            self.send(f"{domain}.enable")
        self.send("Page.addScriptToEvaluateOnNewDocument", source=FINDERS)

    def appear(self, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Sets the size of the window, and the colours that the system prefers."""
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )
        colours = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[colours])

    def on_event(self, method: str, parameters: dict[str, Any]) -> None:
        """Keeps errors."""
        if method == "Runtime.exceptionThrown":
            details = parameters["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Log.entryAdded":
            entry = parameters["entry"]
            if entry["level"] == "error" and entry["source"] in ("security", "javascript"):
                self.errors.append(entry["text"])

    def open(self, address: str) -> None:
        """Opens an address."""
        self.send("Page.navigate", url=address)
        self.until("document.readyState === 'complete' && !!window.__named")

    def run(self, script: str) -> Any:
        """Returns the value of an expression; waits for a promise."""
        done = self.send("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in done:
            raise BrowserError(done["exceptionDetails"].get("exception", {}).get("description", script))
        return done["result"].get("value")

    def until(self, script: str, limit: float = SHOW_LIMIT) -> Any:
        """Returns the first value of an expression that is true."""
        deadline = time.monotonic() + limit
        while True:
            try:
                if value := self.run(script):
                    return value
            except BrowserError as error:
                # The page may be changing.
                if "context" not in str(error) and "navigat" not in str(error) and "__" not in str(error):
                    raise
            if time.monotonic() > deadline:
                raise BrowserError(f"it did not come about: {script}\n{self.text()}\n{self.errors}")
            time.sleep(0.05)

    def text(self) -> str:
        """The visible text."""
        return str(self.run("document.body ? document.body.innerText.replace(/[ \\t]+/g, ' ') : ''"))

    def sees(self, text: str, limit: float = SHOW_LIMIT) -> None:
        """Waits until the page shows a text."""
        wanted = json.dumps(" ".join(text.split()))
        self.until(f"window.__shown().includes({wanted})", limit)

    def loses(self, text: str, limit: float = SHOW_LIMIT) -> None:
        """Waits until the page no longer shows a text."""
        wanted = json.dumps(" ".join(text.split()))
        self.until(f"!window.__shown().includes({wanted})", limit)

    def click(self, name: str, kinds: str = "button, a, summary, [role=tab]") -> None:
        """Clicks what has this name, or a name that begins so, with the mouse."""
        found = f"window.__named({json.dumps(name)}, {json.dumps(kinds)})"
        self.until(f"!!{found} && !{found}.disabled")
        self.run(f"{found}.scrollIntoView({{ block: 'center', inline: 'center' }})")
        box = self.run(f"window.__middle({found})")
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", clickCount=1)

    def confirm(self, name: str) -> None:
        """Clicks what has this name in a dialog that is about to open: the page may have it under the same name."""
        self.until("!!document.querySelector('dialog[open]')")
        self.click(name)

    def fill(self, label: str, value: str) -> None:
        """Types into the field with this label, in place of what it has; or chooses an option."""
        field = f"window.__field({json.dumps(label)})"
        self.until(f"!!{field}")
        if self.run(f"{field}.type === 'checkbox'"):
            if self.run(f"{field}.checked") != (value == "on"):
                self.run(f"{field}.click()")
            return
        if self.run(f"{field}.tagName === 'SELECT'"):
            # Options may come with a response.
            self.until(f"[...{field}.options].some((option) => option.value === {json.dumps(value)})")
            self.run(f"window.__set({field}, {json.dumps(value)})")
            return
        if self.run(f"/date/.test({field}.type)"):
            self.run(f"window.__set({field}, {json.dumps(value)})")
            return
        self.run(f"{field}.focus(), {field}.select()")
        if value:
            self.send("Input.insertText", text=value)
        else:
            self.press("Backspace")

    def press(self, key: str, *, shift: bool = False) -> None:
        """Presses a key."""
        name, code, text = KEYS.get(key, (key, 8 if key == "Backspace" else 0, ""))
        common = {"key": name, "code": key, "windowsVirtualKeyCode": code, "modifiers": 8 if shift else 0}
        self.send("Input.dispatchKeyEvent", type="keyDown", text=text, **common)
        self.send("Input.dispatchKeyEvent", type="keyUp", **common)

    def go(self, view: str) -> None:
        """Opens a view of the console by its address behind the `#`."""
        self.run(f"location.hash = {json.dumps(view)}, true")

    def picture(self, file: Path) -> None:
        """Writes a picture of the window."""
        data = self.send("Page.captureScreenshot", format="png")["data"]
        file.write_bytes(base64.b64decode(data))

    def axe(self, script: str) -> list[str]:
        """What the checker of accessibility finds, in words."""
        if not self.run("!!window.axe"):
            self.run(f"{script}\n;true")
        found = self.run("window.__axe()")
        return list(found)

    def freeze(self, *, frozen: bool) -> None:
        """Stops all of the page's scripts and timers, as for a tab that nobody has looked at for long; or lets them go
        on, and shows the page."""
        self.send("Emulation.setFocusEmulationEnabled", enabled=False)
        self.send("Page.setWebLifecycleState", state="frozen" if frozen else "active")
        # Otherwise the page goes on, but is not in sight.
        self.send("Emulation.setFocusEmulationEnabled", enabled=not frozen)

    def cut_off(self, *, offline: bool) -> None:
        """Takes the network from the page, or gives it back."""
        self.send("Network.enable")
        self.send(
            "Network.emulateNetworkConditions", offline=offline, latency=0, downloadThroughput=-1, uploadThroughput=-1
        )

    def close(self) -> None:
        """Closes the page."""
        with contextlib.suppress(AssertionError):
            self.send("Page.close")


@contextlib.contextmanager
def running(profile: Path) -> Iterator[Callable[..., Page]]:
    """Runs Chromium. Yields what opens a page."""
    browser = Browser(profile)
    try:
        yield browser.page
    finally:
        browser.stop()
