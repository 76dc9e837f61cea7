"""Line breaks in the long names and paths that tables contain, so that the tables fit into the page."""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform

#: In characters. A shorter name stays on one line.
MAX_UNBROKEN = 20
_BREAK_BEHIND = re.compile(r"(?<=[/_:.,])(?=\w)")


class BreakableNames(SphinxPostTransform):
    """Permits a line break behind each separator of a long literal in a table."""

    default_priority = 900
    formats = ("html",)

    def run(self, **_: Any) -> None:
        """Adds the permissions to one document."""
        for entry in self.document.findall(nodes.entry):
            for literal in list(entry.findall(nodes.literal)):
                text = literal.astext()
                if max(map(len, text.split()), default=0) > MAX_UNBROKEN:
                    first, *others = _BREAK_BEHIND.split(text)
                    parts: list[nodes.Node] = [nodes.Text(first)]
                    for other in others:
                        parts += [nodes.raw("", "<wbr>", format="html"), nodes.Text(other)]
                    literal[:] = parts


def setup(app: Sphinx) -> dict[str, bool]:
    """Registers the extension."""
    app.add_post_transform(BreakableNames)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
