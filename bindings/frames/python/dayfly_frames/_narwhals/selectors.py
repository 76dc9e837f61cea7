"""narwhals' selectors of columns."""

from __future__ import annotations

from typing import Any

from narwhals._compliant import CompliantSelector, LazySelectorNamespace

from dayfly_frames._narwhals.expr import DayflyExpr


class DayflySelector(CompliantSelector[Any, Any], DayflyExpr):
    """Columns that have something in common."""

    _window_function: Any = None

    def _to_expr(self) -> DayflyExpr:
        return DayflyExpr(
            self._call,
            self._window_function,
            evaluate_output_names=self._evaluate_output_names,
            alias_output_names=self._alias_output_names,
            version=self._version,
        )


class DayflySelectorNamespace(LazySelectorNamespace[Any, Any]):
    """The selectors."""

    @property
    def _selector(self) -> type[DayflySelector]:
        return DayflySelector
