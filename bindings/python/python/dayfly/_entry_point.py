"""The programs that container images begin with, as functions."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from dayfly._programs import JSON, Program, native

if TYPE_CHECKING:
    from dayfly._environment import Environment


class EntryPoint(Program):
    """The program that a container image begins with, as a function, which answers what it writes on standard output.

    >>> resize = EntryPoint("--size {size} {files} --quiet")
    >>> resize.words
    ['--size', '{size}', '{files}', '--quiet']

    It is registered, or submitted by an `Executor`, together with its image, which needs no Python:

        function = client.register(resize, name="resize", image="registry.example.org/resize:2")
        client.run(function, 64, ["a.jpg", "b.jpg"]).result()

    The words come behind those that the image begins with, and take the place of its own command (``CMD``), as with
    container runtimes. What stands in braces is an argument: a text, a number, a boolean or a path, or, where a word is
    nothing else, a list of these, which become as many words. No shell looks at them. Where the program ends with
    another status than 0 the task fails with that, and with its last words on standard error: `FunctionError`.

    Args:
        words: as one text, split as a shell would, or as a list.

    Raises:
        ValueError: where the text has a quote that does not end.
    """

    def __init__(self, words: str | list[str] = "") -> None:
        self.words = shlex.split(words) if isinstance(words, str) else list(words)

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        """It runs in its image alone."""
        raise TypeError(f"{self!r} runs in its image: register it, and run it as a durable task")

    def form(self, image: str | None) -> dict[str, Any]:
        return {"form": "entry_point", "name": image or ""}

    def runtime(self, environment: Environment | None) -> dict[str, Any]:
        return native(environment)

    @property
    def code(self) -> bytes:
        return json.dumps(self.words).encode()

    @property
    def source(self) -> str:
        return shlex.join(self.words)

    @staticmethod
    def packed(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        asked = {"arguments": _exact(args), "keywords": _exact(kwargs)}
        return json.dumps(asked, default=_plain).encode() + JSON

    def __repr__(self) -> str:
        return f"<dayfly.EntryPoint {shlex.join(self.words)!r}>"


def _exact(value: Any) -> Any:
    """Numbers as the texts that they become anyway: JSON's need not be as long as Python's."""
    match value:
        case bool():
            return value
        case int() | float():
            return repr(value)
        case list() | tuple():
            return [_exact(one) for one in value]
        case dict():
            return {key: _exact(one) for key, one in value.items()}
    return value


def _plain(value: Any) -> Any:
    """Paths, and NumPy's numbers and arrays."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    plain: Callable[[], Any] | None = getattr(value, "tolist", None)
    if plain is not None:
        return _exact(plain())
    raise TypeError(
        f"{value!r} is no text, number, boolean, path or list of these, which is all that a program's words can be"
    )
