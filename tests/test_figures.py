"""The committed figures of the documentation are what scripts/figures.py draws."""

from __future__ import annotations

import subprocess
import sys
from xml.etree import ElementTree

import pytest
from harness.programs import ROOT

FIGURES = sorted((ROOT / "docs" / "figures").glob("*.svg"))


def test_committed_figures_match_their_descriptions() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "figures.py"), "--check"]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr


def test_every_figure_has_a_description() -> None:
    assert FIGURES
    assert [figure for figure in FIGURES if not figure.with_suffix(".txt").exists()] == []


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.stem)
def test_figure_has_title_and_dark_colours(figure) -> None:
    text = figure.read_text()
    root = ElementTree.fromstring(text)
    assert root.findtext("{http://www.w3.org/2000/svg}title")
    assert "prefers-color-scheme: dark" in text
