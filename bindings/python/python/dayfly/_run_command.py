"""``dayfly run``: runs a program on many ranks.

The output returns over a separate group, in which the launcher is the last rank.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import os
import queue
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, NamedTuple

import dayfly
from dayfly._groups import storage
from dayfly._groups.run import group_settings, invitation_to, kill_all, rank_variables, run_with_restarts
from dayfly._mpi_library import mpi_variables
from dayfly._native import Communicator, Objects
from dayfly._text import shown
from dayfly._worker import GROUP_VARIABLE
from dayfly.groups import Group

#: Maximum bytes of one message of output. Longer lines are sent in parts.
MAX_LINE = 64 << 10
#: Maximum bytes of a program. A larger one belongs where the nodes can read it.
MAX_BYTES = 256 << 20
#: Seconds until all ranks must have connected to the launcher, which they do at once.
CONSOLE_S = 30
#: Seconds that the other ranks have to end after one has failed.
GRACE = 5.0


class Program(NamedTuple):
    """A script, a folder with ``__main__.py`` or a program, in the form that travels to the ranks."""

    archive: bytes
    name: str
    is_python: bool
    arguments: list[str]
    #: Working directory, if it exists on the node.
    directory: str
    environment: dict[str, str]


def packed(options: argparse.Namespace) -> Program:
    """Packs the program to run."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        if storage.is_url(options.target):
            name, is_folder = _add_stored(tar, options.target)
        else:
            target = Path(options.target)
            name, is_folder = target.name, target.is_dir()
            tar.add(target, arcname=name)
    if archive.tell() > MAX_BYTES:
        raise dayfly.Error(
            f"{options.target} has more than {MAX_BYTES >> 20} MiB; put it where nodes can read it, and run a script "
            "of yours",
            "invalid_request",
        )
    return Program(
        archive=archive.getvalue(),
        name=name,
        is_python=is_folder or name.endswith(".py"),
        arguments=options.arguments,
        directory=os.getcwd(),
        environment=rank_variables(options.checkpoint, options.store),
    )


def _add_stored(tar: tarfile.TarFile, url: str) -> tuple[str, bool]:
    """Adds a script, a program or a folder from a store. Returns its name, and whether it is a folder."""
    place, _, name = url.rstrip("/").rpartition("/")
    objects = Objects(place)

    def add(path: str, data: bytes) -> None:
        entry = tarfile.TarInfo(path)
        entry.size, entry.mode = len(data), 0o755
        tar.addfile(entry, io.BytesIO(data))

    inside = objects.list(name)
    if "__main__.py" not in inside:
        data = objects.get(name)
        if data is None:
            raise dayfly.Error(
                f"there is neither an object {url} nor a folder of that name with __main__.py", "not_found"
            )
        add(name, data)
        return name, False
    for path in inside:
        found = objects.get(f"{name}/{path}")
        if found is None:
            raise dayfly.Error(f"{url}/{path} was deleted while it was read", "not_found")
        add(f"{name}/{path}", found)
    return name, True


