"""Results and exceptions whose modules the caller does not have."""

from __future__ import annotations

from typing import Any

import pytest

dayfly = pytest.importorskip("dayfly", reason="the package is not installed: make build")


def of_a_module_that_is_not_here(raises: bool = False) -> Any:
    import sys
    import types

    module = sys.modules["ghost"] = types.ModuleType("ghost")
    exec("class Value: pass\nclass Error(Exception): pass", module.__dict__)
    if raises:
        raise module.Error("told")
    return module.Value()


def check_result(future: Any) -> None:
    with pytest.raises(dayfly.ResultUnreadable, match=r"ended well.*'ghost'.*install it.*plain values") as raised:
        future.result(60)
    assert raised.value.code == "result_unreadable"
    assert isinstance(raised.value, dayfly.CallError)
    assert isinstance(raised.value.__cause__, ModuleNotFoundError)


def check_exception(future: Any) -> None:
    with pytest.raises(dayfly.RemoteError, match=r"ghost\.Error: told.*'ghost'.*install it") as raised:
        future.result(60)
    # The traceback is still included.
    assert "of_a_module_that_is_not_here" in str(raised.value.__cause__)


def test_result_of_a_missing_module_is_result_unreadable(client: dayfly.Client, lease: dayfly.Lease) -> None:
    check_result(lease.submit(of_a_module_that_is_not_here))
    check_result(client.run(of_a_module_that_is_not_here))
    with pytest.raises(dayfly.ResultUnreadable):
        list(lease.map(lambda _: of_a_module_that_is_not_here(), range(3)))


def test_exception_of_a_missing_module_keeps_its_text(client: dayfly.Client, lease: dayfly.Lease) -> None:
    check_exception(lease.submit(of_a_module_that_is_not_here, True))
    check_exception(client.run(of_a_module_that_is_not_here, True))
    with pytest.raises(dayfly.RemoteError, match=r"ghost\.Error: told"):
        list(lease.map(lambda _: of_a_module_that_is_not_here(True), range(3)))
