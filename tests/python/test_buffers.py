"""Buffers of messages: objects with accessible memory are accepted, and invalid ones are refused."""

from __future__ import annotations

import array
import ctypes
import mmap

import dayfly
import numpy as np
import pyarrow as pa
import pytest
from dayfly import MPI
from harness.programs import run_python
from harness.pytorch import folder, needs_torch

NUMBERS = [3, 1, 2, 250]


def twice(source, target):
    """Sends to itself, and reduces over its only rank. `target` then contains the received data."""
    comm = MPI.COMM_SELF
    request = comm.Isend(source, 0, tag=1)
    status = MPI.Status()
    comm.Recv(target, 0, tag=1, status=status)
    request.Wait()
    return status.Get_count()


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
        memoryview,
        mapped,
        lambda data: array.array("B", data),
        lambda data: (ctypes.c_ubyte * len(data))(*data),
        lambda data: np.frombuffer(bytearray(data), "u1"),
        lambda data: np.frombuffer(bytearray(data), "u1").reshape(2, 2).T,
        lambda data: Tensor(np.frombuffer(bytearray(data), "u1")),
        lambda data: Old(np.frombuffer(bytearray(data), "u1")),
        lambda data: Tensor(np.frombuffer(bytearray(data), "u1").reshape(2, 1, 2).T),
        lambda data: pa.py_buffer(bytearray(data)),
    ],
    ids=[
        "bytearray",
        "memoryview",
        "mmap",
        "array",
        "ctypes",
        "numpy",
        "columns",
        "tensor",
        "old_tensor",
        "columns_tensor",
        "arrow",
    ],
)
def test_objects_with_buffers_are_sent_and_received(make):
    out = make(bytes(NUMBERS))
    into = make(bytearray(4) if make is memoryview else bytes(4))
    assert twice(out, into) == 4
    again = bytearray(4)
    twice(into, again)
    assert list(again) == NUMBERS


@pytest.mark.parametrize("type_of", [pa.int8(), pa.uint16(), pa.int64(), pa.float32(), pa.float64()])
def test_arrow_array_is_sent_uncopied_with_its_type(type_of):
    values = pa.array([1, 2, 3, 4], type_of).slice(1, 2)
    total = np.zeros(2, values.to_numpy().dtype)
    MPI.COMM_SELF.Allreduce(values, total)
    assert total.tolist() == [2, 3]
    with pytest.raises(dayfly.RequestError, match="read-only"):
        MPI.COMM_SELF.Recv(values, 0)


