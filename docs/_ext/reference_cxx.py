"""The reference of a C++ header: its public declarations with their comments, without bodies."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

from reference_c import Declaration, comment_text, end_of_block, introduction, with_code_blocks, without_directives

#: The characters of a line of code that fit into a page.
WIDTH = 92
_COMMENT = re.compile(r"(?://[^\n]*(?:\n[ \t]*(?=//))?)+")
_ACCESS = re.compile(r"(public|protected|private):")
_TYPE = re.compile(r"(?:template <.*> )?(enum class|class|struct|enum) (\w+)")


def _end_of_head(text: str, start: int) -> re.Match[str]:
    """Returns the semicolon or brace that ends the head of a declaration; one in parentheses does not."""
    depth = 0
    for found in re.compile(r"[();{}]").finditer(text, start):
        depth += {"(": 1, ")": -1}.get(found[0], 0)
        if depth == 0 and found[0] in ";{":
            return found
        if depth > 0 and found[0] == "{":
            depth += 1
        elif depth > 0 and found[0] == "}":
            depth -= 1
    raise ValueError("a declaration has no end")


def declarations(text: str) -> Iterator[Declaration]:
    """Yields the declarations of a namespace or class with the comment before or behind each, and access marks."""
    position, comment = 0, ""
    while position < len(text):
        if found := re.compile(r"\s+").match(text, position):
            comment = "" if found[0].count("\n") > 1 else comment
            position = found.end()
        elif found := _COMMENT.match(text, position):
            comment, position = found[0], found.end()
        elif found := _ACCESS.match(text, position):
            yield Declaration(found[0], "")
            position = found.end()
        else:
            end = _end_of_head(text, position)
            head, body, position = text[position : end.start()].strip(), "", end.end()
            if end[0] == "{":
                close = end_of_block(text, end.start())
                body, position = text[end.end() : close - 1], close
                # A type, or a variable with an initialiser in braces, ends with a semicolon; a function does not.
                if text[close : close + 1] == ";":
                    position = close + 1
            behind = re.compile(r"[ \t]*(//[^\n]*)").match(text, position)
            if behind:
                comment, position = comment or behind[1], behind.end()
            yield Declaration(" ".join(head.split()), comment_text(comment) if comment else "", body)
            comment = ""


def without_initialisers(head: str) -> str:
    """Returns a declaration without the initialisers of a constructor."""
    return re.sub(r"(\)(?: noexcept)?) : .*", r"\1", head)


def wrapped(text: str, indent: str) -> list[str]:
    """Splits a text into lines of at most `WIDTH` characters; further lines are indented by this."""
    return textwrap.wrap(text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def synopsis(body: str, *, is_class: bool) -> list[str]:
    """Returns the public members of a class as lines of code."""
    lines, is_public = [], not is_class
    for member in declarations(body):
        if access := _ACCESS.match(member.text):
            is_public = access[1] == "public"
        elif is_public and not member.text.startswith(("friend ", "static_assert")):
            if member.comment:
                lines += ["", *wrapped(f"    // {member.comment}", "    // ")]
            value = f"{{{member.body}}}" if member.body and "(" not in member.text else ""
            lines += wrapped(f"    {without_initialisers(member.text)}{value};", " " * 8)
    return lines[1:] if lines[:1] == [""] else lines


def _described(declared: Declaration) -> tuple[str, list[str]]:
    """Returns the name of a declaration, and its code."""
    if found := _TYPE.match(declared.text):
        if "enum " in declared.text:
            inner = [f"    {line.strip()}" for line in declared.body.strip().splitlines()]
        else:
            inner = synopsis(declared.body, is_class=found[1] == "class")
        return found[2], [declared.text + " {", *inner, "};"] if declared.body else [f"{declared.text};"]
    head = without_initialisers(declared.text)
    names = re.findall(r"(operator\S+|\w+)\s*(?:\(|$| =)", head)
    return (names or ["other"])[0], wrapped(f"{head};", " " * 4)


def namespace(code: str) -> str:
    """Returns the text within `namespace dayfly` and the namespaces in it, without `detail`."""
    start = code.index("namespace dayfly {")
    inner = code[start + len("namespace dayfly {") : end_of_block(code, code.index("{", start)) - 1]
    while found := re.search(r"namespace detail \{", inner):
        inner = inner[: found.start()] + inner[end_of_block(inner, found.end() - 1) :]
    while found := re.search(r"namespace \w+ \{", inner):
        end = end_of_block(inner, found.end() - 1)
        inner = inner[: found.start()] + inner[found.end() : end - 1] + inner[end:]
    return inner


def page(root: Path, directory: str) -> str:
    """Returns the reference of the headers in a directory in MyST."""
    parts = []
    for header in sorted((root / directory).rglob("*.hpp")):
        text = header.read_text()
        shown = with_code_blocks(introduction(text), "cpp")
        parts.append(f"## {header.relative_to(root / directory)}\n\n{shown}")
        code = without_directives(text)
        if "namespace dayfly {" not in code:
            continue
        for declared in declarations(namespace(code)):
            if declared.comment or declared.body:
                name, lines = _described(declared)
                parts.append("\n".join([f"### {name}", "", declared.comment, "", "```cpp", *lines, "```", ""]))
    return "\n".join(parts)
