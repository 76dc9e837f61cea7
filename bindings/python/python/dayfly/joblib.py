"""Backend for joblib: after ``import dayfly.joblib``, joblib's calls run as durable tasks or on leased workers.

>>> import joblib, dayfly.joblib
>>> with joblib.parallel_config("dayfly", endpoint="cluster"):  # doctest: +SKIP
...     joblib.Parallel()(joblib.delayed(abs)(x) for x in range(-3, 0))
[3, 2, 1]

scikit-learn and other libraries with ``n_jobs`` use the backend in the same way.
"""

from __future__ import annotations

import concurrent.futures as cf
from collections.abc import Callable
from typing import Any

from joblib._parallel_backends import AutoBatchingMixin, ParallelBackendBase
from joblib.parallel import register_parallel_backend

import dayfly

#: Calls that joblib keeps in flight on an endpoint, whose number of workers varies.
CALLS = 64


class Backend(AutoBatchingMixin, ParallelBackendBase):  # type: ignore[misc]
    """The joblib backend ``dayfly``.

    Args:
        executor: a `dayfly.Executor` or `dayfly.Lease` to use. It stays open.
        client: client of the manager to use; by default the one that `dayfly.connect` finds.
        durable: whether calls are durable tasks. If False, they run on ``n_jobs`` workers, which are leased while
            joblib runs.
        options: options of the `dayfly.Executor` for durable tasks, such as ``endpoint``, or of `dayfly.Client.lease`.
    """

    supports_retrieve_callback = True
    supports_inner_max_num_threads = False
    default_n_jobs = -1

    def __init__(
        self,
        nesting_level: int | None = None,
        inner_max_num_threads: int | None = None,
        executor: cf.Executor | None = None,
        client: dayfly.Client | None = None,
        durable: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(nesting_level=nesting_level, inner_max_num_threads=inner_max_num_threads)
        self._given = executor
        self._given_client = client
        self._durable = durable
        self._options = options
        self._client: dayfly.Client | None = None
        self._executor: cf.Executor | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        # Nested calls use another backend, so a backend with default options is enough.
        return Backend, (self.nesting_level,)

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        """Returns the number of calls in flight."""
        if n_jobs == 0:
            raise ValueError("n_jobs == 0 in Parallel has no meaning")
        if n_jobs is not None and n_jobs > 0:
            return n_jobs
        if isinstance(self._given, dayfly.Lease):
            return self._given.workers
        if self._given is None and not self._durable:
            cores: int = sum(node["free"]["cores"] for node in self._connected().nodes())
            return max(1, cores)
        return CALLS

    def configure(self, n_jobs: int = 1, parallel: Any = None, **_: Any) -> int:
        """Prepares the executor. joblib calls it before the first call."""
        self.parallel = parallel
        jobs = self.effective_n_jobs(n_jobs)
        if self._given is not None:
            self._executor = self._given
        elif self._durable:
            self._executor = dayfly.Executor(client=self._connected(), **self._options)
        else:
            self._executor = self._connected().lease(workers=jobs, **{"mode": "warm", **self._options})
        return jobs

    def _connected(self) -> dayfly.Client:
        if self._given_client is not None:
            return self._given_client
        if self._client is None:
            self._client = dayfly.connect()
        return self._client

    def submit(self, func: Callable[[], Any], callback: Callable[[Any], Any] | None = None) -> cf.Future[Any]:
        """Submits one batch of calls and returns its future."""
        assert self._executor is not None
        future = self._executor.submit(func)
        if callback is not None:
            future.add_done_callback(callback)
        return future

    def retrieve_result_callback(self, out: cf.Future[Any]) -> Any:
        """Returns the result of a batch, or raises its exception."""
        return out.result()

    def abort_everything(self, ensure_ready: bool = True) -> None:
        """Cancels all calls after one has failed."""
        self._close(cancel=True)
        if ensure_ready:
            self.configure(n_jobs=self.parallel.n_jobs, parallel=self.parallel)

    def terminate(self) -> None:
        """Releases the executor. joblib calls it after the last call."""
        self._close(cancel=False)

    def _close(self, cancel: bool) -> None:
        executor, self._executor = self._executor, None
        if executor is not None and executor is not self._given:
            executor.shutdown(wait=not cancel, cancel_futures=cancel)
        client, self._client = self._client, None
        if client is not None:
            client.close()


register_parallel_backend("dayfly", Backend)
