"""Python environments: built by uv once for their content, shared by nodes, and gone from nobody who uses them."""

from __future__ import annotations

import base64
import concurrent.futures as cf
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import cloudpickle
import pytest
from harness import index as package_index
from harness.daemons import Daemon, free_port, private_directory
from harness.endpoints import Endpoint, manager_alone
from harness.index import Index
from harness.leaks import wait_until
from harness.programs import bin_dir

dayfly = pytest.importorskip("dayfly", reason="the package is not installed: make build")
from dayfly._tasks.batch import statuses  # noqa: E402 - it may not be there

# What is in this file has to travel: no environment has pytest.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

UV = Path(sys.executable).with_name("uv")
#: Nobody else's package is called so.
PACKAGE = "dayfly_test_package"


@pytest.fixture
def directory() -> Iterator[Path]:
    os.environ.setdefault("DAYFLY_BIN", str(bin_dir() / "dayfly"))
    with private_directory() as directory:
        yield Path(directory)


@pytest.fixture
def index(directory: Path) -> Iterator[Index]:
    """An index with two versions of a package, and nothing else."""
    wheels = directory / "index"
    wheels.mkdir()
    for version in ("1.0", "2.0"):
        package_index.write_wheel(wheels, PACKAGE, version)
    with package_index.serving(wheels) as index:
        yield index


def settings(directory: Path, index: Index, **more: str) -> dict[str, str]:
    """Of a node whose uv looks nowhere else, and keeps what it finds to itself."""
    return {
        **package_index.settings(index.url),
        "DAYFLY_ENVIRONMENTS": str(directory / "environments"),
        "UV_CACHE_DIR": str(directory / "uv"),
        "UV_PYTHON_DOWNLOADS": "never",
        **more,
    }


@contextlib.contextmanager
def running(directory: Path, index: Index, *arguments: str, name: str = "state", **more: str) -> Iterator[Daemon]:
    daemon = Daemon(
        "up",
        f"--listen=127.0.0.1:{free_port()}",
        *arguments,
        state=directory / name,
        env=settings(directory, index, **more),
    )
    try:
        yield daemon
    finally:
        daemon.stop()


def waiting_uv(directory: Path) -> tuple[Path, Path]:
    """A uv that installs nothing before a file is there, and that file."""
    program, gate = directory / "waiting-uv", directory / "gate"
    program.write_text(
        f'#!/bin/sh\nif [ "$1" = pip ]; then while [ ! -e "{gate}" ]; do sleep 0.05; done; fi\nexec "{UV}" "$@"\n'
    )
    program.chmod(0o755)
    return program, gate


def built(*daemons: Daemon) -> int:
    """How many environments they have built."""
    return sum(daemon.output().count("an environment is built") for daemon in daemons)


def seen() -> tuple[str, str, bool]:
    """The package's version, the interpreter, and whether what the node's own Python has is there."""
    import importlib.util
    import sys

    import dayfly_test_package

    return dayfly_test_package.version, sys.executable, importlib.util.find_spec("numpy") is not None


def test_node_uses_only_the_configured_index(directory: Path, index: Index) -> None:
    with (
        package_index.serving(directory / "elsewhere") as proxy,
        running(directory, index, ALL_PROXY=proxy.address, HTTPS_PROXY=proxy.address) as manager,
        dayfly.connect(config=manager.state) as client,
    ):
        with client.lease(environment=[PACKAGE], wait=30) as lease:
            assert lease.submit(seen).result(30)[0] == "2.0"
        with pytest.raises(dayfly.Error, match=r"not found|no version"):
            client.lease(environment=["dayfly-has-no-such-package"], wait=30)
        asked = {path for _, path in index.requests if path.startswith("/simple/")}
        assert asked == {"/simple/dayfly-test-package/", "/simple/dayfly-has-no-such-package/"}
        assert proxy.requests == []


