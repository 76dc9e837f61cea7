"""Default settings of leases and of their channels."""

from __future__ import annotations

from typing import Literal

#: Placement of workers on nodes, as for `Client.gang`.
Placement = Literal["packed", "spread", "together", "fabric"]
#: What calls may borrow while others do not use it, as for `Client.lease`.
Borrow = Literal["none", "cpu", "cpu,memory"]
#: Default duration of a lease in seconds. A shorter one would end in a notebook left open overnight. The manager's
#: policy may allow less.
DAY = 86_400.0
#: Slots of a channel's rings, and bytes of one slot. Arguments of up to 2 KiB travel inside a slot, and both rings of a
#: worker fit into a level-2 cache.
SLOTS = 64
STRIDE = 2048
#: Bytes of address space for large values, in each direction and for each worker.
BULK = 8 << 30
#: Maximum number of workers of one lease: they are numbered in 16 bits.
MAX_LEASE_WORKERS = 0xFFFF
