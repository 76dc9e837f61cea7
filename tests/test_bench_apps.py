"""``dayfly bench apps`` compares applications with and without leases; how fast they are is not asked here."""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
import os
import shutil
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from harness.programs import ROOT, clean_environment, program, run

pytest.importorskip("dayfly", reason="the package is not installed: make build")

# A busy machine compiles and runs the programs in some times the usual 20 seconds.
pytestmark = pytest.mark.timeout(230)

BENCH = ("bench", "apps", "--force", "--quick", "--suite", str(ROOT / "benches" / "apps"), "--python", sys.executable)
FIELDS = ("app", "against", "speedup", "low", "high", "cores", "leased_cores", "checked", "said", "rounds")

needs_two_cores = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is no second core")
needs_server = pytest.mark.skipif(importlib.util.find_spec("uvicorn") is None, reason="uvicorn is not installed")
needs_mpi = pytest.mark.skipif(
    not (shutil.which("mpirun") and shutil.which("mpicxx")),
    reason="no Open MPI here. Install with: sudo apt-get install openmpi-bin libopenmpi-dev",
)


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """``suite("measure")`` is that module of benches/apps."""
    directory = str(ROOT / "benches" / "apps")
    sys.path.insert(0, directory)
    before = set(sys.modules)
    yield importlib.import_module
    sys.path.remove(directory)
    # Other benchmarks have modules of the same names.
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(directory):
            del sys.modules[name]


def measured(out: Path, *names: str) -> dict[str, Any]:
    """Measures the named applications, and checks what all reports have in common."""
    only = [word for name in names for word in ("--only", name)]
    printed = run(program(), *BENCH, "--out", out, *only, "--json", timeout=200).stdout
    report: dict[str, Any] = json.loads(printed)
    assert json.loads((out / "apps.json").read_text())["rows"] == report["rows"]
    root = ElementTree.fromstring((out / "apps.svg").read_text())
    assert len(root.findall("{http://www.w3.org/2000/svg}rect")) == len(report["rows"]) + 1
    for row in report["rows"]:
        assert all(name in row for name in FIELDS), row
        assert 0 < row["low"] <= row["speedup"] <= row["high"] < math.inf, row
        assert row["checked"] is True
        assert row["rounds"] >= 6
        assert row["against"] in row["said"]
        assert row["app"] in names
    return report


def pairs(report: dict[str, Any]) -> list[tuple[str, str]]:
    return [(row["app"], row["against"]) for row in report["rows"]]


@needs_server
@pytest.mark.usefixtures("leakless")
def test_functions_run_beside_pool_and_server(tmp_path) -> None:
    report = measured(tmp_path, "thumbnails", "recognition")
    beside = {"one process", "process pool", "HTTP function server"}
    for app in ("thumbnails", "recognition"):
        assert beside <= {against for name, against in pairs(report) if name == app}
    assert ("recognition", "ResNet-50") in [(each["app"], each["against"]) for each in report["left_out"]]


@needs_server
@needs_two_cores
@pytest.mark.usefixtures("leakless")
def test_curves_have_sockets_and_server_beside(tmp_path) -> None:
    report = measured(tmp_path, "payload", "workers", "cold")
    ways = {(row["app"], row["ours"], row["against"]) for row in report["rows"]}
    for mode in ("hot", "warm"):
        assert {("payload", mode, "raw TCP"), ("payload", mode, "HTTP function server")} <= ways
    assert ("cold", "cold", "HTTP function server") in ways
    crowded = [row for row in report["rows"] if row.get("oversubscribed")]
    assert all("workers share" in row["said"] for row in crowded)
    assert len(crowded) == 4 * (len(os.sched_getaffinity(0)) < 4)


@needs_mpi
@needs_two_cores
@pytest.mark.usefixtures("leakless")
def test_native_programs_share_work_with_worker(tmp_path) -> None:
    report = measured(tmp_path, "blackscholes", "matmul", "jacobi", "scan")
    by_mpi = [(app, against) for app in ("matmul", "jacobi", "scan") for against in ("MPI, one rank", "MPI, two ranks")]
    assert pairs(report)[3:] == by_mpi
    assert [against for _, against in pairs(report)[:3]] == [
        "OpenMP, one thread",
        "OpenMP, two threads",
        "OpenMP, one thread",
    ]
    for row in report["rows"]:
        assert row["leased_cores"] == 1
        assert row["against"].endswith(("one rank", "one thread")) == (row["cores"] == 1)
    models = [row["model"] for row in report["rows"] if "model" in row]
    assert len(models) == 4
    assert all(of["predicted"] > 0 and set(of["more"]) == {"3", "7", "15", "31"} for of in models)
    for row in report["rows"]:
        if row["app"] == "jacobi":
            assert (row["matrix_sent"], row["matrix_sent_after_loss"]) == (1, 2)


