"""Shell commands as functions, for programs in any language."""

from __future__ import annotations

import os
import shlex
import string
import subprocess
import threading
from collections.abc import Mapping
from typing import IO, Any

#: Bytes from the end of standard error that an error includes.
LAST_WORDS = 4 << 10
#: Bytes of one read.
CHUNK = 64 << 10
#: Maximum bytes of standard output in a result. Larger outputs belong into a file.
MAX_OUTPUT = 64 << 20
SHELL = "/bin/sh"


class CommandError(Exception):
    """A shell command exited with a status other than 0.

    Attributes:
        command: the command line that the shell received.
        status: the exit status, or the negative number of the signal that ended the command.
        stderr: the end of its standard error.
    """

    def __init__(self, command: str, status: int, stderr: str) -> None:
        super().__init__(command, status, stderr)
        self.command, self.status, self.stderr = command, status, stderr

    def __str__(self) -> str:
        how = f"was ended by signal {-self.status}" if self.status < 0 else f"ended with status {self.status}"
        words = self.stderr.strip()
        return f"`{self.command}` {how}" + (f": {words}" if words else "")


class Command:
    r"""A shell command as a function that returns the command's standard output.

    >>> resize = Command("convert {source} -resize {size} {target}")
    >>> resize.line("my photo.jpg", "64x64", target="small.png")
    "convert 'my photo.jpg' -resize 64x64 small.png"
    >>> Command("echo {what}")("hello; world")
    'hello; world\n'

    Names in braces are the arguments, in the order of their first occurrence. Values are quoted, so that each is one
    word for the shell. Double a brace to use it literally. Standard error is the worker's own, so that it is visible
    while a task runs.

    Args:
        command: the command line, for ``/bin/sh``.
        directory: working directory; by default the worker's.
        variables: environment variables, in addition to the worker's.

    Raises:
        CommandError: on a call, if the command exits with a status other than 0.
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
                    f"{{{name}}} in {command!r} is not an argument: write a name in braces, and {{{{ for a brace"
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
        """Returns the command line for these arguments.

        Raises:
            TypeError: if the arguments do not match the command.
        """
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
        """Runs the command and returns its standard output."""
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
        output = process.stdout.read(MAX_OUTPUT + 1)
        if len(output) > MAX_OUTPUT:
            process.kill()
        process.stdout.close()
        status = process.wait()
        last = words.finish()
        if len(output) > MAX_OUTPUT:
            raise ValueError(
                f"`{line}` writes more than {MAX_OUTPUT >> 20} MiB on standard output; have it write a file"
            )
        if status != 0:
            raise CommandError(line, status, last)
        return output.decode(errors="replace")

    def __repr__(self) -> str:
        return f"<dayfly.Command {self.command!r}>"


class _Words:
    """Forwards a process's standard error and keeps the end of it."""

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
        """Returns the end of standard error, after the process has ended."""
        # A process left in the background may keep the pipe open indefinitely.
        self._thread.join(timeout=1.0)
        if not self._thread.is_alive():
            self._stream.close()
        return self._last.decode(errors="replace")