@pytest.mark.parametrize("letters", ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8", "c8", "c16"])
@pytest.mark.parametrize("wrapped", [np.asarray, Tensor, Old])
def test_element_types_of_buffers_and_tensors_are_known(letters, wrapped):
    values = np.array([1, 2, 3], letters)
    total = np.zeros(3, letters)
    MPI.COMM_SELF.Allreduce(wrapped(values), wrapped(total))
    assert total.tolist() == values.tolist()


def refused(match, call, *args):
    with pytest.raises(dayfly.RequestError, match=match) as caught:
        call(*args)
    assert caught.value.code == "invalid_request"


def test_invalid_buffers_are_refused_with_a_reason():
    comm = MPI.COMM_SELF
    eight = np.zeros(8)
    fixed = np.zeros(8)
    fixed.flags.writeable = False
    for constant in (fixed, b"12345678", Tensor(fixed), pa.py_buffer(b"12345678")):
        refused("read-only", comm.Recv, constant, 0)
    refused("read-only", comm.Irecv, pa.array([1.0] * 8), 0)
    refused("read-only", comm.Allreduce, eight, fixed)
    refused("not contiguous", comm.Send, eight[::2], 0)
    refused("not contiguous", comm.Recv, eight.reshape(2, 4)[:, :2], 0)
    refused("not contiguous", comm.Send, Tensor(eight[::2]), 0)
    refused("float16.*do not know|'e'.*do not know", comm.Allreduce, np.zeros(2, "f2"), np.zeros(2, "f2"))
    refused("float16.*do not know", comm.Send, Tensor(np.zeros(2, "f2")), 0)
    refused("do not know", comm.Send, np.zeros(2, ">f8"), 0)
    refused("do not know", comm.Send, np.zeros(2, "M8[s]"), 0)
    refused("device of kind 2 .CUDA", comm.Send, Tensor(eight, device=(2, 0)), 0)
    refused("device of kind 99", comm.Send, Tensor(eight, device=(99, 0)), 0)
    refused("list is not a buffer|int is not a buffer", comm.Send, [1, 2, 3], 0)
    refused("not a buffer", comm.Send, "text", 0)
    refused("does not export its memory", comm.Send, pa.array([1, None]), 0)
    refused("no type 'x9'", comm.Send, [eight, "x9"], 0)
    refused("9 elements from 0 on of a buffer of 8", comm.Send, [eight, 9, MPI.DOUBLE], 0)
    refused("2 elements from 7 on", comm.Send, [eight, (2, 7), MPI.DOUBLE], 0)
    refused("no whole number of DOUBLE", comm.Send, [bytes(9), MPI.DOUBLE], 0)
    refused("56 bytes where 64 are due", comm.Allreduce, eight, np.zeros(7))
    refused("both must be the same", comm.Scan, eight, np.zeros(7))
    refused("both must be the same", comm.Allreduce, eight, np.zeros(8, "f4"))
    refused("2 counts and 2 displacements for 1 ranks", comm.Allgatherv, eight, [eight, [4, 4]])
    refused("for rank 0", comm.Allgatherv, eight, [eight, ([8], [1])])
    assert not comm.iprobe(), "nothing of it was sent"


def test_root_broadcasts_a_read_only_buffer():
    numbers = pa.array([1.5, 2.5])
    MPI.COMM_SELF.Bcast(numbers)
    MPI.COMM_SELF.Bcast([numbers, MPI.DOUBLE])
    assert numbers.to_pylist() == [1.5, 2.5]


def test_unknown_element_type_travels_as_a_named_one():
    halves = np.array([0.5, 2.5], "f2")
    into = np.zeros(2, "f2")
    twice([halves, MPI.BYTE], [into, MPI.BYTE])
    assert into.tolist() == [0.5, 2.5]
    days = np.array(["2026-01-02"], "M8[D]")
    other = np.zeros(1, "M8[D]")
    twice([days, "i8"], [other, MPI.INT64_T])
    assert other[0] == days[0]


def test_array_outlives_its_operation():
    comm = MPI.COMM_SELF
    into = [np.empty(100_000) for _ in range(4)]
    receives = [comm.Irecv(Tensor(array_of), 0, number) for number, array_of in enumerate(into)]
    sends = [comm.Isend(Old(np.full(100_000, float(number))), 0, number) for number in range(4)]
    MPI.Request.Waitall(receives + sends)
    assert [found.sum() for found in into] == [0, 1e5, 2e5, 3e5]


@needs_torch
def test_pytorch_tensors_are_sent_and_received():
    run_python(
        f"""
        import sys
        if {folder()!r}:
            sys.path.append({folder()!r})
        import dayfly, torch
        from dayfly import MPI
        comm = MPI.COMM_WORLD
        for dtype in (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.float32, torch.float64):
            out, into = torch.arange(6).to(dtype).reshape(2, 3), torch.zeros(2, 3, dtype=dtype)
            comm.Allreduce(out, into)
            assert torch.equal(out, into), dtype
        for wrong, said in (
            (torch.zeros(2, dtype=torch.float16), "do not know"),
            (torch.zeros(2, requires_grad=True), "require"),
            (torch.zeros(4)[::2], "not contiguous"),
        ):
            try:
                comm.Send(wrong, 0)
            except dayfly.RequestError as error:
                assert said in str(error), error
            else:
                raise AssertionError(said)
        """
    )
