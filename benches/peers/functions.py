"""What every peer runs. In a module of its own, so that all of them can pickle it by name."""

from collections.abc import Sequence


def noop(argument: object) -> None:
    """Does nothing."""


def increment(number: int) -> int:
    """As little as a map's function can do that gives a result."""
    return number + 1


def increment_all(numbers: Sequence[int]) -> list[int]:
    """A chunk of the map, for peers whose map takes no chunk size: the loop that their users write."""
    return [increment(number) for number in numbers]
