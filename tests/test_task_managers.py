"""Durable tasks of several managers over one PostgreSQL: one has them, the others pass on what is asked."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import postgres
from harness.daemons import Daemon, free_port
from harness.endpoints import Endpoint
from harness.leaks import descendants, wait_until
from harness.marks import executions, go_on, leave_a_mark, outcomes
from harness.postgres import Postgres
from harness.programs import bin_dir, program, run

dayfly = pytest.importorskip("dayfly", reason="the package is not installed: make build")
pytestmark = pytest.mark.skipif(postgres.unavailable() is not None, reason=str(postgres.unavailable()))


class Site:
    """Managers that share a database and a directory for contents, and an endpoint."""

    def __init__(self, state: Path, database: str, managers: int = 2) -> None:
        os.environ.setdefault("DAYFLY_BIN", str(bin_dir() / "dayfly"))
        self.state = state
        self.database = database
        self.contents = state / "contents"
        self.contents.mkdir()
        self.managers = [self.manager(n) for n in range(managers)]
        self.endpoints: list[Endpoint] = []

    def manager(self, number: int, contents: Path | None = None) -> Daemon:
        """A manager of this site's."""
        return Daemon(
            *("manager", "--listen", f"127.0.0.1:{free_port()}", "--store", self.database),
            *("--contents", f"file://{contents or self.contents}"),
            state=self.state / f"m{number}",
        )

    def endpoint(self, manager: Daemon, name: str = "here") -> Endpoint:
        """An endpoint that was set up at this manager, and started."""
        made = Endpoint(manager, self.state / "home", name, "--workers-per-node", "2", "--idle", "1s").set_up()
        self.endpoints.append(made)
        made.start()
        return made

    def owner(self, *, among: list[Daemon] | None = None) -> Daemon:
        """The manager that said last that it has the tasks."""

        def epoch(manager: Daemon) -> int:
            said = [line for line in manager.output().splitlines() if "this manager has the tasks" in line]
            return int(said[-1].partition("epoch=")[2].split()[0].strip("\x1b[0m")) if said else 0

        return max(among or self.managers, key=epoch)

    def another(self) -> Daemon:
        """One that has not."""
        owner = self.owner()
        return next(manager for manager in self.managers if manager is not owner)

    def restart(self, manager: Daemon) -> Daemon:
        """Starts one that ended at the same place."""
        place = self.managers.index(manager)
        self.managers[place] = manager.restart()
        return self.managers[place]

    def end(self) -> None:
        """Ends all of it; what it wrote is in the report of a test that fails."""
        for endpoint in self.endpoints:
            print(endpoint.log())
            with contextlib.suppress(AssertionError):
                endpoint.stop()
        for manager in self.managers:
            print(manager.output()[-20_000:])
            manager.kill_tree()


Make = Callable[..., Site]


@pytest.fixture
def site(state: Path, server: Postgres) -> Iterator[Make]:
    """``site()`` starts one; nothing of it is left."""
    made: list[Site] = []
    before = set(descendants())

    def make(database: str | None = None, managers: int = 2) -> Site:
        made.append(Site(state, database or server.database(), managers))
        return made[-1]

    yield make
    for one in made:
        one.end()
    wait_until(lambda: not set(descendants()) - before, "no process is left", 20)


def test_every_manager_shows_the_same_tasks(site: Make) -> None:
    here = site()
    owner, other = here.owner(), here.another()
    # Set up where the tasks are not, its connection leads through that manager to the one that has them.
    endpoint = here.endpoint(other)
    assert endpoint.seen["state"] == "up"
    with dayfly.connect(config=other.state) as client:
        function = client.register(sorted, name="sorted")
        batch = client.map(function, [[3, 1, 2], [2, 1]], endpoint="here")
        assert list(batch.results(60)) == [[1, 2, 3], [1, 2]]
        # What is long goes through as it comes.
        long = os.urandom(3 << 20)
        with dayfly.Executor(endpoint="here", client=client) as executor:
            back = executor.submit(_as_it_is, long)
            assert back.result(60) == long
            loud = executor.submit(print, "hello")
            loud.result(60)
    with dayfly.connect(config=owner.state) as client:
        assert client.task(back.id).result(60) == long
        assert client.output(loud.id) == "hello\n"
    for manager in (owner, other):
        assert len(manager.cli("task", "list")) == 4
        assert manager.cli("endpoint", "list")[0]["tasks"]["done"] == 4
    # So do refusals, and strangers are told so by whoever they ask.
    status, said = other.post("/v1/tasks", {"function": "0" * 32, "tasks": [{}]})
    assert (status, said["error"]["code"]) == (404, "not_found")
    assert other.ask("GET", "/v1/tasks", token="nonsense")[0] == 401


def _as_it_is(what: Any) -> Any:
    return what


