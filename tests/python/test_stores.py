"""Ranks that communicate through real stores, checkpoints and scripts in stores, and failing stores."""

from __future__ import annotations

import concurrent.futures as cf
import json
import os
import signal
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import dayfly
import numpy as np
import pytest
from dayfly import MPI, groups
from dayfly._native import Objects
from harness.certificates import certify
from harness.leaks import wait_until
from harness.programs import program, run, run_python
from harness.stores import S3, Redis, unavailable
from python.test_checkpoint import load, save
from python.test_groups import PROC_FAILED, buffers, objects

pytestmark = pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))
cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    server = Redis(tmp_path_factory.mktemp("redis"))
    yield server
    server.stop()


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    server = S3(tmp_path_factory.mktemp("s3"))
    before = dict(os.environ)
    os.environ.update(server.environment())
    yield server
    os.environ.clear()
    os.environ.update(before)
    server.stop()


EACH = ["redis", "s3"]


@pytest.fixture(params=EACH)
def store(request: pytest.FixtureRequest) -> Redis | S3:
    server: Redis | S3 = request.getfixturevalue(request.param)
    return server


def test_operations_through_a_store_leave_nothing(client: dayfly.Client, store: Redis | S3) -> None:
    through: dict[str, Any] = {"store": store.url, "channel": "stored", "client": client, "timeout": 60}
    assert dayfly.run(buffers, ranks=3, args=(3,), **through) == [0, 1, 2]
    assert dayfly.run(buffers, ranks=2, args=(20_000,), **through) == [0, 1]
    assert dayfly.run(objects, ranks=3, **through) == ["done"] * 3
    assert store.left() == []


def exchange(megabytes: int) -> int:
    comm = MPI.COMM_WORLD
    own = np.full(megabytes << 20, comm.rank + 1, dtype="u1")
    other = np.empty_like(own)
    comm.Sendrecv(own, 1 - comm.rank, recvbuf=other, source=1 - comm.rank)
    return int(other.min()) + int(other.max())


def test_messages_of_many_objects_arrive_whole(client: dayfly.Client, store: Redis | S3) -> None:
    through: dict[str, Any] = {"store": store.url, "channel": "stored", "client": client, "timeout": 60}
    assert dayfly.run(exchange, ranks=2, args=(24,), **through) == [4, 2]
    assert store.left() == []


def wait_for_the_lost(folder: str) -> None:
    comm, group = MPI.COMM_WORLD, groups.world()
    comm.Barrier()
    if comm.rank == 1:
        # A rank that is still in the barrier would report the loss there.
        for other in (0, 2):
            comm.recv(source=other)
        _request = comm.Isend(np.zeros(1_000_000), 0)
        os.kill(os.getpid(), signal.SIGKILL)
    comm.send("has left the barrier", 1)
    try:
        comm.Barrier()
    except MPI.Exception as error:
        left = group.shrink()
        found = error.Get_error_class() == PROC_FAILED, sum(left.allgather(comm.rank))
        Path(folder, str(comm.rank)).write_text(json.dumps(found))


def test_killed_rank_is_reported_and_leaves_no_objects(
    client: dayfly.Client, store: Redis | S3, tmp_path: Path
) -> None:
    with pytest.raises(dayfly.WorkerDied):
        dayfly.run(
            wait_for_the_lost,
            ranks=3,
            args=(str(tmp_path),),
            client=client,
            store=store.url,
            channel="stored",
            timeout=60,
        )
    assert [json.loads((tmp_path / rank).read_text()) for rank in "02"] == [[True, 2]] * 2
    assert store.left() == []


def until_the_store_is_gone(sign: str) -> tuple[str, str]:
    group = groups.world()
    try:
        while True:
            group.barrier()
            Path(sign).touch()
    except dayfly.GroupError as error:
        return error.code, str(error)


