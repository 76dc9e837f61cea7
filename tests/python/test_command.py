"""Shell commands as functions."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness.leaks import wait_until

dayfly = pytest.importorskip("dayfly", reason="the package is not installed: make build")


def test_command_arguments_are_quoted_words(tmp_path: Path) -> None:
    copy = dayfly.Command("cp {source} {target} && cat {target}")
    (tmp_path / "it's; rm -rf $HOME").write_text("here\n")
    assert copy(tmp_path / "it's; rm -rf $HOME", target=tmp_path / "a b") == "here\n"
    assert dayfly.Command("awk 'BEGIN {{ print {sum} }}'").arguments == ("sum",)
    for wrong in (lambda: copy("a"), lambda: copy("a", "b", "c"), lambda: copy("a", source="b"), lambda: copy(x=1)):
        with pytest.raises(TypeError, match="cp"):
            wrong()


def test_invalid_command_is_refused_at_creation() -> None:
    for wrong in ("", "echo {}", "echo {0}", "echo {a.b}", "echo {a:>3}", "echo {a!r}"):
        with pytest.raises(ValueError):
            dayfly.Command(wrong)


def test_command_runs_as_task_and_on_lease(client: dayfly.Client, tmp_path: Path) -> None:
    hello = dayfly.Command("echo hello {name}; pwd; echo $GREETING", directory=tmp_path, variables={"GREETING": "hi"})
    assert client.run(hello, "you").result(30) == f"hello you\n{tmp_path}\nhi\n"
    with client.lease(mode="warm") as lease:
        assert lease.call(hello, "you") == f"hello you\n{tmp_path}\nhi\n"
    batch = client.map(dayfly.Command("expr {a} '*' {b}"), range(1, 6), range(1, 6))
    assert [int(text) for text in batch.results(timeout=30)] == [1, 4, 9, 16, 25]


def test_failed_command_reports_status_and_stderr(client: dayfly.Client) -> None:
    future = client.run(dayfly.Command("echo so far; echo 'no such thing' >&2; exit 3"))
    with pytest.raises(dayfly.CommandError, match="status 3: no such thing") as raised:
        future.result(30)
    assert (raised.value.status, raised.value.stderr) == (3, "no such thing\n")
    wait_until(lambda: client.output(future, "err") == "no such thing\n", "its last words")
    with pytest.raises(dayfly.CommandError, match="signal 9"):
        client.run(dayfly.Command("kill -9 $$")).result(30)


def test_command_is_registered_with_its_text(client: dayfly.Client) -> None:
    function = client.register(dayfly.Command("/bin/echo {what}"))
    assert (function.name, function.status["source"]) == ("echo", "/bin/echo {what}")
    assert client.run(client.function("echo"), "again").result(30) == "again\n"


def test_walltime_ends_a_command_and_its_children(client: dayfly.Client, tmp_path: Path) -> None:
    mark = tmp_path / "alive"
    endless = dayfly.Command("(while :; do touch {mark}; sleep 0.05; done) & wait")
    with dayfly.Executor(client=client, walltime=0.5) as executor:
        with pytest.raises(dayfly.DeadlineExceeded):
            executor.submit(endless, mark).result(30)
        mark.unlink()
        with pytest.raises(AssertionError):
            wait_until(mark.exists, "what was started to go on", 0.5)


def test_too_much_output_fails_the_command(client: dayfly.Client) -> None:
    with pytest.raises(ValueError, match="64 MiB"):
        client.run(dayfly.Command("yes")).result(60)
