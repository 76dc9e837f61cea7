"""Pickles from untrusted tenants: data is read as pickle reads it, and anything else is refused."""

from __future__ import annotations

import collections
import copyreg
import datetime
import decimal
import fractions
import functools
import os
import pathlib
import pickle
import random
import struct
import subprocess
import sys
import time
import uuid
import zoneinfo
from collections.abc import Callable
from typing import Any

import cloudpickle
import pytest

pytest.importorskip("dayfly", reason="the package is not installed: make build")

from dayfly import _worker
from dayfly._codec.reader import Refused, loads
from dayfly._codec.trust import merged_trust, trust_of, unpack_exception, untrusted_error, untrusted_owners
from dayfly._errors import RemoteError, RemoteTraceback


class Reduced:
    """Pickled as the call that it is made with."""

    def __init__(self, *call: Any) -> None:
        self.call = call

    def __reduce__(self) -> tuple[Any, ...]:
        return self.call


def again(value: Any) -> Any:
    """Returns the value that the reader makes, with buffers outside and inside the pickle."""
    buffers: list[pickle.PickleBuffer] = []
    packed = pickle.dumps(value, 5, buffer_callback=buffers.append)
    assert repr(loads(packed, buffers=[bytearray(buffer.raw()) for buffer in buffers])) == repr(value)
    return loads(pickle.dumps(value, 5))


PLAIN: list[Any] = [
    *(None, True, False, ..., 0, -1, 255, 65_536, -(1 << 31), 1 << 40, -(1 << 2_000), 1.5, -0.0, float("inf"), 1j),
    *("", "text", "ü\U0001f600", "\ud800", b"", b"x" * 300, bytearray(b"ab"), "x" * 70_000),
    *(
        (),
        (1,),
        (1, 2),
        (1, 2, 3),
        (1, 2, 3, 4),
        [],
        [1, [2, [3]]],
        {},
        {"a": {1: (2,)}},
        set(),
        {1, 2},
        frozenset({1, 2}),
    ),
    *(range(1, 9, 2), slice(1, None, 2), collections.OrderedDict(b=1, a=2), collections.Counter("aab")),
    *(collections.deque([1, 2], 5), collections.deque(), collections.defaultdict(list, a=[1])),
    *(datetime.date(2026, 1, 2), datetime.time(3, 4, 5, 6), datetime.timedelta(-1, 2, 3)),
    *(datetime.datetime(2026, 1, 2, 3), datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)),
    datetime.datetime(2026, 1, 2, tzinfo=datetime.timezone(datetime.timedelta(hours=1), "here")),
    datetime.datetime(2026, 7, 2, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin")),
    *(decimal.Decimal("-1.50"), decimal.Decimal("NaN"), fractions.Fraction(-1, 3), uuid.UUID(int=7)),
    *(pathlib.PurePosixPath("/a/b"), pathlib.PureWindowsPath("c:/a")),
    [{"a": (1, 2.5, None)}] * 3,
    {("a", 1): [b"x"], frozenset([1]): "y"},
]


@pytest.mark.parametrize("value", PLAIN, ids=lambda value: f"{type(value).__name__} {value!r:.20}")
def test_plain_value_is_read_as_pickle_reads_it(value: Any) -> None:
    found = again(value)
    assert type(found) is type(value)
    assert repr(found) == repr(value)


def test_shared_and_recursive_values_keep_their_shape() -> None:
    inner = [1]
    found = again([inner, inner])
    assert found[0] is found[1]
    loop: list[Any] = []
    loop.append(loop)
    found = loads(pickle.dumps(loop, 5))
    assert found[0] is found


def test_numpy_arrays_are_read_as_pickle_reads_them() -> None:
    np = pytest.importorskip("numpy")
    record = np.zeros(2, dtype=[("a", "i4"), ("b", "f8", (2,)), ("c", "U3")])
    record["a"] = [7, 8]
    arrays = [
        *(np.arange(5.0), np.arange(6, dtype=">i2").reshape(2, 3), np.asfortranarray(np.ones((2, 3)))),
        *(np.arange(10)[::3], np.array(2.5), np.zeros((0, 3)), np.array([True, False]), np.array([1j])),
        *(np.array(["a", "bc"]), np.array([b"a"]), np.array(["2020-01-01"], dtype="M8[D]"), np.array([1], "m8[25us]")),
        *(record, record.T, np.zeros(2, np.dtype([("a", "i1"), ("b", "f8")], align=True))),
        *(np.array([1, "x", None, [2]], dtype=object), np.arange(24.0).reshape(2, 3, 4).transpose(2, 0, 1)),
    ]
    for array in arrays:
        found = again(array)
        assert (found.dtype, found.shape, found.flags.writeable) == (array.dtype, array.shape, True)
        assert repr(found) == repr(array)
    scalars = [
        np.float64(1.5),
        np.int32(-1),
        np.bool_(True),
        np.str_("ab"),
        np.str_(""),
        np.bytes_(b"x"),
        np.datetime64("2020-01-01"),
    ]
    for scalar in scalars:
        found = again(scalar)
        assert (type(found), found) == (type(scalar), scalar)
    assert repr(again(record[0])) == repr(record[0])
    dtypes = [np.dtype("f4"), np.dtype(">i8"), record.dtype]
    assert again(dtypes) == dtypes
    shared = again({"x": arrays[0], "y": arrays[0]})
    assert shared["x"] is shared["y"]


