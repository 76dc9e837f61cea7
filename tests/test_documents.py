"""What the documents promise about the checkout: links lead somewhere, commands exist."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from harness.programs import ROOT

# Documents that people start from, and everything below docs/.
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)#\s]+)(#[^)\s]*)?\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_within_the_checkout_lead_somewhere(page: Path) -> None:
    targets = [match[1] for match in LINK.finditer(page.read_text())]
    missing = [t for t in targets if "://" not in t and not (page.parent / t).exists()]
    assert not missing, f"{page.relative_to(ROOT)} links to {missing}"


def test_every_make_command_in_the_documents_exists() -> None:
    helped = subprocess.run(["make", "-s", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    targets = set(re.findall(r"make ([a-z-]+)", helped.stdout))
    wanted = {
        command
        for page in PAGES
        for block in re.findall(r"(?:^(?:    )?|`)(make [a-z-]+)", page.read_text(), re.MULTILINE)
        for command in [block.removeprefix("make ")]
    }
    assert wanted <= targets, f"no such target: {sorted(wanted - targets)}"
