"""One function, one call.

python examples/python/hello.py
"""

import mayfly


def square(x):
    return x * x


with mayfly.connect() as client:  # finds a manager, or starts one of its own
    with client.lease() as lease:  # one worker
        for x in (1, 2, 3):
            print(f"{x} squared is {lease.submit(square, x).result()}")
