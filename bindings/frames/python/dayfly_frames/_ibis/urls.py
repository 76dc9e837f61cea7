"""Patterns that take URLs apart, as in RFC 3986."""

from __future__ import annotations

_SCHEME = r"^(?:[A-Za-z][A-Za-z0-9+.-]*:)?"
_AUTHORITY = r"(?://[^/?#]*)?"
_PATH = r"[^?#]*"

#: A pattern whose first group is the part, by the name of Ibis' operation.
PARTS = {
    "ExtractProtocol": r"^([A-Za-z][A-Za-z0-9+.-]*):",
    "ExtractAuthority": rf"{_SCHEME}//([^/?#]*)",
    "ExtractHost": rf"{_SCHEME}//(?:[^/?#@]*@)?(\[[^\]/?#]*\]|[^:/?#]*)",
    "ExtractUserInfo": rf"{_SCHEME}//([^/?#@]*)@",
    "ExtractPath": rf"{_SCHEME}{_AUTHORITY}([^?#]*)",
    "ExtractQuery": rf"{_SCHEME}{_AUTHORITY}{_PATH}\?([^#]*)",
    "ExtractFragment": r"#(.*)$",
}
