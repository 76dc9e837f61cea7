"""The examples in the docstrings of the package, run as doctests."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from collections.abc import Iterator
from types import ModuleType

import pytest

dayfly = pytest.importorskip("dayfly", reason="the package is not installed: make build")

#: Modules that run as programs, or are those of others, as `dayfly.MPI` is mpi4py's.
NOT_IMPORTED = {"dayfly.MPI", "dayfly._native", "dayfly._providers.__main__", "dayfly.executor"}
#: Objects whose examples are skipped without a manager, and run with one. `client` and `lease` are their variables.
WITH_MANAGER = [
    ("dayfly", "__doc__"),
    ("dayfly._client", "connect"),
    ("dayfly._leases.lease", "Delegation"),
    ("dayfly._tasks.decorator", "durable"),
    ("dayfly._leases.gang", "Gang"),
    ("dayfly._leases.lease", "Lease"),
    ("dayfly.joblib", "__doc__"),
    ("dayfly.parsl", "__doc__"),
]
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def module_names() -> list[str]:
    listed = {one.name for one in pkgutil.walk_packages(dayfly.__path__, "dayfly.", onerror=lambda _: None)}
    return sorted({"dayfly", *listed} - NOT_IMPORTED)


def module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "dayfly").startswith("dayfly"):
            raise
        pytest.skip(f"{name} needs {error.name}, which is not installed")


def run(example: doctest.DocTest) -> None:
    report: list[str] = []
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    runner.run(example, out=report.append)
    assert runner.failures == 0, "".join(report)


@pytest.fixture(scope="module")
def lease(client: dayfly.Client) -> Iterator[dayfly.Lease]:
    """Three workers: an example delegates two and uses one more."""
    with client.lease(workers=3, mode="warm") as lease:
        yield lease


@pytest.mark.parametrize("name", module_names())
def test_docstring_examples_are_correct(name: str) -> None:
    for example in doctest.DocTestFinder().find(module(name)):
        run(example)


@pytest.mark.parametrize(("name", "subject"), WITH_MANAGER, ids=lambda part: part.removeprefix("dayfly.").strip("_"))
def test_docstring_examples_run_on_a_manager(
    client: dayfly.Client, lease: dayfly.Lease, name: str, subject: str
) -> None:
    found = module(name)
    text = found.__doc__ if subject == "__doc__" else getattr(found, subject).__doc__
    # The endpoint of the examples is this test's own.
    text = text.replace("# doctest: +SKIP", "").replace('"cluster"', '"local"')
    variables = {"client": client, "lease": lease, "connect": dayfly.connect, "durable": dayfly.durable}
    example = doctest.DocTestParser().get_doctest(text, variables, f"{name}.{subject}", found.__file__, 0)
    assert example.examples, f"{name}.{subject} has no examples"
    run(example)
