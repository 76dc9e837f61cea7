"""Fixtures of the attack tests: a real manager with a node, two tenants, and an observer without a token.

``manager`` lives as long as its module, and so do ``alice`` and ``bob`` (see ``harness.tenants``). A test that harms
any of them makes its own, with ``start`` (see ``tests/conftest.py``) and ``harness.people``.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from harness.daemons import Daemon
from harness.managers import manager_here


@pytest.fixture(scope="module")
def manager() -> Iterator[Daemon]:
    """A manager with a node whose workers have the tests' own Python."""
    with manager_here() as manager:
        yield manager
