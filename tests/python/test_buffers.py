"""Buffers of raw messages, as of `dayfly.torch`: objects with accessible memory are accepted, and others refused."""

from __future__ import annotations

import array
import mmap

import dayfly
import numpy as np
import pyarrow as pa
import pytest
from dayfly._native import Communicator, Op

NUMBERS = [3, 1, 2, 250]


@pytest.fixture(scope="module")
def alone():
    return Communicator.alone()


def exchange(comm, source, target):
    """Sends to itself. `target` then contains the received data."""
    request = comm.isend(source, 0, 1)
    found = comm.recv(target, 0, 1)
    request.wait()
    return found[2]


def mapped(data: bytes) -> mmap.mmap:
    memory = mmap.mmap(-1, len(data))
    memory[:] = data
    return memory


class Tensor:
    """Exports its memory through DLPack only, as tensors of other packages do."""

    def __init__(self, like, device=(1, 0)):
        self.like, self.device = like, device

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **options):
        return self.like.__dlpack__(**options)


class Old(Tensor):
    """The same, before version 1 of DLPack."""

    def __dlpack__(self, *, stream=None):
        return self.like.__dlpack__()


@pytest.mark.parametrize(
    "make",
    [
        bytearray,
        mapped,
        lambda data: array.array("B", data),
        lambda data: np.frombuffer(bytearray(data), "u1").reshape(2, 2).T,
        lambda data: Tensor(np.frombuffer(bytearray(data), "u1")),
        lambda data: Old(np.frombuffer(bytearray(data), "u1")),
        lambda data: Tensor(np.frombuffer(bytearray(data), "u1").reshape(2, 1, 2).T),
        lambda data: pa.py_buffer(bytearray(data)),
    ],
    ids=["bytearray", "mmap", "array", "columns", "tensor", "old_tensor", "columns_tensor", "arrow"],
)
def test_objects_with_buffers_are_sent_and_received(alone, make):
    out, into = make(bytes(NUMBERS)), make(bytes(4))
    assert exchange(alone, out, into) == 4
    again = bytearray(4)
    exchange(alone, into, again)
    assert list(again) == NUMBERS


@pytest.mark.parametrize("letters", ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8", "c8", "c16"])
@pytest.mark.parametrize("wrapped", [np.asarray, Tensor, Old])
def test_element_types_of_buffers_and_tensors_are_known(alone, letters, wrapped):
    values, total = np.array([1, 2, 3], letters), np.zeros(3, letters)
    alone.collective("allreduce", wrapped(values), wrapped(total), op=Op.named("sum"))
    assert total.tolist() == values.tolist()


def refused(match, call, *args, **options):
    with pytest.raises(dayfly.RequestError, match=match) as caught:
        call(*args, **options)
    assert caught.value.code == "invalid_request"


def test_invalid_buffers_are_refused_with_a_reason(alone):
    eight, fixed = np.zeros(8), np.zeros(8)
    fixed.flags.writeable = False
    for constant in (fixed, b"12345678", Tensor(fixed), pa.py_buffer(b"12345678"), pa.array([1.0] * 8)):
        refused("read-only", alone.recv, constant, 0, 0)
    for wrong, words in [
        (eight[::2], "not contiguous"),
        (Tensor(eight[::2]), "not contiguous"),
        (np.zeros(2, "f2"), "'e', which ranks do not know"),
        (Tensor(np.zeros(2, "f2")), "float16', which ranks do not know"),
        (np.zeros(2, ">f8"), "do not know"),
        (np.zeros(2, "M8[s]"), "do not know"),
        (Tensor(eight, device=(2, 0)), "device of kind 2 .CUDA"),
        (Tensor(eight, device=(99, 0)), "device of kind 99"),
        ([1, 2, 3], "list is not a buffer"),
        ("text", "not a buffer"),
        (pa.array([1, None]), "does not export its memory"),
    ]:
        refused(words, alone.send, wrong, 0, 0)
    add = {"op": Op.named("sum")}
    refused("56 bytes where 64 are due", alone.collective, "allreduce", eight, np.zeros(7), **add)
    refused("both must be the same", alone.collective, "allreduce", eight, np.zeros(8, "f4"), **add)
    assert alone.iprobe(-1, -1) is None, "nothing of it was sent"


def test_array_outlives_its_operation(alone):
    into = [np.empty(100_000) for _ in range(4)]
    receives = [alone.irecv(Tensor(array_of), 0, number) for number, array_of in enumerate(into)]
    sends = [alone.isend(Old(np.full(100_000, float(number))), 0, number) for number in range(4)]
    for request in receives + sends:
        request.wait()
    assert [found.sum() for found in into] == [0, 1e5, 2e5, 3e5]
