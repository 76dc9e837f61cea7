"""Settings of the documentation site, which scripts/docs builds from the Markdown files of this repository.

The source directory of Sphinx is the root of the repository, so that a link between two files works on the site as it
works in a checkout.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "docs" / "_ext"))

project = "Dayfly"
copyright = "the Dayfly authors"
release = re.search(r'^version = "(.*)"', (ROOT / "Cargo.toml").read_text(), re.MULTILINE)[1]
version = release

extensions = ["myst_parser", "names", "navigation", "reference_pages", "source_pages", "tables"]
root_doc = "README"
include_patterns = ["*.md", "docs/*.md", "docs/**/*.md", "examples/*.md"]
exclude_patterns = ["build", ".*"]

myst_heading_anchors = 4
highlight_language = "text"
# Options such as --json must keep their hyphens.
smartquotes = False
nitpicky = True
# Names that the standard library, the compiler or another package defines.
nitpick_ignore_regex = [
    ("py:.*", r"(?!dayfly\.).*"),
    ("c:identifier", r"(?!dfly_).*"),
    ("cpp:identifier", r"(?!dayfly::).*"),
]
suppress_warnings: list[str] = []

default_role = "name"
add_module_names = False
python_maximum_signature_line_length = 100
c_maximum_signature_line_length = 100
cpp_maximum_signature_line_length = 100
napoleon_use_rtype = False

html_theme = "furo"
html_title = f"Dayfly {release}"
html_static_path = [str(ROOT / "docs" / "_static")]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
html_show_copyright = False
