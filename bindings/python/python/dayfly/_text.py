"""Foreign text, made safe to show on a terminal."""

from __future__ import annotations

#: What a terminal obeys or shows out of order, but for line feeds and tabs; the same as in ``protocol::text``.
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
#: It would let a line be overwritten.
_UNSAFE[ord("\r")] = "\n"


def shown(text: str) -> str:
    r"""The text with control characters and bidirectional overrides written out.

    >>> shown("red: \x1b[31m")
    'red: \\u{1b}[31m'
    """
    return text.replace("\r\n", "\n").translate(_UNSAFE)
