"""Output of workers: the holder of the lease reads it during and after calls, and no one else does."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import threading
from pathlib import Path

import cloudpickle
import dayfly
import pytest
from dayfly import _output
from harness.compilers import compile_source
from harness.daemons import Daemon
from harness.leaks import die_with_parent, wait_until
from harness.programs import program, run

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def speak(text: str) -> None:
    print(text)
    print(text.upper(), file=sys.stderr)


@pytest.mark.parametrize("sandbox", ["process", "isolated"])
def test_output_is_read_by_stream_and_afterwards(client, sandbox):
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


SAYS = r"""
#include <stdint.h>
#include <stdio.h>
uint32_t say(void *in, uint32_t size, void *out) {
    (void)out;
    printf("%.*s\n", (int)size, (const char *)in);
    fprintf(stderr, "aside\n");
    fflush(stdout);
    return 0;
}
"""

C_READER = r"""
#include <dayfly.h>
#include <stdio.h>
#include <string.h>
#define FAIL fprintf(stderr, "%s\n", dfly_last_error_message())
#define CHECK(call) do { if ((call) != DFLY_OK) { FAIL; return 1; } } while (0)
int main(int argc, char **argv) {
    dfly_client *client; dfly_lease *lease; dfly_channel *channel; dfly_printed *printed; dfly_code code;
    uint16_t index;
    uint32_t stream;
    char bytes[3], all[2][200] = {"", ""};
    size_t length;
    dfly_lease_options options;
    CHECK(dfly_client_connect(argc > 2 ? argv[2] : NULL, &client));
    CHECK(dfly_lease_options_init(&options));
    options.mode = DFLY_MODE_WARM;
    CHECK(dfly_lease_open(client, &options, &lease));
    CHECK(dfly_lease_load_library(lease, argv[1], &code));
    CHECK(dfly_channel_open(lease, 0, NULL, &channel));
    CHECK(dfly_channel_load(channel, &code, "say", DFLY_FORM_PLAIN, &index));
    CHECK(dfly_channel_call(channel, index, 0, "from C", 6, NULL, 0, &length));
    CHECK(dfly_printed_open(lease, &printed));
    while (strlen(all[0]) < 7 || strlen(all[1]) < 6) {
        CHECK(dfly_printed_read(printed, 5000, bytes, sizeof bytes, &length, &stream));
        strncat(all[stream - 1], bytes, length);
    }
    CHECK(dfly_lease_release(lease));
    while (!dfly_printed_is_over(printed)) CHECK(dfly_printed_read(printed, 5000, bytes, sizeof bytes, &length, NULL));
    printf("%s%s%llu missed\n", all[0], all[1], (unsigned long long)dfly_printed_missed(printed));
    dfly_printed_free(printed); dfly_channel_free(channel); dfly_lease_free(lease); dfly_client_free(client);
    return 0;
}
"""

CXX_READER = r"""
#include <iostream>
#include <dayfly/dayfly.hpp>
int main(int argc, char **argv) {
    dayfly::client client(argc > 2 ? argv[2] : "");
    dayfly::lease_options options;
    options.mode = dayfly::mode::warm;
    dayfly::lease lease = client.lease(options);
    dayfly::channel channel(lease, 0);
    auto say = channel.load(lease.load_library(argv[1]), "say");
    channel.call(say, "from C++", 8, nullptr, 0);
    dayfly::printed printed = lease.output();
    std::string out, err;
    while (out.size() < 9 || err.size() < 6) {
        auto piece = printed.next(std::chrono::seconds(5));
        (piece.second ? err : out) += piece.first;
    }
    std::cout << out << err << printed.missed() << " missed\n";
}
"""


@pytest.fixture
def says(tmp_path: Path) -> Path:
    (tmp_path / "says.c").write_text(SAYS)
    return compile_source(tmp_path / "says.c", tmp_path / "says.so")


@pytest.mark.parametrize(("suffix", "source"), [("c", C_READER), ("cpp", CXX_READER)])
def test_c_and_cxx_programs_read_worker_output(
    up: Daemon, says: Path, tmp_path: Path, suffix: str, source: str
) -> None:
    (tmp_path / f"reader.{suffix}").write_text(source)
    reader = compile_source(tmp_path / f"reader.{suffix}", tmp_path / "reader")
    spoken = "from C" if suffix == "c" else "from C++"
    assert run(reader, says, up.state).stdout == f"{spoken}\naside\n0 missed\n"


def test_command_shows_the_output_of_a_lease(up: Daemon, says: Path, tmp_path: Path) -> None:
    kept = tmp_path / "lease.json"
    lease = up.cli("lease", "create", "--mode", "warm", "--output", str(kept))["grant"]["lease"]
    at = ("--manager", str(up.state))
    run(program(), "invoke", *at, "--lease", kept, says, "say", "--input", "first")
    shown = run(program(), "lease", "output", *at, kept)
    assert (shown.stdout, shown.stderr) == ("first\n", "aside\n")
    follower = subprocess.Popen(
        [program(), "lease", "output", *at, kept, "--follow"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=die_with_parent,  # noqa: PLW1509 (one call, loaded before)
    )
    assert follower.stdout is not None
    assert follower.stdout.readline() == "first\n"
    run(program(), "invoke", *at, "--lease", kept, says, "say", "--input", "second")
    assert follower.stdout.readline() == "second\n"
    up.cli("lease", "release", lease)
    assert follower.communicate(timeout=20) == ("", "aside\naside\n")
    assert follower.returncode == 0


def say_and_wait(text: str, until: str) -> str:
    print(text)
    with open(until) as pipe:
        return pipe.read()


def test_output_is_shown_during_the_call(up: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    screen = io.StringIO()
    monkeypatch.setattr(sys, "stdout", screen)
    fifo = tmp_path / "go"
    os.mkfifo(fifo)
    with dayfly.connect(up.state) as client, client.lease(mode="warm", echo=True) as lease:
        future = lease.submit(say_and_wait, "under way…", str(fifo))
        wait_until(lambda: "under way…\n" in screen.getvalue(), "it is shown")
        assert not future.done()
        fifo.write_text("go")
        assert future.result() == "go"
        lease.call(speak, "last words")
    assert screen.getvalue() == "under way…\nlast words\n"
    assert not [thread for thread in threading.enumerate() if thread.name == "dayfly output"]


def die(text: str) -> None:
    print(text)
    os._exit(3)


def test_output_before_a_workers_death_is_kept(client):
    with client.lease(mode="warm") as lease:
        with pytest.raises(dayfly.WorkerDied):
            lease.call(die, "farewell")
        lease.call(speak, "the next one")
        wait_until(lambda: "THE NEXT ONE" in lease.output(), "both are read")
        assert lease.output("out") == "farewell\nthe next one\n"


def print_much(lines: int) -> None:
    for number in range(lines):
        print(f"line {number:07}")


def test_end_of_excessive_output_is_kept(client):
    with client.lease(mode="warm") as lease:
        lease.call(print_much, 100_000)
        wait_until(lambda: "line 0099999" in lease.output(), "the last line comes")
        kept = lease.output()
        assert len(kept) <= 256 << 10
        assert len(kept) > 240 << 10
        lines = kept.splitlines()
        assert lines[1:] == [f"line {number:07}" for number in range(100_001 - len(lines), 100_000)]


def test_slow_reader_learns_how_much_it_missed(client, capsys: pytest.CaptureFixture[str]):
    with client.lease(mode="warm") as lease:
        lease.call(print_much, 100_000)
        wait_until(lambda: "line 0099999" in lease.output(), "the last line comes")
        # From the beginning, which is no longer kept.
        echo = _output.Echo(lease._native)
    echo.finish()
    shown = capsys.readouterr()
    assert "bytes of output came too fast to be kept" in shown.err
    assert shown.out.endswith("line 0099999\n")


def test_following_output_stops_when_the_lease_expires(client):
    lease = client.lease(mode="warm", duration=1, echo=True)
    lease.call(speak, "short")
    # Its thread ends by itself instead of asking forever.
    wait_until(lambda: not [t for t in threading.enumerate() if t.name == "dayfly output"], "nobody follows it", 20)
    lease.shutdown()


def peek(part: dayfly.Delegation) -> str:
    with part.open() as workers:
        try:
            workers.output()
        except dayfly.Error as error:
            return error.code
    return "it was read"


def test_delegation_reads_only_its_own_workers_output(client):
    with client.lease(2, mode="warm") as lease:
        lease.call(speak, "secret")
        with lease.delegate(1) as part:
            assert lease.call(peek, part) == "unauthorized"
