"""Escapes foreign text for terminals."""

from __future__ import annotations

#: Characters that a terminal interprets or reorders, except line feeds and tabs; the same as in ``protocol::text``.
_UNSAFE = {
    code: f"\\u{{{code:x}}}"
    for code in (
        *(code for code in range(0x20) if chr(code) not in "\n\r\t"),
        *range(0x7F, 0xA0),
        *(0x61C, 0x200E, 0x200F),
        *range(0x2028, 0x202F),
        *range(0x2066, 0x206A),
    )
}
# A carriage return would let a line be overwritten.
_UNSAFE[ord("\r")] = "\n"


def shown(text: str) -> str:
    r"""Returns the text with control characters and bidirectional overrides escaped.

    >>> shown("red: \x1b[31m")
    'red: \\u{1b}[31m'
    """
    return text.replace("\r\n", "\n").translate(_UNSAFE)
