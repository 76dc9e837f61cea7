"""What runs beside the functions in a worker. Imports little, because every cold start pays for it."""

from __future__ import annotations

import copyreg
import io
import os
import pickle
import sys
import time
from collections.abc import Callable
from typing import Any, ClassVar

import cloudpickle

from dayfly._native import Foreign

#: How results are marked on the wire; see ``codec.rs``.
VALUE = 0
MIXED = 3


#: What other tasks answered, while the arguments of a call are unpickled in which they stand.
answers: list[Any] = []


def answer(index: int, trust: Any = None) -> Any:
    """What stands in the arguments of a call in place of a task's future.

    Args:
        index: of the task, among those whose answers go along.
        trust: whose answers may be unpickled, beside the task's own tenant's; see ``_trust.py``.
    """
    found = answers[index]
    if type(found) is Foreign:
        from dayfly._trust import opened, trust_of

        return opened(found, trust_of(trust))
    return found


#: Environment variable with the group of this process, and of programs that it starts.
GROUP_VARIABLE = "DAYFLY_GROUP"


def enter_group(invitation: str) -> None:
    """``MPI.COMM_WORLD`` is this group from now on, here or in a program that the function starts."""
    leave_group()
    os.environ[GROUP_VARIABLE] = invitation


def leave_group() -> None:
    """Forgets the group of a call that is over, or one that a function before it made for itself."""
    os.environ.pop(GROUP_VARIABLE, None)
    if "dayfly.MPI" in sys.modules:
        sys.modules["dayfly.MPI"]._leave()


class Failed:
    """An item of a map that raised: the pickled exception in the place of a result."""

    __slots__ = ("is_foreign", "packed")

    def __init__(self, packed: bytes) -> None:
        self.packed = packed
        #: Whether it came from another tenant, and nobody said that they are trusted.
        self.is_foreign = False

    def __reduce__(self) -> tuple[type[Failed], tuple[bytes]]:
        return Failed, (self.packed,)


def run_map(function: Callable[..., Any], items: list[Any], star: bool) -> tuple[tuple[int, bool, list[Any]], int]:
    """Calls a function on every item; one that raises fails alone.

    Answers what it cost in nanoseconds, whether any failed, and the results.
    """
    start = time.perf_counter_ns()
    if star:
        from itertools import starmap

        calls: Any = starmap(function, items)
    else:
        calls = map(function, items)
    results: list[Any] = []
    kind = VALUE
    while True:
        try:
            # What came before an exception stays in the list, and the iterator goes on behind it.
            results.extend(calls)
            if len(results) == len(items):
                break
            error: BaseException = RuntimeError("the function raised StopIteration")
        except BaseException as raised:
            error = raised
        results.append(Failed(pack_exception(error)))
        kind = MIXED
        if len(results) == len(items):
            break
    return (time.perf_counter_ns() - start, kind == MIXED, results), kind


def apply(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Calls a function that travels with its arguments."""
    return function(*args, **kwargs)


class Initialized:
    """A function that is called in a process in which its executor's initializer has run.

    The initializer runs once for each process and token. Functions that are pickled by value have module variables of
    their own in each pickle, so that variables that the initializer set are copied to those of other functions.
    """

    #: What initializers have set in this process, by token, or the text of what they raised.
    ran: ClassVar[dict[str, dict[str, Any] | str]] = {}
    _is_ready = False

    def __init__(self, function: Any, initializer: Callable[..., Any], initargs: tuple[Any, ...], token: str) -> None:
        self.__wrapped__ = self.func = function
        self._initializer = initializer
        self._initargs = initargs
        self._token = token

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Calls the function."""
        if not self._is_ready:
            self._initialize()
        return self.func(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return Initialized, (self.func, self._initializer, self._initargs, self._token)

    def _initialize(self) -> None:
        variables: dict[str, Any] = getattr(self._initializer, "__globals__", {})
        ran = self.ran.get(self._token)
        if ran is None:
            before = dict(variables)
            try:
                self._initializer(*self._initargs)
            except BaseException as error:
                text = self.ran[self._token] = f"{type(error).__name__}: {_text(error)}"
                raise self._failure(text) from error
            missing = object()
            ran = {name: value for name, value in variables.items() if before.get(name, missing) is not value}
            self.ran[self._token] = ran
        if isinstance(ran, str):
            raise self._failure(ran)
        variables.update(ran)
        self._is_ready = True

    @staticmethod
    def _failure(text: str) -> Exception:
        from dayfly._broken import InitializerFailed

        return InitializerFailed(
            f"the initializer of this executor failed: {text}; make another executor", "load_failed"
        )


def call_json(function: Callable[..., Any], call: bytes) -> bytes:
    """Calls a function as a program without Python asked for it, and answers in the same language."""
    import json

    asked = json.loads(call)
    result = function(*asked.get("arguments", ()), **asked.get("keywords", {}))
    return json.dumps(result, default=_as_list).encode()


def _as_list(value: Any) -> Any:
    """NumPy's arrays and scalars, and iterables that are no lists."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, (set, frozenset, range)):
        return list(value)
    raise TypeError(
        f"the result has a {type(value).__qualname__}, which JSON cannot express; answer numbers, texts, lists and "
        "dictionaries, or submit the task from Python"
    )


def load_source(source: bytes, entry: str) -> Callable[..., Any]:
    """The function of this name in a module's text."""
    import types

    module = types.ModuleType("dayfly_source")
    # What the module defines finds itself there, as pickle and dataclasses want.
    sys.modules[module.__name__] = module
    exec(compile(source, f"<source of {entry}>", "exec"), module.__dict__)
    try:
        function: Callable[..., Any] = getattr(module, entry)
    except AttributeError:
        raise LookupError(f"the source defines no {entry!r}") from None
    return function


def describe_exception(error: BaseException) -> str:
    """An exception with its traceback, for those who do not speak Python."""
    import traceback

    # The frames of this module say nothing about the user's function.
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_globals.get("__name__") == __name__:
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames or error.__traceback__))


