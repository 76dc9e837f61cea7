"""The names that untrusted pickles may use, for `reader`. It never imports the others."""

from __future__ import annotations

import builtins
from typing import Any

from dayfly._codec.parts import Name, Refused, Type
from dayfly._codec.plain_values import NAMES, BuiltinException, UuidPart

#: Classes that make empty values, and may be the factory of a `collections.defaultdict`.
_FACTORIES = (bool, bytes, complex, dict, float, frozenset, int, list, set, str, tuple)
#: Exceptions that read files when they are printed, or contain other exceptions.
_NOT_RAISED = (SyntaxError, BaseExceptionGroup)


def lookup(module: str, name: str) -> Any:
    """Returns the object that a pickle refers to by this name."""
    full = f"{module}.{name}"
    if full == "builtins.Ellipsis":
        return ...
    if full == "uuid.UUID":
        return UuidPart()
    if (made := NAMES.get(full)) is not None:
        return Name(full, made)
    if module == "builtins":
        kind = vars(builtins).get(name)
        if kind in _FACTORIES:
            return Type(full, kind)
        if isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, _NOT_RAISED):
            return BuiltinException(kind)
    family = module.partition(".")[0]
    if family == "numpy":
        from dayfly._codec import numpy_values

        return numpy_values.lookup(full)
    if family == "pyarrow":
        from dayfly._codec import arrow_values

        return arrow_values.lookup(full)
    raise Refused(f"it holds a `{full[:200]}`")
