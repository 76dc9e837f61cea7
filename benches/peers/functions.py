"""The functions that every peer runs, in a separate module so that all peers can pickle them by name."""

from array import array
from collections.abc import Sequence


def noop(argument: object) -> None:
    """Does nothing."""


def increment(number: int) -> int:
    """The cheapest function of a map with a result."""
    return number + 1


def increment_all(numbers: Sequence[int]) -> list[int]:
    """Runs a chunk of the map, for peers whose map has no chunk size. Their users write this loop."""
    return [increment(number) for number in numbers]


def increment_array(numbers: "array[int]") -> "array[int]":
    """Runs the chunk as an array, for peers that serialize lists number by number."""
    return array("q", [increment(number) for number in numbers])
