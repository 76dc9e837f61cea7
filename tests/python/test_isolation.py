"""Isolated workers: what they can do, and what the sandbox prevents."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import dayfly
import numpy as np
import pytest
from harness.programs import ROOT, run_python


@pytest.fixture(scope="module")
def client():
    with dayfly.connect() as client:
        yield client


@pytest.fixture(scope="module")
def lease(client, level):
    with client.lease(workers=2, mode="warm", **level, memory=512 << 20) as lease:
        yield lease


def test_isolated_workers_run_functions(lease, level):
    assert lease.submit(pow, 2, 10).result() == 1024
    assert list(lease.map(lambda x: x * x, range(1000))) == [x * x for x in range(1000)]
    if "image" in level:
        # The image has no NumPy, or another version.
        return
    big = np.arange(1 << 20, dtype=np.int64)
    assert lease.submit(np.sum, big).result() == big.sum()
    assert (lease.submit(np.square, big).result() == big * big).all()


def test_lease_reports_its_sandbox(client, lease, level):
    (shown,) = [entry for entry in client.leases() if entry["lease"] == lease.id]
    assert shown["sandbox"] == level["sandbox"]
    assert shown.get("image") == (str(level["image"]) if "image" in level else None)


@pytest.mark.parametrize("transport", ["shm", "tcp", "tls"])
def test_workers_without_network_use_every_transport(client, level, transport):
    with client.lease(**level, mode="warm", transport=transport) as lease:
        assert lease.transport == transport
        assert lease.submit(len, b"x" * (1 << 20)).result() == 1 << 20


def dial_with_own_connection(address):
    """Tries to reconnect every TCP socket of this process to another peer, and returns the results."""
    import ctypes
    import os
    import socket
    import stat
    import struct

    libc = ctypes.CDLL(None, use_errno=True)
    turned = 0
    for descriptor in range(3, 64):
        try:
            if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                continue
            with socket.socket(fileno=os.dup(descriptor)) as own:
                if own.family not in (socket.AF_INET, socket.AF_INET6):
                    continue
                own.setblocking(False)
                turned += libc.connect(own.fileno(), struct.pack("H14x", socket.AF_UNSPEC), 16) == 0
                own.connect_ex(address)
        except OSError:
            pass
    return turned


@pytest.mark.parametrize("transport", ["tcp", "tls"])
def test_worker_cannot_connect_with_its_channels_socket(client, level, transport):
    import socket

    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        client.lease(**level, mode="warm", transport=transport) as lease,
    ):
        # The client loses the worker, because the worker breaks its own connection.
        with pytest.raises(dayfly.Error):
            lease.submit(dial_with_own_connection, server.getsockname()).result(timeout=20)
        server.settimeout(1)
        with pytest.raises(TimeoutError):
            server.accept()


def test_hot_isolated_worker_has_its_own_core(client, level):
    with client.lease(**level, mode="hot") as lease:
        assert len(lease.submit(os.sched_getaffinity, 0).result()) == 1


def test_worker_sees_no_foreign_files_processes_or_memory(lease, level, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("mine")

    def look(path):
        import glob
        import os

        found = [path] if os.path.exists(path) else []
        found += glob.glob("/root/*") + glob.glob("/home/*") + glob.glob("/var/*")
        found += [name for name in os.listdir("/proc") if name.isdigit() and int(name) > 1000]
        return found + os.listdir("/dev/shm") + [name for name in os.listdir("/tmp") if os.path.isfile(f"/tmp/{name}")]

    of_image = [f"/var/{path.name}" for path in level["image"].glob("var/*")] if "image" in level else []
    # The directories above the client's modules, if those are below a home directory.
    way = str(Path(*ROOT.parts[:3]))
    seen = set(lease.submit(look, str(secret)).result())
    assert seen - {way} == set(of_image)


def test_isolated_workers_lack_the_users_environment():
    program = """
        import dayfly, os
        with dayfly.connect() as client:
            for sandbox in ["process", "isolated"]:
                with client.lease(sandbox=sandbox, mode="warm") as lease:
                    print(sandbox, lease.call(lambda: (os.environ.get("SECRET"), os.environ["HOME"])))
    """
    done = run_python(program, SECRET="mine", HOME="/somewhere")
    assert done.stdout.splitlines() == ["process ('mine', '/somewhere')", "isolated (None, '/tmp')"]


def test_links_and_proc_do_not_leave_the_sandbox(lease, tmp_path):
    (tmp_path / "secret").write_text("mine")

    def escape(secret):
        import os

        os.makedirs("/tmp/links", exist_ok=True)
        got = []
        for number, target in enumerate(
            [secret, "/etc/shadow", f"/proc/1/root{secret}", f"/proc/self/root/..{secret}", f"../../../..{secret}"]
        ):
            link = f"/tmp/links/{number}-{os.getpid()}"
            os.symlink(target, link)
            try:
                got.append(os.listdir(link))
            except OSError:
                pass
            try:
                with open(link) as file:
                    got.append(file.read(1))
            except OSError:
                pass
        return got

    assert lease.submit(escape, str(tmp_path / "secret")).result() == []


def test_worker_cannot_change_the_machine(lease):
    def attempts():
        import ctypes
        import os
        import socket

        libc = ctypes.CDLL(None, use_errno=True)
        done = []

        def attempt(name, action):
            try:
                result = action()
            except OSError:
                return
            if result not in (-1, None):
                done.append((name, result))

        attempt("mount", lambda: libc.mount(b"none", b"/tmp", b"tmpfs", 0, None))
        attempt("ptrace the parent", lambda: libc.ptrace(16, os.getppid(), 0, 0))
        attempt("new user namespace", lambda: libc.unshare(0x10000000))
        attempt("keyring", lambda: libc.syscall(250, 0, -3, 0, 0, 0))
        attempt("bpf", lambda: libc.syscall(321, 0, 0, 0))
        attempt("raw socket", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1).fileno())
        attempt("packet socket", lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0).fileno())
        attempt("root", lambda: os.setuid(0) or 0)
        attempt("another core", lambda: os.sched_setaffinity(0, range(64)) or 0)
        attempt("host name", lambda: socket.sethostname("x") or 0)
        attempt("kernel setting", lambda: os.open("/proc/sys/kernel/core_pattern", os.O_WRONLY))
        attempt("raw memory", lambda: os.open("/dev/mem", os.O_RDWR))
        attempt("memory of the parent", lambda: os.open("/proc/1/mem", os.O_RDWR))
        attempt("device", lambda: os.mknod("/tmp/disk", 0o60666, os.makedev(8, 0)) or 0)
        attempt("outside", lambda: socket.create_connection(("192.0.2.1", 80), 1).fileno())
        return done

    assert lease.submit(attempts).result() == []


def test_denied_system_calls_of_a_worker_are_recorded(lease, level, client):
    # The manager's events are the record. Here it is enough that the worker was refused and continues.
    def hostile():
        import ctypes

        return [ctypes.CDLL(None).ptrace(0, 0, 0, 0) for _ in range(200)]

    assert set(lease.submit(hostile).result()) == {-1}

    def hostile_at_once():
        import ctypes
        import threading

        libc = ctypes.CDLL(None)
        answers = []
        gate = threading.Barrier(16)

        def ask():
            gate.wait()
            answers.append(libc.ptrace(0, 0, 0, 0))

        threads = [threading.Thread(target=ask) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return answers

    with client.lease(**level, mode="warm") as other:
        assert other.submit(hostile_at_once).result(timeout=20) == [-1] * 16
    assert lease.submit(abs, -1).result() == 1


def test_worker_cannot_kill_its_parent(client, level, lease):
    def kill():
        import os
        import signal

        for target in [1, os.getppid(), -1]:
            for number in [signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP]:
                try:
                    os.kill(target, number)
                except OSError:
                    pass
        return os.getppid()

    with client.lease(**level, mode="warm") as other:
        assert other.submit(kill).result(timeout=20) == 1
        assert other.submit(abs, -2).result(timeout=20) == 2
    assert lease.submit(abs, -2).result() == 2


@pytest.mark.parametrize("words", [b"garbage", b'{"type":"detached","worker":0,"channel":"%s"}' % (b"00" * 16)])
def test_forged_executor_message_ends_only_its_executor(client, level, lease, words):
    def talk(words):
        import os
        import socket
        import stat
        import time

        for fd in range(3, 64):
            try:
                if stat.S_ISSOCK(os.fstat(fd).st_mode):
                    with socket.socket(fileno=os.dup(fd)) as node:
                        # Continue until the node ends it: on a busy machine, the node reads for a while first.
                        until = time.monotonic() + 25
                        while time.monotonic() < until:
                            try:
                                node.send(words)
                            except BlockingIOError:
                                # The node has not read the last messages yet, so send more.
                                time.sleep(0.0001)
            except OSError:
                pass
        return "said"

    with client.lease(**level, mode="warm") as other:
        with pytest.raises(dayfly.WorkerDied):
            other.submit(talk, words).result(timeout=30)
        assert other.submit(abs, -6).result(timeout=30) == 6
    assert lease.submit(abs, -7).result(timeout=30) == 7


def test_fork_bomb_stays_in_its_sandbox(client, level, lease):
    def bomb():
        import os

        started = 0
        try:
            for _ in range(100_000):
                if os.fork() == 0:
                    while True:
                        os.fork()
                started += 1
        except OSError:
            return started
        return started

    with client.lease(**level, mode="warm") as doomed:
        future = doomed.options(deadline=3).submit(bomb)
        start = time.monotonic()
        assert lease.submit(abs, -3).result(timeout=30) == 3
        assert future.exception(timeout=60) is not None or future.result() < 2000
        assert time.monotonic() - start < 60
    assert lease.submit(abs, -4).result(timeout=30) == 4


def test_worker_beyond_its_memory_is_ended_and_reported(client, level):
    with client.lease(**level, mode="warm", memory=64 << 20) as small:
        assert small.submit(abs, -1).result() == 1
        with pytest.raises(dayfly.Error, match="memory"):
            small.submit(lambda: len(bytearray(1 << 30))).result(timeout=60)
        assert small.submit(abs, -5).result(timeout=20) == 5


def test_temporary_files_count_as_memory_and_are_removed(client, level):
    def fill():
        try:
            with open("/tmp/big", "wb") as file:
                for _ in range(4096):
                    file.write(bytes(1 << 20))
        except OSError as error:
            return error.errno
        return 0

    with client.lease(**level, mode="warm", memory=64 << 20) as small:
        future = small.submit(fill)
        # With control groups, its memory is used up; without, its temporary files reach their size limit.
        assert future.exception(timeout=60) is None or "memory" in str(future.exception())
        assert future.exception() is not None or future.result() != 0
    with client.lease(**level, mode="warm", memory=64 << 20) as fresh:
        assert fresh.submit(os.path.exists, "/tmp/big").result() is False


def test_files_are_mounted_as_the_lease_names_them(client, level, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "in" / "data").write_text("input")
    os.chmod(tmp_path / "out", 0o777)

    def work(place):
        with open(f"{place}/in/data") as file:
            text = file.read()
        try:
            with open(f"{place}/in/new", "w"):
                pass
        except OSError:
            text += " kept"
        with open(f"{place}/out/result", "w") as file:
            file.write(text.upper())

    with client.lease(**level, mode="warm", readable=[tmp_path / "in"], writable=[tmp_path / "out"]) as lease:
        lease.submit(work, str(tmp_path)).result()
    assert (tmp_path / "out" / "result").read_text() == "INPUT KEPT"


def test_missing_path_is_named_in_the_error(client, level):
    with pytest.raises(dayfly.Error, match="/no/such/place"):
        client.lease(**level, readable=["/no/such/place"])


def test_files_are_refused_without_isolation(client, tmp_path):
    with pytest.raises(dayfly.Error, match="isolated"):
        client.lease(sandbox="process", readable=[tmp_path])
    with pytest.raises(ValueError, match="sandbox"):
        client.lease(sandbox="padded cell")


def test_workers_share_the_network_if_both_allow_it(client, level):
    import socket

    server = socket.create_server(("127.0.0.1", 0))
    address = server.getsockname()

    def dial(address):
        import socket

        try:
            socket.create_connection(address, 2).close()
        except OSError:
            return False
        return True

    with server:
        with client.lease(**level, mode="warm", network=True) as lease:
            assert lease.submit(dial, address).result() is True
        with client.lease(**level, mode="warm") as lease:
            assert lease.submit(dial, address).result() is False


def test_isolated_workers_import_modules_beside_the_program(tmp_path):
    (tmp_path / "beside.py").write_text("def twice(x):\n    return 2 * x\n")
    # If the node runs as root, isolated workers do not, and read only world-readable files.
    tmp_path.chmod(0o755)
    program = """
        import sys
        sys.path.insert(0, sys.argv[1])
        import beside, dayfly
        with dayfly.connect() as client, client.lease(sandbox="isolated", mode="warm") as lease:
            print(lease.submit(beside.twice, 21).result())
    """
    assert run_python(program, str(tmp_path)).stdout == "42\n"


@pytest.fixture
def site(tmp_path):
    """A manager and its own node, as two daemons with default options."""
    program = dayfly._program.binary()
    daemons = []

    def start(*arguments):
        daemon = subprocess.Popen([program, "--json", *arguments], stdout=subprocess.PIPE, text=True)
        daemons.append(daemon)
        return json.loads(daemon.stdout.readline())

    home = tmp_path / "m"
    connection = start("manager", "--listen", "127.0.0.1:0", "--state-dir", str(home))["connection"]
    join = ["manager", "join-token", "--manager", connection, "--output", str(tmp_path / "join")]
    subprocess.run([program, *join], check=True, capture_output=True)
    node = ["--join", str(tmp_path / "join"), "--state-dir", str(tmp_path / "n"), "--python", sys.executable]
    assert start("node", *node)["joined"] is True
    yield connection
    for daemon in reversed(daemons):
        daemon.terminate()
        daemon.wait(timeout=30)
        daemon.stdout.close()


def test_site_isolates_code_of_all_tenants_by_default(site, tmp_path):
    with dayfly.connect(site) as client:
        with client.lease(mode="warm") as lease:
            assert lease.submit(os.getppid).result() == 1
            (shown,) = client.leases()
            assert shown["sandbox"] == "isolated"
        with pytest.raises(dayfly.Error, match="isolated"):
            client.lease(sandbox="process")
        with pytest.raises(dayfly.Error, match="does not show"):
            client.lease(readable=[tmp_path])
        with pytest.raises(dayfly.Error, match="network"):
            client.lease(network=True)


def test_worker_that_occupies_shared_cores_is_ended(client, level, lease):
    def hoard():
        import fcntl
        import struct

        # Try all descriptors: this is the only file here that can be locked for writing from byte 64 on.
        taken = 0
        for descriptor in range(3, 64):
            lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 64, 4032, 0)
            try:
                fcntl.fcntl(descriptor, fcntl.F_SETLK, lock)
                taken += 1
            except OSError:
                pass
        return taken

    with client.lease(workers=1, mode="warm", **level) as hostile:
        assert hostile.call(hoard) > 0
        begin = time.monotonic()
        for x in range(20):
            assert lease.call(pow, x, 2) == x * x
        assert time.monotonic() - begin < 5
        # The node checks once a second, and replaces the worker.
        deadline = time.monotonic() + 10
        while hostile.incarnations() == [1]:
            assert time.monotonic() < deadline
            time.sleep(0.05)
            # From now on its calls are correct, but it keeps the cores that it took.
            assert hostile.options(idempotent=True).call(abs, -1) == 1
