"""Streams in a worker: each call returns the next items of a function that yields."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from dayfly._worker import pack_exception

#: Maximum number of streams of one worker. A caller that goes away leaves its streams until the lease ends.
MAX_STREAMS = 1000
#: Time after which a part ends that has an item, in nanoseconds. An item that takes longer is a part of its own.
TARGET_NS = 500_000
#: Bytes of arrays and bytes objects after which a part ends.
TARGET_BYTES = 1 << 20

#: The items that each stream has yet to yield.
_streams: dict[int, Iterator[Any]] = {}
_numbers = itertools.count(1)

#: What one call returns: the items, whether the stream has ended, and the packed exception with which it ended.
Part = tuple[list[Any], bool, bytes | None]


def start(most: int, function: Callable[..., Iterable[Any]], /, *args: Any, **kwargs: Any) -> tuple[int, Part]:
    """Calls a function that yields. Returns the number of its stream, and the first part."""
    if len(_streams) >= MAX_STREAMS:
        raise RuntimeError(
            f"this worker has {MAX_STREAMS} streams that were neither read to their end nor closed: close streams, or "
            "end their lease"
        )
    produced = function(*args, **kwargs)
    try:
        items = iter(produced)
    except TypeError:
        raise TypeError(
            f"a stream is of a function that yields, and this one returned {type(produced).__name__}"
        ) from None
    number = next(_numbers)
    _streams[number] = items
    return number, advance(number, most)


def advance(stream: int, most: int) -> Part:
    """Returns the next items of a stream, at most ``most``: at least one, if there is one."""
    items: list[Any] = []
    size, until = 0, time.perf_counter_ns() + TARGET_NS
    try:
        for item in _streams[stream]:
            items.append(item)
            size += len(item) if isinstance(item, (bytes, bytearray, str)) else getattr(item, "nbytes", 0)
            if len(items) >= most or size >= TARGET_BYTES or time.perf_counter_ns() >= until:
                return items, False, None
    except BaseException as error:
        del _streams[stream]
        return items, True, pack_exception(error)
    del _streams[stream]
    return items, True, None


def close(stream: int) -> None:
    """Ends a stream. Its function sees a ``GeneratorExit``."""
    items = _streams.pop(stream, None)
    if items is not None and hasattr(items, "close"):
        items.close()
