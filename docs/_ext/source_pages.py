"""Pages for the files and directories of the checkout that documents link to, such as examples.

A link to a file that is no document leads to a page that shows the file. A link to a directory leads to its README.md,
or to a page that lists the directory.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from docutils import nodes
from pygments.lexers import guess_lexer_for_filename
from pygments.util import ClassNotFound
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.transforms import SphinxTransform

#: The directory of these pages on the site.
FOLDER = "source"


def linked(env: BuildEnvironment) -> dict[str, set[str]]:
    """Returns the paths in the checkout that each document links to."""
    if not hasattr(env, "linked_sources"):
        env.linked_sources = {}  # type: ignore[attr-defined]
    return env.linked_sources  # type: ignore[attr-defined,no-any-return]


class SourceLinks(SphinxTransform):
    """Replaces links to files and directories by links to their pages."""

    default_priority = 50

    def apply(self, **_: Any) -> None:
        """Replaces the links of one document."""
        for node in list(self.document.findall(addnodes.pending_xref)):
            if node.get("reftype") == "myst" and node.get("refdomain") != "doc":
                self._replace(node, node["reftarget"])
        for download in list(self.document.findall(addnodes.download_reference)):
            if download.get("reftype") == "myst":
                self._replace(download, download["reftarget"])

    def _replace(self, node: nodes.Element, target: str) -> None:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(self.env.docname), target))
        place = Path(self.env.srcdir) / path
        if target.startswith("#") or "://" in target or not place.exists():
            return
        readme = posixpath.join(path, "README")
        if readme in self.env.found_docs:
            page = readme
        else:
            page = f"{FOLDER}/{path}"
            linked(self.env).setdefault(self.env.docname, set()).add(path)
        uri = self.app.builder.get_relative_uri(self.env.docname, page)
        node.replace_self(nodes.reference("", "", *node.children, internal=True, refuri=uri))


def forget(_: Sphinx, env: BuildEnvironment, docname: str) -> None:
    """Removes the links of a document that is read again."""
    linked(env).pop(docname, None)


def merge(_: Sphinx, env: BuildEnvironment, docnames: set[str], other: BuildEnvironment) -> None:
    """Takes over the links of the documents that another process read."""
    linked(env).update({name: paths for name, paths in linked(other).items() if name in docnames})


def _listing(app: Sphinx, path: str, pages: set[str]) -> str:
    """Returns the entries of a directory, with links to those that have a page."""
    items = []
    for entry in sorted((Path(app.srcdir) / path).iterdir()):
        name = escape(entry.name + "/" * entry.is_dir())
        inner = f"{path}/{entry.name}"
        if inner in pages:
            uri = app.builder.get_relative_uri(f"{FOLDER}/{path}", f"{FOLDER}/{inner}")
            name = f'<a class="reference internal" href="{uri}">{name}</a>'
        if not entry.name.startswith((".", "__pycache__")):
            items.append(f"<li><code>{name}</code></li>")
    return f"<ul>{''.join(items)}</ul>"


def _highlighted(app: Sphinx, path: str) -> str:
    """Returns the content of a file with highlighted syntax."""
    text = (Path(app.srcdir) / path).read_text()
    try:
        language = guess_lexer_for_filename(path, text).aliases[0]
    except ClassNotFound:
        language = "text"
    return app.builder.highlighter.highlight_block(text, language)  # type: ignore[attr-defined,no-any-return]


def pages_of_sources(app: Sphinx) -> Iterator[tuple[str, dict[str, str], str]]:
    """Yields a page for every linked file and directory, and for the files of linked directories."""
    paths = {path for found in linked(app.env).values() for path in found}
    for path in list(paths):
        place = Path(app.srcdir) / path
        if place.is_dir():
            paths |= {f"{path}/{entry.name}" for entry in place.iterdir() if entry.is_file()}
    for path in sorted(paths):
        is_directory = (Path(app.srcdir) / path).is_dir()
        content = _listing(app, path, paths) if is_directory else _highlighted(app, path)
        yield f"{FOLDER}/{path}", {"title": path, "body": f"<h1>{escape(path)}</h1>{content}"}, "page.html"


def setup(app: Sphinx) -> dict[str, bool]:
    """Registers the extension."""
    app.add_transform(SourceLinks)
    app.connect("env-purge-doc", forget)
    app.connect("env-merge-info", merge)
    app.connect("html-collect-pages", pages_of_sources)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