@pytest.mark.parametrize("kind", EACH)
def test_stopped_store_is_reported_to_all_ranks(
    client: dayfly.Client, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server: Redis | S3 = {"redis": Redis, "s3": S3}[kind](tmp_path)
    if isinstance(server, S3):
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
    sign = tmp_path / "sign"
    with cf.ThreadPoolExecutor(1) as thread:
        through: dict[str, Any] = {"store": server.url, "channel": "stored", "client": client}
        going = thread.submit(dayfly.run, until_the_store_is_gone, ranks=2, args=(str(sign),), **through)
        wait_until(lambda: sign.exists() or going.done(), "the ranks exchange", 20)
        server.stop()
        found = going.result(45)
    shown = server.url.replace(f":{Redis.password}@", "")
    for code, text in found:
        assert code == "rank_lost"
        assert shown in text or "its process ended" in text or "left" in text, text
        assert Redis.password not in text
    assert any(shown in text for _, text in found), found


def join() -> None:
    groups.world()


def test_store_errors_name_the_store_without_password(
    client: dayfly.Client, redis: Redis, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(store: str) -> dayfly.Error:
        begun = time.monotonic()
        with pytest.raises(dayfly.Error) as caught:
            dayfly.run(join, ranks=2, client=client, store=store, channel="stored")
        assert time.monotonic() - begun < 15
        return caught.value

    error = refused(f"redis://:a-guess@127.0.0.1:{redis.port}")
    assert error.code == "forbidden"
    assert f"redis://127.0.0.1:{redis.port}" in str(error)
    assert "a-guess" not in str(error)
    error = refused("s3://no-such-bucket")
    assert error.code == "not_found", error
    assert "s3://no-such-bucket" in str(error)
    assert "there is no such bucket" in str(error)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-guess")
    error = refused(s3.url)
    assert error.code == "forbidden", error
    assert s3.url in str(error)
    assert "a-guess" not in str(error)
    with pytest.raises(ValueError, match="needs store="):
        dayfly.run(join, ranks=2, client=client, channel="stored")


def test_foreign_entry_in_a_store_is_refused(client: dayfly.Client, redis: Redis, tmp_path: Path) -> None:
    def work(folder: str, url: str) -> tuple[str, str] | None:
        group = groups.world()
        group.barrier()
        if group.rank == 0:
            try:
                group.recv(1)
            except dayfly.GroupError as error:
                return error.code, str(error)
            return None
        Path(folder, "ready").touch()
        while not Path(folder, "forged").exists():
            time.sleep(0.01)
        return None

    with cf.ThreadPoolExecutor(1) as thread:
        args = (str(tmp_path), redis.url)
        through: dict[str, Any] = {"store": redis.url, "channel": "stored", "client": client, "timeout": 60}
        going = thread.submit(dayfly.run, work, ranks=2, args=args, **through)
        wait_until(lambda: (tmp_path / "ready").exists() or going.done(), "rank 1 waits", 20)
        (lane,) = [key for key in redis.left() if key.endswith("/1-0")]
        redis.ask("XADD", lane, "0-1000000", "d", "not what rank 1 stored")
        # Its own queue is full; the rank can send nothing more, and ends silently.
        (tmp_path / "forged").touch()
        code, text = going.result(60)[0]
    assert code == "rank_lost"
    assert "is not what that rank stored" in text
    assert redis.left() == []


def test_checkpoints_in_buckets_equal_those_in_directories(
    client: dayfly.Client, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = f"{s3.url}/checkpoints/one"
    assert dayfly.run(load, ranks=2, client=client, checkpoint=place, args=("none",)) == ["none", "none"]
    dayfly.run(save, ranks=2, client=client, checkpoint=place, args=(["first", b"x" * 1_000_000, "last"],))
    assert dayfly.run(load, ranks=2, client=client, checkpoint=place) == [(0, "last"), (1, "last")]
    names = [f"0000000{number}/{part}" for number in (1, 2) for part in ("complete.json", "rank-00000", "rank-00001")]
    found = Objects(place)
    assert found.list("") == names, "two are kept"
    found.put("00000002/rank-00001", b"damaged")
    found.put("00000003/rank-00000", b"cut short")
    assert dayfly.run(load, ranks=2, client=client, checkpoint=place)[0] == (0, b"x" * 1_000_000)
    dayfly.run(save, ranks=2, client=client, checkpoint=place, args=(["more"],))
    assert dayfly.run(load, ranks=2, client=client, checkpoint=place) == [(0, "more"), (1, "more")]
    with pytest.raises(dayfly.Error, match="saved by 2 ranks and there are 3"):
        dayfly.run(load, ranks=3, client=client, checkpoint=place)
    with monkeypatch.context() as guess:
        guess.setenv("AWS_SECRET_ACCESS_KEY", "a-guess")
        with pytest.raises(dayfly.Error, match=f"checkpoints in {place} cannot be used") as refused:
            dayfly.run(load, ranks=2, client=client, checkpoint=place)
        assert refused.value.code == "store_failed"
    found.clear("")
    assert s3.left() == []


STORE_ONE = """
    import sys
    from dayfly._native import Objects
    objects = Objects(sys.argv[1])
    objects.put("tls/one", b"x")
    print(objects.list("tls"))
    objects.clear("tls")
"""


def test_bucket_over_tls_needs_a_trusted_certificate(s3: S3, tmp_path: Path) -> None:
    assert run_python(STORE_ONE, s3.url, **s3.tls_environment()).stdout == "['one']\n"
    with pytest.raises(AssertionError, match=r"certificate.*unreachable"):
        run_python(STORE_ONE, s3.url, **s3.tls_environment() | {"SSL_CERT_FILE": str(certify(tmp_path, "other"))})
    assert s3.left() == []


def test_bucket_without_tls_needs_no_certificates(s3: S3, tmp_path: Path) -> None:
    nothing_trusted = {"SSL_CERT_FILE": str(tmp_path / "none.pem"), "SSL_CERT_DIR": str(tmp_path)}
    assert run_python(STORE_ONE, s3.url, **s3.environment() | nothing_trusted).stdout == "['one']\n"


def test_scripts_and_folders_in_buckets_run(s3: S3, tmp_path: Path) -> None:
    script = """
        import sys
        from dayfly import MPI, groups
        print(MPI.COMM_WORLD.allreduce(MPI.COMM_WORLD.rank), *sys.argv[1:])
    """
    s3.put("code/sum.py", textwrap.dedent(script).encode())
    s3.put("code/solver/__main__.py", b"import part; part.work()")
    s3.put("code/solver/part.py", b"def work(): print('solved')")

    def ranks(*args: str) -> Any:
        environment = dict(os.environ) | {"DAYFLY_PYTHON": sys.executable, "XDG_STATE_HOME": str(tmp_path)}
        return run(program(), "run", "-n", "2", "--no-label", *args, env=environment, check=False)

    stored = ("--store", s3.url, "--channel", "stored")
    done = ranks(*stored, f"{s3.url}/code/sum.py", "a", "b")
    assert done.stdout == "1 a b\n" * 2, done.stderr
    done = ranks(f"{s3.url}/code/solver")
    assert done.stdout == "solved\n" * 2, done.stderr
    done = ranks(f"{s3.url}/code/none.py")
    assert done.returncode != 0
    assert "none.py" in done.stderr
    Objects(s3.url).clear("code")
    assert s3.left() == []
