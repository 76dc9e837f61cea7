"""Many calls over all workers of a lease.

python examples/python/parallel.py
"""

import dayfly

CALLS = 10_000


def square(x):
    return x * x


# Warm workers share cores, and sleep when idle.
with dayfly.connect() as client, client.lease(workers=2, mode="warm") as lease:
    total = sum(lease.map(square, range(CALLS)))
    print(f"the squares of 0 to {CALLS - 1} add up to {total}, on {lease.workers} workers")
