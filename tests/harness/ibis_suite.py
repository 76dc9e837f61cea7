"""A plugin of pytest that runs Ibis' own tests, which are in its package, against Dayfly's backend.

``DAYFLY_IBIS_DATA`` names a directory with the Parquet files of Ibis' test data. Without it, tables with the same
columns are made by a fixed seed.
"""

from __future__ import annotations

import os
import sys
import types
from pathlib import Path
from typing import Any

import ibis
import pytest
from ibis.backends.conftest import TEST_TABLES
from ibis.backends.tests.base import BackendTest
from ibis.backends.tests.data import array_types, topk, win

from harness.ibis_tables import made

#: Tests that fail, by the beginnings of their names, and why.
FAILING = {
    "test_decimal_literal[dayfly-default]": "has expected values for each of Ibis' own backends, by name",
    "test_decimal_literal[dayfly-decimal-small]": "has expected values for each of Ibis' own backends, by name",
    "test_parse_url[dayfly-query-": "Dayfly takes no parameter out of the query of a URL",
    "test_re_split": "DataFusion has no such function, and Ibis adds it in Python",
}


class TestConf(BackendTest):
    """What Ibis' tests ask of a backend."""

    __test__ = False
    supports_structs = False
    supports_json = False
    supports_arrays = True
    stateful = False
    deps = ()

    @classmethod
    def name(cls) -> str:
        return "dayfly"

    @staticmethod
    def connect(*, tmpdir: Any, worker_id: str, **options: Any) -> Any:
        return ibis.dayfly.connect(ranks=2, **options)

    def _load_data(self, **_: Any) -> None:
        directory = os.environ.get("DAYFLY_IBIS_DATA")
        for name, schema in TEST_TABLES.items():
            if directory:
                self.connection.read_parquet(Path(directory) / f"{name}.parquet", table_name=name)
            else:
                self.connection.create_table(name, made(name), schema=schema)
        for name, rows in (("array_types", array_types), ("win", win), ("topk", topk)):
            self.connection.create_table(name, rows)


def pytest_configure() -> None:
    """Puts the description of the backend where Ibis' tests look it up."""
    for name in ("ibis.backends.dayfly", "ibis.backends.dayfly.tests", "ibis.backends.dayfly.tests.conftest"):
        module = sys.modules.setdefault(name, types.ModuleType(name))
    module.TestConf = TestConf  # type: ignore[attr-defined]
    sys.modules["ibis.backends.dayfly"].Backend = type(ibis.dayfly.compile.__self__)  # type: ignore[attr-defined]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Expects tests to fail that are named above, or that Ibis expects to fail on its own backend for DataFusion."""
    for item in items:
        for name, reason in FAILING.items():
            if item.name.startswith(name):
                item.add_marker(pytest.mark.xfail(reason=reason, strict=True))
        for mark in (mark for name in ("notimpl", "notyet", "never") for mark in item.iter_markers(name)):
            backends = mark.args[0]
            if "datafusion" in ([backends] if isinstance(backends, str) else backends):
                reason = mark.kwargs.get("reason") or "not in Ibis' backend for DataFusion"
                item.add_marker(pytest.mark.xfail(reason=reason, strict=False))
