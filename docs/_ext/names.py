"""Links from names in the text to the reference.

In docstrings, single backticks hold a Python name. In all documents, a literal such as `dayfly.run` or
`dfly_lease_open()` leads to its reference if there is one.
"""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from docutils.parsers.rst.states import Inliner
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.transforms import SphinxTransform

_NAME = re.compile(r"[A-Za-z_][\w.]*(\(\))?")
_FULL_NAME = re.compile(r"(?:(dayfly(?:\.\w+)+)|(dfly_\w+|DFLY_\w+))(?:\(\))?")


def _link(env: BuildEnvironment, domain: str, target: str, literal: nodes.literal) -> addnodes.pending_xref:
    return addnodes.pending_xref(
        "", literal, refdomain=domain, reftype="obj", reftarget=target, refdoc=env.docname, is_optional=True
    )


def name_role(
    _role: str, rawtext: str, text: str, _line: int, inliner: Inliner, _options: object = None, _content: object = None
) -> tuple[list[nodes.Node], list[nodes.system_message]]:
    """Returns a link to the Python object of that name, as the class and the module around it know it."""
    env = inliner.document.settings.env
    literal = nodes.literal(rawtext, text)
    if not _NAME.fullmatch(text):
        return [literal], []
    link = _link(env, "py", text.removesuffix("()"), literal)
    link["py:module"] = env.ref_context.get("py:module")
    link["py:class"] = env.ref_context.get("py:class")
    return [link], []


class NamedObjects(SphinxTransform):
    """Makes links of the literals that hold the full name of an object."""

    default_priority = 60

    def apply(self, **_: Any) -> None:
        """Makes the links of one document."""
        for literal in list(self.document.findall(nodes.literal)):
            name = _FULL_NAME.fullmatch(literal.astext())
            parent = literal.parent
            is_linked = isinstance(parent, nodes.title | nodes.reference | addnodes.pending_xref)
            if name is None or is_linked or isinstance(parent.parent, nodes.reference | addnodes.pending_xref):
                continue
            domain, target = ("py", name[1]) if name[1] else ("c", name[2])
            literal.replace_self(_link(self.env, domain, target, literal.deepcopy()))


def resolve(
    app: Sphinx, env: BuildEnvironment, node: addnodes.pending_xref, content: nodes.TextElement
) -> nodes.Node | None:
    """Resolves a Python name relative to the package, and leaves an optional name without an object as it is."""
    domain, target = node.get("refdomain"), node["reftarget"]
    found = None
    if domain == "py":
        found = env.domains["py"].resolve_xref(
            env, node["refdoc"], app.builder, "obj", f"dayfly.{target}", node, content
        )
    elif domain == "c" and node["reftype"] == "obj":
        found = env.domains["c"].resolve_xref(env, node["refdoc"], app.builder, "func", target, node, content)
    return found or (content if node.get("is_optional") else None)


def setup(app: Sphinx) -> dict[str, bool]:
    """Registers the extension."""
    app.add_role("name", name_role)
    app.add_transform(NamedObjects)
    app.connect("missing-reference", resolve)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
