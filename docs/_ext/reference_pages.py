"""Reference pages, written when the site is built.

The lines from `<!-- reference: KIND ARGUMENT -->` to `<!-- end -->` in a document are replaced by the reference of that
kind: `python MODULE`, `c HEADER`, `cxx DIRECTORY` or `rest FILE`. Paths are relative to the root of the repository.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import reference_c
import reference_cxx
import reference_python
import reference_rest
from sphinx.application import Sphinx

KINDS: dict[str, Callable[[Path, str], str]] = {
    "python": reference_python.page,
    "c": reference_c.page,
    "cxx": reference_cxx.page,
    "rest": reference_rest.page,
}
_MARK = re.compile(r"^<!-- reference: (\w+) (\S+) -->$.*?^<!-- end -->$", re.MULTILINE | re.DOTALL)


def fill(app: Sphinx, _: str, source: list[str]) -> None:
    """Replaces the marks of a document."""
    root = Path(app.srcdir)
    source[0] = _MARK.sub(lambda mark: KINDS[mark[1]](root, mark[2]), source[0])


def setup(app: Sphinx) -> dict[str, bool]:
    """Registers the extension."""
    # After napoleon is registered, its options exist; it has nothing to do with autodoc here.
    app.setup_extension("sphinx.ext.napoleon")
    app.connect("source-read", fill)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
