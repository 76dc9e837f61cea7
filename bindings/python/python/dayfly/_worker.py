"""The code that runs around functions in a worker. It has few imports, because they delay every cold start."""

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

#: Types of results on the wire; see ``codec.rs``.
VALUE = 0
MIXED = 3


#: Environment variable with the invitation to the group of this process and of the programs that it starts.
GROUP_VARIABLE = "DAYFLY_GROUP"


class _Group:
    """The group that this process is in."""

    #: The process that entered it. A child that a function has forked must not leave it.
    process: int | None = None
    #: Earlier values of the variables by which programs find the MPI library.
    replaced: ClassVar[dict[str, str | None]] = {}


def enter_group(invitation: str) -> None:
    """Makes a group ``MPI.COMM_WORLD``, for this process and for programs that the function starts.

    That holds for mpi4py, which ``dayfly.MPI`` is, for ``dayfly.groups`` and for programs that were linked with MPICH.
    Nothing joins the group before its first use.
    """
    leave_group()
    from dayfly._mpi_library import mpi_variables

    variables = mpi_variables(os.environ)
    _Group.process = os.getpid()
    _Group.replaced = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    os.environ[GROUP_VARIABLE] = invitation


def leave_group(succeeded: bool = False) -> None:
    """Leaves the group of a previous call, also one that a function created itself, as `_leave_mpi_world` does."""
    if _Group.process not in (None, os.getpid()):
        return
    os.environ.pop(GROUP_VARIABLE, None)
    _leave_mpi_world(succeeded)
    if "dayfly.groups" in sys.modules:
        sys.modules["dayfly.groups"]._leave()
    for name, value in _Group.replaced.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    _Group.process, _Group.replaced = None, {}


def rank_exception(error: BaseException) -> BaseException:
    """Returns a rank's exception for the caller: Dayfly's own error if that is why MPI failed, such as a lost rank."""
    if not _is_of_mpi4py(error):
        return error
    from dayfly._mpi_library import failure_of

    made = failure_of(error.Get_error_code())  # type: ignore[attr-defined]
    if made is None:
        return error
    made.__cause__ = error
    return made.with_traceback(error.__traceback__)


def _is_of_mpi4py(error: BaseException) -> bool:
    return "mpi4py.MPI" in sys.modules and isinstance(error, sys.modules["mpi4py.MPI"].Exception)


def environment_outside_group() -> dict[str, str]:
    """Returns the environment without what `enter_group` has set."""
    kept = {name: value for name, value in os.environ.items() if name not in (GROUP_VARIABLE, *_Group.replaced)}
    return kept | {name: value for name, value in _Group.replaced.items() if value is not None}


def _leave_mpi_world(succeeded: bool) -> None:
    """Ends ``MPI_COMM_WORLD`` of mpi4py in this process. Its next call joins the group of the next task.

    After a success, MPI waits for the other ranks. Otherwise it leaves at once, and they see that this rank is lost.
    """
    if "mpi4py" not in sys.modules:
        return
    from dayfly._mpi_library import loaded_library

    # mpi4py may use another library.
    library = loaded_library()
    if library is not None:
        library.MPIX_Dayfly_leave(int(succeeded))


class FailedItem:
    """An item of a map that raised: its pickled exception takes the place of the result."""

    __slots__ = ("is_foreign", "packed")

    def __init__(self, packed: bytes) -> None:
        self.packed = packed
        #: Whether it comes from another tenant that is not trusted.
        self.is_foreign = False

    def __reduce__(self) -> tuple[type[FailedItem], tuple[bytes]]:
        return FailedItem, (self.packed,)


def run_map(function: Callable[..., Any], items: list[Any], star: bool) -> tuple[tuple[int, bool, list[Any]], int]:
    """Calls a function on every item. An exception fails only its own item.

    Returns a tuple of the cost in nanoseconds, whether any item failed, and the results; and the type of the results.
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
            # The results before the exception stay in the list, and the iterator continues with the next item.
            results.extend(calls)
            if len(results) == len(items):
                break
            error: BaseException = RuntimeError("the function raised StopIteration")
        except BaseException as raised:
            error = raised
        results.append(FailedItem(pack_exception(error)))
        kind = MIXED
        if len(results) == len(items):
            break
    return (time.perf_counter_ns() - start, kind == MIXED, results), kind


def apply(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Calls a function that traveled with its arguments."""
    return function(*args, **kwargs)


class InitializedFunction:
    """A function that is called after its executor's initializer has run in this process.

    The initializer runs once for each process and token. Functions pickled by value have module variables of their own
    in each pickle, so variables that the initializer sets are copied to those of other functions.
    """

    #: Variables that initializers have set in this process, or the text of their exception, by token.
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
        return InitializedFunction, (self.func, self._initializer, self._initargs, self._token)

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
        from dayfly._pool_errors import InitializerFailed

        return InitializerFailed(
            f"the initializer of this executor failed: {text}; make another executor", "load_failed"
        )


def call_json(function: Callable[..., Any], call: bytes) -> bytes:
    """Calls a function with arguments in JSON, from a program without Python, and returns the result in JSON."""
    import json

    asked = json.loads(call)
    result = function(*asked.get("arguments", ()), **asked.get("keywords", {}))
    return json.dumps(result, default=_as_list).encode()