def test_functions_import_only_their_environment(directory: Path, index: Index) -> None:
    with running(directory, index) as manager, dayfly.connect(config=manager.state) as client:
        with dayfly.Executor(client=client, environment=[PACKAGE]) as executor:
            version, python, has_numpy = executor.submit(seen).result(60)
        assert (version, has_numpy) == ("2.0", False)
        assert Path(python).is_relative_to(directory / "environments")
        function = client.register(seen, environment=[f"{PACKAGE}<2"])
        assert client.run(function).result(60)[0] == "1.0"
        assert function.status["runtime"]["environment"] == {"python": "", "requirements": [f"{PACKAGE}<2"]}
        # The same for workers that are leased, also for those that see little.
        for sandbox in ("process", None):
            with client.lease(environment=[PACKAGE], wait=30, sandbox=sandbox) as lease:
                assert lease.submit(seen).result(30) == ("2.0", python, False)
        assert built(manager) == 2


def test_isolated_workers_have_their_environment(directory: Path, index: Index) -> None:
    with (
        running(directory, index, "--sandbox=isolated", f"--python={sys.executable}") as manager,
        dayfly.connect(config=manager.state) as client,
        client.lease(environment=[PACKAGE], wait=30, sandbox="isolated") as lease,
    ):
        version, python, has_numpy = lease.submit(seen).result(30)
        assert (version, has_numpy) == ("2.0", False)
        with pytest.raises(OSError):
            lease.submit(os.mkdir, f"{Path(python).parent}/mine").result(30)


def test_nodes_sharing_a_directory_build_once(directory: Path, index: Index) -> None:
    program, gate = waiting_uv(directory)
    with contextlib.ExitStack() as stack:
        managers = [stack.enter_context(running(directory, index, f"--uv={program}", name=f"m{n}")) for n in range(2)]
        clients = [stack.enter_context(dayfly.connect(config=manager.state)) for manager in managers]
        executors = [dayfly.Executor(client=client, environment=[PACKAGE]) for client in clients]
        futures = [executor.submit(seen) for executor in executors]
        for client, executor in zip(clients, executors, strict=True):
            wait_until(
                lambda client=client, executor=executor: (
                    [status["state"] for status in statuses(client, executor.tag)] == ["environment"]
                ),
                "the tasks to wait for their environment",
            )
            [endpoint] = client.endpoints()
            assert endpoint["tasks"]["environment"] == 1
        gate.touch()
        assert [future.result(60)[0] for future in futures] == ["2.0", "2.0"]
        assert built(*managers) == 1
        for executor in executors:
            executor.shutdown()
    # A node of later finds it.
    with running(directory, index) as manager, dayfly.connect(config=manager.state) as client:
        with client.lease(environment=[PACKAGE]) as lease:
            assert lease.submit(seen).result(30)[0] == "2.0"
        assert built(manager) == 0


def test_endpoint_nodes_build_environments_of_tasks(directory: Path, index: Index) -> None:
    with manager_alone(directory / "manager", free_port()) as manager:
        here = Endpoint(
            manager, directory / "home", "here", "--workers-per-node", "1", **settings(directory, index)
        ).set_up()
        here.start()
        try:
            with (
                dayfly.connect(config=manager.state) as client,
                dayfly.Executor(client=client, endpoint="here", environment=[PACKAGE]) as executor,
            ):
                version, python, has_numpy = executor.submit(seen).result(60)
                assert (version, has_numpy) == ("2.0", False)
                assert Path(python).is_relative_to(directory / "environments")
        finally:
            here.stop()


