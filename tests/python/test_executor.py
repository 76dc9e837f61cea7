"""A lease behaves as ``concurrent.futures`` specifies."""

from __future__ import annotations

import asyncio
import concurrent.futures as cf
import functools
import operator
import os
import sys
import threading
import time
import weakref

import cloudpickle
import dayfly
import pytest
from harness.leaks import wait_until
from harness.programs import run_python

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def square(x):
    return x * x


def touch_and_end(path, after):
    path.touch()
    if after is not None:
        time.sleep(after)
        os._exit(1)


def pause(seconds):
    time.sleep(seconds)
    return seconds


class BoomError(Exception):
    pass


def boom(text):
    raise BoomError(text)


def test_calls_without_a_core_move_to_other_workers(client):
    # More workers than cores, and functions that occupy their cores without computing.
    many = 3 * len(os.sched_getaffinity(0))
    with client.lease(workers=many, mode="warm") as lease:
        list(lease.map(abs, range(many)))
        begin = time.monotonic()
        futures = [lease.submit(time.sleep, 0.5) for _ in range(many)]
        for future in futures:
            future.result(timeout=20)
        assert time.monotonic() - begin < 1.5, "they ran side by side"
        assert lease.incarnations() == [1] * many


def test_lease_is_an_executor(lease):
    assert isinstance(lease, cf.Executor)
    future = lease.submit(square, 12)
    assert isinstance(future, cf.Future)
    assert future.result(timeout=10) == 144
    assert future.done()
    assert not future.running()
    assert future.exception() is None


def test_positional_and_keyword_arguments_arrive(lease):
    assert lease.submit(lambda a, b=0, *rest, c: (a, b, rest, c), 1, 2, 3, c=4).result() == (1, 2, (3,), 4)


def test_exceptions_keep_their_type_and_remote_traceback(lease):
    future = lease.submit(boom, "loud")
    with pytest.raises(BoomError, match="loud") as caught:
        future.result()
    assert "in boom" in str(caught.value.__cause__)
    assert isinstance(future.exception(), BoomError)


def test_unpicklable_exception_keeps_its_name(lease):
    def fail():
        class StrangeError(Exception):
            def __init__(self, a, b):
                super().__init__(threading.Lock())

            def __str__(self):
                return "very strange"

        raise StrangeError(1, 2)

    with pytest.raises(dayfly.RemoteError, match="StrangeError: very strange"):
        lease.submit(fail).result()


def test_sys_exit_in_a_function_is_raised_here(lease):
    with pytest.raises(SystemExit):
        lease.submit(sys.exit, 3).result()


def test_map_returns_results_in_order(lease):
    assert list(lease.map(square, range(1000))) == [x * x for x in range(1000)]
    assert list(lease.map(pow, range(50), range(50))) == [x**x for x in range(50)]
    assert list(lease.map(square, [], timeout=1)) == []


def test_map_accepts_any_chunk_size(lease):
    for size in (1, 3, 1000):
        assert list(lease.map(square, range(100), chunksize=size)) == [x * x for x in range(100)]
    with pytest.raises(ValueError, match="chunksize"):
        lease.map(square, [1], chunksize=0)


def test_map_raises_at_the_failed_item(lease):
    results = lease.map(divmod, [5, 6, 7, 8], [5, 1, 0, 2])
    assert [next(results), next(results)] == [(1, 0), (6, 0)]
    with pytest.raises(ZeroDivisionError):
        next(results)
    with pytest.raises(StopIteration):
        next(results)


def test_stop_iteration_in_a_function_ends_no_map(lease):
    def stop(x):
        if x == 2:
            raise StopIteration
        return x

    results = lease.map(stop, range(4), chunksize=4)
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(RuntimeError, match="StopIteration"):
        next(results)


def test_map_times_out(lease):
    results = lease.map(pause, [0, 0, 1], timeout=0.3)
    assert [next(results), next(results)] == [0, 0]
    with pytest.raises(TimeoutError):
        next(results)


def test_map_of_an_endless_iterable_is_lazy(lease):
    import itertools

    squares = lease.map(square, itertools.count())
    assert list(itertools.islice(squares, 100)) == [x * x for x in range(100)]


def test_unread_map_runs_to_its_end(client, tmp_path):
    def touch(name):
        (tmp_path / str(name)).touch()

    with client.lease(workers=1, mode="warm") as lease:
        lease.map(touch, range(300))
    assert len(list(tmp_path.iterdir())) == 300


def test_map_shows_its_progress(lease, capfd):
    list(lease.map(square, range(100), progress=True))
    assert "100/100" in capfd.readouterr().err


