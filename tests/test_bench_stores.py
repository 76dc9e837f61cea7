"""``dayfly bench comm`` through a store: a directory here; how fast is not asked."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness.programs import run_json


def test_store_is_compared_with_tcp_and_the_model(tmp_path: Path) -> None:
    asked = ("--op", "allreduce", "--ranks", "2", "--transport", "file", "--store", f"file://{tmp_path}")
    sizes = ("--least", "8", "--most", "4K", "--step", "512", "--rounds", "1")
    prices = ("--prices", "put=0.5,rank-hour=3600")
    report = run_json("bench", "comm", *asked, *sizes, *prices, timeout=120)
    assert report["transport"] == "file"
    assert report["stored"]["latency_s"] > 0 < report["direct"]["latency_s"]
    assert report["stored"]["bytes_per_s"] > 0 < report["direct"]["bytes_per_s"]
    assert [row["bytes"] for row in report["rows"]] == [8, 4096]
    for row in report["rows"]:
        assert row["ratio"] == pytest.approx(row["stored"]["us"] / row["direct"]["us"], rel=0.01)
        assert row["stored"]["predicted_us"] > 0 < row["direct"]["predicted_us"]
        # One object from each of two ranks, and both ranks' time.
        seconds = row["stored"]["predicted_us"] / 1e6
        assert row["stored"]["price"] == pytest.approx(2 * 0.5 + 2 * seconds, rel=1e-6)
        assert row["direct"]["puts"] == 0
    assert not any(tmp_path.rglob("*")), "nothing is left in the store"
