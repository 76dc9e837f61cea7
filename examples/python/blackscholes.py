"""Option prices computed by a C function over shared memory: the worker reads this program's array without a copy.

    python examples/python/blackscholes.py ./libblackscholes.so

The library is examples/functions/blackscholes.c; its first lines contain the command that compiles it.
"""

import sys

import dayfly
import numpy as np

COUNT = 100_000

with dayfly.connect() as client, client.lease(runtime="native") as lease:
    library = lease.library(sys.argv[1] if len(sys.argv) > 1 else "./libblackscholes.so")
    price = library.checked("blackscholes")

    options = lease.empty((COUNT, 5))  # an array in memory shared with the worker
    options[:] = 100, 0, 1, 0.05, 0.2  # spot, strike, years to expiry, interest rate, volatility
    options[:, 1] = [50 + i * 100 / COUNT for i in range(COUNT)]
    prices = price(options, out=np.empty(COUNT))
    print(f"{len(prices)} prices; at the money {prices[COUNT // 2]:.4f}")