def _as_list(value: Any) -> Any:
    """Converts NumPy's arrays and scalars, and iterables other than lists, for JSON."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, (set, frozenset, range)):
        return list(value)
    raise TypeError(
        f"the result has a {type(value).__qualname__}, which JSON cannot express; return numbers, strings, lists and "
        "dictionaries, or submit the task from Python"
    )


def load_source(source: bytes, entry: str) -> Callable[..., Any]:
    """Returns the function with this name in a module's source text."""
    import types

    module = types.ModuleType("dayfly_source")
    # pickle and dataclasses look up the module of a definition here.
    sys.modules[module.__name__] = module
    exec(compile(source, f"<source of {entry}>", "exec"), module.__dict__)
    try:
        function: Callable[..., Any] = getattr(module, entry)
    except AttributeError:
        raise LookupError(f"the source defines no {entry!r}") from None
    return function


def describe_exception(error: BaseException) -> str:
    """Returns an exception with its traceback as text."""
    import traceback

    # Skip the frames of this module.
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_globals.get("__name__") == __name__:
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames or error.__traceback__))


class Mapper:
    """The last function of `apply_map`. Its pickle travels with every chunk."""

    last: tuple[bytes, Callable[..., Any]] | None = None


def apply_map(pickled: bytes, items: list[Any], star: bool) -> tuple[int, bool, list[Any]]:
    """As `run_map`, for a pickled function. The function is unpickled again only when its pickle changes."""
    last = Mapper.last
    if last is None or last[0] != pickled:
        last = Mapper.last = (pickled, pickle.loads(pickled))
    return run_map(last[1], items, star)[0]


#: The mark at the end of a payload with an exception as text, and maximum lengths of its parts; see
#: ``protocol::exception``.
MARK = b"dayfly.x"
MAX_LENGTHS = {"type": 200, "message": 2_000, "traceback": 8_000}


def exception_text(error: BaseException) -> bytes:
    """Returns an exception as text, for readers that do not unpickle: JSON, its length and `MARK`."""
    import json

    kind = type(error)
    name = (
        kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"
    )
    parts = {"type": name, "message": _text(error), "traceback": describe_exception(error)}
    # Lone surrogates cannot be encoded in UTF-8.
    told = {key: _cut(part, MAX_LENGTHS[key]).encode(errors="replace").decode() for key, part in parts.items()}
    packed = json.dumps(told).encode()
    return packed + len(packed).to_bytes(4, "little") + MARK


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length // 2]}\n[...]\n{text[-length // 2 :]}"


def report_exception(error: BaseException) -> bytes:
    """Returns `pack_exception` followed by `exception_text`. A pickle marks its own end."""
    packed = pack_exception(error)
    try:
        return packed + exception_text(error)
    except BaseException:
        # The text of an exception may be code of the function, which can raise.
        return packed


def pack_exception(error: BaseException) -> bytes:
    """Returns an exception and its traceback's text, in a form that the caller can unpickle."""
    kind = type(error)
    # Include the name, because the caller may not have the class.
    about = (kind.__module__, kind.__qualname__, _text(error)), describe_exception(error)
    if _is_of_mpi4py(error):
        # It holds a number that only this process can explain, and would make the caller initialize MPI.
        return pickle.dumps((None, *about), 5)
    for dumps in (_dumps_exception, cloudpickle.dumps):
        try:
            pickled: bytes = dumps(error, 5)
            if b"__main__" in pickled and dumps is _dumps_exception:
                continue
            # Many exceptions can be pickled but not unpickled.
            pickle.loads(pickled)
        except BaseException:
            continue
        return pickle.dumps((pickled, *about), 5)
    return pickle.dumps((None, *about), 5)


def _dumps_exception(error: BaseException, protocol: int) -> bytes:
    """As `pickle.dumps`, but ignores other libraries' reducers for Python's own exceptions.

    The caller may not have such a library, and does not read its pickles if it does not trust the function.
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
    """Returns why a function could not be unpickled, for the caller."""
    text = f"the function cannot be unpickled by the worker: {type(error).__name__}: {_text(error)}"
    if isinstance(error, ImportError):
        text += (
            f". The worker's Python is {sys.executable}: install the module there, or name an environment. Your own "
            "modules come along when they are imported, or an import statement in one of them names them"
        )
    return text


def warm_up() -> None:
    """Fills caches and shared pages in the parent, so that workers start faster."""
    import gc
    import traceback  # noqa: F401 - the first exception would import it

    pickle.loads(cloudpickle.dumps(lambda argument: argument, protocol=5))(None)
    gc.collect()
    # A collection in a worker would write to, and so copy, every page with an object.
    gc.freeze()


def set_variable(name: str, value: str) -> None:
    """Sets an environment variable for functions and the programs that they start."""
    os.environ[name] = value


def flush() -> None:
    """Flushes Python's output buffers after a call, and reopens streams that the call closed."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        try:
            stream = getattr(sys, name)
            if stream.closed:
                stream = os.fdopen(number, "w", buffering=1, errors="backslashreplace", closefd=False)
                setattr(sys, name, stream)
            else:
                stream.flush()
        except Exception:
            # A function may have replaced a stream by any object.
            continue


def after_fork() -> None:
    """Initializes a new worker. The interpreter's own hooks have already reseeded ``random``."""
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    # Whichever function first imports mpi4py, later tasks find their groups in it.
    sys.meta_path.insert(0, _MPIFinder)


class _MPIFinder:
    """Has mpi4py use Dayfly's MPI library in workers."""

    finds_mpi = True

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
        """Returns the specification of ``mpi4py.MPI``, and None for all other modules."""
        if name != "mpi4py.MPI":
            return None
        from dayfly._mpi_library import MPIFinder

        return MPIFinder().find_spec(name, path, target)