def test_arrow_tables_are_read_as_pickle_reads_them() -> None:
    pa = pytest.importorskip("pyarrow")
    table = pa.table(
        {
            "number": [1, None, 3],
            "text": ["x", "ü", None],
            "list": [[1], [], [2, 3]],
            "struct": [{"a": 1.5, "b": "x"}] * 3,
            "time": pa.array([1, 2, 3], pa.timestamp("us", "UTC")),
            "money": pa.array([decimal.Decimal("1.50")] * 3, pa.decimal128(5, 2)),
            "kind": pa.array(["a", "b", "a"]).dictionary_encode(),
            "flag": [True, False, None],
        }
    )
    for value in (table, table.slice(1), table.to_batches()[0], table["text"], table["list"].chunk(0), table.schema):
        found = loads(pickle.dumps(value, 5))
        assert type(found) is type(value)
        assert found.equals(value)
    assert loads(pickle.dumps(pa.scalar(7), 5)) == pa.scalar(7)
    assert loads(pickle.dumps(pa.table({}), 5)).num_rows == 0


def test_arrow_offset_beyond_its_buffer_is_refused() -> None:
    pa = pytest.importorskip("pyarrow")
    far = pa.py_buffer(struct.pack("<3i", 0, 1 << 20, 1 << 30))
    state = (pa.string(), 2, 0, 0, [None, far, pa.py_buffer(b"abc")], [], None)
    for kind in (
        state,
        (pa.int64(), 1 << 40, 0, 0, [None, pa.py_buffer(b"abcdefgh")], [], None),
        (pa.int64(), 1, 0, 0, [], [], None),
        # Arrow aborts the process for a slice beyond the end of a child.
        (
            pa.struct([("a", pa.int8())]),
            1,
            0,
            194,
            [None],
            [(pa.int8(), 1, 0, 0, [None, pa.py_buffer(b"a")], [], None)],
            None,
        ),
    ):
        with pytest.raises(Refused):
            loads(pickle.dumps(Reduced(pa.lib._restore_array, (kind,)), 5))


def test_repeatedly_used_parts_are_refused_in_bounded_time() -> None:
    pa = pytest.importorskip("pyarrow")
    np = pytest.importorskip("numpy")
    kind: Any = pa.int8()
    about: Any = (kind, 0, 0, 0, [None, None], [], None)
    for _ in range(20):
        kind = Reduced(pa.struct, ([("a", kind), ("b", kind)],))
        about = (kind, 0, 0, 0, [None], [about, about], None)
    packed = pickle.dumps(Reduced(pa.lib._restore_array, (about,)), 5)
    assert len(packed) < 2_000
    began = time.thread_time()
    with pytest.raises(Refused, match="too long"):
        loads(packed)
    assert time.thread_time() - began < 10
    data = bytes(4 << 20)
    reconstruct = np.arange(3)[::2].__reduce__()[0]
    state = (1, (len(data),), np.dtype("u1"), False, data)
    copies = [Reduced(reconstruct, (np.ndarray, (0,), b"b"), state) for _ in range(1_000)]
    with pytest.raises(Refused, match="too much memory"):
        loads(pickle.dumps(copies, 5))
    items = list(range(1 << 20))
    with pytest.raises(Refused, match="too much memory"):
        loads(pickle.dumps([Reduced(collections.deque, (items,)) for _ in range(1_000)], 5))


class Local:
    pass


def _marked(tmp_path: pathlib.Path) -> str:
    return str(tmp_path / "executed")


