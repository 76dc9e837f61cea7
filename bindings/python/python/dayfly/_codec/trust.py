"""Trust: the tenants whose results are unpickled. Results of all others are read as data."""

from __future__ import annotations

import builtins
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal

from dayfly import _failures
from dayfly._errors import RemoteError, RemoteTraceback
from dayfly._failures import error_for
from dayfly._text import shown

if TYPE_CHECKING:
    from dayfly._native import Foreign
    from dayfly._worker import FailedItem

#: Trusted tenants: True for all, or their names.
Trust = Literal[True] | frozenset[str]
#: Accepted forms of trust: True for all tenants, or names of tenants.
TrustLike = bool | str | Iterable[str] | None
NOBODY: frozenset[str] = frozenset()


def trust_of(given: TrustLike) -> Trust:
    """Returns the trusted tenants.

    >>> sorted(trust_of(["ann", "bob"])), trust_of(True), trust_of(None)
    (['ann', 'bob'], True, frozenset())
    """
    if given is True:
        return True
    if given is None or given is False:
        return NOBODY
    return frozenset([given] if isinstance(given, str) else given)


def merged_trust(one: Trust, other: Trust) -> Trust:
    """Returns the union of two sets of trusted tenants."""
    return True if one is True or other is True else one | other


def untrusted_owners(owners: Iterable[str], trust: Trust) -> list[str]:
    """Returns those of the tenants that are not trusted."""
    return [] if trust is True else [owner for owner in owners if owner not in trust]


def open_foreign(foreign: Foreign, trust: Trust) -> Any:
    """Returns a value that may come from other tenants: unpickled if they are trusted, else read as data.

    Raises:
        dayfly.Untrusted: if it contains more than data and its tenants are not trusted.
    """
    if not untrusted_owners(foreign.owners, trust):
        return foreign.open(True)
    from dayfly._codec.reader import Refused

    try:
        return foreign.open(False)
    except Refused as refused:
        raise untrusted_error(refused, foreign.owners) from None


def untrusted_error(refused: BaseException, owners: list[str]) -> BaseException:
    """Returns the exception to raise if a result was not read."""
    from dayfly._codec.reader import Refused

    if not isinstance(refused, Refused):
        return refused
    known = sorted(owner for owner in owners if owner)
    if len(known) == len(owners):
        whose = "the tenant " + " and the tenant ".join(f"`{owner}`" for owner in known)
        how = f"trust={known!r}"
    else:
        whose = "a tenant that is not known any more, as the function or the endpoint was removed"
        how = "trust=True"
    return error_for(
        "untrusted",
        f"the result was made by {whose}, and was not read: {shown(str(refused))}. To unpickle it would run their code "
        f"here. If you trust them, pass {how} to dayfly.connect, Client.function, an Executor, a map or Client.task; "
        "else have the function return plain values, NumPy arrays or Arrow tables",
    )


def unpack_exception(packed: bytes) -> BaseException:
    """Returns the exception of an untrusted function: a built-in one with plain arguments, else a `RemoteError`."""
    from dayfly._codec.reader import Refused, loads

    try:
        pickled, (module, name, message), text = loads(packed)
        told = f"{module}.{name}: {message}" if module != builtins.__name__ else f"{name}: {message}"
    except (TypeError, ValueError):
        return RemoteError("the function raised an exception that contains more than data, which was not read")
    made: BaseException | None = None
    if type(pickled) is bytes:
        try:
            made = loads(pickled)
        except Refused:
            made = None
    if not isinstance(made, Exception):
        made = RemoteError(shown(told))
    made.__cause__ = RemoteTraceback(shown(str(text)))
    return made


def failed_item(failed: FailedItem) -> BaseException:
    """Returns the exception of one item of a map."""
    unpack = unpack_exception if failed.is_foreign else _failures.unpack_exception
    return unpack(failed.packed)
