"""How much is measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Scale:
    """Sizes of inputs and numbers of runs."""

    #: Rows of each side of the paper's join, and for each rank if they grow with the ranks.
    join_rows: int = 4_500_000
    weak_rows: int = 9_100_000
    #: Rows of a sort.
    sort_rows: int = 4_500_000
    #: Turns of one comparison.
    runs: int = 9
    #: Turns of sessions with different numbers of ranks.
    turns: int = 3
    #: Numbers of ranks that share the rows of the strong scaling.
    ranks: tuple[int, ...] = (1, 2, 4, 8)
    #: Numbers of ranks that have as many rows each.
    weak_ranks: tuple[int, ...] = (1, 2, 4)
    #: Bytes of a table's files for each core of a rank.
    partition_bytes: int = 1 << 20
    #: Memory of all ranks together; 0 for the node's share.
    memory: int = 5 << 30
    #: Bytes of a large result.
    result_bytes: int = 1 << 30
    #: Bytes of a table that does not fit into its ranks, memory of these, and the turns of each query over it.
    spilled_bytes: int = 2 << 30
    spilled_memory: int = 512 << 20
    spilled_runs: int = 1
    #: Queries, or sessions, one after the other.
    queries: int = 300
    sessions: int = 15
    cancels: int = 7
    #: Sessions that lose a rank.
    losses: int = 5
    #: Scale factors of TPC-H, by the names of rows.
    tpch: Mapping[str, float] = field(default_factory=lambda: {"tpch-sf1": 1.0, "tpch-sf10": 10.0})
    tpch_runs: int = 5


#: Whether it works, not how fast.
QUICK = Scale(
    join_rows=20_000,
    weak_rows=20_000,
    # With fewer, one rank merges.
    sort_rows=120_000,
    runs=1,
    turns=1,
    ranks=(1, 2),
    weak_ranks=(1, 2),
    partition_bytes=1 << 14,
    memory=0,
    result_bytes=1 << 22,
    spilled_bytes=1 << 22,
    queries=5,
    sessions=1,
    cancels=1,
    losses=1,
    tpch={"tpch-sf1": 0.01, "tpch-sf10": 0.01},
    tpch_runs=1,
)
