"""Ray's actors, one for each worker."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

import peer_ray_task
from functions import increment_all, noop
from measure import ARGUMENT, Peer, chunks_of


@contextmanager
def start(workers: int) -> Iterator[Peer]:
    class Worker:
        def noop(self, argument: bytes) -> None:
            return noop(argument)

        def increment_all(self, numbers: list[int]) -> list[int]:
            return increment_all(numbers)

    with peer_ray_task.cluster(workers):
        import ray

        actor = ray.remote(Worker)
        actors = [actor.options(num_cpus=1).remote() for _ in range(workers)]

        def map_all(items: range, chunk: int) -> list[int]:
            turns = itertools.cycle(actors)
            parts = ray.get([next(turns).increment_all.remote(part) for part in chunks_of(items, chunk)])
            return list(itertools.chain.from_iterable(parts))

        def submit_all(count: int) -> None:
            turns = itertools.cycle(actors)
            ray.get([next(turns).noop.remote(ARGUMENT) for _ in range(count)])

        yield Peer(
            call=lambda argument: ray.get(actors[0].noop.remote(argument)),
            submit_all=submit_all,
            map_all=map_all,
            workers=workers,
            version=ray.__version__,
        )
