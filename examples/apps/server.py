"""The same functions behind HTTP: a function server to compare with.

    python -m uvicorn server:app --app-dir examples/apps --port 8080
    curl --data-binary @photo.jpg http://127.0.0.1:8080/thumbnail > small.jpg

`POST /thumbnail` takes a photograph. `POST /recognise?PATH` takes photographs, each after its length in four bytes.
`POST /echo` returns its body. `python examples/apps/server.py FD` serves on a socket that it inherits.
"""

from __future__ import annotations

import socket
import struct
import sys
from collections.abc import Awaitable, Callable, Iterator
from typing import Any
from urllib.parse import unquote


def pack(photos: list[bytes]) -> bytes:
    return b"".join(struct.pack("<I", len(photo)) + photo for photo in photos)


def unpack(body: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(body):
        (length,) = struct.unpack_from("<I", body, at)
        yield body[at + 4 : at + 4 + length]
        at += 4 + length


def respond(path: str, query: str, body: bytes) -> bytes | None:
    """Returns the body of the response, or None if there is no such function."""
    if path == "/echo":
        return body
    if path == "/thumbnail":
        from thumbnails import thumbnail

        return thumbnail(body)
    if path == "/recognise":
        from recognition import recognise

        return bytes(recognise(query, list(unpack(body))))
    return None


async def app(
    scope: dict[str, Any],
    receive: Callable[[], Awaitable[dict[str, Any]]],
    send: Callable[[dict[str, Any]], Awaitable[None]],
) -> None:
    if scope["type"] != "http":
        return
    parts, more = [], True
    while more:
        message = await receive()
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
    out = respond(scope["path"], unquote(scope["query_string"].decode()), b"".join(parts))
    headers = [(b"content-length", str(len(out or b"")).encode())]
    await send({"type": "http.response.start", "status": 200 if out is not None else 404, "headers": headers})
    await send({"type": "http.response.body", "body": out or b""})


def main() -> None:
    import uvicorn

    # With the family of the socket. `uvicorn --fd` takes it for a Unix socket, and so leaves Nagle's algorithm on.
    listener = socket.socket(fileno=int(sys.argv[1]))
    settings = {"http": "h11", "loop": "asyncio", "lifespan": "off", "log_level": "error", "access_log": False}
    # Connections may be idle for long, and stay.
    config = uvicorn.Config(app, timeout_keep_alive=3600, **settings)
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
