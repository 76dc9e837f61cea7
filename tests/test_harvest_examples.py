"""The examples of harvesting: ten functions after a benchmark suite, and one function that borrows from another."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest
from dayfly._bench_harvest import SIZES
from harness.programs import ROOT, clean_environment, program, run

EXAMPLES = ROOT / "examples" / "python"


@pytest.fixture(scope="module")
def functions() -> ModuleType:
    """The module of the ten functions."""
    spec = importlib.util.spec_from_file_location("harvest_functions", EXAMPLES / "harvest_functions.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", sorted(SIZES))
def test_same_input_gives_same_result(functions: ModuleType, name: str) -> None:
    function = functions.FUNCTIONS[name][0]
    size = SIZES[name][0]
    assert function(*functions.arguments(name, size)) == function(*functions.arguments(name, size))


@pytest.mark.parametrize("name", ["compress", "pagerank", "spanning_tree", "thumbnail"])
def test_width_does_not_change_result(functions: ModuleType, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function = functions.FUNCTIONS[name][0]
    arguments = functions.arguments(name, {"compress": 2 << 20, "thumbnail": 10}.get(name, 3))
    found = function(*arguments)
    monkeypatch.setattr(functions, "MAX_WIDTH", 1)
    assert function(*arguments) == found


def test_each_listed_function_can_be_measured(functions: ModuleType) -> None:
    assert set(functions.FUNCTIONS) == set(SIZES)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is no second core to lend")
def test_example_prints_a_table_and_draws(tmp_path: Path) -> None:
    picture = tmp_path / "harvest.svg"
    environment = clean_environment(DAYFLY_BIN=str(program()))
    command = [sys.executable, EXAMPLES / "harvest.py", "--calls", "2", "--out", picture]
    found = run(*command, env=environment, check=False, timeout=110)
    if "This machine lends nothing" in found.stderr:
        pytest.skip(found.stderr)
    assert found.returncode == 0, found.stderr
    assert [line.split("  ")[0] for line in found.stdout.splitlines()[1:4]] == ["few pages", "more pages", "many pages"]
    texts = {text.text for text in ElementTree.parse(picture).iter("{http://www.w3.org/2000/svg}text")}
    assert {"keys", "pages", "few pages"} <= texts
