"""Many calls over all workers of a lease.

python examples/python/parallel.py
"""

import mayfly

CALLS = 10_000


def square(x):
    return x * x


with mayfly.connect() as client:
    with client.lease(workers=2, mode="warm") as lease:  # they share cores, and sleep when there is nothing to do
        total = sum(lease.map(square, range(CALLS)))
        print(f"the squares of 0 to {CALLS - 1} add up to {total}, on {lease.workers} workers")
