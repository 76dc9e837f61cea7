"""Ibis' own tests of its backends, on Dayfly's."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from harness.programs import ROOT

ibis = pytest.importorskip("ibis", reason="Ibis is not installed")
pytest.importorskip("pandas")

#: The subset, by the names of Ibis' files. docs/guides/frames.md names them too.
FILES = [f"test_{name}.py" for name in ("aggregation", "generic", "join", "numeric", "set_ops", "string", "window")]
#: Tests of them that pass with the version in requirements-dev.txt.
MIN_PASSED = 757


@pytest.mark.timeout(400)
def test_named_subset_of_ibis_passes(tmp_path):
    packages = Path(ibis.__file__).parents[1]
    settings = tmp_path / "pytest.ini"
    settings.write_text("[pytest]\naddopts = --import-mode=importlib -p no:warnings -p no:cacheprovider\n")
    files = [str(packages / "ibis/backends/tests" / name) for name in FILES]
    options = ["-q", "-n0", "-m", "dayfly", "-p", "harness.ibis_suite", "--timeout=60", "--tb=short", "-rf"]
    options.append(f"--basetemp={tmp_path / 'ibis'}")
    places = ["-c", str(settings), f"--rootdir={packages}", f"--confcutdir={packages}"]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "tests")}
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *places, *files],
        capture_output=True,
        text=True,
        env=environment,
        timeout=360,
        cwd=tmp_path,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-20_000:] + ran.stderr[-2_000:]
    passed = re.search(r"(\d+) passed", ran.stdout)
    assert passed, ran.stdout[-2_000:]
    assert int(passed[1]) >= MIN_PASSED, ran.stdout[-2_000:]


def test_guide_names_the_subset_and_version():
    guide = (ROOT / "docs/guides/frames.md").read_text()
    assert f"Ibis {importlib.metadata.version('ibis-framework')}" in guide
    for name in FILES:
        assert f"`{name}`" in guide
