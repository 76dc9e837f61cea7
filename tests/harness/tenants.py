"""Fixtures for tenants of the manager in a module's own fixture ``manager``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness.daemons import Daemon
from harness.people import Observer, People, Person


@pytest.fixture(scope="module")
def people(manager: Daemon, tmp_path_factory: pytest.TempPathFactory) -> Iterator[People]:
    """Tenants by name."""
    pytest.importorskip("dayfly", reason="the package is not installed: make build")
    people = People(manager, tmp_path_factory.mktemp("people"))
    yield people
    people.close()


@pytest.fixture
def alice(people: People) -> Person:
    """A tenant, the victim in tests of attacks."""
    return people["alice"]


@pytest.fixture
def bob(people: People) -> Person:
    """Another tenant."""
    return people["bob"]


@pytest.fixture
def carol(people: People) -> Person:
    """A third tenant."""
    return people["carol"]


@pytest.fixture
def observer(manager: Daemon) -> Observer:
    """A client that reaches the manager's port and has no token."""
    return Observer(manager)
