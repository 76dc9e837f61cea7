"""What a session costs: opening it, a small query in it, and the end of its queries."""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path
from typing import Any

from dayfly_frames._bench import data
from dayfly_frames._bench.cores import busy_ns, pinned, rank_processes
from dayfly_frames._bench.engines import baseline, local
from dayfly_frames._bench.joins import Place, session_on
from dayfly_frames._bench.rows import WrongAnswerError, row, timed
from dayfly_frames._bench.tpch import same
from dayfly_frames._frame import Frame

RANKS = 4
SMALL_ROWS = 1_000
SMALL = "SELECT k % 10 AS g, count(*) AS n, sum(v) AS v FROM t GROUP BY g ORDER BY g"
#: Rows of the table that a long query joins with itself.
LARGE_ROWS = 2_000_000
#: A join of 200 million pairs, few of which are in the result: ranks compute for seconds, and no link is full. A batch
#: of rows has 800,000 pairs, since DataFusion does not stop within one.
LONG = "SELECT a.k + b.v AS x FROM t a JOIN t b ON a.k % 20000 = b.k % 20000 WHERE (a.v * 31 + b.k * 17) % 997 = 0"
ENOUGH_ROWS = 20_000
#: Seconds between two looks at processor times. Ranks that use less than this share of a core are idle, as they wake up
#: now and then; those that use more than the other share compute.
LOOK_S, IDLE_SHARE, BUSY_SHARE = 0.005, 0.25, 0.5
#: Looks in a row after which ranks stay idle, and seconds until they must be.
QUIET_LOOKS, LIMIT_S = 20, 60.0


def session_4(place: Place) -> list[dict[str, Any]]:
    """Opening a session of warm ranks, beside the same lease and one call on each worker."""
    path = _small(place)
    opened, first, leased = [], [], []
    for number in range(place.scale.sessions + 1):
        start = time.perf_counter()
        with place.client.gang(RANKS, mode="warm") as gang:
            calls = [gang.rank(rank).submit(os.getpid) for rank in range(RANKS)]
            pids = {call.result() for call in calls}
            called = time.perf_counter() - start
        if len(pids) != RANKS:
            raise WrongAnswerError(f"session-4: {RANKS} workers are {len(pids)} processes")
        start = time.perf_counter()
        with place.client.frames(ranks=RANKS) as session:
            opening = time.perf_counter() - start
            rows = session.scan_parquet(path).collect().num_rows
            answered = time.perf_counter() - start
        if rows != SMALL_ROWS:
            raise WrongAnswerError(f"session-4: {rows} rows of {SMALL_ROWS}")
        # The first one starts workers, if none are warm.
        if number:
            opened.append(1e3 * opening)
            first.append(1e3 * answered)
            leased.append(1e3 * called)
    result = statistics.median(first)
    note = f"median to the first result {result:.1f} ms, worst {max(first):.1f} ms"
    other = f"a lease of {RANKS} warm workers, and a call on each"
    return [row("session-4", "ms", opened, other, leased, checked=True, note=note, first_result_ms=result)]


def _small(place: Place) -> Path:
    return data.write_parquet(data.join_side(SMALL_ROWS, "v", 3), place.directory / "small", 1)


def small_query(place: Place) -> list[dict[str, Any]]:
    """A small query in an open session, beside the same in one process."""
    path = _small(place)
    with baseline(place.client, 2) as alone, session_on(place, 2, place.cores) as session, pinned(place.cores):
        alone.read(t=path)
        frame = session.sql(SMALL, t=session.scan_parquet(path))
        own: list[float] = []
        theirs: list[float] = []
        for number in range(place.scale.queries + 5):
            took, found = timed(frame.collect)
            other, expected = timed(lambda: alone.query(SMALL))
            if not same(expected, found):
                raise WrongAnswerError("small-query: the ranks and one process differ")
            if number >= 5:
                own.append(1e3 * took)
                theirs.append(1e3 * other)
    p99 = sorted(own)[int(0.99 * (len(own) - 1))]
    return [row("small-query", "ms", own, alone.name, theirs, checked=True, p99=p99, note=f"p99 {p99:.2f} ms")]


def cancel(place: Place) -> list[dict[str, Any]]:
    """How long ranks compute after a query has enough rows, and after it is closed, beside one process."""
    table = data.join_side(LARGE_ROWS, "v", 5)
    path = data.write_parquet(table, place.directory / "large")
    found = []
    with local(place.client, 2) as held, session_on(place, 2, place.cores) as session, pinned(place.cores):
        held.hold(t=table)
        ranks = rank_processes()
        sides = (
            (session.sql(LONG, t=session.scan_parquet(path)), ranks),
            (held.frame(LONG), [os.getpid()]),
        )
        for name, end in (("limit", _reach_limit), ("close", _close_early)):
            times: tuple[list[float], list[float]] = ([], [])
            for _ in range(place.scale.cancels):
                for (query, processes), taken in zip(sides, times, strict=True):
                    until_idle(processes)
                    end(query, processes)
                    # At least one look, as no ratio has a zero.
                    taken.append(1e3 * max(LOOK_S, until_idle(processes)))
            note = (
                f"from the end of a query until those that compute it are idle; looks are {1e3 * LOOK_S:.0f} ms apart"
            )
            own, theirs = times
            found.append(row(f"cancel-{name}", "ms", own, held.name, theirs, checked=True, note=note))
    return found


def _reach_limit(query: Frame, ranks: list[int]) -> None:
    start, before = time.perf_counter(), busy_ns(ranks)
    rows = query.limit(ENOUGH_ROWS).collect().num_rows
    if rows != ENOUGH_ROWS:
        raise WrongAnswerError(f"cancel: a limit of {ENOUGH_ROWS} rows gave {rows}")
    _check_busy(busy_ns(ranks) - before, time.perf_counter() - start)


def _close_early(query: Frame, ranks: list[int]) -> None:
    # What `Frame.batches` closes when its iterator is.
    batches = query.native.batches()
    first = batches.next()
    if first is None or not first.num_rows():
        raise WrongAnswerError("cancel: the query has no rows")
    start, before = time.perf_counter(), busy_ns(ranks)
    time.sleep(10 * LOOK_S)
    _check_busy(busy_ns(ranks) - before, time.perf_counter() - start)
    batches.close()


def _check_busy(used_ns: int, seconds: float) -> None:
    """Fails if ranks did not compute, so that there was nothing to end."""
    if used_ns < BUSY_SHARE * seconds * 1e9:
        raise SystemExit(f"cancel: ranks computed {used_ns / 1e6:.0f} ms in {1e3 * seconds:.0f} ms before the end")


def until_idle(processes: list[int]) -> float:
    """Returns after how many seconds processes computed for the last time.

    Raises:
        SystemExit: if they do not end within `LIMIT_S`.
    """
    start = last = looked = time.perf_counter()
    before, quiet = busy_ns(processes), 0
    while quiet < QUIET_LOOKS:
        time.sleep(LOOK_S)
        used, now = busy_ns(processes), time.perf_counter()
        if used - before > IDLE_SHARE * (now - looked) * 1e9:
            last, quiet = now, 0
        else:
            quiet += 1
        if now - start > LIMIT_S:
            raise SystemExit(f"cancel: what computed a query still computes {LIMIT_S:.0f} s after its end")
        before, looked = used, now
    return last - start
