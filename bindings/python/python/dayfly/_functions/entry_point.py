"""The entry points of container images as functions."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from dayfly._functions.kinds import JSON, Program, native

if TYPE_CHECKING:
    from dayfly._functions.environment import Environment


class EntryPoint(Program):
    """The entry point of a container image as a function that returns the program's standard output.

    >>> resize = EntryPoint("--size {size} {files} --quiet")
    >>> resize.words
    ['--size', '{size}', '{files}', '--quiet']

    Register it, or submit it to an `Executor`, together with its image. The image needs no Python:

        function = client.register(resize, name="resize", image="registry.example.org/resize:2")
        client.run(function, 64, ["a.jpg", "b.jpg"]).result()

    The words follow the image's ``ENTRYPOINT`` and replace its ``CMD``, as with container runtimes. Names in braces are
    the arguments: strings, numbers, booleans and paths. A word that consists of one name also accepts a list of these,
    which becomes one word for each element. No shell interprets the words. If the program exits with a status other
    than 0, the task fails with `FunctionError`, which has the status and the end of standard error.

    Args:
        words: one string, which is split as by a shell, or a list.

    Raises:
        ValueError: if the string has an unclosed quote.
    """

    def __init__(self, words: str | list[str] = "") -> None:
        self.words = shlex.split(words) if isinstance(words, str) else list(words)

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raises TypeError: an entry point runs only in its image."""
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
    """Returns numbers as strings, because JSON numbers may have less precision than Python's."""
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
    """Converts paths, and NumPy's numbers and arrays, to plain values."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    plain: Callable[[], Any] | None = getattr(value, "tolist", None)
    if plain is not None:
        return _exact(plain())
    raise TypeError(
        f"{value!r} cannot be a word of a program; pass strings, numbers, booleans, paths or lists of these"
    )
