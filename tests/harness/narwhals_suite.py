"""A plugin of pytest that runs narwhals' own tests of lazy frames on Dayfly's. They are in its source distribution."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import math
import sys
import tempfile
from decimal import Decimal
from pathlib import Path
from typing import Any

import dayfly
import pyarrow as pa
import pytest

#: Tests that fail, by a part of their names, and why.
FAILING = {
    "join_test.py::test_joinasof_by[": "SQL has no such join",
    "join_test.py::test_joinasof_numeric": "SQL has no such join",
    "join_test.py::test_joinasof_suffix": "SQL has no such join",
    "join_test.py::test_joinasof_time": "SQL has no such join",
    "cast_test.py::test_cast_datetime_tz_aware": "texts of times have a T",
    "cast_test.py::test_cast_datetime_utc": "texts of times have a T",
    "cum_prod_test.py": "DataFusion has no such function",
    "drop_nulls_test.py::test_drop_nulls_agg": "the columns of a query are of one length",
    "explode_test.py::test_explode_multiple_cols": "lists may differ in length",
    "explode_test.py::test_explode_shape_error": "lists may differ in length",
    "is_finite_test.py::test_is_finite_expr": "has expected values for each backend, by name",
    "is_nan_test.py::test_nan_non_float": "expects another exception",
    "kurtosis_test.py": "DataFusion has no such function",
    "list/contains_test.py::test_contains_inner_dtypes_expr[dayfly-x3-": "decimal numbers differ in their digits",
    "list/contains_test.py::test_contains_invalid_item_raises": "expects another exception",
    "list/contains_test.py::test_contains_none": "DataFusion finds no null in a list",
    "list/mean_test.py": "DataFusion has no such function",
    "list/median_test.py": "DataFusion has no such function",
    "list/sum_test.py": "DataFusion has no such function",
    "list/unique_test.py::test_unique_maintain_order_expr": "DataFusion keeps no order there",
    "lit_test.py::test_nested_structures[dayfly-value2-": "structs have fields",
    "median_test.py::test_median_expr_raises_on_str": "expects another exception",
    "mode_test.py": "DataFusion has no such function",
    "quantile_test.py::test_quantile_expr[dayfly-higher-": "DataFusion interpolates",
    "quantile_test.py::test_quantile_expr[dayfly-lower-": "DataFusion interpolates",
    "quantile_test.py::test_quantile_expr[dayfly-midpoint-": "DataFusion interpolates",
    "quantile_test.py::test_quantile_expr[dayfly-nearest-": "DataFusion interpolates",
    "rank_test.py::test_rank_with_order_by": "narwhals has no such ranks for SQL",
    "reduction_return_type_test.py::test_numeric_reduction_keeps_dtype_when_all_null[dayfly-kurtosis]": "no function",
    "reduction_return_type_test.py::test_numeric_reduction_keeps_dtype_when_all_null[dayfly-skew]": "no function",
    "replace_strict_test.py::test_replace_strict_expr_basic": "needs a value for what is not replaced",
    "selectors_test.py::test_enum": "Arrow has no such type",
    "selectors_test.py::test_set_ops[dayfly-selector2-": "frames have columns",
    "skew_test.py": "DataFusion has no such function",
    "str/replace_test.py::test_str_replace_edge_expr_scalar[dayfly-insert_replacement]": "replaces one match, or all",
    "str/replace_test.py::test_str_replace_edge_expr_scalar[dayfly-n_zero]": "replaces one match, or all",
    "str/replace_test.py::test_str_replace_value_edge_expr_scalar[dayfly-backslash_literal]": "backslashes name groups",
    "str/to_datetime_test.py::test_to_datetime_infer_fmt": "needs a format",
    "str/to_datetime_test.py::test_to_datetime_tz_aware[dayfly-None]": "needs a format",
    "str/to_titlecase_test.py": "DataFusion's words are others",
    "timestamp_test.py::test_timestamp_invalid_date": "casts numbers to times",
    "unary_test.py": "DataFusion has no function for skew",
    "unique_test.py::test_unique_expr_agg": "the columns of a query are of one length",
    "with_columns_test.py::test_with_columns_numpy_array": "expects another message",
}

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
    # narwhals compares them as equal.
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return (0, 0)
    return (1, round(float(value), 6)) if isinstance(value, int | float | Decimal) else (2, str(value))
