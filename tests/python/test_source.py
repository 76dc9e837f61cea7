"""Functions that are sent as source text, and run in any version of Python."""

from __future__ import annotations

import base64
import functools
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness.daemons import Daemon
from harness.managers import manager_here

dayfly = pytest.importorskip("dayfly", reason="the package is not installed: make build")

SCALE = 3


@pytest.fixture(scope="module")
def manager() -> Iterator[Daemon]:
    with manager_here() as manager:
        yield manager


@pytest.fixture(scope="module")
def client(manager: Daemon) -> Iterator[dayfly.Client]:
    with dayfly.connect(config=manager.state) as client:
        yield client


def hypotenuse(a: Callable[..., Any], b: Path | float = 1) -> dict[str, Any]:
    """Returns the length."""
    import math

    return {"c": math.hypot(a, b), "of": (a, b)}


def traced(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Has an effect here, and none on the worker."""

    @functools.wraps(fn)
    def inner(*args: Any) -> Any:
        raise AssertionError("it is not called here")

    return inner


@traced
@functools.lru_cache(maxsize=3)
def factorial(n: int) -> int:
    def product(numbers: list[int]) -> int:
        result = 1
        for number in numbers:
            result *= number
        return result

    return product(range(1, n + 1)) if n < 3 else n * factorial(n - 1)


def scaled(n: int) -> int:
    return SCALE * n


def by_default(n: int, scale: int = SCALE) -> int:
    return n * scale


def echo(*args: Any, **kwargs: Any) -> Any:
    return [args, kwargs]


def fail(what: str) -> None:
    raise LookupError(what)


def test_source_function_is_registered_and_called_in_json(client: dayfly.Client) -> None:
    registered = client.register(hypotenuse, source=True)
    status = registered.status
    assert (status["form"], status["description"]) == ({"form": "source", "entry": "hypotenuse"}, "Returns the length.")
    assert status["source"].startswith("def hypotenuse(")
    assert status["runtime"]["version"] == ""
    assert client.register(hypotenuse, source=True).id == registered.id
    # A tuple there becomes a list here.
    assert client.run(registered, 3, b=4).result(30) == {"c": 5.0, "of": [3, 4]}
    assert client.run(client.function("hypotenuse"), 3).result(30)["of"] == [3, 1]
    assert registered(3, 4)["c"] == 5.0


def test_executors_maps_and_decorators_send_source(client: dayfly.Client) -> None:
    with dayfly.Executor(client=client, source=True, walltime=30) as executor:
        assert executor.submit(factorial, 5).result(30) == 120
        assert list(executor.map(factorial, range(6), chunksize=2, timeout=30)) == [1, 1, 2, 6, 24, 120]
    batch = client.map(factorial, [3, 4], source=True)
    assert list(batch.results(timeout=30)) == [6, 24]
    # They are distinguished from other tasks also after they are found again.
    assert list(client.tasks(batch.tag).results(timeout=30)) == [6, 24]

    @dayfly.durable(client=client, source=True)
    def doubled(n: int) -> int:
        return 2 * n

    assert doubled.submit(21).result(30) == 42
    assert list(doubled.map([1, 2]).results(timeout=30)) == [2, 4]


def test_multiline_strings_in_indented_functions_stay_unchanged(client: dayfly.Client) -> None:
    @functools.cache
    def poem(
        end: str = """
        .""",
    ) -> str:
        return (
            """first
            second
"""
            + end
        )

    registered = client.register(poem, source=True)
    assert "def poem(" in registered.status["source"]
    assert client.run(registered).result(30) == "first\n            second\n\n        ."


def test_values_beyond_json_are_refused_by_name(client: dayfly.Client) -> None:
    with dayfly.Executor(client=client, source=True) as executor:
        values = [1, -2.5, True, None, "ü", [1, [2]], {"a": {"b": []}}, 10**30]
        assert executor.submit(echo, *values, by=values).result(30) == [values, {"by": values}]
        others = executor.submit(echo, np.arange(3).tolist(), np.float64(0.5), Path("/a"), size=(1, 2))
        assert others.result(30) == [[[0, 1, 2], 0.5, "/a"], {"size": [1, 2]}]
        for array, named in ((np.arange(3), "ndarray"), ([np.float32(0.5)], "float32")):
            with pytest.raises(TypeError, match=rf"argument 1 has a {named}, .* pass its tolist\(\)"):
                executor.submit(echo, array)
        for strange, named in ((b"bytes", "bytes"), ({1}, "set"), (object(), "object"), ([0, [1j]], "complex")):
            with pytest.raises(TypeError, match=f"argument 2 has a {named}, which JSON cannot express"):
                executor.submit(echo, 1, strange)
            with pytest.raises(TypeError, match=f"argument 'by' has a {named}, which JSON cannot express"):
                executor.submit(echo, by=strange)
        with pytest.raises(TypeError, match="argument 1 has the key 7"):
            executor.submit(echo, {7: "seven"})
        with pytest.raises(TypeError, match="give it the result"):
            executor.submit(echo, executor.submit(echo, 1))


def test_exception_of_a_source_arrives_as_text(client: dayfly.Client) -> None:
    registered = client.register(fail, source=True)
    with pytest.raises(dayfly.FunctionError, match="LookupError: not today") as raised:
        client.run(registered, "not today").result(30)
    assert "in fail" in str(raised.value)


def test_incomplete_source_is_refused_with_a_reason(client: dayfly.Client) -> None:
    factor = 2

    def enclosed(n: int) -> int:
        return factor * n

    space: dict[str, Any] = {}
    exec("def made(): return 1", space)
    refused = {
        "a lambda": lambda n: n,
        "uses factor of the function around it": enclosed,
        "uses SCALE of its module": scaled,
        "by_default uses SCALE": by_default,
        "is not a Python function": "text".upper,
        "the source of made is not to be found": space["made"],
        "EntryPoint.* is not a Python function": dayfly.EntryPoint("x"),
        "Command.* is not a Python function": dayfly.Command("true"),
    }
    with dayfly.Executor(client=client, source=True) as executor:
        for why, fn in refused.items():
            with pytest.raises(TypeError, match=why):
                client.register(fn, source=True)
            with pytest.raises(TypeError, match=why):
                executor.submit(fn, 1)
    with pytest.raises(ValueError, match="source: only for durable tasks"):
        dayfly.Executor(client=client, durable=False, source=True)


def test_source_runs_in_another_version_of_python(client: dayfly.Client) -> None:
    other = dayfly.Environment(["idna"], python="3.12" if sys.version_info[:2] == (3, 13) else "3.13")
    with pytest.raises(dayfly.Error, match="register the function as source") as raised:
        client.register(hypotenuse, environment=other)
    assert raised.value.code == "python_mismatch"
    status = client.register(hypotenuse, environment=other, source=True).status
    assert status["runtime"]["environment"] == {"python": other.python, "requirements": ["idna"]}


def test_functions_without_python_are_called_alike(client: dayfly.Client) -> None:
    text = base64.b64encode(b"def twice(n):\n    return [n, n]\n").decode()
    described = {"name": "twice", "form": {"form": "source", "entry": "twice"}, "code": text}
    client._native.post("/v1/functions", json.dumps(described))
    assert client.run(client.function("twice"), "a").result(30) == ["a", "a"]
