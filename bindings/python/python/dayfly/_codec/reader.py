"""A reader for pickles from untrusted tenants. It returns data only, and calls nothing that the pickle brings.

An allow-list for `pickle.Unpickler` is not enough: that class sets the state of objects as the pickle specifies, and a
NumPy dtype with false flags makes an array of forged pointers. This reader implements the opcodes of protocols 4 and 5
that data needs, and makes each value from its parts by a constructor that checks them. It looks up the names in a
pickle in `NAMES` and never imports them. The length of the pickle bounds memory and time.
"""

from __future__ import annotations

import collections
import struct
from collections.abc import Callable, Iterable
from typing import Any

from dayfly._codec.names import lookup
from dayfly._codec.parts import Part, Parts, Refused, expect, limits, text_of

__all__ = ["Refused", "loads"]

#: Maximum values in a key of a dictionary or an element of a set. Comparing nested keys with shared parts can take
#: exponential time.
MAX_KEY_PARTS = 1_000
#: Plain keys between two checks of the time limit.
_UNTIMED_KEYS = 256
_NESTED = (tuple, frozenset)


def _check_parts(key: Any) -> None:
    """Refuses a key that takes too long to hash, or to compare with another."""
    left, count = [key], 0
    while left:
        one = left.pop()
        count += len(one)
        if count > MAX_KEY_PARTS:
            raise Refused(f"it has a key of more than {MAX_KEY_PARTS} parts")
        left.extend(part for part in one if type(part) in _NESTED)


class Machine:
    """The state of reading one pickle: a stack machine."""

    def __init__(self, data: memoryview, buffers: Iterable[Any]) -> None:
        self.data = data
        self.at = 0
        self.stack: list[Any] = []
        self.marks: list[list[Any]] = []
        self.memo: list[Any] = []
        self.buffers = iter(buffers)
        self.untimed = 0
        limits.begin(len(data))

    def read(self) -> Any:
        """Returns the value of the pickle."""
        data, operations = self.data, _OPERATIONS
        while True:
            code = data[self.at]
            self.at += 1
            if code == 0x2E:
                break
            operation = operations.get(code)
            if operation is None:
                raise Refused(f"it has the opcode {code:#04x}, which no data needs")
            operation(self)
        expect(len(self.stack) == 1 and not self.marks)
        return self.value(self.stack[0])

    # Primitives of the operations

    def value(self, one: Any) -> Any:
        """Returns the argument, and refuses one that is not a complete value."""
        if isinstance(one, Part):
            raise Refused(f"it holds {one!r}")
        return one

    def values(self, some: list[Any]) -> list[Any]:
        """Returns the list, and refuses one that contains incomplete values."""
        for one in some:
            if isinstance(one, Part):
                raise Refused(f"it holds {one!r}")
        return some

    def take(self, length: int) -> memoryview:
        """Returns the next ``length`` bytes."""
        start = self.at
        if length > len(self.data) - start:
            raise Refused("it ends too early")
        self.at = start + length
        return self.data[start : self.at]

    def number(self, form: struct.Struct) -> Any:
        """Returns the next number of this form."""
        return form.unpack(self.take(form.size))[0]

    def marked(self) -> list[Any]:
        """Returns the values above the last mark, and removes them and the mark."""
        found = self.stack
        self.stack = self.marks.pop()
        return found

    def push_tuple(self, items: tuple[Any, ...]) -> None:
        """Pushes a tuple, or `Parts` if one of its items is not a complete value."""
        for one in items:
            if isinstance(one, Part):
                self.stack.append(Parts(items))
                return
        self.stack.append(items)

    def arguments(self) -> tuple[Any, ...]:
        """Returns and removes the arguments of a call."""
        given = self.stack.pop()
        if type(given) is Parts:
            args = given.items
        else:
            expect(type(given) is tuple)
            args = given
        limits.copy(args)
        return args

    def part(self) -> Part:
        """Returns and removes the top of the stack, which must be a part."""
        part = self.stack.pop()
        if not isinstance(part, Part):
            raise Refused(f"it uses a `{type(part).__name__}` as a function")
        return part

    def puttext_of(self, length: int) -> None:
        """Pushes a string of ``length`` bytes."""
        self.stack.append(str(self.take(length), "utf-8", "surrogatepass"))

    def check_key(self, key: Any) -> None:
        """Refuses keys that take too long to hash or compare, and keys chosen to collide."""
        self.untimed += 1
        is_nested = type(key) in _NESTED
        if is_nested:
            _check_parts(key)
        if is_nested or self.untimed >= _UNTIMED_KEYS:
            self.untimed = 0
            limits.look()

    # Operations

    def mark(self) -> None:
        self.marks.append(self.stack)
        self.stack = []

    def stack_global(self) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        self.stack.append(lookup(text_of(module), text_of(name)))

    def reduce(self) -> None:
        args = self.arguments()
        self.stack.append(self.part().call(args))

    def newobj(self) -> None:
        args = self.arguments()
        self.stack.append(self.part().new(args))

    def build(self) -> None:
        state = self.stack.pop()
        found = self.stack[-1]
        if isinstance(found, Exception):
            # Notes and attributes of exceptions. The traceback text contains them.
            return
        part = self.part()
        if type(state) is tuple:
            limits.copy(state)
        built = part.build(state)
        if part.at >= 0:
            self.memo[part.at] = built
        self.stack.append(built)

    def memoize(self) -> None:
        last = self.stack[-1]
        if isinstance(last, Part):
            last.at = len(self.memo)
        self.memo.append(last)

    def get(self, index: int) -> None:
        self.stack.append(self.memo[index])

    def append(self) -> None:
        item = self.value(self.stack.pop())
        self.into_list().append(item)

    def appends(self) -> None:
        items = self.values(self.marked())
        self.into_list().extend(items)

    def into_list(self) -> Any:
        into = self.stack[-1]
        expect(type(into) in (list, collections.deque))
        return into

    def setitem(self) -> None:
        value = self.stack.pop()
        key = self.stack.pop()
        self.set_items([key, value])

    def set_items(self, given: list[Any]) -> None:
        into = self.stack[-1]
        expect(type(into) in (dict, collections.OrderedDict, collections.defaultdict) and len(given) % 2 == 0)
        self.values(given)
        for at in range(0, len(given), 2):
            key = given[at]
            self.check_key(key)
            into[key] = given[at + 1]

    def additems(self) -> None:
        items = self.values(self.marked())
        into = self.stack[-1]
        expect(type(into) is set)
        self.add_to(into, items)

    def frozenset(self) -> None:
        into: set[Any] = set()
        self.add_to(into, self.values(self.marked()))
        self.stack.append(frozenset(into))

    def add_to(self, into: set[Any], items: list[Any]) -> None:
        """Adds items to a set."""
        for item in items:
            self.check_key(item)
            into.add(item)

    def tuple_of(self, count: int) -> None:
        items = tuple(self.stack[-count:])
        expect(len(items) == count)
        del self.stack[-count:]
        self.push_tuple(items)

    def long(self, length: int) -> None:
        expect(length >= 0)
        self.stack.append(int.from_bytes(self.take(length), "little", signed=True))

    def next_buffer(self) -> None:
        buffer = next(self.buffers, None)
        expect(buffer is not None)
        view = memoryview(buffer)  # type: ignore[arg-type]
        limits.room += view.nbytes
        self.stack.append(view)

    def readonly_buffer(self) -> None:
        expect(type(self.stack[-1]) is memoryview)
        self.stack[-1] = self.stack[-1].toreadonly()


