"""Shell commands as functions: for programs that are no Python."""

from __future__ import annotations

import os
import shlex
import string
import subprocess
import threading
from collections.abc import Mapping
from typing import IO, Any

#: Bytes of the end of standard error that an error shows.
LAST_WORDS = 4 << 10
#: Bytes that are read at once.
CHUNK = 64 << 10
#: Bytes of standard output that a result may have; more belongs into a file.
MOST_OUTPUT = 64 << 20
SHELL = "/bin/sh"


class CommandError(Exception):
    """A shell command ended with another status than 0.

    Attributes:
        command: as the shell got it.
        status: its exit status; the negative number of the signal that ended it, if one did.
        stderr: the end of what it wrote on standard error.
    """

    def __init__(self, command: str, status: int, stderr: str) -> None:
        super().__init__(command, status, stderr)
        self.command, self.status, self.stderr = command, status, stderr

    def __str__(self) -> str:
        how = f"was ended by signal {-self.status}" if self.status < 0 else f"ended with status {self.status}"
        words = self.stderr.strip()
        return f"`{self.command}` {how}" + (f": {words}" if words else "")


class Command:
    r"""A shell command as a function, which answers what the command writes on standard output.

    >>> resize = Command("convert {source} -resize {size} {target}")
    >>> resize.line("my photo.jpg", "64x64", target="small.png")
    "convert 'my photo.jpg' -resize 64x64 small.png"
    >>> Command("echo {what}")("hello; world")
    'hello; world\n'

    What stands in braces are its arguments, in the order in which they first stand there; they are quoted, so that each
    is one word for the shell whatever is in it. Braces themselves are doubled. Standard error is the worker's own, so
    that it is heard while a task runs.

    Args:
        command: the line, for ``/bin/sh``.
        directory: where it runs; by default where its worker does.
        variables: environment variables beside those of the worker.

    Raises:
        CommandError: when called, where the command ends with another status than 0.
    """

    def __init__(
        self,
        command: str,
        *,
        directory: str | os.PathLike[str] | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        names: dict[str, None] = {}
        for _, name, spec, conversion in string.Formatter().parse(command):
            if name is None:
                continue
            if not name.isidentifier() or spec or conversion:
                raise ValueError(
                    f"{{{name}}} in {command!r} is no argument: write a name in braces, and {{{{ for a brace"
                )
            names[name] = None
        if not command.strip():
            raise ValueError("the command is empty")
        self.command = command
        self.arguments = tuple(names)
        self.directory = None if directory is None else os.fspath(directory)
        self.variables = dict(variables or {})
        self.__name__ = os.path.basename(command.split(maxsplit=1)[0])
        self.__doc__ = command

    def line(self, *args: Any, **kwargs: Any) -> str:
        """What the shell gets."""
        if len(args) > len(self.arguments):
            raise TypeError(f"{self!r} takes {len(self.arguments)} arguments, and got {len(args)}")
        given = dict(zip(self.arguments, args, strict=False))
        if twice := sorted(given.keys() & kwargs.keys()):
            raise TypeError(f"{self!r} got {', '.join(twice)} twice")
        given |= kwargs
        if missing := [name for name in self.arguments if name not in given]:
            raise TypeError(f"{self!r} misses {', '.join(missing)}")
        if unknown := sorted(given.keys() - set(self.arguments)):
            raise TypeError(f"{self!r} has no argument {', '.join(unknown)}")
        return self.command.format(**{name: shlex.quote(str(value)) for name, value in given.items()})

    def __call__(self, *args: Any, **kwargs: Any) -> str:
        """Runs it, and answers what it writes on standard output."""
        return self._run(self.line(*args, **kwargs), {})

    def _environment(self, more: Mapping[str, str]) -> dict[str, str]:
        return os.environ | more | self.variables

    def _run(self, line: str, more: Mapping[str, str]) -> str:
        process = subprocess.Popen(
            [SHELL, "-c", line],
            cwd=self.directory,
            env=self._environment(more),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert process.stdout is not None
        assert process.stderr is not None
        words = _Words(process.stderr)
        output = process.stdout.read(MOST_OUTPUT + 1)
        if len(output) > MOST_OUTPUT:
            process.kill()
        process.stdout.close()
        status = process.wait()
        last = words.finish()
        if len(output) > MOST_OUTPUT:
            raise ValueError(
                f"`{line}` writes more than {MOST_OUTPUT >> 20} MiB on standard output; have it write a file"
            )
        if status != 0:
            raise CommandError(line, status, last)
        return output.decode(errors="replace")

    def __repr__(self) -> str:
        return f"<dayfly.Command {self.command!r}>"


class _Words:
    """Passes on what a process writes on standard error, and keeps the end of it."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._last = b""
        self._thread = threading.Thread(target=self._run, name="dayfly stderr", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while chunk := os.read(self._stream.fileno(), CHUNK):
            os.write(2, chunk)
            self._last = (self._last + chunk)[-LAST_WORDS:]

    def finish(self) -> str:
        """The end of it, when the process has ended."""
        # What it left running may hold on to it for ever.
        self._thread.join(timeout=1.0)
        if not self._thread.is_alive():
            self._stream.close()
        return self._last.decode(errors="replace")
