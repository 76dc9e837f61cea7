"""The table of contents of the site, read from the lists of the README files.

docs/README.md lists the pages of the site: each list is a part of the sidebar, and the text above the list, up to a
comma or colon, is its caption. Another README.md lists the pages of its own directory, which become its subpages.
"""

from __future__ import annotations

import posixpath
import re
import shutil
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.environment.adapters.toctree import document_toc

INDEX = "docs/README"
_LINK = re.compile(r"\[([^\]]+)\]\(([^)#\s]+)\.md\)")
_ITEM = re.compile(rf"^- {_LINK.pattern}", re.MULTILINE)
_LIST = re.compile(r"^(\w[^\n]*?)[,:][^\n]*\n\n((?:- [^\n]*\n(?:  [^\n]*\n)*)+)", re.MULTILINE)
#: An attribute of rustdoc behind the language of a code block, which no highlighter knows.
_ATTRIBUTE = re.compile(r"^(```\w+),\S+$", re.MULTILINE)


def _docname(page: str, target: str) -> str:
    """Returns the document that a page links to by a relative path without suffix."""
    return "/" + posixpath.normpath(posixpath.join(posixpath.dirname(page), target))


def toctree(entries: dict[str, str], caption: str = "") -> str:
    """Returns a hidden table of contents in MyST, of titles by document."""
    lines = [f"{title} <{document}>" for document, title in entries.items()]
    options = [":hidden:", *([f":caption: {caption}"] if caption else [])]
    return "\n".join(["", "```{toctree}", *options, "", *lines, "```", ""])


def site_contents(index: str) -> str:
    """Returns the tables of contents of the site, from the text of docs/README.md."""
    parts = [toctree({f"/{INDEX}": "All pages"})]
    for caption, items in _LIST.findall(index):
        entries = {_docname(INDEX, target): title for title, target in _ITEM.findall(items)}
        parts.append(toctree(entries, caption))
    return "".join(parts)


def subpages(docname: str, text: str) -> str:
    """Returns the table of contents of a directory, from the text of its README.md; empty if it links to no page."""
    entries = {_docname(docname, target): title for title, target in _LINK.findall(text) if "/" not in target}
    return toctree(entries) if entries else ""


def prepare(app: Sphinx, docname: str, source: list[str]) -> None:
    """Adds the tables of contents to the README pages, and removes what only rustdoc reads."""
    source[0] = _ATTRIBUTE.sub(r"\1", source[0])
    if docname == app.config.root_doc:
        source[0] += site_contents((Path(app.srcdir) / f"{INDEX}.md").read_text())
    elif posixpath.basename(docname) == "README" and docname != INDEX:
        source[0] += subpages(docname, source[0])


def _title(entry: nodes.Node) -> nodes.Node:
    """Returns an entry of the contents without its subentries."""
    return nodes.list_item("", entry.children[0].deepcopy())


class PageContents:
    """The contents of each page, whole for the page that is written and short for all others.

    Sphinx copies the contents of all pages into the sidebar of every page, where only their titles are shown. Those of
    the reference pages have thousands of entries, and copying them took half of the time of a build.
    """

    def __init__(self) -> None:
        self.whole: dict[str, nodes.bullet_list] = {}
        self.short: dict[str, nodes.bullet_list] = {}

    def shorten(self, _: Sphinx, env: BuildEnvironment) -> list[str]:
        """Replaces the contents of all pages without subpages by their titles."""
        for docname, contents in env.tocs.items():
            if next(contents.findall(addnodes.toctree), None) is None:
                self.whole[docname] = contents
                self.short[docname] = nodes.bullet_list("", *(_title(entry) for entry in contents.children))
        env.tocs.update(self.short)
        return []

    def show(self, app: Sphinx, page: str, _: str, context: dict[str, Any], _doctree: nodes.document | None) -> None:
        """Uses the whole contents for a page before the theme reads them."""
        if page in self.whole and "toc" in context:
            app.env.tocs[page] = self.whole[page]
            shown = document_toc(app.env, page, app.tags)
            context["toc"] = app.builder.render_partial(shown)["fragment"]  # type: ignore[attr-defined]

    def hide(self, app: Sphinx, page: str, *_: object) -> None:
        """Uses the short contents again."""
        if page in self.short:
            app.env.tocs[page] = self.short[page]


def copy_start(app: Sphinx, error: Exception | None) -> None:
    """Copies the start page to index.html, which web servers show for the directory."""
    if error is None and app.builder.name == "html":
        shutil.copyfile(Path(app.outdir) / f"{app.config.root_doc}.html", Path(app.outdir) / "index.html")


def setup(app: Sphinx) -> dict[str, bool]:
    """Registers the extension."""
    app.connect("source-read", prepare)
    contents = PageContents()
    app.connect("env-updated", contents.shorten)
    # The theme has the priority 500.
    app.connect("html-page-context", contents.show, priority=400)
    app.connect("html-page-context", contents.hide, priority=600)
    app.connect("build-finished", copy_start)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
