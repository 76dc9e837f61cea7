"""The bill of calls that were made: by lease, and by function."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.compilers import compile_source
from harness.daemons import Daemon
from harness.leaks import wait_until
from harness.programs import run_python

CALLS = """
    import os, sys, time
    import dayfly

    def work(seconds):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            pass

    def fail():
        raise ValueError("on purpose")

    with dayfly.connect() as client, client.lease(workers=2, mode="warm") as lease:
        lease.call(work, 0.05)
        list(lease.map(work, [0.01] * 10, chunksize=5))
        try:
            lease.call(fail)
        except ValueError:
            pass
        try:
            # Its worker dies with it, and the next one counts on.
            lease.call(os._exit, 1)
        except dayfly.WorkerDied:
            pass
        lease.call(work, 0.05)
        lease.library(sys.argv[1]).area(b"123456")
"""


def test_bill_by_function_adds_up_to_the_leases(start: Callable[..., Daemon], tmp_path: Path) -> None:
    site = start("up", "--listen", "127.0.0.1:0", "--sandbox", "process")
    site.cli("prices", "--price-computing", "1", "--price-allocation", "1")
    source = tmp_path / "area.c"
    source.write_text(
        "int area(void* in, unsigned size, void* out) { (void)in; (void)out; return size > 0 ? 1 : 0; }\n"
    )
    run_python(CALLS, str(compile_source(source, tmp_path / "area.so")), **site.client_environment())

    def bill(*args: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = site.cli("bill", *args)
        return found

    wait_until(lambda: bill()[0]["state"] == "released" and bill()[0]["usage"]["calls"] > 5, "the last booking")
    by_function = {line["what"].partition("@")[0]: line for line in bill("--by", "function")}
    assert set(by_function) == {"-", "work", "fail", "posix._exit", "area"}, json.dumps(by_function, indent=1)
    # Two calls and a map of two chunks.
    work = by_function["work"]
    assert (work["calls"], work["failures"]) == (4, 0)
    assert 190_000 <= work["computing_us"] < 2_000_000
    assert (by_function["fail"]["calls"], by_function["fail"]["failures"]) == (1, 1)
    assert (by_function["posix._exit"]["calls"], by_function["posix._exit"]["failures"]) == (1, 1)
    assert by_function["area"]["calls"] == 1
    for what in ("total", "computing", "calls", "failures", "computing_us", "allocation"):
        assert sum(line[what] for line in by_function.values()) == bill("--by", "tenant")[0][what], what
