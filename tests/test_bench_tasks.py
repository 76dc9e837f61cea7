"""``dayfly bench tasks`` measures durable tasks, beside Parsl's where there is Parsl; how fast is not asked here."""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import Any

import pytest
from harness.programs import program, run, run_json

pytest.importorskip("dayfly", reason="the package is not installed: make build")

# The manager that it starts, and Parsl's processes, end with it.
pytestmark = pytest.mark.usefixtures("leakless")

#: As little as can be measured.
SMALL = ("--tasks", "200", "--calls", "20", "--size", "100", "--force", "--python", sys.executable)


def measured(rounds: int, *more: str) -> dict[str, Any]:
    """What it prints for programs."""
    report: dict[str, Any] = run_json("bench", "tasks", *SMALL, "--rounds", str(rounds), *more, timeout=60)
    return report


def test_task_benchmark_prints_its_figures() -> None:
    report = measured(2)
    assert report["durable"] is True
    assert report["workers"] == os.cpu_count()
    assert (report["tasks"], report["rounds"], report["argument_bytes"]) == (200, 2, 100)
    assert 0 < report["latency_p50_ms"] <= report["latency_p99_ms"] < 10_000
    assert len(report["tasks_per_s_rounds"]) == 2
    assert report["tasks_per_s"] in report["tasks_per_s_rounds"]
    assert min(report["tasks_per_s_rounds"]) > 1
    assert report["memoized_per_s"] > 1
    assert 0 < report["first_task_ms"] < 10_000
    assert not [name for name in report if name.startswith("parsl")]


@pytest.mark.skipif(importlib.util.find_spec("parsl") is None, reason="Parsl is not installed")
def test_task_benchmark_measures_parsl_in_the_same_run() -> None:
    report = measured(1, "--parsl", sys.executable)
    assert report["durable"] is True
    assert report["parsl_durable"] is False
    assert report["parsl_version"]
    assert 0 < report["parsl_latency_p50_ms"] <= report["parsl_latency_p99_ms"]
    assert len(report["parsl_tasks_per_s_rounds"]) == 1
    assert report["parsl_tasks_per_s"] in report["parsl_tasks_per_s_rounds"]
    assert min(report["parsl_tasks_per_s_rounds"]) > 0
    assert report["tasks_per_s"] > 1


def test_task_benchmark_prints_a_table() -> None:
    printed = run(program(), "bench", "tasks", *SMALL, "--rounds", "1").stdout
    assert "100 bytes of argument" in printed
    assert "ms p50" in printed
    assert "tasks/s" in printed
    assert "parsl" not in printed


def test_task_benchmark_names_missing_peers() -> None:
    without = run(program(), "bench", "tasks", "--force", "--json", "--python", "/nowhere/python", check=False)
    assert without.returncode != 0
    assert "/nowhere/python" in without.stderr
