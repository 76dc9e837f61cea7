"""A plugin of pytest that runs narwhals' own tests of lazy frames on Dayfly's. They are in its source distribution."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import sys
import tempfile
from decimal import Decimal
from pathlib import Path
from typing import Any

import dayfly
import pyarrow as pa
import pytest

#: Tests that fail, by a part of their names, and why.
FAILING: dict[str, str] = {}

#: Tests that sort, and then do what loses the order. Their rows are compared in any order.
UNORDERED: tuple[str, ...] = ()


class Frames:
    """Makes frames of files, which the ranks read. The first one opens a session."""

    def __init__(self) -> None:
        self._open = contextlib.ExitStack()
        self._numbers = itertools.count()
        self._session: Any = None

    def make(self, columns: Any) -> Any:
        if self._session is None:
            self._directory = Path(self._open.enter_context(tempfile.TemporaryDirectory()))
            client = self._open.enter_context(dayfly.connect())
            self._session = self._open.enter_context(client.frames(ranks=2))
        table = pa.table(columns)
        path = self._directory / f"{next(self._numbers)}.arrow"
        with pa.ipc.new_file(path, table.schema) as file:
            file.write_table(table)
        return self._session.scan_ipc(path)

    def close(self) -> None:
        self._open.close()


FRAMES = Frames()
#: The test that runs.
CURRENT: list[pytest.Item] = []


def dayfly_constructor(columns: Any) -> Any:
    """Its name tells narwhals' tests what it makes."""
    return FRAMES.make(columns)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "constructor" in metafunc.fixturenames:
        metafunc.parametrize("constructor", [dayfly_constructor], ids=["dayfly"])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out tests of frames in memory, and expects those to fail that are named above."""
    lazy = [item for item in items if "constructor" in getattr(item, "fixturenames", ())]
    config.hook.pytest_deselected(items=[item for item in items if item not in lazy])
    items[:] = lazy
    for item in items:
        for name, reason in FAILING.items():
            if name in item.nodeid:
                item.add_marker(pytest.mark.xfail(reason=reason, strict=True))


def is_ordered(test: Any) -> bool:
    """Whether a test sorts its rows. Those of others come in any order, as everywhere in SQL."""
    source = inspect.getsource(test.function)
    return (".sort(" in source or ".top_k(" in source) and not test.name.startswith(UNORDERED)


def pytest_runtest_setup(item: pytest.Item) -> None:
    CURRENT[:] = [item]


def pytest_sessionstart() -> None:
    """Replaces narwhals' comparison of results before its tests import it."""
    utils: Any = sys.modules["tests.utils"]
    original = utils.assert_equal_data

    def assert_equal_data(result: Any, expected: Any) -> None:
        if hasattr(result, "collect") and not is_ordered(CURRENT[0]):
            result, expected = _sorted(result.collect().to_dict(as_series=False)), _sorted(expected)
        original(result, expected)

    utils.assert_equal_data = assert_equal_data


def pytest_unconfigure() -> None:
    FRAMES.close()


def _sorted(columns: Any) -> dict[str, list[Any]]:
    rows = sorted(zip(*columns.values(), strict=True), key=lambda row: [_key(value) for value in row])
    return {name: [row[place] for row in rows] for place, name in enumerate(columns)}


def _key(value: Any) -> tuple[int, Any]:
    if value is None:
        return (0, 0)
    return (1, round(float(value), 6)) if isinstance(value, int | float | Decimal) else (2, str(value))
