"""Reference pages, written when the site is built.

A line `<!-- reference: KIND ARGUMENT -->` in a document is replaced by the reference of that kind: `python MODULE`,
`c HEADER`, `cxx HEADER` or `rest FILE`. Paths are relative to the root of the repository.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import reference_c
import reference_cxx
import reference_python
import reference_rest
from docutils import nodes
from docutils.parsers.rst.states import Inliner
from sphinx import addnodes
from sphinx.application import Sphinx

KINDS: dict[str, Callable[[Path, str], str]] = {
    "python": reference_python.page,
    "c": reference_c.page,
    "cxx": reference_cxx.page,
    "rest": reference_rest.page,
}
_MARK = re.compile(r"^<!-- reference: (\w+) (\S+) -->$", re.MULTILINE)


def fill(app: Sphinx, _: str, source: list[str]) -> None:
    """Replaces the marks of a document."""
    root = Path(app.srcdir)
    source[0] = _MARK.sub(lambda mark: KINDS[mark[1]](root, mark[2]), source[0])


def name_role(
    _role: str, rawtext: str, text: str, _line: int, inliner: Inliner, _options: object = None, _content: object = None
) -> tuple[list[nodes.Node], list[nodes.system_message]]:
    """The role of single backticks in docstrings: a link to the Python object of that name, if the site has it."""
    env = inliner.document.settings.env
    literal = nodes.literal(rawtext, text, classes=["xref", "py", "py-obj"])
    if not re.fullmatch(r"[\w.]+(\(\))?", text):
        return [literal], []
    link = addnodes.pending_xref(
        rawtext,
        literal,
        refdomain="py",
        reftype="obj",
        reftarget=text.removesuffix("()"),
        refdoc=env.docname,
        refexplicit=False,
    )
    link["py:module"] = env.ref_context.get("py:module")
    link["py:class"] = env.ref_context.get("py:class")
    return [link], []


def setup(app: Sphinx) -> dict[str, bool]:
    """Registers the extension."""
    # After napoleon is registered, its options exist; it has nothing to do with autodoc here.
    app.setup_extension("sphinx.ext.napoleon")
    app.add_role("name", name_role)
    app.connect("source-read", fill)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
