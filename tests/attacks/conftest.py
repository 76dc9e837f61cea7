"""Fixtures of the attack tests: a real manager with a node, two tenants, and an observer without a token.

``manager`` lives as long as its module, and so do ``alice`` and ``bob``. A test that harms any of them makes its own,
with ``start`` (see ``tests/conftest.py``) and ``harness.people``.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from harness.daemons import Daemon
from harness.managers import manager_here
from harness.people import Observer, Person


@pytest.fixture(scope="module")
def manager() -> Iterator[Daemon]:
    """A manager with a node whose workers have the tests' own Python."""
    with manager_here() as manager:
        yield manager


@pytest.fixture(scope="module")
def people(manager: Daemon, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Person]]:
    """Two tenants: ``alice``, who is attacked, and ``bob``."""
    pytest.importorskip("mayfly", reason="the package is not installed: make build")
    directory = tmp_path_factory.mktemp("people")
    made = {name: Person(manager, name, directory) for name in ("alice", "bob")}
    yield made
    for person in made.values():
        person.client.close()


@pytest.fixture
def alice(people: dict[str, Person]) -> Person:
    """A tenant."""
    return people["alice"]


@pytest.fixture
def bob(people: dict[str, Person]) -> Person:
    """Another tenant."""
    return people["bob"]


@pytest.fixture
def observer(manager: Daemon) -> Observer:
    """Reaches the manager's port and has no token."""
    return Observer(manager)