class Mapper:
    """Maps a function that is not known to the worker by itself: its pickle travels with every chunk."""

    last: tuple[bytes, Callable[..., Any]] | None = None


def apply_map(pickled: bytes, items: list[Any], star: bool) -> tuple[int, bool, list[Any]]:
    """As `run_map`, for a pickled function, which is unpickled once for as long as nobody sends another."""
    last = Mapper.last
    if last is None or last[0] != pickled:
        last = Mapper.last = (pickled, pickle.loads(pickled))
    return run_map(last[1], items, star)[0]


#: The end of a payload that has an exception as text, and how long its parts may be; see ``protocol::exception``.
MARK = b"dayfly.x"
MAX_LENGTHS = {"type": 200, "message": 2_000, "traceback": 8_000}


def exception_text(error: BaseException) -> bytes:
    """An exception as text, for those who unpickle nothing: JSON, its length and `MARK`."""
    import json

    kind = type(error)
    name = (
        kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"
    )
    parts = {"type": name, "message": _text(error), "traceback": describe_exception(error)}
    # Surrogates that stand alone are no text anywhere else.
    told = {key: _cut(part, MAX_LENGTHS[key]).encode(errors="replace").decode() for key, part in parts.items()}
    packed = json.dumps(told).encode()
    return packed + len(packed).to_bytes(4, "little") + MARK


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length // 2]}\n[...]\n{text[-length // 2 :]}"


def report_exception(error: BaseException) -> bytes:
    """`pack_exception`, and behind the pickle, which ends by itself, `exception_text`."""
    packed = pack_exception(error)
    try:
        return packed + exception_text(error)
    except BaseException:
        # Its own text is code of the function's, too.
        return packed


def pack_exception(error: BaseException) -> bytes:
    """An exception and its traceback's text, in a form that surely can be unpickled by the caller."""
    kind = type(error)
    # By name, too: the caller may not have its class.
    about = (kind.__module__, kind.__qualname__, _text(error)), describe_exception(error)
    for dumps in (_dumps_exception, cloudpickle.dumps):
        try:
            pickled: bytes = dumps(error, 5)
            if b"__main__" in pickled and dumps is _dumps_exception:
                continue
            # Many an exception is pickled without complaint and cannot be made again.
            pickle.loads(pickled)
        except BaseException:
            continue
        return pickle.dumps((pickled, *about), 5)
    return pickle.dumps((None, *about), 5)


def _dumps_exception(error: BaseException, protocol: int) -> bytes:
    """`pickle.dumps`, which for Python's own exceptions heeds no library that registers another way to pickle them.

    The caller may not have that library, and reads nothing of it where it does not trust the function.
    """
    kind = type(error)
    if kind.__module__ != "builtins" or kind not in copyreg.dispatch_table:
        return pickle.dumps(error, protocol)
    packed = io.BytesIO()
    pickler = pickle.Pickler(packed, protocol)
    pickler.dispatch_table = {one: way for one, way in copyreg.dispatch_table.items() if one is not kind}
    pickler.dump(error)
    return packed.getvalue()


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "(an exception whose text cannot be made)"


def explain_load(error: BaseException) -> str:
    """Why a function could not be unpickled, for the caller."""
    text = f"the function cannot be unpickled by the worker: {type(error).__name__}: {_text(error)}"
    if isinstance(error, ImportError):
        text += (
            f". The worker's Python is {sys.executable}: install the module there, or name an environment. Your own "
            "modules come along when they are imported, or an import statement in one of them names them"
        )
    return text


def warm_up() -> None:
    """What the parent does once, so that no worker has to: it leaves caches filled and pages shared."""
    import gc
    import traceback  # noqa: F401 - the first exception would import it

    pickle.loads(cloudpickle.dumps(lambda argument: argument, protocol=5))(None)
    gc.collect()
    # A collection in a worker would otherwise write to, and so copy, every page that holds an object.
    gc.freeze()


def set_variable(name: str, value: str) -> None:
    """Functions find this in their environment, and programs that they start."""
    os.environ[name] = value


def flush() -> None:
    """What a call has printed leaves Python's own buffers. Streams that it closed are opened for the next one."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        try:
            stream = getattr(sys, name)
            if stream.closed:
                stream = os.fdopen(number, "w", buffering=1, errors="backslashreplace", closefd=False)
                setattr(sys, name, stream)
            else:
                stream.flush()
        except Exception:
            # What a function has put in their place is its own business.
            continue


def after_fork() -> None:
    """What a new worker does first. The interpreter's own hooks have reseeded ``random`` already."""
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