def test_suite_that_is_not_there_is_named(tmp_path) -> None:
    command = (program(), "bench", "apps", "--suite", tmp_path)
    missing = run(*command, env=clean_environment(), check=False)
    assert missing.returncode != 0
    assert "main.py is not there. Run the command in a checkout" in missing.stderr


def test_interval_includes_the_median(suite) -> None:
    interval = suite("measure").interval
    assert interval([3.0, 1.0, 2.0]) == (1.0, 3.0)
    assert interval(range(6)) == (0, 5)
    # The third and the tenth of twelve, as in tables of the sign test.
    assert interval(range(12)) == (2, 9)
    assert interval(range(100)) == (39, 60)


def test_uncertain_winner_is_not_named(suite) -> None:
    row = suite("measure").row
    why = {"won": "it is better", "lost": "it is worse", "even": "they are alike"}
    settings = {"why": why, "cores": 1, "leased_cores": 1, "checked": True}

    def said(ours: list[float]) -> str:
        times = {"a": ours, "b": [2.0] * len(ours)}
        text: str = row("app", "a", "b", times, **settings)["said"]
        return text

    assert said([1.0] * 6) == "app: a won over b, 2.00 times as fast (95 %: 2.00 to 2.00): it is better."
    assert said([4.0] * 6).startswith("app: b won over a, which is 0.50 times as fast")
    assert said([1.0, 4.0] * 3).startswith("app: neither a nor b won with certainty")


def test_model_predicts_less_when_calls_cost(suite) -> None:
    model = suite("model")
    ideal = model.Model(100.0, call_ms=0, ns_per_byte=0, calls=1, bytes_each=0, bytes_divided=0)
    assert [ideal.speedup(workers) for workers in (1, 3)] == [2.0, 4.0]
    costly = model.Model(100.0, call_ms=5, ns_per_byte=1, calls=2, bytes_each=1e6, bytes_divided=10e6)
    # 50 ms of work, 10 ms of calls, 1 ms for the worker's copy, 5 ms for the half that is sent.
    assert costly.time_ms(1) == pytest.approx(66.0)
    scan = model.Model(90.0, call_ms=0, ns_per_byte=0, calls=2, bytes_each=0, bytes_divided=0, share=model.scanned)
    assert scan.time_ms(1) == pytest.approx(60.0)


def test_papers_page_has_both_figures(suite) -> None:
    papers = suite("papers")
    row = {"app": "matmul", "against": "MPI, one rank", "ours": "x", "speedup": 1.9, "low": 1.8, "high": 2.0}
    results = {"apps": {"rows": [row], "left_out": []}, "tasks": "the machine is too busy to measure"}
    page = papers.page(results, "a machine", "2026-01-01")
    assert "| 1.88 to 1.94 times | 1.90 times (95 %: 1.80 to 2.00), x / MPI, one rank |" in page
    assert "| 1,694/s | not measured: the machine is too busy to measure |" in page
    assert "| not measured: not run |" in page
    assert "| RDMA |" in page


@pytest.mark.usefixtures("leakless")
def test_papers_read_a_real_report(suite, tmp_path, monkeypatch) -> None:
    papers = suite("papers")
    monkeypatch.setenv("DAYFLY_BIN", str(program()))
    found = papers.measure("cold --calls 2", tmp_path, force=True)
    line = next(line for line in papers.LINES if line.command == "cold")
    assert "ms p50" in papers.ours(line, {"cold": found})
    assert json.loads((tmp_path / "cold_calls_2.json").read_text()) == found
    assert papers.measure("cold --nothing", tmp_path, force=True).startswith("unexpected argument '--nothing' found")


def test_commands_of_papers_are_accepted(suite) -> None:
    for words in suite("papers").commands(quick=True):
        run(program(), "bench", *words.split(), "--force" if "comm" not in words else "--json", "--help")
