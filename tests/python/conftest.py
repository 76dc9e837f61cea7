"""One manager for each module's tests of the package."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from harness.images import debian
from harness.programs import bin_dir

dayfly = pytest.importorskip("dayfly", reason="the package is not installed: make build")


@pytest.fixture(scope="module")
def client() -> Iterator[dayfly.Client]:
    os.environ.setdefault("DAYFLY_BIN", str(bin_dir() / "dayfly"))
    with dayfly.connect() as client:
        yield client


@pytest.fixture(scope="module")
def lease(client: dayfly.Client) -> Iterator[dayfly.Lease]:
    """Two workers, shared by a module's tests."""
    with client.lease(workers=2, mode="warm") as lease:
        yield lease


@pytest.fixture
def own(client: dayfly.Client) -> Iterator[dayfly.Lease]:
    """One worker, for a test that damages it."""
    with client.lease(workers=1, mode="warm") as lease:
        yield lease


@pytest.fixture(scope="module", params=["isolated", "container"])
def level(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The options of an isolated lease, at both levels."""
    if request.param == "isolated":
        return {"sandbox": "isolated"}
    image, why = debian()
    if why:
        pytest.skip(why)
    # An image does not contain the test's modules.
    cloudpickle.register_pickle_by_value(request.module)
    return {"sandbox": "container", "image": image}


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A shared library with functions of both forms."""
    from harness.compilers import compile_source

    return compile_source(Path(__file__).parent / "functions.c", tmp_path_factory.mktemp("compiled") / "functions.so")
