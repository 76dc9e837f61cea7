"""The sizes and bytes of the portable form of data, and numbers that do not fit into it."""

import struct
from array import array

from errors import error_class
from mpi4py import MPI

SIZES = {"LONG": 4, "UNSIGNED_LONG": 4, "WCHAR": 2, "LONG_LONG": 8, "INT": 4, "AINT": 8, "DOUBLE": 8, "LONG_INT": 8}


def packed(of, numbers):
    into = bytearray(of.Pack_external_size("external32", len(numbers)))
    assert of.Pack_external("external32", numbers, into, 0) == len(into)
    return bytes(into)


def returned(of, kind, data, count):
    into = array(kind, [0] * count)
    assert of.Unpack_external("external32", data, 0, into) == len(data)
    return into.tolist()


for name, size in SIZES.items():
    assert getattr(MPI, name).Pack_external_size("external32", 3) == 3 * size, name
signed = [-1, 0, 5, -(1 << 31), (1 << 31) - 1]
assert packed(MPI.LONG, array("l", signed)) == struct.pack(">5i", *signed)
assert returned(MPI.LONG, "l", struct.pack(">5i", *signed), 5) == signed
unsigned = [0, 7, (1 << 32) - 1]
assert packed(MPI.UNSIGNED_LONG, array("L", unsigned)) == struct.pack(">3I", *unsigned)
assert returned(MPI.UNSIGNED_LONG, "L", struct.pack(">3I", *unsigned), 3) == unsigned
letters = [0x41, 0xFFFF]
assert packed(MPI.WCHAR, array("i", letters)) == struct.pack(">2H", *letters)
assert returned(MPI.WCHAR, "i", struct.pack(">2H", *letters), 2) == letters
for of, numbers in (MPI.LONG, array("l", [1 << 31])), (MPI.UNSIGNED_LONG, array("L", [1 << 32])):
    assert error_class(lambda of=of, numbers=numbers: packed(of, numbers)) == MPI.ERR_CONVERSION
# The elements of a derived datatype keep their order.
pair = MPI.Datatype.Create_struct([1, 1], [0, 8], [MPI.LONG, MPI.DOUBLE]).Commit()
data = bytearray(12)
assert pair.Pack_external("external32", struct.pack("=qd", -2, 0.5), data, 0) == 12
assert data == struct.pack(">id", -2, 0.5)
pair.Free()
print("rank 0 of 1 is done")
