"""``dayfly run``: programs on many ranks, from the shell."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness.daemons import Daemon
from harness.leaks import die_with_parent
from harness.programs import clean_environment, program, run


def ranks(site: Daemon, *args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = site.client_environment() | {"DAYFLY_PYTHON": sys.executable}
    return run(program(), "run", *args, env=environment, cwd=cwd, check=False)


@pytest.fixture
def site(start: Callable[..., Daemon]) -> Daemon:
    return start("up", "--listen", "127.0.0.1:0", "--sandbox", "process")


def write(path: Path, text: str) -> Path:
    path.write_text(textwrap.dedent(text))
    return path


def test_output_lines_of_a_script_name_their_rank(site: Daemon, tmp_path: Path) -> None:
    write(
        tmp_path / "sum.py",
        """
        import sys
        from dayfly import MPI
        comm = MPI.COMM_WORLD
        print(comm.allreduce(comm.rank), *sys.argv[1:])
        print("to standard error", file=sys.stderr)
        """,
    )
    done = ranks(site, "-n", "3", "sum.py", "--depth", "2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"[{rank}] 3 --depth 2" for rank in range(3)]
    assert sorted(done.stderr.splitlines()) == [f"[{rank}] to standard error" for rank in range(3)]


def test_directory_program_and_function_run_on_ranks(site: Daemon, tmp_path: Path) -> None:
    folder = tmp_path / "solver"
    folder.mkdir()
    write(folder / "__main__.py", "import part; part.work()")
    write(
        folder / "part.py",
        """
        from dayfly import MPI
        def work(*args):
            print(MPI.COMM_WORLD.allgather("x"))
        """,
    )
    done = ranks(site, "-n", "2", "--no-label", "solver", cwd=tmp_path)
    assert done.stdout == "['x', 'x']\n" * 2, done.stderr
    script = write(tmp_path / "say.sh", "#!/bin/sh\necho $# $PWD\n")
    script.chmod(0o755)
    done = ranks(site, "-n", "2", "./say.sh", "a", "b", cwd=tmp_path)
    assert sorted(done.stdout.splitlines()) == [f"[{rank}] 2 {tmp_path}" for rank in range(2)], done.stderr
    write(
        tmp_path / "functions.py",
        """
        from dayfly import MPI
        def work(*args):
            return {"rank": MPI.COMM_WORLD.rank, "args": args}
        """,
    )
    done = ranks(site, "-n", "2", "--json", "functions:work", "a", cwd=tmp_path)
    results = [json.loads(line)["result"] for line in done.stdout.splitlines()]
    assert results == [{"rank": rank, "args": ["a"]} for rank in range(2)], done.stderr


def test_failed_rank_sets_exit_status_and_ends_others(site: Daemon, tmp_path: Path) -> None:
    for failure, status in (("sys.exit(3)", 3), ("raise ValueError('on purpose')", 1), ("comm.send(1, dest=5)", 1)):
        write(
            tmp_path / "fail.py",
            f"""
            import sys, time
            from mpi4py import MPI
            comm = MPI.COMM_WORLD
            def work():
                {failure}
            if comm.rank == 1:
                work()
            try:
                comm.recv(source=1)
            except MPI.Exception:
                time.sleep(0.5)  # what follows from a failure comes after it, however busy the machine is
                raise
            """,
        )
        begin = time.monotonic()
        done = ranks(site, "-n", "2", "--json", "fail.py", cwd=tmp_path)
        assert time.monotonic() - begin < 30
        assert json.loads(done.stdout)["statuses"] == [1, status], done.stderr
        assert done.returncode == status
        assert f"rank 1 ended with status {status}" in done.stderr
        assert "rank 1 is lost" in done.stderr
        traceback = [line for line in done.stderr.splitlines() if line.startswith("[1]")]
        assert status == 3 or "fail.py" in traceback[1], traceback


def test_timeout_and_missing_program_are_reported(site: Daemon, tmp_path: Path) -> None:
    done = ranks(site, "-n", "2", "--timeout", "1s", "--json", "/bin/sleep", "60", cwd=tmp_path)
    assert done.returncode == 3
    assert json.loads(done.stderr.splitlines()[-1])["error"]["code"] == "timed_out"
    done = ranks(site, "-n", "2", "missing.py", cwd=tmp_path)
    assert done.returncode == 2
    assert "there is no missing.py" in done.stderr


def test_shell_processes_meet_at_a_standalone_rendezvous(rendezvous: dict[str, Any]) -> None:
    group = {
        "rendezvous": rendezvous["addresses"][0],
        "key": rendezvous["key"],
        "name": "mine",
        "secret": "ab" * 32,
        "size": 2,
    }
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", "from dayfly import MPI; print(MPI.COMM_WORLD.allgather(1))"],
            stdout=subprocess.PIPE,
            text=True,
            env=clean_environment(DAYFLY_GROUP=json.dumps(group)) | {"HOME": os.environ.get("HOME", "/")},
            preexec_fn=die_with_parent,  # noqa: PLW1509 (one call, loaded before)
        )
        for _ in range(2)
    ]
    assert [process.communicate(timeout=60)[0] for process in processes] == ["[1, 1]\n"] * 2
