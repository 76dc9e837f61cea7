"""DataFusion's SQL in sqlglot. Ibis' own dialect for it expects a parser that is set to PostgreSQL's."""

from __future__ import annotations

from typing import Any, ClassVar

from ibis.backends.sql.dialects import DataFusion
from sqlglot import expressions as sge
from sqlglot.tokens import TokenType


class Dayfly(DataFusion):
    """The dialect, which sqlglot finds by the name ``dayfly``. Here ``^`` is no power, but an exclusive or."""

    class Parser(DataFusion.Parser):
        """What Ibis reads."""

        EXPONENT: ClassVar[dict[Any, Any]] = {}
        BITWISE = DataFusion.Parser.BITWISE | {TokenType.CARET: sge.BitwiseXor}

    class Generator(DataFusion.Generator):
        """What Ibis writes."""

        TRANSFORMS = DataFusion.Generator.TRANSFORMS | {
            sge.BitwiseXor: lambda self, xor: self.binary(xor, "^"),
        }