def test_wait_and_as_completed_accept_lease_futures(lease):
    futures = [lease.submit(square, x) for x in range(100)]
    assert {future.result() for future in cf.as_completed(futures, timeout=10)} == {x * x for x in range(100)}
    slow = lease.submit(pause, 5.0)
    quick = lease.submit(square, 2)
    done, not_done = cf.wait([slow, quick], timeout=10, return_when=cf.FIRST_COMPLETED)
    assert (done, not_done) == ({quick}, {slow})
    slow.kill()
    assert cf.wait([slow], timeout=10).done == {slow}
    failed = lease.submit(boom, "x")
    assert cf.wait([failed], timeout=10, return_when=cf.FIRST_EXCEPTION).done == {failed}


def test_callbacks_run_without_a_waiting_thread(lease):
    called = threading.Event()
    seen = []

    def note(future):
        seen.append(future.result())
        called.set()

    lease.submit(pause, 0.05).add_done_callback(note)
    assert called.wait(10)
    assert seen == [0.05]
    future = lease.submit(square, 3)
    future.result()
    future.add_done_callback(note)
    assert seen == [0.05, 9]


def test_calls_run_without_a_waiting_thread(lease, tmp_path):
    def touch(name):
        (tmp_path / str(name)).touch()

    for name in range(500):
        lease.submit(touch, name)
    until = time.monotonic() + 20
    while len(list(tmp_path.iterdir())) < 500 and time.monotonic() < until:
        threading.Event().wait(0.01)
    assert len(list(tmp_path.iterdir())) == 500


def test_waiting_for_a_result_times_out(lease):
    future = lease.submit(pause, 0.3)
    with pytest.raises(cf.TimeoutError):
        future.result(timeout=0.01)
    assert future.result(timeout=10) == 0.3


