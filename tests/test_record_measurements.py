"""The page of docs/measurements that `scripts/bench --record` writes."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from harness.programs import ROOT

spec = importlib.util.spec_from_file_location("record_measurements", ROOT / "scripts" / "record_measurements.py")
assert spec is not None
assert spec.loader is not None
record: Any = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = record
spec.loader.exec_module(record)

MACHINE = {
    "cpu": "Some CPU",
    "cores": 2,
    "kernel": "6.18.0",
    "arch": "x86_64",
    "memory_mib": 8_000,
    "virtual_machine": True,
    "tsc_mhz": 2_000.0,
    "tsc_step_ns": 10.0,
    "dayfly": "0.1.0",
}


def summary(p50: float, p99: float) -> dict[str, Any]:
    return {
        "p50_ns": p50,
        "p99_ns": p99,
        "p999_ns": 2 * p99,
        "min_ns": p50 / 2,
        "max_ns": 10 * p99,
        "mean_ns": p50,
        "samples": 2_000_000,
    }


def millis(p50: float, p99: float) -> dict[str, Any]:
    return {"p50_ms": p50, "p99_ms": p99, "min_ms": p50 / 2, "max_ms": 2 * p99, "samples": 40}


INVOKE = {
    "invoke": summary(130.0, 180.0),
    "baseline": {"name": "cache_line", "about": "a line there and back", **summary(110.0, 190.0)},
    "overhead_p50_ns": 20.0,
    "overhead_p99_ns": -10.0,
    "ratio_p50": 1.182,
    "invocations_per_s": 7_600_000.0,
    "transport": "shm",
    "machine": MACHINE,
    "noise": {"foreign_cores": 0.01},
}
COLD = {
    **millis(1.6, 2.5),
    "stages": {"lease": millis(0.44, 0.6)},
    "baseline": {"name": "process_spawn", "about": "a process", **summary(700_000.0, 900_000.0)},
    "overhead_p50_ms": 0.9,
    "language": "c",
    "machine": MACHINE,
    "noise": {"foreign_cores": 0.3, "warning": "a neighbour compiled"},
}

FRAMES = {
    "machine": MACHINE,
    "rows": [
        {
            "name": "paper-join-2",
            "value": 0.5,
            "unit": "s",
            "baseline": "DataFusion",
            "baseline_value": 0.4,
            "ratio": 1.25,
            "checked": True,
            "runs": 9,
            "worst": 0.75,
            "baseline_worst": 0.625,
            "others": [{"name": "Polars", "value": 1.5, "worst": 2.5, "runs": 9}],
            "note": "both sides read files",
        }
    ],
}


def test_sides_of_queries_are_rows() -> None:
    page = record.page("2026-11-26", "two-core-vm", [("dayfly bench frames", FRAMES)])
    assert "| `dayfly bench frames` paper-join-2 | Dayfly | 0.5 s |  |  | 0.75 s | 9 |" in page
    assert "|  | DataFusion | 0.4 s |  |  | 0.625 s | 9 |" in page
    assert "|  | Polars | 1.5 s |  |  | 2.5 s | 9 |" in page
    assert "- `paper-join-2`: ratio 1.250; both sides read files." in page


@pytest.fixture
def results(tmp_path: Path) -> list[str]:
    """Two results as `scripts/bench` leaves them."""
    (tmp_path / "invoke.json").write_text(json.dumps(INVOKE) + "\n")
    (tmp_path / "invoke.command").write_text("dayfly bench invoke --size 64\n")
    (tmp_path / "cold.json").write_text(json.dumps(COLD) + "\n")
    (tmp_path / "cold.command").write_text("dayfly bench cold --language c\n")
    return [str(tmp_path / "invoke.json"), str(tmp_path / "cold.json")]


def test_page_has_both_sides_medians_and_tails(results: list[str], tmp_path: Path) -> None:
    out = tmp_path / "measurements"
    assert record.main(["--date", "2026-11-23", "--out", str(out), *results]) == 0
    (page,) = out.iterdir()
    assert page.name == "2026-11-23-2-core-vm.md"
    text = page.read_text()
    for line in (
        "# 2026-11-23, 2-core-vm",
        "Some CPU, 2 cores, 8,000 MiB, a virtual machine; Linux 6.18.0, x86_64; Dayfly 0.1.0.",
        "| `dayfly bench invoke --size 64` | Dayfly | 130 ns | 180 ns | 360 ns | 1.8 us | 2,000,000 |",
        "|  | cache_line | 110 ns | 190 ns | 380 ns | 1.9 us | 2,000,000 |",
        "| `dayfly bench cold --language c` | Dayfly | 1.6 ms | 2.5 ms |  | 5 ms | 40 |",
        "|  | process_spawn | 700 us | 900 us | 1.8 ms | 9 ms | 2,000,000 |",
        "|  | stage `lease` | 440 us | 600 us |  | 1.2 ms | 40 |",
        "- `dayfly bench invoke --size 64`: difference 20 ns p50, -10 ns p99; 7,600,000 invocations/s.",
        "- `dayfly bench cold --language c`: warning: a neighbour compiled.",
    ):
        assert line in text.splitlines()


def test_existing_page_is_never_overwritten(
    results: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--date", "2026-11-23", "--machine", "two-core-vm", "--out", str(tmp_path), *results]
    assert record.main(arguments) == 0
    page = tmp_path / "2026-11-23-two-core-vm.md"
    page.write_text("first")
    assert record.main(arguments) == 1
    assert page.read_text() == "first"
    assert "--machine" in capsys.readouterr().err


def test_results_of_two_machines_are_refused(results: list[str], tmp_path: Path) -> None:
    Path(results[1]).write_text(json.dumps(COLD | {"machine": MACHINE | {"cores": 64}}))
    with pytest.raises(SystemExit, match="2 machines"):
        record.main(["--date", "2026-11-23", "--out", str(tmp_path / "new"), *results])
    assert not (tmp_path / "new").exists()


def test_name_that_leaves_the_directory_is_refused(results: list[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        record.main(["--date", "2026-11-23", "--machine", "../x", "--out", str(tmp_path / "new"), *results])


@pytest.mark.parametrize("machine", [["--machine", "two-core-vm"], []])
def test_check_fails_before_measuring_if_page_exists(tmp_path: Path, machine: list[str]) -> None:
    arguments = ["--check", "--date", "2026-11-23", "--out", str(tmp_path), *machine]
    assert record.main(arguments) == 0
    assert list(tmp_path.iterdir()) == []
    name = machine[-1] if machine else record.name_of(record.this_machine())
    (tmp_path / f"2026-11-23-{name}.md").write_text("first")
    assert record.main(arguments) == 1


def test_run_without_results_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        record.main(["--date", "2026-11-23", "--out", str(tmp_path)])
