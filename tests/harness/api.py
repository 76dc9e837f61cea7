"""The base of fake clouds and clusters: a JSON server over HTTP on a loopback port."""

from __future__ import annotations

import json
import threading
import urllib.parse
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class RefusedError(Exception):
    """A refused request: its status and its body."""


class InvalidError(Exception):
    """A body of the wrong shape: the path of the error, and the reason."""


@dataclass(frozen=True)
class Request:
    """A received request."""

    method: str
    path: str
    query: dict[str, str]
    #: By lower-case names.
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        """Returns the body, parsed as JSON."""
        return json.loads(self.body or b"null")


@dataclass(frozen=True)
class Reply:
    """A response with a status other than success, or with headers."""

    status: int
    body: Any
    headers: dict[str, str]


class Api:
    """The server. Each fake is a subclass that implements `answer`."""

    def __init__(self) -> None:
        #: Whether requests get no response.
        self.down = False
        #: The first exception of a handler.
        self._fault: Exception | None = None
        api = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if api.down:
                    self.close_connection = True
                    return
                path, _, query = self.path.partition("?")
                headers = {name.lower(): value for name, value in self.headers.items()}
                asked = dict(urllib.parse.parse_qsl(query, keep_blank_values=True))
                try:
                    said = api.answer(Request(self.command, urllib.parse.unquote(path), asked, headers, body))
                    reply = said if isinstance(said, Reply) else Reply(200, said, {})
                except RefusedError as refusal:
                    reply = Reply(*refusal.args, {})
                except Exception as fault:
                    api._fault = fault
                    raise
                text = b"" if reply.body is None else json.dumps(reply.body).encode()
                self.send_response(reply.status)
                for name, value in ({"Content-Type": "application/json"} | reply.headers).items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            do_GET = do_POST = do_PUT = do_DELETE = _answer  # noqa: N815 (names of BaseHTTPRequestHandler)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port: int = self._server.server_address[1]
        self._serving = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._serving.start()

    @property
    def url(self) -> str:
        """The address of the server."""
        return f"http://127.0.0.1:{self.port}"

    def answer(self, request: Request) -> Any:
        """Returns the response to a request: a body, or a `Reply`."""
        raise NotImplementedError

    def stop(self) -> None:
        """Stops the server. Raises if a handler failed."""
        self._server.shutdown()
        self._server.server_close()
        self._serving.join(10)
        if self._fault is not None:
            raise self._fault


def checked(value: Any, shape: Any, where: str) -> None:
    """Checks a body against a shape: a type, a list of one shape, or a table of shapes with ``*`` for any other name.

    Names that end with ``!`` are required. Raises `InvalidError` if the body does not match.
    """
    if isinstance(shape, type):
        # In Python, bool is a subclass of int.
        if not isinstance(value, shape) or (isinstance(value, bool) and shape is not bool):
            raise InvalidError(where, f"{json.dumps(value)} is not of the type {shape.__name__}")
    elif isinstance(shape, list):
        checked(value, list, where)
        for at, one in enumerate(value):
            checked(one, shape[0], f"{where}[{at}]")
    else:
        checked(value, dict, where)
        names = {name.rstrip("!"): one for name, one in shape.items()}
        for name, one in value.items():
            if name not in names and "*" not in names:
                raise InvalidError(where, f'Cannot find field "{name}"')
            checked(one, names.get(name, names.get("*")), f"{where}.{name}")
        for name in shape:
            if name.endswith("!") and name[:-1] not in value:
                raise InvalidError(f"{where}.{name[:-1]}", "Required field is missing")
