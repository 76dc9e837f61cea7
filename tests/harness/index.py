"""A package index on loopback, so that tests never use a public index."""

from __future__ import annotations

import contextlib
import hashlib
import re
import ssl
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

#: Port 9 discards data if it is served, and otherwise refuses connections.
NOWHERE = "http://127.0.0.1:9/simple"


def settings(url: str = NOWHERE) -> dict[str, str]:
    """Returns the environment variables that make uv and pip use one index, and ignore the user's configuration."""
    return {
        "UV_DEFAULT_INDEX": url,
        "UV_NO_CONFIG": "1",
        "PIP_INDEX_URL": url,
        "PIP_CONFIG_FILE": "/dev/null",
        # A proxy cannot reach this machine's loopback.
        "NO_PROXY": "127.0.0.1,localhost",
    }


def write_wheel(directory: Path, name: str, version: str) -> Path:
    """Writes a wheel whose package contains only its ``version``. Returns its path."""
    path = directory / f"{name}-{version}-py3-none-any.whl"
    dist_info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"{name}/__init__.py", f"version = {version!r}\n")
        wheel.writestr(f"{dist_info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        wheel.writestr(
            f"{dist_info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{dist_info}/RECORD", "")
    return path


def _normalized(name: str) -> str:
    """Returns a package's name in the normal form of PEP 503."""
    return re.sub(r"[-_.]+", "-", name).lower()


class Index:
    """Serves the wheels in a directory by the simple API (PEP 503). Reads the directory at each request."""

    def __init__(self, directory: Path, tls: ssl.SSLContext | None = None) -> None:
        self.directory = directory
        #: Methods and paths of all received requests.
        self.requests: list[tuple[str, str]] = []
        index = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                index.requests.append((self.command, self.path))
                found = index.find(self.path)
                self.send_response(404 if found is None else 200)
                # Otherwise uv would cache a page and miss later wheels.
                self.send_header("Cache-Control", "no-store")
                self.send_header("Content-Type", "text/html" if self.path.endswith("/") else "application/octet-stream")
                self.send_header("Content-Length", str(len(found or b"")))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(found or b"")

            # Requests to a proxy.
            do_HEAD = do_CONNECT = do_GET  # noqa: N815 (its names are BaseHTTPRequestHandler's)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.address = f"{'http' if tls is None else 'https'}://127.0.0.1:{self._server.server_port}"
        self.url = f"{self.address}/simple"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def find(self, path: str) -> bytes | None:
        """Returns the page of a package, or the content of a wheel."""
        kind, _, name = path.strip("/").partition("/")
        wheels = sorted(self.directory.glob("*.whl"))
        if kind == "simple":
            found = [wheel for wheel in wheels if _normalized(wheel.name.partition("-")[0]) == _normalized(name)]
            digests = [(wheel.name, hashlib.sha256(wheel.read_bytes()).hexdigest()) for wheel in found]
            links = [f'<a href="/files/{wheel}#sha256={digest}">{wheel}</a>' for wheel, digest in digests]
            return f"<!DOCTYPE html><html><body>{''.join(links)}</body></html>".encode() if links else None
        return next((wheel.read_bytes() for wheel in wheels if kind == "files" and wheel.name == unquote(name)), None)

    def stop(self) -> None:
        """Stops the server."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)


@contextlib.contextmanager
def serving(directory: Path, tls: ssl.SSLContext | None = None) -> Iterator[Index]:
    """Runs an index of the wheels in a directory."""
    index = Index(directory, tls)
    try:
        yield index
    finally:
        index.stop()
