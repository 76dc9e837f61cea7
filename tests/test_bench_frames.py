"""``dayfly bench frames`` compares queries across ranks with other engines; how fast they are is not asked here."""

from __future__ import annotations

import json
import math
import os
import sys

import pytest
from harness.programs import ROOT, clean_environment, program, run

pytest.importorskip("dayfly_frames", reason="the package is not installed: make build")

from dayfly_frames._bench.command import MEASUREMENTS
from dayfly_frames._bench.data import tpch_program
from dayfly_frames._bench.rows import WrongAnswerError, in_turns, row
from dayfly_frames._bench.tpch import queries, same

BENCH = ("bench", "frames", "--force", "--quick", "--python", sys.executable)
ROWS = [
    "paper-join-1",
    "paper-join-2",
    "paper-join-2-apart",
    "paper-scan-2",
    "paper-join-weak",
    "paper-speedup",
    "paper-weak",
    "skewed-join-ranks",
    "skewed-join",
    "sort-ranges",
    "session-4",
    "small-query",
    "cancel-limit",
    "cancel-close",
    "result-1gib",
    "exchange-shm",
    "exchange-shm-uncached",
    "exchange-shm-flight",
    "killed-rank",
    "beyond-memory-sort",
    "beyond-memory-group",
    "beyond-memory-join",
]
needs_two_cores = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is no second core")


@needs_two_cores
@pytest.mark.usefixtures("leakless")
def test_all_rows_are_measured_and_checked() -> None:
    # Data of TPC-H need a program that may not be there.
    only = [part for name in MEASUREMENTS if not name.startswith("tpch") for part in ("--only", name)]
    report = json.loads(run(program(), *BENCH, "--json", *only, timeout=110).stdout)
    assert [each["name"] for each in report["rows"]] == ROWS
    for each in report["rows"]:
        assert each["checked"] is True, each
        assert each["unit"] in ("s", "ms", "GB/s")
        assert each["baseline"]
        assert all(math.isfinite(each[name]) for name in ("value", "baseline_value", "ratio", "worst")), each
        assert each["baseline_value"] > 0
        assert each["runs"] > 0
    joined = report["rows"][1]
    assert joined["ratio"] == pytest.approx(joined["value"] / joined["baseline_value"])
    assert joined["others"], "an engine with its input in memory is always there"
    assert report["machine"]["cores"] == os.cpu_count()


@needs_two_cores
@pytest.mark.skipif(tpch_program() is None, reason="tpchgen-cli is not installed")
def test_queries_of_tpch_are_compared() -> None:
    found = run(program(), *BENCH, "--json", "--only", "tpch-sf1", timeout=110)
    two, one = json.loads(found.stdout)["rows"]
    assert (two["name"], one["name"]) == ("tpch-sf1", "tpch-sf1-one-rank")
    assert sorted(two["queries"]) == sorted(queries())
    assert two["worst_ratio"] == max(each["ratio"] for each in two["queries"].values())


def test_wrong_answer_fails_the_measurement() -> None:
    with pytest.raises(WrongAnswerError, match="join: theirs computed 2, another side 1"):
        in_turns("join", {"ours": lambda: 1, "theirs": lambda: 2}, 1)


def test_sides_of_a_row_run_in_turns() -> None:
    calls: list[str] = []
    sides = {name: lambda name=name: calls.append(name) for name in ("ours", "theirs")}
    seconds = in_turns("join", sides, 2)
    assert calls == ["ours", "theirs", "theirs", "ours", "ours", "theirs"]
    assert {side: len(times) for side, times in seconds.items()} == {"ours": 2, "theirs": 2}


def test_row_has_medians_and_worst_runs() -> None:
    made = row("join", "s", [3.0, 1.0, 2.0], "other", [4.0, 4.0, 8.0], checked=True)
    assert (made["value"], made["worst"], made["runs"]) == (2.0, 3.0, 3)
    assert (made["baseline_value"], made["baseline_worst"], made["ratio"]) == (4.0, 8.0, 0.5)


def test_answers_are_compared_by_rows() -> None:
    pa = pytest.importorskip("pyarrow")
    table = pa.table({"name": ["b", "a"], "sum": [0.1 + 0.2, 1.0]})
    assert same(table, pa.table({"name": ["a", "b"], "sum": [1.0, 0.3]}))
    assert not same(table, pa.table({"name": ["a", "b"], "sum": [1.0, 0.3001]}))
    assert not same(table, pa.table({"name": ["a"], "sum": [1.0]}))


def test_unknown_row_is_refused() -> None:
    found = run(program(), *BENCH, "--only", "nosuch", check=False)
    assert found.returncode != 0
    assert "There is no row nosuch. Choose from paper-join-1" in found.stderr


def test_missing_package_is_named(tmp_path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['dayfly_frames'] = None\n")
    environment = clean_environment(PYTHONPATH=str(tmp_path))
    found = run(program(), *BENCH, check=False, env=environment)
    assert found.returncode != 0
    assert "frames are in the package dayfly-frames: install its wheel" in found.stderr


@pytest.mark.usefixtures("leakless")
def test_demo_of_frames_checks_its_results(tmp_path) -> None:
    found = run(sys.executable, ROOT / "examples/demo/frames.py", "--out", tmp_path, "--rows", "40000")
    assert found.stdout.count("checked") == 2
    assert "NetworkShuffleExec" in found.stdout
    picture = (tmp_path / "frames.svg").read_text()
    assert picture.startswith("<svg")
    assert "Old Town, 18:00" in picture
