"""The reference of a Python module, from its docstrings and signatures, without importing it."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from textwrap import indent

import griffe
from sphinx.ext.napoleon import Config
from sphinx.ext.napoleon.docstring import GoogleDocstring

_NAPOLEON = Config(napoleon_use_param=True, napoleon_use_rtype=False)
_STARS = {griffe.ParameterKind.var_positional: "*", griffe.ParameterKind.var_keyword: "**"}


@functools.cache
def package(root: Path, name: str) -> griffe.Module:
    """Returns a parsed package."""
    search = [root / "bindings" / wheel / "python" for wheel in ("python", "frames")]
    loaded = griffe.load(name, search_paths=search, allow_inspection=False, resolve_aliases=True)
    assert isinstance(loaded, griffe.Module)
    return loaded


def public_names(module: griffe.Module) -> list[str]:
    """Returns the names in `__all__`, or else all that are defined in the module and do not begin with `_`."""
    if module.exports is not None:
        return sorted(str(name) for name in module.exports if not str(name).startswith("_"))
    return sorted(name for name, found in module.members.items() if not name.startswith("_") and not found.is_alias)


def signature(function: griffe.Function) -> str:
    """Returns the parameters and the result of a function as in its source, without `self` and `cls`."""
    parts: list[str] = []
    kinds = [parameter.kind for parameter in function.parameters]
    positional = griffe.ParameterKind.positional_only
    for number, parameter in enumerate(function.parameters):
        if parameter.kind is griffe.ParameterKind.keyword_only and "*" not in "".join(part[:1] for part in parts):
            parts.append("*")
        text = _STARS.get(parameter.kind, "") + parameter.name
        if parameter.annotation is not None:
            text += f": {parameter.annotation}"
        if parameter.default is not None and parameter.kind not in _STARS:
            text += f" = {parameter.default}" if parameter.annotation is not None else f"={parameter.default}"
        parts.append(text)
        if parameter.kind is positional and positional not in kinds[number + 1 :]:
            parts.append("/")
    is_bound = function.parent is not None and function.parent.is_class and "staticmethod" not in function.labels
    parameters = ", ".join(parts[1:] if is_bound else parts)
    returns = f" -> {function.returns}" if function.returns is not None else ""
    return f"({parameters}){returns}"


def with_code_blocks(lines: list[str]) -> Iterator[str]:
    """Marks the indented blocks that are code, which reStructuredText would take for quotations."""
    before, is_code = "", False
    for number, line in enumerate(lines):
        if line.strip():
            is_indented = line.startswith("    ")
            starts = is_indented and number > 0 and not lines[number - 1] and not before.startswith((" ", "- ", "* "))
            if starts and not is_code:
                is_code = True
                yield from (".. code-block:: python", "")
            is_code = is_code and is_indented
            before = before if is_code else line
        yield line


def documentation(found: griffe.Object) -> str:
    """Returns the docstring; for an attribute without one, the text of the comment `#:` above it."""
    if found.docstring:
        return inspect.cleandoc(found.docstring.value)
    if not isinstance(found, griffe.Attribute) or found.parent is None:
        return ""
    pattern = rf"((?:^[ \t]*#:.*\n)+)[ \t]*(?:self\.)?{found.name}\b *[:=]"
    comment = re.search(pattern, found.parent.source, re.MULTILINE)
    return re.sub(r"^[ \t]*#: ?", "", comment[1], flags=re.MULTILINE).strip() if comment else ""


def description(found: griffe.Object) -> list[str]:
    """Returns the documentation in reStructuredText."""
    text = documentation(found)
    return str(GoogleDocstring(list(with_code_blocks(text.splitlines())), _NAPOLEON)).splitlines()


def _directive(kind: str, signatures: list[str], options: list[str], content: list[str]) -> list[str]:
    head = f".. py:{kind}:: "
    first, *others = signatures
    lines = [head + first, *(" " * len(head) + other for other in others)]
    body = "\n".join([*options, "", *content])
    return [*lines, *indent(body, "   ").splitlines(), ""]


def _function(name: str, function: griffe.Function, kind: str) -> list[str]:
    overloads = function.overloads or []
    signatures = [name + signature(one) for one in (overloads or [function])]
    options = [
        f":{option}:"
        for option, label in [("async", "async"), ("classmethod", "classmethod"), ("staticmethod", "staticmethod")]
        if label in function.labels and (kind == "method" or option == "async")
    ]
    return _directive(kind, signatures, options, description(function))


def _attribute(name: str, attribute: griffe.Attribute, kind: str) -> list[str]:
    options = [f":type: {attribute.annotation}"] if attribute.annotation is not None else []
    is_property = "property" in attribute.labels
    if not is_property and attribute.value is not None:
        options.append(f":value: {attribute.value}")
    return _directive("property" if is_property else kind, [name], options, description(attribute))


def _awaitable(
    name: str, member: griffe.Attribute, members: dict[str, griffe.Object | griffe.Alias]
) -> list[str] | None:
    """Returns the description of a method that `async_variant` makes of another method; None for other attributes."""
    made = re.fullmatch(r"async_variant\((\w+)\)", str(member.value))
    method = members.get(made[1]) if made else None
    if method is None:
        return None
    target = method.final_target if method.is_alias else method
    assert isinstance(target, griffe.Function)
    text = [f"As `{target.name}`, to be awaited."]
    return _directive("method", [name + signature(target)], [":async:"], text)


def _members(of: griffe.Class) -> Iterator[list[str]]:
    """Yields the public methods and attributes of a class that are documented, and the inherited ones."""
    members = {**of.inherited_members, **of.members}
    for name, member in members.items():
        target = member.final_target if member.is_alias else member
        if name.startswith("_") and name != "__call__":
            continue
        if isinstance(target, griffe.Attribute) and (awaitable := _awaitable(name, target, members)):
            yield awaitable
        elif not documentation(target):
            continue
        elif isinstance(target, griffe.Function):
            yield _function(name, target, "method")
        elif isinstance(target, griffe.Attribute):
            yield _attribute(name, target, "attribute")


def _is_internal(found: griffe.Class) -> bool:
    """Returns whether no public module of the package has this class."""
    package = found.package
    modules = [package, *(module for name, module in package.modules.items() if not name.startswith("_"))]
    return all(found.name not in public_names(module) for module in modules)


def _public_bases(found: griffe.Class) -> Iterator[str]:
    """Yields the bases of a class as in its source. The public bases of an internal base take its place."""
    resolved = {base.name: base for base in found.resolved_bases}
    for base in found.bases:
        text = str(base)
        target = resolved.get(text.rpartition(".")[2])
        if isinstance(target, griffe.Class) and target.package is found.package and _is_internal(target):
            yield from _public_bases(target)
        elif not text.startswith(("Generic", "Protocol", "_")):
            yield text


def _class(name: str, found: griffe.Class) -> list[str]:
    text = found.docstring.value if found.docstring else ""
    is_made_elsewhere = any(words in text for words in ("Created by", "Returned by"))
    init = found.all_members.get("__init__")
    head = name
    if init is not None and init.is_function and not is_made_elsewhere:
        init = init.final_target if init.is_alias else init
        assert isinstance(init, griffe.Function)
        head += signature(init).partition(" -> ")[0]
    bases = list(_public_bases(found))
    content = [f"Bases: {', '.join(f'`{base}`' for base in bases)}", ""] if bases else []
    content += [*description(found), ""]
    for member in _members(found):
        content += member
    return _directive("exception" if is_exception(found) else "class", [head], [], content)


def is_exception(found: griffe.Object) -> bool:
    """Returns whether a class, or a base of it, is an exception."""
    if not isinstance(found, griffe.Class):
        return False
    names = {str(base).rpartition(".")[2] for one in [found, *found.mro()] for base in one.bases}
    return bool(names & {"BaseException", "Exception"}) or any(name.endswith("Error") for name in names)


def described(name: str, found: griffe.Object) -> list[str]:
    """Returns the description of a public object in reStructuredText."""
    if isinstance(found, griffe.Class):
        return _class(name, found)
    if isinstance(found, griffe.Function):
        return _function(name, found, "function")
    assert isinstance(found, griffe.Attribute)
    return _attribute(name, found, "data")


def page(root: Path, name: str) -> str:
    """Returns the reference of a module in MyST."""
    top, *inner = name.split(".")
    module = package(root, top)
    for part in inner:
        member = module.members[part]
        assert isinstance(member, griffe.Module)
        module = member
    groups: dict[str, list[str]] = {"Functions": [], "Classes": [], "Exceptions": [], "Constants": []}
    for public in public_names(module):
        found = module.members[public]
        target = found.final_target if found.is_alias else found
        assert isinstance(target, griffe.Object)
        if isinstance(target, griffe.Module):
            continue
        kinds = {griffe.Kind.FUNCTION: "Functions", griffe.Kind.CLASS: "Classes", griffe.Kind.ATTRIBUTE: "Constants"}
        group = "Exceptions" if is_exception(target) else kinds[target.kind]
        groups[group] += described(public, target)
    text = [f".. py:module:: {name}", "", *description(module)]
    parts = ["\n".join(["```{eval-rst}", *text, "```"])]
    for title, lines in groups.items():
        if lines:
            start = f".. py:currentmodule:: {name}"
            parts.append("\n".join([f"## {title}", "", "````{eval-rst}", start, "", *lines, "````"]))
    return "\n\n".join(parts)
