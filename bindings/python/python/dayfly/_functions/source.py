"""Python functions as source text, which any version of Python runs."""

from __future__ import annotations

import ast
import builtins
import concurrent.futures as cf
import inspect
import json
import os
import symtable
import textwrap
import types
from typing import TYPE_CHECKING, Any

from dayfly._functions.kinds import JSON, Program
from dayfly._functions.runtime import runtime

if TYPE_CHECKING:
    from dayfly._functions.environment import Environment

#: Prefix of the source. Annotations refer to names that stay behind, so they must not be evaluated.
BEFORE = "from __future__ import annotations\n\n\n"
#: Prefix that makes an indented source valid. Removing the indentation would change multi-line strings.
BELOW = "if True:\n"


class Source(Program):
    """A function as source text, called with JSON.

    Args:
        fn: a function written with ``def``. Decorators are removed.

    Raises:
        TypeError: if the source text is not complete without its surroundings.
    """

    def __init__(self, fn: Any) -> None:
        plain = inspect.unwrap(fn) if callable(fn) else fn
        if isinstance(fn, Program) or not isinstance(plain, types.FunctionType):
            raise TypeError(f"{fn!r} is not a Python function, and no other can be sent as source; leave it out")
        self._fn = plain
        self.entry, self._text = _text_of(plain)

    def form(self, image: str | None) -> dict[str, Any]:
        return {"form": "source", "entry": self.entry}

    def runtime(self, environment: Environment | None) -> dict[str, Any]:
        # Any version of Python can run it.
        return runtime(environment) | {"version": "", "cloudpickle": ""}

    @property
    def code(self) -> bytes:
        return (BEFORE + (BELOW if self._text[0].isspace() else "") + self._text).encode()

    @property
    def source(self) -> str:
        return textwrap.dedent(self._text)

    @property
    def about(self) -> str:
        return inspect.getdoc(self._fn) or ""

    @staticmethod
    def packed(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        arguments = [_plain(value, f"argument {number}") for number, value in enumerate(args, 1)]
        keywords = {name: _plain(value, f"argument {name!r}") for name, value in kwargs.items()}
        return json.dumps({"arguments": arguments, "keywords": keywords}).encode() + JSON


def _text_of(fn: types.FunctionType) -> tuple[str, str]:
    """Returns the function's name, and its source text from ``def`` on."""
    named = fn.__qualname__
    if fn.__name__ == "<lambda>":
        raise TypeError("a lambda cannot go as source: write it as a function, with def")
    if fn.__code__.co_freevars:
        raise TypeError(
            f"{named} uses {_listed(fn.__code__.co_freevars)} of the function around it, which does not go along with "
            "its text: pass it as an argument"
        )
    try:
        text = inspect.getsource(fn)
    except (OSError, TypeError) as error:
        raise TypeError(f"the source of {named} is not to be found ({error}): write it into a file") from None
    below = BELOW if text[0].isspace() else ""
    text = below + text
    try:
        tree = ast.parse(text).body
    except SyntaxError as error:
        raise TypeError(f"the source of {named} cannot be read by itself: {error}") from None
    node: ast.AST = tree[0].body[0] if below and isinstance(tree[0], ast.If) else tree[0]
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        raise TypeError(f"the source of {named} is not a separate function: write it with def")
    text = "".join(text.splitlines(keepends=True)[node.lineno - 1 : node.end_lineno]).rstrip() + "\n"
    if lost := sorted(_needed(node) & fn.__globals__.keys()):
        raise TypeError(
            f"{named} uses {_listed(lost)} of its module, which does not go along with its text: import it inside the "
            "function, or pass it as an argument"
        )
    return node.name, text


def _needed(node: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """Returns the names that the source of a function uses and does not define."""
    node.decorator_list = []
    bare = _Bare().visit(node)
    todo = [symtable.symtable(ast.unparse(bare), node.name, "exec")]
    defined, used = {node.name}, set()
    while todo:
        table = todo.pop()
        todo += table.get_children()
        for symbol in table.get_symbols():
            outside = symbol.is_global() or table.get_type() == "module"
            if outside and symbol.is_assigned():
                defined.add(symbol.get_name())
            elif outside and symbol.is_referenced():
                used.add(symbol.get_name())
    return used - defined - set(dir(builtins))


class _Bare(ast.NodeTransformer):
    """Removes annotations, which do not affect execution."""

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        self.generic_visit(node)
        node.annotation = ast.Constant(None)
        return node

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
        self.generic_visit(node)
        node.returns = None
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = _function  # noqa: N815


def _listed(names: Any) -> str:
    return ", ".join(names)


def _plain(value: Any, what: str) -> Any:
    """Returns a value in the form of JSON. Raises `TypeError` if it has none."""
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(one, what) for one in value]
    if isinstance(value, dict):
        if strange := [key for key in value if not isinstance(key, str)]:
            raise TypeError(f"{what} has the key {strange[0]!r}, and JSON has only texts as keys: pass a list of pairs")
        return {key: _plain(one, what) for key, one in value.items()}
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, (int, float, str)):
        return value
    if isinstance(value, cf.Future):
        raise TypeError(f"{what} is {value!r}, which cannot stand for its result in JSON: give it the result")
    hint = "pass its tolist()" if hasattr(value, "tolist") else "pass numbers, texts, lists and dictionaries"
    raise TypeError(
        f"{what} has a {kind.__qualname__}, which JSON cannot express, and functions that go as source are called in "
        f"JSON: {hint}"
    )