_U1, _U2, _I4, _U4, _U8, _F8 = map(struct.Struct, ("<B", "<H", "<i", "<I", "<Q", ">d"))


def _push(value: Any) -> Callable[[Machine], None]:
    return lambda machine: machine.stack.append(value)


#: Operations by opcode; see ``pickletools``. Left out are opcodes of older protocols, persistent ids, the extension
#: registry, and numbered memo entries, where a large number would allocate as much memory.
_OPERATIONS: dict[int, Callable[[Machine], Any]] = {
    code[0]: operation
    for code, operation in {
        b"\x80": lambda m: m.take(1),
        b"\x95": lambda m: m.take(8),
        b"(": Machine.mark,
        b"N": _push(None),
        b"\x88": _push(True),
        b"\x89": _push(False),
        b"K": lambda m: m.stack.append(m.number(_U1)),
        b"M": lambda m: m.stack.append(m.number(_U2)),
        b"J": lambda m: m.stack.append(m.number(_I4)),
        b"\x8a": lambda m: m.long(m.number(_U1)),
        b"\x8b": lambda m: m.long(m.number(_I4)),
        b"G": lambda m: m.stack.append(m.number(_F8)),
        b"\x8c": lambda m: m.puttext_of(m.number(_U1)),
        b"X": lambda m: m.puttext_of(m.number(_U4)),
        b"\x8d": lambda m: m.puttext_of(m.number(_U8)),
        b"C": lambda m: m.stack.append(bytes(m.take(m.number(_U1)))),
        b"B": lambda m: m.stack.append(bytes(m.take(m.number(_U4)))),
        b"\x8e": lambda m: m.stack.append(bytes(m.take(m.number(_U8)))),
        b"\x96": lambda m: m.stack.append(bytearray(m.take(m.number(_U8)))),
        b"\x97": Machine.next_buffer,
        b"\x98": Machine.readonly_buffer,
        b"]": lambda m: m.stack.append([]),
        b"a": Machine.append,
        b"e": Machine.appends,
        b")": _push(()),
        b"\x85": lambda m: m.tuple_of(1),
        b"\x86": lambda m: m.tuple_of(2),
        b"\x87": lambda m: m.tuple_of(3),
        b"t": lambda m: m.push_tuple(tuple(m.marked())),
        b"}": lambda m: m.stack.append({}),
        b"s": Machine.setitem,
        b"u": lambda m: m.set_items(m.marked()),
        b"\x8f": lambda m: m.stack.append(set()),
        b"\x90": Machine.additems,
        b"\x91": Machine.frozenset,
        b"\x93": Machine.stack_global,
        b"R": Machine.reduce,
        b"\x81": Machine.newobj,
        b"b": Machine.build,
        b"\x94": Machine.memoize,
        b"h": lambda m: m.get(m.number(_U1)),
        b"j": lambda m: m.get(m.number(_U4)),
        b"0": lambda m: m.stack.pop(),
        b"1": Machine.marked,
    }.items()
}


def loads(data: Any, /, *, buffers: Iterable[Any] = ()) -> Any:
    """Returns the value of a pickle from an untrusted tenant.

    Args:
        data: the pickle, of protocol 4 or 5.
        buffers: its out-of-band buffers.

    Raises:
        Refused: if it contains more than data, or is not a valid pickle.
    """
    # A copy, because an exception may keep it alive for longer than the caller keeps the pickle.
    machine = Machine(memoryview(bytes(data)), buffers)
    try:
        return machine.read()
    except Refused:
        raise
    except Exception as error:
        # A constructor refused arguments that no pickler writes.
        raise Refused(f"it is broken: {type(error).__name__}: {error}") from None
