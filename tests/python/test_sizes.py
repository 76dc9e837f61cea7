"""Sizes that a client states for calls, and inputs of many sizes that are made from a sample."""

from __future__ import annotations

import math
from typing import Any

import pytest
from dayfly._tasks import duplicator
from dayfly._tasks.registered import Registered
from dayfly._tasks.sizes import sizer_of


def crop(image: Any, width: int, height: int = 7) -> None:
    """A function with parameters to name."""


@pytest.mark.parametrize(
    ("size", "args", "sizes"),
    [
        (lambda image, width, height=7: width * height, ("x", 3), [21.0, 0.0, 0.0, 0.0]),
        (lambda *_: (1, 2, 3, 4), ("x", 3), [1.0, 2.0, 3.0, 4.0]),
        (lambda *_: [math.nan, math.inf, -1], ("x", 3), [0.0, 0.0, 0.0, 0.0]),
        ("width", ("x", 3), [3.0, 0.0, 0.0, 0.0]),
        (["image", "height"], ("abcd", 3), [4.0, 7.0, 0.0, 0.0]),
    ],
)
def test_stated_sizes_are_four_plausible_numbers(size: Any, args: tuple[Any, ...], sizes: list[float]) -> None:
    sizer = sizer_of(size, crop)
    assert sizer is not None
    assert sizer(args, {}) == sizes


@pytest.mark.parametrize("result", [None, "large", [], [1, 2, 3, 4, 5], [1, "x"], 10**400])
def test_wrong_size_is_explained(result: Any) -> None:
    sizer = sizer_of(lambda *_: result, crop)
    assert sizer is not None
    with pytest.raises(ValueError, match=r"size= returned .*up to 4 numbers"):
        sizer(("x", 3), {})


def test_wrong_names_are_refused_at_registration() -> None:
    assert sizer_of(None, crop) is None
    with pytest.raises(ValueError, match="no parameter 'depth'"):
        sizer_of(["width", "depth"], crop)
    with pytest.raises(ValueError, match="1 to 4"):
        sizer_of([], crop)
    with pytest.raises(TypeError, match="names of parameters"):
        sizer_of(3, crop)  # type: ignore[arg-type]
    sizer = sizer_of("image", crop)
    assert sizer is not None
    with pytest.raises(ValueError, match="has no length"):
        sizer((object(), 3), {})


def test_sample_is_cut_repeated_and_scaled() -> None:
    scaled = duplicator.scaled
    assert [scaled("abcd", factor) for factor in (0.01, 0.5, 1.5)] == ["a", "ab", "abcdab"]
    assert scaled([1, 2], 2.0) == [1, 2, 1, 2]
    assert scaled((1, 2), 0.5) == (1,)
    assert (scaled(100, 0.25), scaled(1.5, 2.0), scaled(True, 5.0), scaled(None, 2.0)) == (25, 3.0, True, None)
    assert scaled(b"", 3.0) == b""
    assert duplicator.inputs(("ab", 10), 2, 2) == [("ab", 10), ("abab", 20)]


def test_array_keeps_its_type_when_scaled() -> None:
    np = pytest.importorskip("numpy")
    array = duplicator.scaled(np.arange(6, dtype="u1").reshape(3, 2), 2.0)
    assert (array.shape, array.dtype) == ((6, 2), np.dtype("u1"))


def test_unrepeatable_function_is_not_run() -> None:
    status = {
        "id": "00" * 32,
        "name": "f",
        "owner": "me",
        "version": 1,
        "repeatable": False,
        "form": {"form": "python"},
    }
    with pytest.raises(ValueError, match="not registered as repeatable"):
        duplicator.check(Registered(status), 20, 2)
    repeatable = Registered({**status, "repeatable": True})
    duplicator.check(repeatable, 1000, 100)
    for sizes, times in ((0, 2), (1001, 2), (20, 0), (20, 101)):
        with pytest.raises(ValueError, match="ask for"):
            duplicator.check(repeatable, sizes, times)
