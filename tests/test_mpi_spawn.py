"""Dynamic processes of MPI: programs that start others, and worlds that connect to each other."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from harness.daemons import Daemon
from harness.leaks import die_with_parent, living, wait_until
from harness.mpi_ranks import SONAME, environment, library_directory, run_ranks
from harness.programs import ROOT, program, run

PROGRAMS = ROOT / "tests" / "mpi"
HEAD = "import os, sys\nfrom mpi4py import MPI\nworld, parent = MPI.COMM_WORLD, MPI.Comm.Get_parent()\n"


@pytest.fixture(scope="module")
def c_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("mpi") / "spawn_program"
    flags = ("-std=c11", "-Wall", "-Wextra", "-Werror", "-O1")
    compiler = os.environ.get("CC", "cc")
    run(compiler, *flags, PROGRAMS / "spawn_program.c", "-o", output, library_directory() / SONAME)
    return output


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str], Path]:
    """Returns a function that writes a program, which knows its world, its parent and the paths of others."""

    def write_program(name: str, text: str) -> Path:
        path = tmp_path / name
        path.write_text(f"{HEAD}there = {str(tmp_path)!r}\n{textwrap.dedent(text)}")
        return path

    return write_program


def run_alone(command: Sequence[str | Path], **variables: str) -> tuple[int, str]:
    """Runs a program without an invitation. Returns its status and its output."""
    done = subprocess.run(
        command,
        check=False,
        env=environment({}) | {"DAYFLY_GROUP": ""} | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
    )
    return done.returncode, done.stdout


def statuses(done: list[tuple[int, str]]) -> list[int]:
    return [status for status, _ in done]


@pytest.mark.parametrize("ranks", [1, 2])
def test_c_program_spawns_children_and_grandchildren(rendezvous: dict[str, Any], c_program: Path, ranks: int) -> None:
    done = run_ranks(rendezvous, [c_program], ranks)
    assert statuses(done) == [0] * ranks, done
    lines = sorted(line for _, output in done for line in output.splitlines())
    assert lines == sorted(["parent is done"] * ranks + ["child is done", "grandchild is done"] * 3)


def test_program_without_invitation_spawns(c_program: Path) -> None:
    status, output = run_alone([c_program])
    assert status == 0, output
    assert sorted(output.splitlines()) == sorted(["parent is done"] + ["child is done", "grandchild is done"] * 3)


def test_missing_program_is_error_on_all_ranks(rendezvous: dict[str, Any], write: Callable[[str, str], Path]) -> None:
    path = write(
        "parent.py",
        """
        codes = []
        try:
            world.Spawn("/no/such/program", maxprocs=2, root=1, errcodes=codes)
        except MPI.Exception as error:
            assert error.Get_error_class() == MPI.ERR_SPAWN, error
            print(error.Get_error_string())
        assert codes == [] or [MPI.Get_error_class(code) for code in codes] == [MPI.ERR_SPAWN] * 2, codes
        # The communicator works as before.
        assert world.allreduce(1) == world.size
        """,
    )
    done = run_ranks(rendezvous, [sys.executable, path], 3)
    assert statuses(done) == [0] * 3, done
    assert all("there is no program /no/such/program" in output for _, output in done), done


@pytest.mark.parametrize(
    ("pairs", "text"),
    [({"host": "another.example"}, "on the root's host only"), ({"wdir": "/no/such/directory"}, "does not exist")],
)
def test_unusable_info_is_spawn_error(
    rendezvous: dict[str, Any], write: Callable[[str, str], Path], pairs: dict[str, str], text: str
) -> None:
    path = write(
        "parent.py",
        f"""
        info = MPI.Info.Create()
        for key, value in {pairs!r}.items():
            info.Set(key, value)
        try:
            world.Spawn(sys.executable, ["-c", "from mpi4py import MPI"], info=info)
        except MPI.Exception as error:
            assert error.Get_error_class() == MPI.ERR_SPAWN
            print(error.Get_error_string())
        """,
    )
    ((status, output),) = run_ranks(rendezvous, [sys.executable, path], 1)
    assert status == 0, output
    assert text in output


def test_info_sets_directory_and_path(
    rendezvous: dict[str, Any], write: Callable[[str, str], Path], tmp_path: Path
) -> None:
    child = write("child.py", "parent.send((os.getcwd(), sys.argv[1:]), 0); parent.Disconnect()")
    child.write_text(f"#!{sys.executable}\n{child.read_text()}")
    child.chmod(0o755)
    (tmp_path / "elsewhere").mkdir()
    path = write(
        "parent.py",
        """
        info = MPI.Info.Create()
        info.Set("wdir", f"{there}/elsewhere")
        info.Set("path", there)
        child = world.Spawn("child.py", ["a b", ""], info=info)
        directory, arguments = child.recv()
        assert directory == f"{there}/elsewhere", directory
        assert arguments == ["a b", ""], arguments
        child.Disconnect()
        """,
    )
    done = run_ranks(rendezvous, [sys.executable, path], 1)
    assert statuses(done) == [0], done


def test_program_without_mpi_is_spawn_error(rendezvous: dict[str, Any], write: Callable[[str, str], Path]) -> None:
    path = write(
        "parent.py",
        """
        try:
            # The other process waits for this one in vain, and must not be left.
            world.Spawn_multiple(["false", sys.executable], [[], ["-c", "from mpi4py import MPI"]], [1, 1])
        except MPI.Exception as error:
            assert error.Get_error_class() == MPI.ERR_SPAWN
            print(error.Get_error_string())
        """,
    )
    done = run_ranks(rendezvous, [sys.executable, path], 2)
    assert statuses(done) == [0, 0], done
    assert all("process 0 of 2 did not get through MPI_Init (exit status: 1)" in text for _, text in done), done


def test_killed_child_is_reported_to_parents(rendezvous: dict[str, Any], write: Callable[[str, str], Path]) -> None:
    child = write(
        "child.py",
        """
        parent.Barrier()
        if world.rank == 1:
            os.kill(os.getpid(), 9)
        try:
            parent.recv(source=0)
        except MPI.Exception:
            pass
        """,
    )
    path = write(
        "parent.py",
        f"""
        child = world.Spawn(sys.executable, [{str(child)!r}], maxprocs=2)
        child.Barrier()
        try:
            child.recv(source=1)
        except MPI.Exception as error:
            print(error)
        child.Free()
        """,
    )
    done = run_ranks(rendezvous, [sys.executable, path], 2)
    assert statuses(done) == [0, 0], done
    assert all("MPIX_ERR_PROC_FAILED" in text for _, text in done), done


@pytest.mark.parametrize("disconnects", [False, True])
def test_killed_parent_ends_connected_children_only(
    rendezvous: dict[str, Any], write: Callable[[str, str], Path], tmp_path: Path, disconnects: bool
) -> None:
    os.mkfifo(tmp_path / "pid")
    os.mkfifo(tmp_path / "end")
    child = write(
        "child.py",
        f"""
        if {disconnects}:
            parent.Disconnect()
        with open(f"{{there}}/pid", "w") as file:
            file.write(str(os.getpid()))
        open(f"{{there}}/end").read()
        """,
    )
    path = write(
        "parent.py",
        f"""
        child = world.Spawn(sys.executable, [{str(child)!r}])
        if {disconnects}:
            child.Disconnect()
        world.recv(source=0)
        """,
    )
    group = {"rendezvous": rendezvous["addresses"][0], "key": rendezvous["key"], "name": tmp_path.name}
    group |= {"secret": "ab" * 32, "size": 1, "spin_us": 500}
    process = subprocess.Popen(
        [sys.executable, path],
        env=environment(group),
        preexec_fn=die_with_parent,  # noqa: PLW1509 (one call, loaded before)
    )
    pid = int((tmp_path / "pid").read_text())
    process.send_signal(signal.SIGKILL)
    process.wait(10)
    if disconnects:
        # The child waits for this file, which it would not open if it had ended.
        (tmp_path / "end").write_text("")
    wait_until(lambda: not living([pid]), "the child ends")


def test_finalize_waits_for_connected_processes(rendezvous: dict[str, Any], write: Callable[[str, str], Path]) -> None:
    child = write("child.py", "parent.send(world.rank, 0)")
    path = write(
        "parent.py",
        f"""
        child = world.Spawn(sys.executable, [{str(child)!r}], maxprocs=2)
        if world.rank == 0:
            print(sorted(child.recv() for _ in range(2)))
        """,
    )
    done = run_ranks(rendezvous, [sys.executable, path], 2)
    assert done == [(0, "[0, 1]\n"), (0, "")]


def test_waits_move_bytes_of_all_groups(rendezvous: dict[str, Any], write: Callable[[str, str], Path]) -> None:
    # Rank 0 waits in its world while a child sends it more than is sent ahead, and rank 1 waits for that child.
    child = write(
        "child.py",
        """
        parent.Ssend(bytes(1 << 24), 0, 1)
        parent.send("sent", 1)
        parent.Disconnect()
        """,
    )
    path = write(
        "parent.py",
        f"""
        child = world.Spawn(sys.executable, [{str(child)!r}])
        room = bytearray(1 << 24)
        if world.rank == 0:
            request = child.Irecv(room, 0, 1)
            world.recv(source=1)
            assert request.Test()
        else:
            world.send(child.recv(source=0), 0)
        child.Disconnect()
        """,
    )
    done = run_ranks(rendezvous, [sys.executable, path], 2)
    assert statuses(done) == [0, 0], done


def test_merged_worlds_have_windows_and_groups(rendezvous: dict[str, Any], write: Callable[[str, str], Path]) -> None:
    path = write(
        "program.py",
        """
        between = parent
        if parent == MPI.COMM_NULL:
            between = world.Spawn(sys.executable, [__file__], maxprocs=2)
        both = between.Merge(high=parent != MPI.COMM_NULL)
        assert both.size == 4
        # A process has one number, over whatever group it is reached.
        mine, all_of_us = world.Get_group(), both.Get_group()
        first = 0 if parent == MPI.COMM_NULL else 2
        assert mine.Translate_ranks([0, 1], all_of_us) == [first, first + 1]
        assert MPI.Group.Intersection(mine, all_of_us).size == 2
        assert MPI.Group.Compare(mine, between.Get_group()) == MPI.IDENT
        halves = both.Split(both.rank % 2)
        assert halves.allreduce(both.rank) == (2 if both.rank % 2 == 0 else 4)
        some = both.Create_group(all_of_us.Incl([1, 3, 0]))
        assert (some == MPI.COMM_NULL) == (both.rank == 2)
        memory = bytearray(4)
        window = MPI.Win.Create(memory, comm=both)
        window.Fence()
        window.Put(bytes([both.rank + 1]), (both.rank + 1) % 4, both.rank)
        window.Fence()
        assert memory[(both.rank - 1) % 4] == (both.rank - 1) % 4 + 1, memory
        window.Free()
        for comm in (halves, some, both):
            if comm != MPI.COMM_NULL:
                comm.Free()
        between.Disconnect()
        """,
    )
    done = run_ranks(rendezvous, [sys.executable, path], 2)
    assert statuses(done) == [0, 0], done


def test_siblings_connect_through_their_parent(rendezvous: dict[str, Any], write: Callable[[str, str], Path]) -> None:
    # Two worlds of children know each other through one communicator in common: a peer that reaches both leaders.
    path = write(
        "program.py",
        """
        if parent == MPI.COMM_NULL:
            between = world.Spawn(sys.executable, [__file__, "spawned"], maxprocs=2)
            both = between.Merge()
            # The parents' world and the children's are different groups, with leaders in `both`.
            across = world.Create_intercomm(0, both, 2, 5)
        else:
            both = parent.Merge(high=True)
            across = world.Create_intercomm(0, both, 0, 5)
        assert (across.size, across.remote_size) == (2, 2)
        assert sorted(across.allgather(both.rank)) == ([2, 3] if parent == MPI.COMM_NULL else [0, 1])
        across.Disconnect()
        both.Disconnect()
        (between if parent == MPI.COMM_NULL else parent).Disconnect()
        """,
    )
    done = run_ranks(rendezvous, [sys.executable, path], 2)
    assert statuses(done) == [0, 0], done


def test_independent_groups_connect_at_a_port(
    rendezvous: dict[str, Any], write: Callable[[str, str], Path], tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "port")
    server = write(
        "server.py",
        """
        port = None
        if world.rank == 0:
            port = MPI.Open_port()
            with open(f"{there}/port", "w") as file:
                file.write(f"{port}\\n" * 2)
        for _ in range(2):
            client = world.Accept(port, root=0)
            assert client.size == 2
            print(client.remote_size, sum(client.allgather(world.rank)), flush=True)
            client.Disconnect()
        if world.rank == 0:
            MPI.Close_port(port)
        """,
    )
    client = write(
        "client.py",
        """
        port = os.environ["PORT"] if world.rank == 0 else None
        server = world.Connect(port, root=0)
        assert (server.size, server.remote_size) == (world.size, 2)
        print(sum(server.allgather(10)), flush=True)
        server.Disconnect()
        """,
    )
    with ThreadPoolExecutor(3) as pool:
        serving = pool.submit(run_ranks, rendezvous, [sys.executable, server], 2)
        port = (tmp_path / "port").read_text().splitlines()[0]
        # Both come at once: one after the other is accepted.
        clients = [pool.submit(run_ranks, rendezvous, [sys.executable, client], size, PORT=port) for size in (1, 3)]
        for connected in clients:
            assert all(done == (0, "1\n") for done in connected.result()), connected.result()
        for done in serving.result():
            assert done[0] == 0, done
            assert sorted(done[1].splitlines()) == ["1 10", "3 30"], done


def test_port_without_acceptor_is_port_error(rendezvous: dict[str, Any], write: Callable[[str, str], Path]) -> None:
    path = write(
        "program.py",
        """
        info = MPI.Info.Create()
        info.Set("timeout", "1")
        port = MPI.Open_port()
        for name in (port, "not-a-port", f"{port}0"):
            try:
                world.Connect(name, info)
            except MPI.Exception as error:
                assert error.Get_error_class() == MPI.ERR_PORT, error
                print(error.Get_error_string())
        try:
            world.Accept(port, info)
        except MPI.Exception as error:
            print(error.Get_error_string())
        MPI.Close_port(port)
        try:
            world.Accept(port)
        except MPI.Exception as error:
            assert error.Get_error_class() == MPI.ERR_PORT
        """,
    )
    ((status, output),) = run_ranks(rendezvous, [sys.executable, path], 1)
    assert status == 0, output
    assert output.count("nothing accepts at the port") == 1
    assert output.count("the text is no name of a port") == 2
    assert output.count("nothing has connected to the port within 1 s") == 1


def test_names_are_seen_by_program_and_children(rendezvous: dict[str, Any], write: Callable[[str, str], Path]) -> None:
    path = write(
        "program.py",
        """
        def outcome(call, *arguments):
            try:
                return call(*arguments)
            except MPI.Exception as error:
                return error.Get_error_class()

        if parent != MPI.COMM_NULL:
            parent.send(outcome(MPI.Lookup_name, "service"), 0)
            MPI.Publish_name("of the child", "port of the child")
            parent.Disconnect()
            sys.exit()
        port = MPI.Open_port()
        assert outcome(MPI.Lookup_name, "service") == MPI.ERR_NAME
        MPI.Publish_name("service", port)
        MPI.Publish_name("service", port)
        assert outcome(MPI.Publish_name, "service", "another") == MPI.ERR_SERVICE
        child = world.Spawn(sys.executable, [__file__])
        assert child.recv() == port
        child.Disconnect()
        assert MPI.Lookup_name("of the child") == "port of the child"
        MPI.Unpublish_name("service", port)
        assert outcome(MPI.Unpublish_name, "service", port) == MPI.ERR_SERVICE
        assert outcome(MPI.Lookup_name, "service") == MPI.ERR_NAME
        MPI.Publish_name("service", port)
        """,
    )
    for _ in range(2):
        # The second program does not see the name that the first one has left.
        done = run_ranks(rendezvous, [sys.executable, path], 1)
        assert statuses(done) == [0], done
    status, output = run_alone([sys.executable, path])
    assert status == 0, output


def test_programs_join_over_a_socket(write: Callable[[str, str], Path]) -> None:
    path = write(
        "program.py",
        """
        descriptor = int(os.environ["SOCKET"])
        other = MPI.Comm.Join(descriptor)
        assert (other.size, other.remote_size) == (1, 1)
        print(other.sendrecv(os.environ["NAME"], 0, source=0))
        other.Disconnect()
        # The socket is the program's again, and empty.
        os.write(descriptor, b"x")
        assert os.read(descriptor, 2) == b"x"
        """,
    )
    ends = socket.socketpair()
    processes = [
        subprocess.Popen(
            [sys.executable, path],
            env=environment({}) | {"DAYFLY_GROUP": "", "SOCKET": str(end.fileno()), "NAME": name},
            pass_fds=[end.fileno()],
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509 (one call, loaded before)
        )
        for end, name in zip(ends, ("one", "two"), strict=True)
    ]
    for end in ends:
        end.close()
    outputs = [process.communicate(timeout=60)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert outputs == ["two\n", "one\n"]


def test_ranks_of_dayfly_run_spawn(start: Callable[..., Daemon], c_program: Path, tmp_path: Path) -> None:
    site = start("up", "--listen", "127.0.0.1:0", "--sandbox", "process")
    variables = site.client_environment() | {"DAYFLY_PYTHON": sys.executable}
    done = run(program(), "run", "-n", "2", c_program, env=variables, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = sorted(line.partition("] ")[2] for line in done.stdout.splitlines())
    assert lines == sorted(["parent is done"] * 2 + ["child is done", "grandchild is done"] * 3)
