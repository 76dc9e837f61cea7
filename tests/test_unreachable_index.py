"""Package indexes that cannot be reached: builds wait a bounded time for them, and say so meanwhile."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import ssl
import sys
from collections.abc import Iterator
from pathlib import Path

import cloudpickle
import pytest
from harness import index as package_index
from harness.certificates import certify
from harness.daemons import Daemon, private_directory
from harness.index import NOWHERE
from harness.leaks import wait_until
from harness.programs import bin_dir, program, run

dayfly = pytest.importorskip("dayfly", reason="the package is not installed: make build")

PACKAGE = "dayfly_test_package"
#: Where this system keeps the certificates that it trusts.
STORE = Path("/etc/ssl/certs/ca-certificates.crt")


@pytest.fixture
def directory() -> Iterator[Path]:
    os.environ.setdefault("DAYFLY_BIN", str(bin_dir() / "dayfly"))
    with private_directory() as directory:
        yield Path(directory)


@contextlib.contextmanager
def running(directory: Path, index: str, *options: str, prefix: tuple[str, ...] = ()) -> Iterator[Daemon]:
    """``dayfly up``, whose uv asks this index and nobody else."""
    daemon = Daemon(
        *("up", "--listen", "127.0.0.1:0", "--python", sys.executable, *options),
        state=directory / "state",
        env=package_index.settings(index)
        | {
            "DAYFLY_ENVIRONMENTS": str(directory / "environments"),
            "UV_CACHE_DIR": str(directory / "uv"),
            "UV_PYTHON_DOWNLOADS": "never",
        },
        prefix=prefix,
    )
    try:
        yield daemon
    finally:
        daemon.stop()


# Workers of an environment have no pytest, which this file imports.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def imported() -> str:
    import dayfly_test_package

    version: str = dayfly_test_package.version
    return version


def test_unresponsive_index_is_reported_everywhere(directory: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        running(directory, f"http://127.0.0.1:{silent.getsockname()[1]}/simple", "--index-timeout", "2s") as site,
        dayfly.connect(config=site.state) as client,
    ):
        with pytest.raises(dayfly.Error, match=r"environment [0-9a-f]{12}: building since \d+ s") as refused:
            client.lease(environment=[PACKAGE])
        assert refused.value.code == "environment_building"
        task = client.run(client.register(imported, environment=[PACKAGE]))

        def building() -> str:
            return str(client.task_status(task).get("building", ""))

        wait_until(lambda: "cannot reach the index" in building(), "the cause in the task's status", 60)
        assert "will try again at" in building()
        shown = run(program(), "task", "show", task.id, env=site.client_environment()).stdout
        assert "cannot reach the index" in shown
        (endpoint,) = client.endpoints()
        assert "cannot reach the index" in endpoint["trouble"]
        with pytest.raises(dayfly.Error, match="will try again at"):
            client.lease(environment=[PACKAGE])
        client.cancel(task)


def test_refusing_index_fails_build_after_the_limit(directory: Path) -> None:
    with (
        running(directory, NOWHERE, "--environment-limit", "5s") as site,
        dayfly.connect(config=site.state) as client,
        pytest.raises(dayfly.Error, match=r"127\.0\.0\.1:9") as failed,
    ):
        client.lease(environment=[PACKAGE], wait=60)
    assert failed.value.code == "environment_failed"


@pytest.mark.skipif(
    shutil.which("unshare") is None or not STORE.is_file(), reason="needs unshare and a certificate store"
)
def test_index_with_system_trusted_authority_is_used(directory: Path) -> None:
    (directory / "wheels").mkdir()
    package_index.write_wheel(directory / "wheels", PACKAGE, "1.0")
    authority = certify(directory, "index")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory / "index.pem", directory / "index.key")
    mounted = f'mount --bind "$0" {STORE} && exec "$@"'
    trusting = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mounted, str(authority))
    with package_index.serving(directory / "wheels", tls=context) as index:
        with (
            running(directory, index.url, prefix=trusting) as site,
            dayfly.connect(config=site.state) as client,
            client.lease(environment=[PACKAGE], wait=60) as lease,
        ):
            assert lease.call(imported) == "1.0"
        shutil.rmtree(directory / "environments")
        with (
            running(directory, index.url, "--environment-limit", "1s") as site,
            dayfly.connect(config=site.state) as client,
            pytest.raises(dayfly.Error, match="certificate"),
        ):
            client.lease(environment=[PACKAGE], wait=60)
