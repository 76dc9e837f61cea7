"""Functions of shared libraries as durable tasks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from harness.compilers import compile_source
from harness.daemons import Daemon
from harness.managers import manager_here

dayfly = pytest.importorskip("dayfly", reason="the package is not installed: make build")

LIBRARY = """
#include <dayfly_function.h>
#include <string.h>

DFLY_EXPORT uint32_t same(void *in, uint32_t size, void *out) {
    memcpy(out, in, size);
    return size;
}

DFLY_EXPORT int32_t sum(dfly_context *context, const void *in, size_t in_len, void *out, size_t out_capacity,
                      size_t *out_len) {
    double total = 0;
    if (in_len == 0) {
        return dfly_set_error(context, "nothing to add");
    }
    if (out_capacity < sizeof total && !(out = dfly_grow_output(context, 0, sizeof total))) {
        return dfly_set_error(context, "no room");
    }
    for (size_t i = 0; i < in_len / sizeof total; i++) {
        total += ((const double *)in)[i];
    }
    memcpy(out, &total, sizeof total);
    *out_len = sizeof total;
    return 0;
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A shared library with a function of each form."""
    directory = tmp_path_factory.mktemp("library")
    (directory / "functions.c").write_text(LIBRARY)
    return compile_source(directory / "functions.c", directory / "functions.so")


@pytest.fixture(scope="module")
def manager() -> Iterator[Daemon]:
    with manager_here() as manager:
        yield manager


@pytest.fixture(scope="module")
def client(manager: Daemon) -> Iterator[dayfly.Client]:
    with dayfly.connect(config=manager.state) as client:
        yield client


def test_symbol_is_registered_and_returns_its_output(client: dayfly.Client, library: Path) -> None:
    registered = client.register(dayfly.Symbol(library, "same"), walltime=30)
    assert (registered.name, registered.status["form"]) == ("same", {"form": "plain", "symbol": "same"})
    assert registered.status["runtime"] == {"kind": "native"}
    assert registered.status["source"] == "same of functions.so"
    assert client.register(dayfly.Symbol(library, "same"), walltime=30).id == registered.id
    # For any last byte, which is the form in other results.
    for last in range(9):
        assert client.run(registered, b"x" + bytes([last])).result(30) == b"x" + bytes([last])
    assert client.run(registered).result(30) == b""
    # A function found by its name is called in the same way.
    assert client.run(client.function("same"), bytearray(b"abc")).result(30) == b"abc"


def test_symbols_take_arrays_and_checked_ones_report_errors(client: dayfly.Client, library: Path) -> None:
    total = dayfly.Symbol(str(library), "sum", checked=True)
    same = dayfly.Symbol(library, "same")
    numbers = np.arange(200_000, dtype=np.float64)
    with dayfly.Executor(client=client, walltime=30) as executor:
        # More than the manager stores inline, in both directions.
        assert executor.submit(same, numbers).result(30) == numbers.tobytes()
        assert np.frombuffer(executor.submit(total, numbers).result(30)) == [numbers.sum()]
        sums = executor.map(total, [np.full(10, n, np.float64) for n in range(50)], timeout=30)
        assert [float(np.frombuffer(one)[0]) for one in sums] == [10.0 * n for n in range(50)]
        with pytest.raises(dayfly.FunctionError, match="nothing to add"):
            executor.submit(total).result(30)


def test_results_of_symbols_are_found_again(client: dayfly.Client, library: Path) -> None:
    same = dayfly.Symbol(library, "same")
    batch = client.map(same, [bytes([n]) for n in range(20)], tag="bytes")
    first = batch[0].id
    assert list(batch.results(timeout=30)) == [bytes([n]) for n in range(20)]
    assert list(client.tasks("bytes").results(timeout=30)) == [bytes([n]) for n in range(20)]
    assert client.task(first).result(30) == b"\0"
    with client.batch() as mixed:
        futures = [mixed.submit(same, b"\5"), mixed.submit(abs, -1)]
    assert [future.result(30) for future in futures] == [b"\5", 1]
    assert list(client.tasks(mixed.tag).results(timeout=30)) == [b"\5", 1]


def test_invalid_arguments_of_symbols_are_refused(client: dayfly.Client, library: Path) -> None:
    same = dayfly.Symbol(library, "same")
    with dayfly.Executor(client=client) as executor:
        with pytest.raises(TypeError, match="takes one object with a buffer"):
            executor.submit(same, b"a", b"b")
        with pytest.raises(TypeError, match="takes one object with a buffer"):
            executor.submit(same, data=b"a")
        with pytest.raises(TypeError, match="bytes, an array"):
            executor.submit(same, "text")
        before = executor.submit(abs, -1)
        with pytest.raises(TypeError, match="give it the result"):
            executor.submit(same, before)
        with pytest.raises(TypeError, match="give its result instead"):
            executor.submit(len, executor.submit(same, b"abc")).result(0)
    with dayfly.Executor(client=client, durable=False, workers=1) as executor:
        for submit in (executor.submit, executor.map):
            with pytest.raises(TypeError, match="runs as a durable task alone"):
                submit(same, [b"abc"])
    with pytest.raises(ValueError, match="environment"):
        client.register(same, environment=["numpy"])
    with pytest.raises(dayfly.Error, match="ranks are called through Python"):
        client.register(same, ranks=2)
    with pytest.raises(TypeError, match="runs on workers"):
        same(b"a")
    with pytest.raises(FileNotFoundError):
        dayfly.Symbol("no such file.so", "same")


def test_missing_symbol_or_library_fails_to_load(client: dayfly.Client, library: Path, tmp_path: Path) -> None:
    (tmp_path / "text.so").write_text("no library")
    with dayfly.Executor(client=client, walltime=30) as executor:
        with pytest.raises(dayfly.LoadError, match="no function `nothing` in the library") as raised:
            executor.submit(dayfly.Symbol(library, "nothing")).result(30)
        assert raised.value.code == "load_failed"
        with pytest.raises(dayfly.LoadError, match="cannot be loaded as a shared library"):
            executor.submit(dayfly.Symbol(tmp_path / "text.so", "same")).result(30)
