"""``dayfly bench harvest``: both sides of lending are measured in one run."""

from __future__ import annotations

import json
import math
import os
import sys
from typing import Any

import pytest
from dayfly._bench_harvest import back_ms, quantile
from harness.programs import clean_environment, program, run

NUMBERS = [
    "borrower_gain",
    "borrower_share",
    "idle_used_share",
    "lender_slowdown_p50",
    "lender_slowdown_p99",
    "noise_p50",
    "noise_p99",
    "overhead_core_share",
    "owner_back_ms",
    "owner_back_p99_ms",
    "owner_back_watch_ms",
    "owner_back_watch_p99_ms",
    "recall_ms",
    "recall_p99_ms",
]


def measured(*options: str) -> Any:
    """Runs the measurement; skips the test where nothing can be lent."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("there is no second core to lend")
    command = [program(), "bench", "harvest", "--python", sys.executable, "--force", "--rounds", "1", "--bursts", "2"]
    found = run(*command, *options, env=clean_environment(), check=False, timeout=220)
    for why in ("This machine lends nothing", "the machine is too busy to measure"):
        if why in found.stderr:
            pytest.skip(why)
    return found


@pytest.mark.timeout(240)
def test_lender_and_borrower_are_measured() -> None:
    found = measured("--only", "upload", "--only", "dynamic_html", "--json")
    assert found.returncode == 0, found.stderr
    report = json.loads(found.stdout)
    assert all(math.isfinite(report[name]) for name in NUMBERS), report
    assert set(report["slowdown_p50_by_function"]) == {"upload", "dynamic_html"}
    assert report["lender_calls"] == 2
    assert report["bursts"] >= 1
    assert report["recall_ms"] > 0
    assert report["borrower_gain"] > 0.2
    assert report["overhead_calls"] > 0
    assert report["simulated"]["calls"] > 40, report
    assert report["simulated"]["live_p99_s"] > 0
    assert 0.5 < report["simulated"]["completion_ratio"] < 2
    assert report["noise"]["cores"] == len(os.sched_getaffinity(0))


def test_unknown_function_of_lender_is_refused() -> None:
    found = measured("--only", "nosuch")
    assert found.returncode != 0
    assert "There is no function nosuch. Choose from dynamic_html" in found.stderr


def test_core_is_back_with_first_full_window() -> None:
    def half_until(back: float) -> list[tuple[float, float]]:
        return [(at / 1e3, min(at / 1e3, back) / 2 + max(0.0, at / 1e3 - back)) for at in range(60)]

    assert back_ms(half_until(0.0)) == 0.0
    assert back_ms(half_until(0.02)) == pytest.approx(19.0, abs=1.1)
    never = [(at / 1e3, 0.0) for at in range(60)]
    assert back_ms(never) == 59.0


def test_quantile_is_a_sample() -> None:
    assert quantile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert quantile([3.0, 1.0, 2.0], 0.99) == 3.0
    assert quantile([], 0.5) == 0.0