def test_many_threads_wait_for_one_future(lease):
    future = lease.submit(pause, 0.2)
    results = []
    threads = [threading.Thread(target=lambda: results.append(future.result())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert results == [0.2] * 8


def test_many_threads_submit(lease):
    def work(offset):
        return [lease.submit(square, x).result() for x in range(offset, offset + 200)]

    with cf.ThreadPoolExecutor(4) as threads:
        found = list(threads.map(work, range(0, 800, 200)))
    assert functools.reduce(operator.iadd, found, []) == [x * x for x in range(800)]


def test_unsent_calls_are_cancelled(own):
    blocker = own.submit(pause, 0.5)
    futures = [own.submit(pause, 0.01) for _ in range(20)]
    last = futures[-1]
    assert last.cancel()
    assert last.cancelled()
    assert last.done()
    with pytest.raises(cf.CancelledError):
        last.result()
    assert cf.wait([last], timeout=1).done == {last}
    assert blocker.result() == 0.5
    assert not blocker.cancel()


def test_running_call_is_killed(own, tmp_path):
    mark = tmp_path / "mark"
    future = own.submit(lambda: (mark.touch(), pause(60)))
    wait_until(mark.exists, "the call's start")
    future.kill()
    with pytest.raises(cf.CancelledError):
        future.result(timeout=10)
    assert own.submit(square, 2).result(timeout=10) == 4


def test_sent_call_is_killed_when_it_begins(own, tmp_path):
    own.call(pause, 0)
    ahead, behind = own.submit(pause, 0.3), own.submit(pause, 60)
    assert behind.running(), "sent, and waiting in the worker's ring"
    behind.kill()
    assert ahead.result(timeout=10) == 0.3
    with pytest.raises(cf.CancelledError):
        behind.result(timeout=10)
    assert own.submit(square, 2).result(timeout=10) == 4


def test_killed_call_is_not_retried(own, tmp_path):
    mark = tmp_path / "mark"
    own.call(touch_and_end, mark, None)
    mark.unlink()
    dying, behind = own.submit(touch_and_end, mark, 0.2), own.submit(touch_and_end, mark, None)
    assert behind.running()
    wait_until(mark.exists, "the call's start")
    mark.unlink()
    behind.kill()
    with pytest.raises(dayfly.WorkerDied):
        dying.result(timeout=10)
    with pytest.raises(cf.CancelledError):
        behind.result(timeout=10)
    assert not mark.exists()


def test_shutdown_waits_and_refuses_further_calls(client):
    lease = client.lease(mode="warm")
    future = lease.submit(pause, 0.2)
    lease.shutdown()
    assert future.done()
    assert future.result() == 0.2
    with pytest.raises(RuntimeError, match="after shutdown"):
        lease.submit(square, 1)
    with pytest.raises(RuntimeError, match="after shutdown"):
        lease.map(square, [1])
    lease.shutdown()


def test_shutdown_without_wait_lets_calls_end(client):
    lease = client.lease(mode="warm")
    future = lease.submit(pause, 0.2)
    lease.shutdown(wait=False)
    assert future.result(timeout=10) == 0.2


def test_shutdown_cancels_unsent_calls(client):
    lease = client.lease(mode="warm")
    futures = [lease.submit(pause, 0.1) for _ in range(30)]
    lease.shutdown(cancel_futures=True)
    assert all(future.done() for future in futures)
    cancelled = [future for future in futures if future.cancelled()]
    assert len(cancelled) >= 20
    assert cf.wait(futures, timeout=5).not_done == set()


def test_results_do_not_outlive_their_futures(lease):
    class Thing:
        pass

    future = lease.submit(Thing)
    thing = weakref.ref(future.result())
    assert thing() is not None
    del future
    assert thing() is None


def test_asyncio_awaits_calls_and_maps(lease):
    async def main():
        assert await lease.asubmit(square, 5) == 25
        assert await asyncio.gather(*(lease.asubmit(square, x) for x in range(50))) == [x * x for x in range(50)]
        assert [x async for x in lease.amap(square, range(500))] == [x * x for x in range(500)]
        with pytest.raises(BoomError):
            await lease.asubmit(boom, "x")
        assert await asyncio.get_running_loop().run_in_executor(lease, square, 7) == 49

    asyncio.run(asyncio.wait_for(main(), 30))


def test_functions_are_captured_at_the_call(lease):
    factor = 2

    def scaled(x):
        return factor * x

    assert lease.call(scaled, 10) == 20
    factor = 3
    assert lease.call(scaled, 10) == 30
    for value in range(30):
        factor = value
        assert lease.submit(scaled, 10).result() == 10 * value


def test_lambdas_of_a_loop_do_not_accumulate(lease):
    assert [lease.call(lambda x=x: x) for x in range(50)] == list(range(50))


def test_methods_partials_and_builtins_are_callable(lease):
    import functools
    import operator

    class Counter:
        def __init__(self, start):
            self.start = start

        def plus(self, x):
            return self.start + x

        def __call__(self, x):
            return self.start * x

    assert lease.call(Counter(5).plus, 1) == 6
    assert lease.call(Counter(5), 3) == 15
    assert lease.call(functools.partial(pow, 2), 5) == 32
    assert lease.call(operator.add, 1, 2) == 3
    assert lease.call("a,b".split, ",") == ["a", "b"]
    assert list(lease.map(Counter(2).plus, range(5))) == [2, 3, 4, 5, 6]
    assert lease.call(int, "12") == 12


def test_function_handle_calls_remotely(lease):
    remote = lease.function(os.getpid)
    assert remote() != os.getpid()
    assert remote.submit().result() != os.getpid()
    assert list(lease.function(square).map([1, 2])) == [1, 4]


def test_workers_have_different_random_seeds(lease):
    def draw():
        import random

        return random.random()

    drawn = {lease.options(worker=worker).call(draw) for worker in range(lease.workers)}
    assert len(drawn) == lease.workers


def test_printing_without_echo_is_harmless(lease):
    assert lease.call(print, "hello") is None


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_echoed_output_has_whole_lines(unbuffered):
    done = run_python(
        """
        import dayfly, sys

        def speak(x):
            print("out", x)
            print("err", x, file=sys.stderr)

        with dayfly.connect() as client, client.lease(workers=2, mode="warm") as lease:
            list(lease.map(speak, range(500), chunksize=50))
        """,
        PYTHONUNBUFFERED=unbuffered,
    )
    assert sorted(done.stdout.splitlines()) == sorted(f"out {x}" for x in range(500))
    assert sorted(done.stderr.splitlines()) == sorted(f"err {x}" for x in range(500))


@pytest.mark.parametrize("last", ["", "lease.shutdown(wait=False)"])
def test_submitted_calls_run_when_the_program_ends(last):
    done = run_python(f"""
        import dayfly, time

        def speak():
            time.sleep(0.3)
            print("apple")

        lease = dayfly.connect().lease(mode="warm")
        lease.submit(speak)
        {last}
    """)
    assert (done.stdout, done.stderr) == ("apple\n", "")


def test_cancelled_futures_are_cancelled_immediately(client):
    lease = client.lease(mode="warm")
    futures = [lease.submit(time.sleep, 0.05) for _ in range(50)]
    lease.shutdown(cancel_futures=True)
    assert sum(future.cancelled() for future in futures) > 20
    assert all(future.done() for future in futures)


class Thing:
    pass


def test_map_keeps_no_released_result(lease):
    for thing in lease.map(lambda _: Thing(), range(10)):
        gone = weakref.ref(thing)
        del thing
        assert gone() is None
