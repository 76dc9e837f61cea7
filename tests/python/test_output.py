"""What workers print, read by whoever has their lease: live, afterwards, and not by others."""

from __future__ import annotations

import io
import os
import sys
import threading
from pathlib import Path

import cloudpickle
import mayfly
import pytest
from harness.daemons import Daemon
from harness.leaks import wait_until
from mayfly import _output

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def speak(text: str) -> None:
    print(text)
    print(text.upper(), file=sys.stderr)


@pytest.mark.parametrize("sandbox", ["process", "isolated"])
def test_what_workers_printed_is_read_whole_or_by_stream_also_after_the_end(client, sandbox):
    with client.lease(mode="warm", sandbox=sandbox) as lease:
        lease.call(speak, "apple")
        lease.call(speak, "pear")
        wait_until(lambda: "PEAR" in lease.output(), "the last line comes")
        assert lease.output("out") == "apple\npear\n"
        assert lease.output("err") == "APPLE\nPEAR\n"
        assert sorted(lease.output().split()) == ["APPLE", "PEAR", "apple", "pear"]
        with pytest.raises(ValueError, match="'out', 'err'"):
            lease.output("both")
    assert lease.output("out") == "apple\npear\n"


def say_and_wait(text: str, until: str) -> str:
    print(text)
    with open(until) as pipe:
        return pipe.read()


def test_output_is_shown_while_the_call_still_runs(up: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    screen = io.StringIO()
    monkeypatch.setattr(sys, "stdout", screen)
    fifo = tmp_path / "go"
    os.mkfifo(fifo)
    with mayfly.connect(up.state) as client, client.lease(mode="warm", echo=True) as lease:
        future = lease.submit(say_and_wait, "under way…", str(fifo))
        wait_until(lambda: "under way…\n" in screen.getvalue(), "it is shown")
        assert not future.done()
        fifo.write_text("go")
        assert future.result() == "go"
        lease.call(speak, "last words")
    assert screen.getvalue() == "under way…\nlast words\n"
    assert not [thread for thread in threading.enumerate() if thread.name == "mayfly output"]


def die(text: str) -> None:
    print(text)
    os._exit(3)


def test_what_a_worker_printed_before_it_died_is_not_lost(client):
    with client.lease(mode="warm") as lease:
        with pytest.raises(mayfly.WorkerDied):
            lease.call(die, "farewell")
        lease.call(speak, "the next one")
        wait_until(lambda: "THE NEXT ONE" in lease.output(), "both are read")
        assert lease.output("out") == "farewell\nthe next one\n"


def print_much(lines: int) -> None:
    for number in range(lines):
        print(f"line {number:07}")


def test_of_too_much_the_last_is_kept(client):
    with client.lease(mode="warm") as lease:
        lease.call(print_much, 100_000)
        wait_until(lambda: "line 0099999" in lease.output(), "the last line comes")
        kept = lease.output()
        assert len(kept) <= 256 << 10
        assert len(kept) > 240 << 10
        lines = kept.splitlines()
        assert lines[1:] == [f"line {number:07}" for number in range(100_001 - len(lines), 100_000)]


def test_a_reader_that_is_too_slow_is_told_what_it_missed(client, capsys: pytest.CaptureFixture[str]):
    with client.lease(mode="warm") as lease:
        lease.call(print_much, 100_000)
        wait_until(lambda: "line 0099999" in lease.output(), "the last line comes")
        # From the beginning, which is not kept any more.
        echo = _output.Echo(lease._native)
    echo.finish()
    shown = capsys.readouterr()
    assert "bytes of output came too fast to be kept" in shown.err
    assert shown.out.endswith("line 0099999\n")


def test_who_follows_a_lease_that_expires_stops_with_it(client):
    lease = client.lease(mode="warm", duration=1, echo=True)
    lease.call(speak, "short")
    # Its thread ends by itself, rather than ask for ever.
    wait_until(lambda: not [t for t in threading.enumerate() if t.name == "mayfly output"], "nobody follows it", 20)
    lease.shutdown()


def peek(part: mayfly.Delegation) -> str:
    with part.open() as workers:
        try:
            workers.output()
        except mayfly.Error as error:
            return error.code
    return "it was read"


def test_whoever_has_a_part_of_a_lease_does_not_read_what_the_rest_of_it_prints(client):
    with client.lease(2, mode="warm") as lease:
        lease.call(speak, "secret")
        with lease.delegate(1) as part:
            assert lease.call(peek, part) == "unauthorized"
