"""Programs written for other libraries: joblib, scikit-learn and Dask run on Dayfly."""

from __future__ import annotations

import asyncio
import importlib
import os
import time

import pytest

dayfly = pytest.importorskip("dayfly", reason="the package is not installed: make build")
joblib = pytest.importorskip("joblib")


@pytest.fixture(params=["tasks", "lease"])
def any_executor(request: pytest.FixtureRequest, client: dayfly.Client) -> dayfly.Executor | dayfly.Lease:
    made = dayfly.Executor(client=client) if request.param == "tasks" else client.lease(workers=2, mode="warm")
    with made:
        yield made


def square(x: int) -> tuple[int, int]:
    return x * x, os.getpid()


def fail_at(x: int, bad: int) -> int:
    if x == bad:
        raise LookupError(f"no {x}")
    return x


@pytest.fixture
def backend(any_executor):
    importlib.import_module("dayfly.joblib")

    with joblib.parallel_config("dayfly", executor=any_executor):
        yield any_executor


def test_joblib_calls_keep_their_order(backend) -> None:
    found = joblib.Parallel()(joblib.delayed(square)(x) for x in range(500))
    assert [result for result, _ in found] == [x * x for x in range(500)]
    assert os.getpid() not in {process for _, process in found}


def test_joblib_raises_exceptions_and_continues(backend) -> None:
    with pytest.raises(LookupError, match="no 7"):
        joblib.Parallel()(joblib.delayed(fail_at)(x, 7) for x in range(50))
    assert joblib.Parallel()(joblib.delayed(abs)(x) for x in (-1, -2)) == [1, 2]


def test_joblib_yields_results_as_they_arrive(backend) -> None:
    results = joblib.Parallel(return_as="generator")(joblib.delayed(abs)(-x) for x in range(20))
    assert next(results) == 0
    assert list(results) == list(range(1, 20))


def test_nested_calls_stay_in_their_worker(backend) -> None:
    def outer(x: int) -> list[int]:
        return joblib.Parallel(n_jobs=2)(joblib.delayed(abs)(-x) for _ in range(3))

    assert joblib.Parallel()(joblib.delayed(outer)(x) for x in (1, 2)) == [[1] * 3, [2] * 3]


def test_joblib_creates_and_releases_its_executor(client: dayfly.Client) -> None:
    importlib.import_module("dayfly.joblib")
    for options in ({"durable": False}, {"endpoint": "local"}):
        with joblib.parallel_config("dayfly", client=client, **options):
            assert joblib.Parallel()(joblib.delayed(abs)(-x) for x in range(30)) == list(range(30))


def test_scikit_learn_search_has_the_sequential_result(backend) -> None:
    datasets = pytest.importorskip("sklearn.datasets")
    from sklearn.linear_model import Ridge
    from sklearn.model_selection import GridSearchCV

    rows, wanted = datasets.load_diabetes(return_X_y=True)
    search = GridSearchCV(Ridge(), {"alpha": [0.01, 0.1, 1.0, 10.0]}, cv=3)
    there = search.fit(rows, wanted)
    with joblib.parallel_config("sequential"):
        here = GridSearchCV(Ridge(), {"alpha": [0.01, 0.1, 1.0, 10.0]}, cv=3).fit(rows, wanted)
    assert there.best_params_ == here.best_params_
    assert there.best_score_ == pytest.approx(here.best_score_)


def test_dask_uses_an_executor_as_scheduler(any_executor) -> None:
    dask = pytest.importorskip("dask")
    parts = [dask.delayed(square)(x) for x in range(40)]
    total = dask.delayed(lambda found: (sum(result for result, _ in found), {process for _, process in found}))(parts)
    begun = time.monotonic()
    sum_of_squares, processes = total.compute(scheduler=any_executor)
    assert sum_of_squares == sum(x * x for x in range(40))
    assert os.getpid() not in processes
    assert time.monotonic() - begun < 30


def test_decorated_function_is_called_locally_and_submitted(client: dayfly.Client) -> None:
    @dayfly.durable(client=client, repeatable=True)
    def fibonacci(n: int) -> int:
        """Calls its function recursively in the worker."""
        return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)

    assert fibonacci(10) == 55
    assert fibonacci.__doc__ == "Calls its function recursively in the worker."
    assert fibonacci.submit(11).result(30) == 89
    assert list(fibonacci.map(range(8), tag="fibonacci")) == [0, 1, 1, 2, 3, 5, 8, 13]
    assert list(client.tasks("fibonacci")) == [0, 1, 1, 2, 3, 5, 8, 13]
    assert asyncio.run(fibonacci.asubmit(12)) == 144
    assert "fibonacci" in repr(fibonacci)


def test_decorated_method_stays_a_method(client: dayfly.Client) -> None:
    class Counter:
        start = 3

        @dayfly.durable
        def count(self, to: int) -> list[int]:
            return list(range(self.start, to))

    assert Counter().count(5) == [3, 4]


def test_unknown_option_is_refused_at_first_use(client: dayfly.Client) -> None:
    with pytest.raises(TypeError, match="colour"):
        dayfly.durable(client=client, colour="blue")(abs).submit(-1)
