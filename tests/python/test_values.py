"""Values as arguments and results."""

from __future__ import annotations

import sys

import cloudpickle
import dayfly
import numpy as np
import pytest

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def echo(x):
    return x


@pytest.mark.parametrize(
    "value", [None, True, 0, -(1 << 70), 1.5, "text", b"", b"bytes", (1, [2, {"a": {3}}]), 1j, range(3)]
)
def test_values_return_unchanged(lease, value):
    assert lease.call(echo, value) == value


@pytest.mark.parametrize("size", [0, 1, 1007, 1008, 1009, 2030, 2031, 2032, 2033, 4096, 1 << 20, 5 << 20])
def test_bytes_of_any_size_travel(lease, size):
    value = bytes(range(256)) * (size // 256 + 1)
    value = value[:size]
    assert lease.call(echo, value) == value
    assert lease.call(len, bytearray(value)) == size


def test_arrays_arrive_writable_and_uncopied(lease):
    array = np.arange(100_000, dtype=np.float64).reshape(100, 1000)

    def work(a):
        owns = a.flags.owndata
        a *= 2
        return owns, a

    owns, doubled = lease.call(work, array)
    assert not owns
    assert not doubled.flags.owndata
    np.testing.assert_array_equal(doubled, 2 * array)
    doubled += 1


@pytest.mark.parametrize("make", [
    lambda: np.asfortranarray(np.ones((50, 70))),
    lambda: np.arange(1000)[::3],
    lambda: np.array(["a", None, {}], dtype=object),
    lambda: np.zeros(0),
    lambda: np.float32(3),
    lambda: {"a": np.arange(5000), "b": [np.ones(7), b"x"]},
])  # fmt: skip
def test_arrays_of_every_shape_travel(lease, make):
    def check(a, b):
        if isinstance(a, dict):
            return a["a"].sum() == b["a"].sum() and a["b"][1] == b["b"][1]
        return bool(np.array_equal(a, b))

    assert check(lease.call(echo, make()), make())


def test_read_only_arrays_stay_read_only(lease):
    array = np.arange(5000)
    array.flags.writeable = False
    assert lease.call(lambda a: a.flags.writeable, array) is False


def test_worker_may_keep_its_argument(own):
    def keep(a):
        import builtins

        builtins.kept = a

    def look():
        import builtins

        return builtins.kept.sum()

    own.call(keep, np.ones(100_000))
    for _ in range(20):
        own.call(echo, np.zeros(100_000))
    assert own.call(look) == 100_000


def test_results_live_as_long_as_their_views(own):
    results = [own.call(np.full, 50_000, value) for value in range(20)]
    for value, result in enumerate(results):
        assert (result == value).all()


def test_shared_arrays_travel_without_a_copy(own):
    array = own.empty((1000, 100))
    array[:] = 1

    def work(a):
        a[:] = 7
        return a.shape

    assert own.call(work, array) == (1000, 100)
    assert (array == 7).all(), "the worker wrote where the caller reads"
    # A part of the array, or an array that a call still uses, is copied.
    assert own.call(np.sum, array[:500]) == 350_000
    futures = [own.submit(np.sum, array) for _ in range(10)]
    assert [future.result() for future in futures] == [700_000] * 10


def test_classes_of_the_main_module_travel_by_value(lease):
    class Point:
        def __init__(self, x):
            self.x = x

        def __eq__(self, other):
            return self.x == other.x

        __hash__ = None

    assert lease.call(lambda p: p.x, Point(3)) == 3
    assert lease.call(echo, Point(4)) == Point(4)
    assert type(lease.call(echo, Point(4))) is Point


def test_unpicklable_value_is_the_callers_error(lease):
    import threading

    unsent = lease.submit(echo, threading.Lock())
    with pytest.raises(TypeError, match="pickle"):
        unsent.result(0)
    with pytest.raises(TypeError, match="pickle"):
        lease.call(lambda: __import__("threading").Lock())
    assert lease.call(echo, 1) == 1


def test_function_of_a_missing_module_fails_to_load(lease, tmp_path, monkeypatch):
    (tmp_path / "only_here.py").write_text("def f():\n    return 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("DAYFLY_LOCAL_MODULES", "only_here")
    import only_here

    with pytest.raises(dayfly.LoadError, match="only_here") as caught:
        lease.call(only_here.f)
    assert caught.value.code == "load_failed"


def test_other_python_version_is_refused_naming_both(lease):
    code = lease._native.put_code(cloudpickle.dumps(echo))
    number = lease._pool.register_python(code, "3.2.1", cloudpickle.__version__, "echo")
    with pytest.raises(dayfly.LoadError, match=r"3\.2\.1.*" + sys.version.split()[0].replace(".", r"\.")) as caught:
        lease._pool.call(number, (1,))
    assert caught.value.code == "python_mismatch"


def test_other_cloudpickle_version_is_refused_naming_both(lease):
    code = lease._native.put_code(cloudpickle.dumps(echo))
    number = lease._pool.register_python(code, sys.version.split()[0], "1.0", "echo")
    with pytest.raises(dayfly.LoadError, match=f"1.0.*{cloudpickle.__version__}") as caught:
        lease._pool.call(number, (1,))
    assert caught.value.code == "python_mismatch"


def test_shared_library_functions_take_buffers(lease, compiled):
    library = lease.library(compiled)
    assert bytes(library.reverse(b"abc")) == b"cba"
    large = np.arange(1 << 20, dtype=np.uint8)
    assert bytes(library.reverse(large)) == large[::-1].tobytes()
    double = library.checked("doubled")
    values = np.arange(1000.0)
    into = np.empty(1000)
    assert double(values, out=into) is into
    np.testing.assert_array_equal(into, 2 * values)
    found = np.frombuffer(double(values, out=values.nbytes))
    np.testing.assert_array_equal(found, 2 * values)
    with pytest.raises(dayfly.FunctionError, match="no room"):
        double(values)
    with pytest.raises(dayfly.LoadError, match="no_such"):
        library.no_such(b"")


def test_native_lease_calls_libraries_without_python(client, compiled):
    with client.lease(runtime="native", mode="warm") as lease:
        assert bytes(lease.library(compiled).reverse(b"abc")) == b"cba"
        shared = lease.empty(100_000)
        shared[:] = 3
        assert (np.frombuffer(lease.library(compiled).checked("doubled")(shared, out=shared.nbytes)) == 6).all()
