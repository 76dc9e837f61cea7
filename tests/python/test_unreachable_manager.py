"""Futures whose manager is unreachable."""

from __future__ import annotations

from typing import Any, NoReturn

import pytest

pytest.importorskip("dayfly", reason="the package is not installed: make build")

from dayfly._codec.trust import NOBODY
from dayfly._errors import Error
from dayfly._failures import error_for
from dayfly._futures.future import Future


class Call:
    """A task that runs, and whose manager fails with this error."""

    id = "1"

    def __init__(self, code: str) -> None:
        self.code = code

    def take(self, pool: Any, raw: bool) -> Any:
        return NotImplemented

    def cancel(self) -> NoReturn:
        raise error_for(self.code, "told")


class Lease:
    _trust = NOBODY


def future(code: str) -> Future[Any]:
    return Future(Call(code), None, Lease())  # type: ignore[arg-type]


def test_task_of_an_unreachable_manager_is_not_cancelled() -> None:
    task = future("unreachable")
    assert task.cancel() is False
    assert not task.cancelled()


def test_other_errors_of_cancelling_are_raised() -> None:
    with pytest.raises(Error, match="told"):
        future("unauthorized").cancel()
