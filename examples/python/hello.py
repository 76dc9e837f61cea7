"""One function, one call.

python examples/python/hello.py
"""

import dayfly


def square(x):
    return x * x


# Finds a manager or starts an embedded one, and leases one worker.
with dayfly.connect() as client, client.lease() as lease:
    for x in (1, 2, 3):
        print(f"{x} squared is {lease.submit(square, x).result()}")