HOSTILE: dict[str, Callable[[str], Any]] = {
    "system": lambda mark: Reduced(os.mkdir, (mark,)),
    "eval": lambda mark: Reduced(eval, (f"__import__('os').mkdir({mark!r})",)),
    "exec": lambda mark: Reduced(exec, (f"__import__('os').mkdir({mark!r})",)),
    "import": lambda mark: Reduced(__import__, ("antigravity",)),
    "open": lambda mark: Reduced(open, (mark, "w")),
    "partial": lambda mark: Reduced(functools.partial, (os.mkdir, mark)),
    "popen": lambda mark: Reduced(subprocess.Popen, (["mkdir", mark],)),
    "getattr": lambda mark: Reduced(getattr, (Reduced(__import__, ("os",)), "system")),
    "getattr of a class": lambda mark: Reduced(getattr, (datetime.datetime, "now")),
    "map": lambda mark: Reduced(map, (os.mkdir, [mark])),
    "defaultdict of a function": lambda mark: Reduced(collections.defaultdict, (os.mkdir,)),
    "nested": lambda mark: {"a": [({"b": Reduced(os.mkdir, (mark,))},)]},
    "key": lambda mark: {Reduced(os.mkdir, (mark,)): 1},
    "state": lambda mark: Reduced(Local, (), {"x": Reduced(os.mkdir, (mark,))}),
    "items": lambda mark: Reduced(list, (), None, iter([Reduced(os.mkdir, (mark,))])),
    "setter": lambda mark: Reduced(collections.OrderedDict, (), {"x": 1}, None, None, os.mkdir),
    "exception": lambda mark: ValueError(Reduced(os.mkdir, (mark,))),
    "exit": lambda mark: SystemExit(1),
    "class": lambda mark: Local,
    "instance": lambda mark: Local(),
    "function": lambda mark: _marked,
    "builtin class": lambda mark: [int],
    "module": lambda mark: Reduced(__import__, ("os",)),
    "bytes of a size": lambda mark: Reduced(bytes, (1 << 40,)),
    "bytearray of a size": lambda mark: Reduced(bytearray, (1 << 40,)),
    "fraction with an exponent": lambda mark: Reduced(fractions.Fraction, ("1e999999999",)),
    "slice of a tuple": lambda mark: slice((1,), None, None),
    "loads": lambda mark: Reduced(pickle.loads, (pickle.dumps(Reduced(os.mkdir, (mark,))),)),
    "cloudpickle": lambda mark: Reduced(cloudpickle.loads, (b"",)),
    "by value": lambda mark: cloudpickle.loads(cloudpickle.dumps(lambda: os.mkdir(mark))),
    "path from its name": lambda mark: Reduced(zoneinfo.ZoneInfo, ("../../../etc/passwd",)),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_pickle_with_more_than_data_is_refused(name: str, tmp_path: pathlib.Path) -> None:
    mark = _marked(tmp_path)
    value = HOSTILE[name](mark)
    dumps = cloudpickle.dumps if name == "by value" else pickle.dumps
    for protocol in (4, 5):
        with pytest.raises(Refused):
            loads(dumps(value, protocol))
    assert not pathlib.Path(mark).exists()


def test_numpy_payload_with_more_than_data_is_refused(tmp_path: pathlib.Path) -> None:
    np = pytest.importorskip("numpy")
    mark = _marked(tmp_path)
    item = np.empty(1, dtype=object)
    item[0] = Reduced(os.mkdir, (mark,))
    ndarray, dtype = np.ndarray, np.dtype
    reconstruct = np.arange(3)[::2].__reduce__()[0]
    frombuffer = np.arange(3.0).__reduce_ex__(5)[0]
    scalar = np.float64(1).__reduce__()[0]
    pointer = struct.pack("<Q", 0x4141414141414141)

    def array(*state: Any) -> Any:
        return Reduced(reconstruct, (ndarray, (0,), b"b"), state)

    def kind(code: str, *state: Any) -> Any:
        return Reduced(dtype, (code, False, True), state)

    plain = np.dtype("O")
    # Its flags state that it contains no objects: the result would be an array of forged pointers.
    lying = kind("V8", 3, "|", None, ("a",), {"a": (plain, 0)}, 8, 1, 0)
    hostile = [
        *(item, item.reshape(1, 1), {"a": item}, np.array([1], dtype=object)[0:1].astype(object).__class__),
        *(
            array(1, (1,), plain, False, pointer),
            array(1, (1,), lying, False, pointer),
            array(1, (1,), lying, False, [1]),
        ),
        *(Reduced(frombuffer, (pointer, plain, (1,), "C")), Reduced(frombuffer, (pointer, lying, (1,), "C"))),
        *(Reduced(scalar, (plain, pickle.dumps(Reduced(os.mkdir, (mark,))))), Reduced(scalar, (lying, pointer))),
        *(
            Reduced(np.load, (mark,)),
            Reduced(np.fromfile, (mark,)),
            Reduced(np.memmap, (mark,)),
            np.float64,
            np.ma.array([1]),
        ),
        # Memory bombs.
        *(array(1, (1 << 50,), np.dtype("f8"), False, b""), array(1, (1 << 50,), np.dtype("S0"), False, b"")),
        *(array(1, (1 << 40,), plain, False, [None]), Reduced(reconstruct, (ndarray, (1 << 50,), b"b"))),
        *(array(1, (-1,), np.dtype("f8"), False, b""), array(1, (2,), np.dtype("f8"), False, b"x" * 8)),
        *(
            kind("V8", 3, "|", None, ("a",), {"a": (np.dtype("f8"), 1 << 40)}, 8, 1, 0),
            kind("T16", 3, "|", None, None, None, 16, 8, 0),
        ),
    ]
    for value in hostile:
        with pytest.raises(Refused):
            loads(pickle.dumps(value, 5))
    assert not pathlib.Path(mark).exists()


def test_unneeded_opcodes_are_refused(tmp_path: pathlib.Path) -> None:
    mark = _marked(tmp_path)
    copyreg.add_extension("os", "mkdir", 0x4D46)
    try:
        extended = pickle.dumps(os.mkdir, 2)
        # From here on it is cached, and an unpickler would not look up the name.
        pickle.loads(extended)
    finally:
        copyreg.remove_extension("os", "mkdir", 0x4D46)
    text = pickle.dumps([1, "a"], 0)
    old = pickle.dumps(Reduced(os.mkdir, (mark,)), 0)
    for hostile in (
        *(extended, text, old, b"\x80\x04\x82\x01.", b"\x80\x04\x83\x01\x00.", b"\x80\x04\x84\x01\x00\x00\x00."),
        *(b"Pname\n.", b"\x80\x04Nq\x00.", b"\x80\x04Nr\xff\xff\xff\x7f.", b"\x80\x04\x8c\x01aQ."),
        *(b"(S'touch x'\nios\nsystem\n.", b"cos\nsystem\n(S'x'\ntR.", b"(cos\nsystem\nS'x'\no."),
        *(b"", b".", b"N", b"\x80\x05", b"NN.", b"(N.", b"a.", b"e.", b"R.", b"b.", b"\x94.", b"h\x00.", b"0.", b"1."),
        *(b"\x8e\xff\xff\xff\xff\xff\xff\xff\x7f.", b"\x96\xff\xff\xff\xff\xff\xff\xff\x7f.", b"\x8b\xff\xff\xff\xff."),
        *(b"X\xff\xff\xff\xffab.", b"\x97.", b"]N\x98.", b"\x8c\x01\xff.", b"]]s.", b"}]Ns.", b"\x8f(]\x90.", b"\xff."),
    ):
        with pytest.raises(Refused):
            loads(hostile)
    assert not pathlib.Path(mark).exists()


def test_key_with_an_endless_hash_is_refused() -> None:
    nested: Any = ()
    for _ in range(60):
        nested = (nested, nested)
    assert loads(pickle.dumps([nested], 5))
    # Not through pickle, which would hash it.
    body = pickle.dumps(nested, 4)[11:-1]
    start = time.monotonic()
    for hostile in (b"\x80\x04}" + body + b"Ns.", b"\x80\x04\x8f(" + body + b"\x90.", b"\x80\x04(" + body + b"\x91."):
        with pytest.raises(Refused):
            loads(hostile)
    assert time.monotonic() - start < 10


def colliding_keys(form: int) -> bytes:
    """A pickle of a dictionary, a set or a frozen set of numbers that have the same hash."""
    keys = []
    for number in range(60_000):
        packed = (number * sys.hash_info.modulus).to_bytes(12, "little")
        keys.append(b"\x8a\x0c" + packed)
    whole = [
        b"}(" + b"".join(key + b"N" for key in keys) + b"u.",
        b"\x8f(" + b"".join(keys) + b"\x90.",
        b"(" + b"".join(keys) + b"\x91.",
    ]
    return b"\x80\x04" + whole[form]


@pytest.mark.parametrize("form", [0, 1, 2], ids=["dictionary", "set", "frozen set"])
def test_colliding_keys_are_refused_in_linear_time(form: int) -> None:
    start = time.thread_time()
    with pytest.raises(Refused, match="too long to read"):
        loads(colliding_keys(form))
    assert time.thread_time() - start < 20


def test_large_dictionaries_and_sets_of_data_are_read() -> None:
    many = range(200_000)
    for value in (
        dict.fromkeys(many),
        {str(number): number for number in many},
        {(number, "x"): number for number in many},
        {number / 7 for number in many},
        {number << 40 for number in many},
        frozenset(uuid.UUID(int=number << 64) for number in range(20_000)),
    ):
        start = time.thread_time()
        packed = pickle.dumps(value, 5)
        assert loads(packed) == value
        # Far below the limit.
        assert time.thread_time() - start < 1 + len(packed) * 0.5e-6


def test_damaged_pickle_is_read_or_refused() -> None:
    chance = random.Random(7)
    values = [PLAIN[:40], PLAIN[40:], {"a": [1.5] * 20, "b": datetime.datetime(2026, 1, 1)}]
    try:
        import numpy as np

        values.append([np.arange(4.0), np.zeros(2, dtype=[("a", "i4")]), np.array([1, None], dtype=object)])
    except ImportError:
        pass
    packed = [pickle.dumps(value, 5) for value in values]
    for _ in range(4_000):
        damaged = bytearray(chance.choice(packed))
        for _ in range(chance.randint(1, 4)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        try:
            loads(damaged)
        except Refused:
            continue


def test_only_builtin_exceptions_are_recreated() -> None:
    def raised(error: Exception) -> bytes:
        try:
            raise error
        except Exception as caught:
            return _worker.pack_exception(caught)

    for error in (
        ValueError("no", 3),
        KeyError("k"),
        FileNotFoundError(2, "gone", "x"),
        ZeroDivisionError(),
        RuntimeError(("a", 1)),
    ):
        made = unpack_exception(raised(error))
        assert (type(made), made.args) == (type(error), error.args)
        assert isinstance(made.__cause__, RemoteTraceback)
        assert type(error).__name__ in made.__cause__.text
    made = unpack_exception(raised(ValueError("\x1b[31mred\r")))
    assert "\x1b" not in str(made)
    assert "\x1b" not in made.__cause__.text  # type: ignore[union-attr]


def test_builtin_exception_ignores_a_librarys_reducer() -> None:
    class OddError(Exception):
        pass

    copyreg.pickle(LookupError, lambda error: (OddError, error.args))
    try:
        made = unpack_exception(_worker.pack_exception(LookupError("no", 3)))
    finally:
        del copyreg.dispatch_table[LookupError]
    assert (type(made), made.args) == (LookupError, ("no", 3))


def test_exception_with_more_than_data_becomes_text(tmp_path: pathlib.Path) -> None:
    mark = _marked(tmp_path)
    inner = pickle.dumps(Reduced(os.mkdir, (mark,)))
    for packed in (
        *(inner, pickle.dumps((inner, ("builtins", "ValueError", "no"), "text"), 5)),
        *(pickle.dumps((None, ("m", "Oops", "no"), Reduced(os.mkdir, (mark,))), 5), b"", b"N."),
        *(pickle.dumps(("x",), 5), pickle.dumps((1, 2, 3), 5), pickle.dumps((None, ("m", "Oops", "no"), 7), 5)),
        pickle.dumps((pickle.dumps(SystemExit(3), 5), ("builtins", "SystemExit", "3"), "text"), 5),
        pickle.dumps((pickle.dumps(_worker.FailedItem(b""), 5), ("m", "Oops", "no"), "text"), 5),
    ):
        made = unpack_exception(packed)
        assert type(made) is RemoteError, packed
    assert not pathlib.Path(mark).exists()


def test_untrusted_result_names_its_tenant_and_the_option() -> None:
    for owners, words in (
        (["ann"], ("the tenant `ann`", "trust=['ann']")),
        (["uni", "ann"], ("the tenant `ann` and the tenant `uni`", "trust=['ann', 'uni']")),
        (["ann", ""], ("not known any more", "trust=True")),
    ):
        text = str(untrusted_error(Refused("it holds a `\x1b[31m`"), owners))
        assert all(word in text for word in words), text
        assert "untrusted" in text
        assert "\x1b" not in text
    other = KeyError("x")
    assert untrusted_error(other, ["ann"]) is other


def test_all_makers_of_a_result_must_be_trusted() -> None:
    assert untrusted_owners(["ann", "uni"], trust_of(["ann"])) == ["uni"]
    assert untrusted_owners(["ann", "uni"], merged_trust(trust_of("ann"), trust_of(["uni"]))) == []
    assert untrusted_owners([""], trust_of(["ann"])) == [""]
    assert untrusted_owners(["ann", ""], trust_of(True)) == []
    assert untrusted_owners(["ann"], trust_of(False)) == ["ann"]
