"""narwhals' own tests of lazy frames, on Dayfly's."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
import tarfile

import pytest
from harness.programs import ROOT, cache_dir

pytest.importorskip("narwhals", reason="narwhals is not installed")

#: The subset, by names in narwhals' directory of tests. docs/guides/frames.md names them too.
SUBSET = ["expr_and_series", "frame", "expression_parsing_test.py", "selectors_test.py"]
#: Tests of them that pass with the version in requirements-dev.txt.
MIN_PASSED = 1185


@pytest.mark.timeout(300)
def test_named_subset_of_narwhals_passes(tmp_path):
    release = f"narwhals-{importlib.metadata.version('narwhals')}"
    archive = cache_dir() / "narwhals" / f"{release}.tar.gz"
    if not archive.exists():
        pytest.skip(f"{archive} is not there: run scripts/bootstrap tests")
    with tarfile.open(archive) as opened:
        opened.extractall(tmp_path, filter="data")
    source = tmp_path / release
    settings = tmp_path / "pytest.ini"
    settings.write_text("[pytest]\naddopts = -p no:warnings -p no:cacheprovider\n")
    options = ["-q", "-n0", "-p", "harness.narwhals_suite", "--use-external-constructor", "--timeout=60", "--tb=short"]
    options += ["-c", str(settings), f"--rootdir={source}", f"--basetemp={tmp_path / 'narwhals'}", "-rf"]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *(f"tests/{name}" for name in SUBSET)],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT / "tests")},
        timeout=280,
        cwd=source,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-20_000:] + ran.stderr[-2_000:]
    passed = re.search(r"(\d+) passed", ran.stdout)
    assert passed, ran.stdout[-2_000:]
    assert int(passed[1]) >= MIN_PASSED, ran.stdout[-2_000:]


def test_guide_names_subset_and_version():
    guide = (ROOT / "docs/guides/frames.md").read_text()
    assert f"narwhals {importlib.metadata.version('narwhals')}" in guide
    for name in SUBSET:
        assert f"`{name}`" in guide