def test_failed_build_fails_its_tasks_with_uvs_message(directory: Path, index: Index) -> None:
    with running(directory, index) as manager, dayfly.connect(config=manager.state) as client:
        for requirement, said in ((f"{PACKAGE}==3.0", "3.0"), ("dayfly-has-no-such-package", "no-such-package")):
            future = client.batch(environment=[requirement]).submit(seen)
            with pytest.raises(dayfly.Error) as raised:
                future.result(60)
            assert raised.value.code == "environment_failed"
            assert said in str(raised.value)
            assert client.task_status(future.id)["attempts"] <= 1
            with pytest.raises(dayfly.Error) as refused:
                client.lease(environment=[requirement], wait=30)
            assert refused.value.code == "environment_failed"
        assert client.run(len, "abc").result(30) == 3
        # Nothing of it is left to be taken for an environment.
        assert {path.suffix for path in (directory / "environments").iterdir()} == {".lock"}
        # What was not there may be there later.
        (index.directory / f"{PACKAGE}-2.0-py3-none-any.whl").unlink()
        with pytest.raises(dayfly.Error):
            client.lease(environment=[f"{PACKAGE}==2.0"], wait=30)
        package_index.write_wheel(index.directory, PACKAGE, "2.0")
        with client.lease(environment=[f"{PACKAGE}==2.0"], wait=30) as lease:
            assert lease.submit(seen).result(30)[0] == "2.0"


def test_killed_build_is_repeated_and_loses_no_task(directory: Path, index: Index) -> None:
    program, gate = waiting_uv(directory)
    with running(directory, index, f"--uv={program}") as manager:
        with dayfly.connect(config=manager.state) as client:
            executor = dayfly.Executor(client=client, environment=[PACKAGE], tag="kept", repeatable=True)
            executor.submit(seen)
            wait_until(
                lambda: bool(list((directory / "environments").glob("*/requirements.txt"))), "the build to begin"
            )
            executor.shutdown(wait=False)
        manager.kill()
        gate.touch()
        again = manager.restart()
        try:
            with dayfly.connect(config=again.state) as client:
                [result] = client.tasks(tag="kept").results(timeout=60)
                assert result[0] == "2.0"
            assert built(again) == 1
        finally:
            again.stop()


def test_task_is_cancelled_during_its_build(directory: Path, index: Index) -> None:
    program, gate = waiting_uv(directory)
    with running(directory, index, f"--uv={program}") as manager, dayfly.connect(config=manager.state) as client:
        future = client.batch(environment=[PACKAGE]).submit(seen)
        wait_until(lambda: bool(list((directory / "environments").glob("*/requirements.txt"))), "the build to begin")
        future.cancel()
        with pytest.raises(cf.CancelledError):
            future.result(30)
        # Others have their workers meanwhile.
        assert client.run(len, "abc").result(30) == 3
        gate.touch()


def test_requirement_with_foreign_source_is_refused(directory: Path, index: Index) -> None:
    with running(directory, index) as manager, dayfly.connect(config=manager.state) as client:
        wheel = index.directory / f"{PACKAGE}-1.0-py3-none-any.whl"
        for requirement in (f"{PACKAGE} @ {wheel.as_uri()}", str(wheel), "-r /etc/passwd", "x\n-r y", "dayfly"):
            with pytest.raises(dayfly.Error, match="is not a requirement") as raised:
                client.register(seen, environment=dayfly.Environment([requirement]))
            assert raised.value.code == "environment_failed"
            # A lease's words are looked at by the node itself.
            with pytest.raises(dayfly.Error, match="is not a requirement"):
                client.lease(environment=dayfly.Environment([requirement]))
        with pytest.raises(dayfly.Error) as raised:
            client.register(seen, environment=dayfly.Environment([PACKAGE], python="3.99"))
        assert raised.value.code == "python_mismatch"
        with pytest.raises(dayfly.Error, match="image or an environment"):
            client.register(seen, environment=[PACKAGE], image="tool")


def other_python() -> tuple[str, Path] | None:
    """Another Python of this machine's that workers run on: `major.minor`, and where it is."""
    own = sys.version_info[1]
    managed = sorted(Path(os.environ.get("PYENV_ROOT", "/nowhere")).glob("versions/3.*/bin"))
    for place in [*managed, *map(Path, os.environ.get("PATH", "").split(os.pathsep))]:
        for minor in range(11, 20):
            if minor != own and (place / f"python3.{minor}").is_file() and "shims" not in place.parts:
                return f"3.{minor}", place
    return None


