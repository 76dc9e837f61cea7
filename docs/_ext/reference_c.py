"""The reference of a C header, from its comments."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_COMMENT = re.compile(r"/\*.*?\*/|(?://[^\n]*\n?[ \t]*)+", re.DOTALL)
#: The name that a declaration declares.
_NAME = re.compile(r"\bdfly_\w+(?=\(|\)\(|$)")
#: A name in prose, and the parentheses of a function.
_MENTION = re.compile(r"((?:dfly|DFLY)_\w+)(\(\))?")
#: A span in backticks, or a name without them.
_SPAN = re.compile(rf"`[^`]*`|\b{_MENTION.pattern}")
_STATIC = re.compile(r"^static\s+inline\s+")


@dataclass
class Declaration:
    """A declaration without its body and semicolon, the text of its comment, and its body if it has one."""

    text: str
    comment: str
    body: str = ""


def comment_text(comment: str) -> str:
    """Returns the text of a comment without its marks."""
    if comment.startswith("//"):
        return "\n".join(re.sub(r"^\s*//+ ?", "", line) for line in comment.strip().splitlines())
    lines = comment.removeprefix("/*").removesuffix("*/").strip().splitlines()
    return "\n".join(re.sub(r"^\s*\* ?", "", line) for line in lines)


def with_code_blocks(text: str, language: str) -> str:
    """Puts the indented lines of a text into code blocks of Markdown."""
    return re.sub(r"^((?: {3,}\S.*\n?)+)", rf"\n```{language}\n\1\n```\n", text, flags=re.MULTILINE)


def introduction(header: str) -> str:
    """Returns the comment at the top of a header."""
    found = _COMMENT.match(header)
    return comment_text(found[0]) if found else ""


def macros(header: str) -> Iterator[Declaration]:
    """Yields the documented macros of a header."""
    pattern = re.compile(rf"({_COMMENT.pattern})#define (\w+(?:\([^)]*\))?)[ \t]*([^\n]*)", re.DOTALL)
    for found in pattern.finditer(header):
        yield Declaration(found[2], comment_text(found[1]), found[3])


def end_of_block(text: str, start: int) -> int:
    """Returns the position behind the brace that closes the one at `start`."""
    depth = 0
    for found in re.compile(r"//[^\n]*|/\*.*?\*/|[{}]", re.DOTALL).finditer(text, start):
        depth += {"{": 1, "}": -1}.get(found[0], 0)
        if depth == 0:
            return found.end()
    raise ValueError("a brace is not closed")


def declarations(text: str) -> Iterator[Declaration]:
    """Yields the declarations of C code without directives, each with the comment before it."""
    position, comment = 0, ""
    while position < len(text):
        if found := re.compile(r"\s+").match(text, position):
            # An empty line separates a comment from what follows.
            comment = "" if found[0].count("\n") > 1 else comment
            position = found.end()
        elif found := _COMMENT.match(text, position):
            comment, position = comment_text(found[0]), len(text[: found.end()].rstrip(" \t"))
            # The pattern takes the newline of the last line, which is no empty line.
        else:
            end = re.compile(r"[;{]").search(text, position)
            if end is None:
                return
            head, body, position_after = text[position : end.start()].strip(), "", end.end()
            if end[0] == "{":
                close = end_of_block(text, end.start())
                body, position_after = text[end.end() : close - 1], close
                if head.startswith(("typedef", "struct", "enum", "union")):
                    position_after = text.index(";", close) + 1
            yield Declaration(" ".join(head.split()), comment, body)
            position, comment = position_after, ""


def without_directives(header: str) -> str:
    """Returns C code without preprocessor directives and without the block of `extern "C"`."""
    code = re.sub(r"^#(?:[^\n]*\\\n)*[^\n]*$", "", header, flags=re.MULTILINE)
    before, block, after = code.partition('extern "C" {')
    return before + after[: after.rindex("}")] if block else code


def directive(kind: str, signature: str, comment: str, content: str = "") -> str:
    """Returns a directive of the C domain in MyST; the fence is longer than those in its content."""
    body = f"{comment}\n\n{content}" if content else comment
    fence = "`" * (max(map(len, re.findall(r"`{3,}", body)), default=2) + 1)
    return f"{fence}{{c:{kind}}} {signature}\n{body}\n{fence}\n"


def defined_names(root: Path) -> set[str]:
    """Returns the functions, types, constants and enumerators that the headers of the C library document."""
    names = set()
    for header in (root / "bindings" / "c" / "include").glob("*.h"):
        text = header.read_text()
        names |= {re.split(r"\W", one.text)[0] for one in macros(text)}
        for one in declarations(without_directives(text)):
            if one.comment and (found := _NAME.search(one.text)):
                names.add(found[0])
            if one.text.startswith("enum "):
                names |= set(re.findall(r"^\s*(DFLY_\w+)", one.body, re.MULTILINE))
    return names


def with_links(text: str, known: set[str]) -> str:
    """Replaces the known names in the prose of a page by links, but not in signatures and code blocks."""

    def link(found: re.Match[str]) -> str:
        mention = _MENTION.fullmatch(found[0].strip("`"))
        if mention is None or mention[1] not in known:
            return found[0]
        name = mention[1]
        role = "macro" if name.isupper() else "func" if mention[2] else "type"
        return f"{{c:{role}}}`{name}`"

    lines, is_code = [], False
    for line in text.splitlines():
        if line.startswith("```"):
            is_code = not is_code and not line.startswith(("```{", "````"))
        is_prose = not is_code and not line.startswith(("```", "#"))
        lines.append(_SPAN.sub(link, line) if is_prose else line)
    return "\n".join(lines)


def _members(body: str) -> str:
    members = [directive("member", one.text, one.comment) for one in declarations(body) if "(*" not in one.text]
    return "\n".join(members)


def _enumerators(body: str) -> str:
    found = re.findall(rf"({_COMMENT.pattern})\s*(\w+)(?:\s*=\s*(\w+))?", body, re.DOTALL)
    return "\n".join(
        directive("enumerator", f"{name} = {value}" if value else name, comment_text(comment))
        for comment, name, value in found
    )


def _type(declared: Declaration) -> str:
    """Returns the directive of a struct, an enum or another type."""
    if found := re.match(r"(?:typedef )?(struct|enum) (\w+)", declared.text):
        kind, name = found[1], found[2]
        content = {"struct": _members, "enum": _enumerators}[kind](declared.body)
        return directive(kind, name, declared.comment, content)
    return directive("type", declared.text.removeprefix("typedef "), declared.comment)


def _group(name: str) -> str:
    """Returns the subject of a function, the second word of its name."""
    words = name.split("_")
    return words[1] if len(words) > 2 else "other"


def page(root: Path, file: str) -> str:
    """Returns the reference of a header in MyST."""
    header = (root / file).read_text()
    known = defined_names(root)
    parts = [with_code_blocks(introduction(header), "text"), "\n## Constants and macros\n"]
    parts += [directive("macro", one.text, f"`{one.body}`: {one.comment}") for one in macros(header)]
    types, functions = [], {}
    for declared in declarations(without_directives(header)):
        if not declared.comment:
            continue
        called = re.search(r"(\w+)\(", declared.text)
        if called and not declared.text.startswith("typedef"):
            text = directive("function", _STATIC.sub("", declared.text), declared.comment)
            functions.setdefault(_group(called[1]), []).append(text)
        else:
            types.append(_type(declared))
    parts += ["\n## Types\n", *types, "\n## Functions\n"]
    for group, texts in functions.items():
        parts += [f"\n### {group}\n", *texts]
    return with_links("\n".join(parts), known)
