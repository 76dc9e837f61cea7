"""What every peer runs. In a module of its own, so that all of them can pickle it by name."""

from array import array
from collections.abc import Sequence


def noop(argument: object) -> None:
    """Does nothing."""


def increment(number: int) -> int:
    """As little as a map's function can do that gives a result."""
    return number + 1


def increment_all(numbers: Sequence[int]) -> list[int]:
    """A chunk of the map, for peers whose map takes no chunk size: the loop that their users write."""
    return [increment(number) for number in numbers]


def increment_array(numbers: "array[int]") -> "array[int]":
    """The same chunk as an array, for peers that take lists apart number by number."""
    return array("q", [increment(number) for number in numbers])