def test_every_manager_serves_hooks_teams_and_flows(site: Make) -> None:
    here = site()
    owner, other = here.owner(), here.another()
    here.endpoint(owner)
    with dayfly.connect(config=other.state) as client:
        function = client.register(_named, name="named")
        client.team("astro", ["alice"])
        assert [team["name"] for team in client.teams()] == ["astro"]
        hook = client.trigger("door", function, webhook=True, endpoint="here")
        flow = client.flow([dayfly.Step("first", function, endpoint="here")], {"who": "a"})
        assert flow.result(60) == "a"
    for manager in (owner, other):
        body, kind = b'{"who": "b"}', "application/json"
        status, said = manager.ask("POST", f"/v1/hooks/{hook.token}", body, token="none", Content_Type=kind)
        assert status == 202, said
    with dayfly.connect(config=owner.state) as client:
        [same] = client.triggers()
        wait_until(lambda: [event["state"] for event in same.history()] == ["started"] * 2, "both events")


def test_queries_are_seen_at_every_manager(site: Make) -> None:
    here = site()
    owner, other = here.owner(), here.another()
    path = f"/v1/queries/{'0' * 31}1"

    def reported(manager: Daemon) -> int:
        body = json.dumps({"text": "SELECT 1", "state": "running", "elapsed_ms": 1_500}).encode()
        return manager.ask("PUT", path, body, Content_Type="application/json")[0]

    for manager in (other, owner):
        assert reported(manager) == 200
    for manager in (owner, other):
        (query,) = manager.cli("queries")
        assert query["state"] == "running"
    assert other.ask("DELETE", path)[0] == 200
    assert owner.cli("queries")[0]["is_cancelling"]
    # The next owner of the tasks knows the query with its next report.
    owner.stop(20)
    wait_until(lambda: reported(other) == 200 and len(other.cli("queries")) == 1, "the other manager has the query", 30)


def _named(event: dict[str, Any]) -> Any:
    return event.get("who", event)


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_another_manager_takes_over_the_tasks(site: Make, tmp_path: Path, how: str) -> None:
    here = site(managers=3)
    owner, other = here.owner(), here.another()
    here.endpoint(owner)
    count = 6_000
    with dayfly.connect(config=other.state) as client:
        batch = client.map(leave_a_mark, [str(tmp_path)] * count, range(count), endpoint="here")
        for _ in range(2):
            go_on(batch, 200)
            owner = here.owner()
            begun = time.monotonic()
            owner.kill() if how == "kill" else owner.stop(20)
            left = [manager for manager in here.managers if manager.alive]
            go_on(batch, 10)
            print(f"{how}: tasks went on after {time.monotonic() - begun:.2f} s")
            assert here.owner(among=left) in left
            here.restart(owner)
        assert outcomes(batch) == {"well": count}
    assert set(executions(tmp_path).values()) == {1}
    assert len(executions(tmp_path)) == count


def test_database_restart_loses_no_task(site: Make, tmp_path: Path) -> None:
    server = Postgres()
    try:
        here = site(server.database())
        here.endpoint(here.owner())
        count = 4_000
        with dayfly.connect(config=here.another().state) as client:
            batch = client.map(leave_a_mark, [str(tmp_path)] * count, range(count), endpoint="here")
            for how in ("stop", "kill"):
                go_on(batch, 200)
                server.tell(how)
                server.tell("start")
            assert outcomes(batch) == {"well": count}
        assert set(executions(tmp_path).values()) == {1}
        here.end()
    finally:
        server.end()


def test_resumed_manager_writes_no_tasks_taken_over(site: Make, tmp_path: Path) -> None:
    here = site()
    owner, other = here.owner(), here.another()
    here.endpoint(other)
    count = 3_000
    with dayfly.connect(config=other.state) as client:
        batch = client.map(leave_a_mark, [str(tmp_path)] * count, range(count), endpoint="here")
        wait_until(lambda: batch.done() > 200, "tasks go on", 60)
        owner.process.send_signal(signal.SIGSTOP)
        try:
            wait_until(lambda: here.owner() is other, "the other has the tasks", 30)
        finally:
            owner.process.send_signal(signal.SIGCONT)
        assert outcomes(batch) == {"well": count}
        wait_until(lambda: "another manager has the tasks now" in owner.output(), "it hears of that", 10)
    assert set(executions(tmp_path).values()) == {1}
    # It is one of them again.
    assert len(owner.cli("task", "list", "--limit", "10")) == 10


def test_manager_with_other_content_store_refuses_tasks(site: Make) -> None:
    here = site(managers=1)
    [owner] = here.managers
    here.endpoint(owner)
    with dayfly.connect(config=owner.state) as client:
        assert list(client.map(abs, [-3], endpoint="here").results(60)) == [3]
    elsewhere = here.state / "elsewhere"
    elsewhere.mkdir()
    other = here.manager(1, contents=elsewhere)
    here.managers.append(other)
    assert len(other.cli("task", "list")) == 1
    owner.kill()
    wait_until(lambda: "set `--contents` to the place that all managers share" in other.output(), "the reason", 20)
    done = run(program(), "task", "list", "--json", env=other.client_environment(), check=False, timeout=60)
    assert done.returncode != 0
    assert json.loads(done.stderr.splitlines()[-1])["error"]["code"] == "unreachable"
    here.restart(owner)
    wait_until(lambda: len(other.cli("task", "list")) == 1, "they are back", 20)
