"""What a result of many bytes costs, and what ranks exchange."""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dayfly

from dayfly_frames._bench import data
from dayfly_frames._bench.cores import pin, pinned
from dayfly_frames._bench.joins import Place, session_on
from dayfly_frames._bench.rows import Run, WrongAnswerError, in_turns, row

#: Bytes of a message of the collective that exchanges are compared with.
MESSAGE = 1 << 20
#: Calls of the collective in one run.
CALLS = 200
#: Columns of the large table, of 8 bytes each.
COLUMNS = 4
#: Rows of a batch in its file.
BATCH_ROWS = 8192
#: Seconds until a server must be there.
START_S = 30.0


def large_table(size: int) -> Any:
    """Returns a PyArrow table of so many bytes."""
    import pyarrow as pa

    rows = size // 8 // COLUMNS
    column = data.integers(rows, 1 << 30, 13)
    return pa.table({f"c{number}": column for number in range(COLUMNS)})


def write_ipc(table: Any, place: Path) -> Path:
    """Writes a table in Arrow's file format, as several files. Returns their directory."""
    import pyarrow as pa

    place.mkdir()
    rows = -(-table.num_rows // data.FILES)
    for number in range(data.FILES):
        with pa.ipc.new_file(place / f"{number}.arrow", table.schema) as writer:
            writer.write_table(table.slice(number * rows, rows), max_chunksize=BATCH_ROWS)
    return place


def summed(table: Any) -> tuple[int, ...]:
    """Returns the number of rows of a table, and the sum of each column."""
    import pyarrow as pa
    import pyarrow.compute as pc

    whole = pa.table(table)
    return (whole.num_rows, *(pc.sum(column).as_py() for column in whole.columns))


def result_1gib(place: Place) -> list[dict[str, Any]]:
    """A large result in Python, beside a copy of as many bytes."""
    table = large_table(place.scale.result_bytes)
    expected, size = summed(table), table.nbytes
    path = write_ipc(table, place.directory / "result")
    source, copied = bytearray(b"x") * size, bytearray(b"y") * size
    with session_on(place, 2, place.cores) as session, pinned(place.cores):
        frame = session.scan_ipc(path)
        columns = ", ".join(f"sum(c{number})" for number in range(COLUMNS))
        scan = session.sql(f"SELECT count(*), {columns} FROM t", t=frame)

        def collect() -> Any:
            return frame.collect()

        def copy() -> bool:
            memoryview(copied)[:] = source
            return True

        if summed(collect()) != expected:
            raise WrongAnswerError("result-1gib: the result differs from its file")
        sides: dict[str, Run] = {
            "collect()": lambda: collect().num_rows == table.num_rows,
            "memcpy": copy,
            "read by the ranks": lambda: scan.collect().num_rows == 1,
            "to_pyarrow()": _converted(collect()),
        }
        seconds = in_turns("result-1gib", sides, max(1, place.scale.runs // 2))
    scanned, converted = (statistics.median(seconds[side]) for side in ("read by the ranks", "to_pyarrow()"))
    note = (
        f"{size} bytes from 2 ranks, which read Arrow files in memory (tmpfs): reading alone takes {scanned:.3f} s; "
        f"the result as a PyArrow table takes {converted:.4f} s more; the baseline writes into memory that is there"
    )
    own, memcpy = seconds["collect()"], seconds["memcpy"]
    return [row("result-1gib", "s", own, "memcpy", memcpy, checked=True, bytes=size, note=note)]


def _converted(result: Any) -> Run:
    return lambda: result.to_pyarrow().num_rows > 0


def all_to_all(calls: int, size: int, memory: int) -> float:
    """Returns the seconds of one call on this rank, over buffers of ``memory`` bytes in turns. Runs on the workers."""
    from dayfly import MPI

    comm = MPI.COMM_WORLD
    places = memory // size
    sent, received = (memoryview(bytearray(b"x" * memory)) for _ in range(2))
    sides = [(sent[start : start + size], received[start : start + size]) for start in range(0, places * size, size)]
    for number in range(10):
        comm.Alltoall(*sides[number % places])
    comm.Barrier()
    start = time.perf_counter()
    for number in range(calls):
        comm.Alltoall(*sides[number % places])
    return (time.perf_counter() - start) / calls


def exchange_shm(place: Place) -> list[dict[str, Any]]:
    """Arrow batches from one rank to another over shared memory, beside a collective and Flight on loopback."""
    table = large_table(place.scale.result_bytes // 4)
    size, path = table.nbytes, write_ipc(table, place.directory / "exchange")
    calls = CALLS if place.scale.runs > 1 else 2
    expected = summed(table)

    def exchange(memory: int, found: list[float]) -> Run:
        def run() -> bool:
            each = max(dayfly.run(all_to_all, ranks=2, args=(calls, MESSAGE, memory), client=place.client))
            # Each rank sends half of its buffer to the other one.
            found.append(MESSAGE / 2 / each / 1e9)
            return True

        return run

    cached: list[float] = []
    uncached: list[float] = []
    server, client = place.cores[:1], place.cores[1:]
    with flight(path, server) as streams, session_on(place, 1, server) as session, pinned(client):
        frame = session.scan_ipc(path).persist()
        for side, result in (("a rank", frame.collect()), ("Flight", streams().read_all())):
            if summed(result) != expected:
                raise WrongAnswerError(f"exchange-shm: {side} sent other rows than the file has")
        rows = table.num_rows
        sides: dict[str, Run] = {
            "post": lambda: sum(batch.num_rows for batch in frame.batches()) == rows,
            "Flight on loopback": lambda: sum(chunk.data.num_rows for chunk in streams()) == rows,
            "collect()": lambda: frame.collect().num_rows == rows,
            "runs of alltoall, one buffer": exchange(MESSAGE, cached),
            "runs of alltoall, as many bytes": exchange(size, uncached),
        }
        seconds = in_turns("exchange-shm", sides, place.scale.runs)
    # The first turn warms up.
    del cached[0], uncached[0]
    own, theirs, collected = ([size / took / 1e9 for took in seconds[side]] for side in list(sides)[:3])
    note = (
        "batches of 8192 rows that a rank keeps in memory, to the session's rank, which drops them; "
        f"alltoall over a buffer of {size} bytes in turns reaches {statistics.median(uncached):.2f} GB/s, since one "
        f"buffer of 1 MiB stays in the cache; collect(), into fresh memory: {statistics.median(collected):.2f} GB/s"
    )
    found = []
    for name, baseline, other in (
        ("exchange-shm", "alltoall of 1 MiB, 2 ranks", cached),
        ("exchange-shm-uncached", "alltoall of 1 MiB over as many bytes, 2 ranks", uncached),
        ("exchange-shm-flight", "Flight on loopback", theirs),
    ):
        value, reference = statistics.median(own), statistics.median(other)
        found.append(
            row(name, "GB/s", own, baseline, other, checked=True, bytes=size)
            | {"ratio": reference / value, "worst": min(own), "baseline_worst": min(other), "note": note}
        )
    return found


@contextmanager
def flight(path: Path, cores: list[int]) -> Iterator[Callable[[], Any]]:
    """Serves the batches of files by Flight on loopback, from a process on these cores. Yields what opens a stream."""
    import pyarrow.flight as fl

    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    server = context.Process(target=serve_flight, args=(str(path), sender), daemon=True)
    server.start()
    try:
        if not receiver.poll(START_S):
            raise SystemExit(f"exchange-shm: the server of Flight did not start within {START_S:.0f} s")
        pin(server.pid or 0, cores)
        client = fl.connect(f"grpc://127.0.0.1:{receiver.recv()}")
        yield lambda: client.do_get(fl.Ticket(b""))
        client.close()
    finally:
        server.kill()
        server.join()


def serve_flight(path: str, port: Any) -> None:
    """Serves the batches of files, which it has in memory, until it is ended. Sends its port."""
    import pyarrow as pa
    import pyarrow.flight as fl

    parts = [pa.ipc.open_file(pa.memory_map(str(file))).read_all() for file in sorted(Path(path).iterdir())]
    table = pa.concat_tables(parts)

    class Server(fl.FlightServerBase):  # type: ignore[misc]
        def do_get(self, context: Any, ticket: Any) -> Any:
            return fl.RecordBatchStream(table)

    server = Server("grpc://127.0.0.1:0")
    port.send(server.port)
    server.serve()