def of_which_python(times: int) -> list[list[str]]:
    """The package's version and Python's, so many times."""
    import sys

    import dayfly_test_package

    return [[dayfly_test_package.version, f"{sys.version_info[0]}.{sys.version_info[1]}"]] * times


@pytest.mark.skipif(other_python() is None, reason="this machine has one Python alone")
def test_source_functions_run_in_another_python(directory: Path, index: Index) -> None:
    python, place = other_python()
    source = f"def seen():\n    import sys, {PACKAGE}\n    return [{PACKAGE}.version, '%d.%d' % sys.version_info[:2]]\n"
    with running(
        directory, index, f"--python={sys.executable}", PATH=f"{place}{os.pathsep}{os.environ['PATH']}"
    ) as manager:
        registration = {
            "name": "seen",
            "form": {"form": "source", "entry": "seen"},
            "runtime": {
                "kind": "python",
                "version": "",
                "cloudpickle": "",
                "executable": None,
                "environment": {"python": python, "requirements": [PACKAGE]},
            },
            "code": base64.b64encode(source.encode()).decode(),
        }
        status, said = manager.post("/v1/functions", registration)
        assert status == 201, said
        status, said = manager.post("/v1/tasks", {"function": said["id"], "tasks": [{"call": {}}]})
        [task] = said["tasks"]
        _, said = manager.ask("GET", f"/v1/tasks/{task}/outcome?wait_ms=30000")
        assert json.loads(said).get("result") == ["2.0", python], said
        # From Python, too.
        environment = dayfly.Environment([f"{PACKAGE}<2"], python=python)
        with (
            dayfly.connect(config=manager.state) as client,
            dayfly.Executor(client=client, environment=environment, source=True) as executor,
        ):
            assert executor.submit(of_which_python, times=2).result(60) == [["1.0", python]] * 2
            registered = client.register(of_which_python, environment=environment, source=True)
            assert client.run(registered, 1).result(60) == [["1.0", python]]
            with pytest.raises(dayfly.Error) as raised:
                client.register(of_which_python, environment=environment)
            assert raised.value.code == "python_mismatch"


def test_command_line_manages_environments(directory: Path, index: Index) -> None:
    requirements = directory / "requirements.txt"
    requirements.write_text(f"{PACKAGE}<2\n")
    with running(directory, index) as manager, dayfly.connect(config=manager.state) as client:

        def env(*arguments: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [bin_dir() / "dayfly", "env", *arguments],
                env=os.environ
                | manager.client_environment()
                | settings(directory, index, DAYFLY_PYTHON=sys.executable, DAYFLY_BIN=str(bin_dir() / "dayfly")),
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )

        assert f"pytest=={pytest.__version__}" in env("capture").stdout.splitlines()
        locked = env("lock", str(requirements)).stdout
        assert locked.startswith(f"{PACKAGE.replace('_', '-')}==1.0 --hash=sha256:")
        done = env("build", str(requirements), "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["packages"][PACKAGE] == "1.0"
        assert built(manager) == 1
        # Functions that name the same have it now.
        fit = client.register(seen, name="fit", environment=str(requirements))
        assert client.run(fit).result(30)[0] == "1.0"
        assert built(manager) == 1
        known = json.loads(env("list", "--json").stdout)
        assert [(one["requirements"], one["functions"]) for one in known] == [([f"{PACKAGE}<2"], ["fit", "ready"])]
        assert env("show", known[0]["hash"][:12]).stdout == f"{PACKAGE}<2\n"
        failed = env("build", f"{PACKAGE}==3")
        assert failed.returncode == 1
        assert "environment_failed" in failed.stderr
        assert "Traceback" not in failed.stderr