def _rank(group: str, console: str, program: Program) -> int:
    """Runs on each worker: starts the program, and sends its output to the launcher, line by line."""
    with storage.environment_variables(program.environment):
        out = Group(Communicator.join(console))
    launcher = out.size - 1
    lines: queue.Queue[tuple[str, bytes] | None] = queue.Queue(maxsize=1000)

    def read(name: str, stream: IO[bytes]) -> None:
        for line in iter(lambda: stream.readline(MAX_LINE), b""):
            lines.put((name, line))
        lines.put(None)

    with tempfile.TemporaryDirectory(prefix="dayfly-run-") as place:
        with tarfile.open(fileobj=io.BytesIO(program.archive)) as tar:
            tar.extractall(place, filter="tar")
        interpreter = [sys.executable, "-u", "-m", "dayfly._rank_program"] if program.is_python else []
        process = subprocess.Popen(
            [*interpreter, os.path.join(place, program.name), *program.arguments],
            cwd=program.directory if os.path.isdir(program.directory) else place,
            env=os.environ | mpi_variables(os.environ) | {GROUP_VARIABLE: group} | program.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        readers = [
            threading.Thread(target=read, args=(name, stream), daemon=True)
            for name, stream in (("out", process.stdout), ("err", process.stderr))
        ]
        for reader in readers:
            reader.start()
        open_streams = len(readers)
        while open_streams:
            line = lines.get()
            if line is None:
                open_streams -= 1
            else:
                out.send(line, launcher)
        status = process.wait()
    out.send(("end", status), launcher)
    return status


def run_program(
    client: dayfly.Client, options: argparse.Namespace, show: Callable[[int, str, bytes], None]
) -> dict[int, int]:
    """Runs the program on all ranks. Returns their exit statuses (128 plus the signal if a signal ended one)."""
    program = packed(options)
    asked = {"fabric": options.fabric, "lazy_connect": options.lazy_connect}
    chosen = group_settings(options.spin, options.tables, options.store, options.channel, **asked)
    # The launcher, and ranks that only forward lines, must not occupy a core. The launcher may also need the store to
    # reach the ranks. Ranks of this group communicate with the launcher only.
    passing = group_settings(0, None, options.store, "direct", lazy_connect=True)
    passing |= {"patience_s": CONSOLE_S, "deadline_s": 7 * 24 * 3600}

    def once(lease: dict[str, Any]) -> dict[int, int]:
        group = invitation_to(client, options.ranks) | chosen
        console = invitation_to(client, options.ranks + 1) | passing
        statuses: dict[int, int] = {}
        with (
            storage.store_cleanup(group),
            storage.store_cleanup(console),
            client.gang(options.ranks, placement=options.placement, **lease) as gang,
        ):
            futures = [
                gang.rank(rank).submit(
                    _rank, json.dumps(group | {"rank": rank}), json.dumps(console | {"rank": rank}), program
                )
                for rank in range(options.ranks)
            ]
            try:
                _listen(console, options, futures, statuses, show)
            except BaseException:
                kill_all(futures)
                raise
        # Ordered by time: the first failure is the cause of the others.
        return statuses

    return run_with_restarts(once, {"mode": "warm"} | options.lease, options.restarts)


def _listen(
    console: dict[str, Any],
    options: argparse.Namespace,
    futures: list[Any],
    statuses: dict[int, int],
    show: Callable[[int, str, bytes], None],
) -> None:
    """Shows the ranks' output, until all have ended."""
    listener = Group(Communicator.join(json.dumps(console | {"rank": options.ranks})))
    until = None if options.timeout is None else time.monotonic() + options.timeout
    failed_at = None
    while len(statuses) < options.ranks:
        if listener.has_message():
            (what, value), rank, _ = listener.receive()
            if what == "end":
                statuses[rank] = value if value >= 0 else 128 - value
                if value and failed_at is None:
                    failed_at = time.monotonic()
            else:
                show(rank, what, value)
            continue
        for rank, future in enumerate(futures):
            if rank not in statuses and future.done():
                error = future.exception()
                # All output of this rank has already been received, or is lost.
                if error is not None and not listener.has_message(rank):
                    raise error
        now = time.monotonic()
        if until is not None and now > until:
            raise TimeoutError(f"{options.ranks - len(statuses)} ranks had not ended within {options.timeout} s")
        if failed_at is not None and now > failed_at + GRACE:
            for rank, future in enumerate(futures):
                if rank not in statuses:
                    kill_all([future])
                    statuses[rank] = 128 + signal.SIGKILL
        time.sleep(0.001)


def run_function(client: dayfly.Client, options: argparse.Namespace) -> list[Any]:
    """Runs ``module:function`` with the arguments as strings. Returns the results, in the order of the ranks."""
    module, _, name = options.target.partition(":")
    sys.path.insert(0, os.getcwd())
    function: Any = importlib.import_module(module)
    for part in name.split("."):
        function = getattr(function, part)
    return dayfly.run(
        function,
        ranks=options.ranks,
        args=options.arguments,
        client=client,
        timeout=options.timeout,
        spin=options.spin,
        placement=options.placement,
        checkpoint=options.checkpoint,
        restarts=options.restarts,
        tables=options.tables,
        store=options.store,
        channel=options.channel,
        fabric=options.fabric,
        lazy_connect=options.lazy_connect,
        **options.lease,
    )


class Screen:
    """Prints the lines of all ranks, each with the number of its rank in front."""

    def __init__(self, ranks: int, labels: bool) -> None:
        self.width = len(str(ranks - 1))
        self.labels = labels
        self.begun: dict[tuple[int, str], bool] = {}

    def show(self, rank: int, stream: str, line: bytes) -> None:
        """Prints a line, or a part of one."""
        target = sys.stdout.buffer if stream == "out" else sys.stderr.buffer
        with contextlib.suppress(BrokenPipeError):
            if self.labels and not self.begun.get((rank, stream)):
                target.write(f"[{rank:{self.width}}] ".encode())
            self.begun[rank, stream] = not line.endswith(b"\n")
            target.write(shown(line.decode(errors="replace")).encode() if target.isatty() else line)
            target.flush()


def main() -> int:
    """Runs ``dayfly run`` with the options of the command line."""
    parser = argparse.ArgumentParser(prog="dayfly run")
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--timeout", type=float)
    parser.add_argument("--spin", type=float, default=0.0005)
    parser.add_argument("--no-label", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--placement", default="packed")
    parser.add_argument("--checkpoint")
    parser.add_argument("--restarts", type=int, default=0)
    parser.add_argument("--tables")
    parser.add_argument("--store")
    parser.add_argument("--channel", default="direct")
    parser.add_argument("--fabric")
    parser.add_argument("--lazy-connect", action="store_true")
    parser.add_argument("--duration", type=float)
    parser.add_argument("--sandbox")
    parser.add_argument("--network", action="store_true")
    parser.add_argument("target")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    options.lease = {key: value for key in ("sandbox", "duration") if (value := getattr(options, key))}
    if options.network:
        options.lease["network"] = True
    try:
        with dayfly.connect() as client:
            stored = storage.is_url(options.target)
            if ":" in options.target and not stored and not os.path.exists(options.target):
                results = run_function(client, options)
                for rank, result in enumerate(results):
                    print(
                        json.dumps({"rank": rank, "result": _plain(result)}) if options.json else f"[{rank}] {result!r}"
                    )
                return 0
            if not stored and not os.path.exists(options.target):
                raise dayfly.Error(f"there is no {options.target}, nor is it a `module:function`", "invalid_request")
            screen = Screen(options.ranks, not options.no_label)
            statuses = run_program(client, options, screen.show)
    except dayfly.Error as error:
        text = json.dumps({"error": {"code": error.code, "message": str(error)}}) if options.json else None
        print(text or f"error: {error}", file=sys.stderr)
        return 2 if error.code == "invalid_request" else 1
    except TimeoutError as error:
        text = json.dumps({"error": {"code": "timed_out", "message": str(error)}}) if options.json else None
        print(text or f"error [timed_out]: {error}", file=sys.stderr)
        return 3
    if options.json:
        print(json.dumps({"statuses": [statuses[rank] for rank in range(options.ranks)]}))
    failed = [rank for rank, status in statuses.items() if status]
    for rank in failed:
        print(f"dayfly run: rank {rank} ended with status {statuses[rank]}", file=sys.stderr)
    return statuses[failed[0]] if failed else 0


def _plain(value: Any) -> Any:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return repr(value)
    return value


if __name__ == "__main__":
    sys.exit(main())
