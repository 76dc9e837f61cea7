"""narwhals' groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from narwhals._sql.group_by import SQLGroupBy

from dayfly_frames._narwhals.sql import quoted


class DayflyGroupBy(SQLGroupBy[Any, Any, Any]):
    """Rows in groups."""

    def __init__(self, frame: Any, keys: Sequence[Any], /, *, drop_null_keys: bool) -> None:
        parsed, self._keys, self._output_key_names = self._parse_keys(frame, keys=keys)
        self._compliant_frame = parsed.drop_nulls(self._keys) if drop_null_keys else parsed

    def agg(self, *exprs: Any) -> Any:
        """Returns one row for each group."""
        keys = [quoted(key) for key in self._keys]
        values = self._evaluate_exprs(exprs)
        grouped = self.compliant._query([*keys, *values], f"GROUP BY {', '.join(keys)}")
        return grouped.rename(dict(zip(self._keys, self._output_key_names, strict=False)))
