"""Code written for Parsl: with another import, its apps run as durable tasks."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

dayfly = pytest.importorskip("dayfly", reason="the package is not installed: make build")

from dayfly.parsl import bash_app, load, python_app, wait_for_current_tasks  # noqa: E402


@python_app
def area(width: int, height: int) -> int:
    return width * height


@python_app(cache=True)
def draw(seed: int) -> float:
    del seed
    return time.time()


@bash_app
def count(directory: str, stdout: str | None = None, status: int = 0) -> str:
    del stdout
    return f"ls {directory} | wc -l; exit {status}"


@pytest.fixture(autouse=True)
def loaded(client: dayfly.Client) -> Iterator[None]:
    with load(client):
        yield


def test_futures_of_apps_are_arguments_of_apps() -> None:
    parts = [area(n, 2) for n in range(4)]
    assert area(area(1, 2), area(3, 4)).result(30) == 24

    @python_app
    def total(inputs: list[int]) -> int:
        return sum(inputs)

    assert total(inputs=parts).result(30) == 12


def test_app_result_may_come_from_an_earlier_call() -> None:
    assert draw(1).result(30) == draw(1).result(30) != draw(2).result(30)


def test_bash_app_runs_the_returned_command(tmp_path: Path) -> None:
    (tmp_path / "one").touch()
    (tmp_path / "two").touch()
    out = tmp_path.parent / "counted"
    assert count(str(tmp_path), stdout=str(out)).result(30) == 0
    assert out.read_text().strip() == "2"
    with pytest.raises(dayfly.CommandError) as raised:
        count(str(tmp_path), status=3).result(30)
    assert raised.value.status == 3


def test_leaving_the_block_waits_for_running_apps(tmp_path: Path) -> None:
    @python_app
    def mark(path: str) -> None:
        time.sleep(0.2)
        Path(path).touch()

    marks = [tmp_path / str(number) for number in range(4)]
    for path in marks:
        mark(str(path))
    wait_for_current_tasks()
    assert all(path.exists() for path in marks)
    assert area(2, 3).result(30) == 6


def test_invalid_app_options_are_refused() -> None:
    with pytest.raises(RuntimeError, match="clear"):
        load()
    with pytest.raises(ValueError, match="one endpoint"):
        python_app(executors=["a", "b"])(abs)

    @bash_app
    def wrong() -> str:
        return 7  # type: ignore[return-value]

    with pytest.raises(TypeError, match="must return a command"):
        wrong().result(30)
