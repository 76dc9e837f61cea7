"""Parsl's high-throughput executor with the local provider."""

import itertools
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from functions import increment_all, noop
from measure import ARGUMENT, Peer, chunks_of


@contextmanager
def start(workers: int) -> Iterator[Peer]:
    import parsl
    from parsl.config import Config
    from parsl.executors import HighThroughputExecutor
    from parsl.providers import LocalProvider

    # Parsl finds its programs on the PATH.
    os.environ["PATH"] = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]
    config = Config(
        executors=[
            HighThroughputExecutor(
                label="peers",
                address="127.0.0.1",
                loopback_address="127.0.0.1",
                max_workers_per_node=workers,
                encrypted=False,
                provider=LocalProvider(init_blocks=1, min_blocks=1, max_blocks=1),
            )
        ],
        run_dir=tempfile.mkdtemp(),
        usage_tracking=0,
        strategy="none",
        initialize_logging=False,
    )
    with parsl.load(config):
        nothing, chunked = parsl.python_app(noop), parsl.python_app(increment_all)

        def map_all(items: range, chunk: int) -> list[int]:
            futures = [chunked(part) for part in chunks_of(items, chunk)]
            return list(itertools.chain.from_iterable(future.result() for future in futures))

        yield Peer(
            call=lambda argument: nothing(argument).result(),
            submit_all=lambda count: [f.result() for f in [nothing(ARGUMENT) for _ in range(count)]],
            map_all=map_all,
            workers=workers,
            version=parsl.__version__,
            chunks=(10_000, 50_000, 125_000, 500_000),
        )
