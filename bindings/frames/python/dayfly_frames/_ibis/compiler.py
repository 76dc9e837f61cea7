"""Ibis' operations in SQL of DataFusion, without the Python functions that Ibis adds to it.

Ibis' compiler for DataFusion calls functions that its own backend registers in the process of DataFusion. Ranks have
only DataFusion's own functions, so these operations are compiled otherwise, or are not defined.
"""

from __future__ import annotations

from typing import Any, ClassVar

import ibis.common.exceptions as com
import ibis.expr.operations as ops
import sqlglot.expressions as sge
from ibis.backends.sql.compilers.datafusion import DataFusionCompiler
from ibis.expr.operations.udf import InputType

from dayfly_frames._ibis.dialect import Dayfly
from dayfly_frames._ibis.urls import PARTS


class DayflyCompiler(DataFusionCompiler):
    """The compiler. Its methods have the names that Ibis looks up."""

    __slots__ = ()

    UNSUPPORTED_OPS = (ops.RegexSplit, ops.ElementWiseVectorizedUDF)

    dialect = Dayfly

    # Those of the base class are methods of it. Naming them here again would replace the methods below.
    SIMPLE_OPS: ClassVar[dict[Any, str]] = {}

    def visit_Sign(self, op: Any, *, arg: Any) -> Any:
        return self.cast(self.f.anon.signum(arg), op.dtype)

    def _part(self, op: Any, part: str, arg: Any) -> Any:
        return self.cast(self.f.date_part(part, arg), op.dtype)

    def visit_ExtractHour(self, op: Any, *, arg: Any) -> Any:
        return self._part(op, "hour", arg)

    def visit_ExtractMinute(self, op: Any, *, arg: Any) -> Any:
        return self._part(op, "minute", arg)

    def visit_ExtractSecond(self, op: Any, *, arg: Any) -> Any:
        return self._part(op, "second", arg)

    # DataFusion counts milliseconds and microseconds from the beginning of the minute, Ibis from that of the second.

    def visit_ExtractMillisecond(self, op: Any, *, arg: Any) -> Any:
        return self._part(op, "millisecond", arg) % 1_000

    def visit_ExtractMicrosecond(self, op: Any, *, arg: Any) -> Any:
        return self._part(op, "microsecond", arg) % 1_000_000

    def visit_ExtractEpochSeconds(self, op: Any, *, arg: Any) -> Any:
        return self.cast(self.f.floor(self.f.date_part("epoch", arg)), op.dtype)

    def _url_part(self, op: Any, *, arg: Any, **_: Any) -> Any:
        # sqlglot counts from 0 here, SQL from 1.
        return self.f.regexp_match(arg, PARTS[type(op).__name__])[0]

    visit_ExtractProtocol = visit_ExtractAuthority = visit_ExtractUserInfo = _url_part
    visit_ExtractPath = visit_ExtractFragment = _url_part

    def visit_ExtractHost(self, op: Any, *, arg: Any) -> Any:
        return self.f.lower(self.f.btrim(self._url_part(op, arg=arg), "[]"))

    def visit_ExtractQuery(self, op: Any, *, arg: Any, key: Any) -> Any:
        if key is not None:
            raise com.UnsupportedOperationError("the dayfly backend takes no parameter out of the query of a URL")
        return self._url_part(op, arg=arg)

    def _percentile(self, function: str, *, arg: Any, quantile: Any, where: Any) -> Any:
        order = sge.Order(expressions=[sge.Ordered(this=arg)])
        found = sge.WithinGroup(this=self.f.anon[function](quantile), expression=order)
        return found if where is None else sge.Filter(this=found, expression=sge.Where(this=where))

    def visit_Quantile(self, op: Any, *, arg: Any, quantile: Any, where: Any) -> Any:
        # DataFusion returns a value of the argument's type, and so would cut it.
        return self._percentile("percentile_cont", arg=self.cast(arg, op.dtype), quantile=quantile, where=where)

    def visit_ApproxQuantile(self, op: Any, *, arg: Any, quantile: Any, where: Any) -> Any:
        return self._percentile("approx_percentile_cont", arg=arg, quantile=quantile, where=where)

    def visit_ScalarUDF(self, op: Any, **arguments: Any) -> Any:
        if op.__input_type__ != InputType.BUILTIN:
            raise com.UnsupportedOperationError(
                f"{op.__func_name__} is a function of Python: the dayfly backend calls functions of DataFusion only, "
                "which ibis.udf.scalar.builtin declares"
            )
        return self.f.anon[op.__func_name__](*arguments.values())

    def visit_AggUDF(self, op: Any, *, where: Any, **arguments: Any) -> Any:
        if op.__input_type__ != InputType.BUILTIN:
            raise com.UnsupportedOperationError(
                f"{op.__func_name__} is a function of Python: the dayfly backend calls aggregates of DataFusion only, "
                "which ibis.udf.agg.builtin declares"
            )
        return self.agg[op.__func_name__](*arguments.values(), where=where)


compiler = DayflyCompiler()
