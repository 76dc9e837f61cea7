"""Sessions: queries over the workers of a lease."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Self

from dayfly_frames import _frames
from dayfly_frames._frame import Frame
from dayfly_frames._map import OfItem, columns_of, dumped, dumped_item, name_of
from dayfly_frames._paths import Paths, found
from dayfly_frames._progress import Query, query_of
from dayfly_frames._report import Reporter

if TYPE_CHECKING:
    import os

    from dayfly_frames._group import RankSession
    from dayfly_frames._lease import StorageOptions
    from dayfly_frames._meeting import Communicator


class Session:
    """Queries over the ranks that ``client.frames()`` leased. Use it in ``with``: it ends the lease.

    `Session.of` opens one among the processes of a communicator instead.
    """

    def __init__(self, native: _frames.Session, end: Callable[[], None], reporter: Reporter | None = None) -> None:
        self._native = native
        self._end = end
        self._reporter = reporter

    @staticmethod
    def of(
        comm: Communicator,
        *,
        cores: int | None = None,
        memory_bytes: int | None = None,
        spill: str | os.PathLike[str] | None = None,
        partition_bytes: int = 1 << 20,
        storage_options: StorageOptions = None,
        timeout: float = 3600.0,
        address: str | None = None,
    ) -> RankSession:
        """Opens a session on all ranks of a communicator. Each has a part of the rows. All ranks call this.

        ``with Session.of(MPI.COMM_WORLD) as session:`` with ``MPI`` of mpi4py, ``Session.of(dayfly.groups.world())``
        without it. Every rank makes the same frames and calls the same operations in the same order, as with collective
        operations. `RankSession.local` makes a frame of the ranks' own rows; `Frame.here` returns the rows of a result
        that are on this rank, and `Frame.collect` all of them on every rank.

        Args:
            comm: the ranks. Only ``rank``, ``size``, ``allgather`` and ``bcast`` are used, here alone.
            cores: threads of this rank for queries; by default its share of the cores that its host's ranks may use.
            memory_bytes: bound of what this rank has in memory for queries, with its local rows; None for no bound.
                Queries and local rows use 60 % of it.
            spill: directory for what does not fit; by default the node's, in a worker that has one.
            partition_bytes: as for `Client.frames`.
            storage_options: as for `Client.frames`; ``"env"`` takes the variables of this rank.
            timeout: seconds that a rank waits for the others, and for a query to end.
            address: address of rank 0's host that the other hosts reach, if it has several. The ranks of other MPI
                libraries meet there; those of Dayfly meet where their group has met.

        Raises:
            dayfly.RequestError: on all ranks, if one has options that make no sense.
            dayfly.GroupError: if the ranks cannot connect to each other.
        """
        from dayfly_frames._meeting import Options, open_group

        return open_group(comm, Options(cores, memory_bytes, spill, partition_bytes, storage_options, timeout, address))

    @property
    def ranks(self) -> int:
        """Number of ranks that execute queries."""
        return self._native.ranks()

    def running(self) -> list[Query]:
        """Returns the queries under way, the oldest first, and what their tasks have done. Call it from another thread.

        A rank reports the rows and bytes of a task when the task has ended.
        """
        return [query_of(*found) for found in self._native.running()]

    def _scan(self, kind: str, paths: Paths, **options: Any) -> Frame:
        files, has_directory = found(paths)
        return Frame(self._native.scan(kind, files, by_extension=has_directory, **options))

    def scan_parquet(self, paths: Paths) -> Frame:
        """Returns a frame of Parquet files, which only the ranks read.

        Args:
            paths: a file, a directory with ``.parquet`` files, a pattern with ``*``, or several of them. All ranks see
                them under this path. Of a directory that `Frame.write_parquet` wrote, the files of that write. Below
                ``s3://``, a path whose last part has no dot is a directory.

        Raises:
            FileNotFoundError: if there is no such file.
            dayfly.RequestError: if the files are of another format, or have different columns.
        """
        return self._scan("parquet", paths)

    def scan_csv(
        self,
        paths: Paths,
        *,
        has_header: bool = True,
        separator: str = ",",
        newlines_in_values: bool = True,
        infer_schema_length: int = 1000,
    ) -> Frame:
        """Returns a frame of CSV files, as `scan_parquet`.

        Args:
            paths: the files, as in `scan_parquet`.
            has_header: whether the first line has the names of the columns.
            separator: what stands between values, one byte.
            newlines_in_values: whether values in quotes may have line breaks. If not, several tasks read one file.
            infer_schema_length: number of rows whose values give the columns their types.
        """
        if len(separator.encode()) != 1:
            raise ValueError(f"separator={separator!r}: it has to be one byte")
        return self._scan(
            "csv",
            paths,
            has_header=has_header,
            separator=separator.encode()[0],
            newlines_in_values=newlines_in_values,
            infer_rows=infer_schema_length,
        )

    def scan_ndjson(self, paths: Paths, *, infer_schema_length: int = 1000) -> Frame:
        """Returns a frame of files with one JSON object a line, as `scan_csv`."""
        return self._scan("ndjson", paths, infer_rows=infer_schema_length)

    def scan_ipc(self, paths: Paths) -> Frame:
        """Returns a frame of files in Arrow's IPC format, as `scan_parquet`."""
        return self._scan("ipc", paths)

    def from_arrow(self, table: Any) -> Frame:
        """Returns a frame of a table of PyArrow, Polars, pandas or DuckDB, or of another ``__arrow_c_stream__``."""
        return Frame(self._native.table(table))

    def from_map(self, function: Callable[[Any], Any], items: Iterable[Any], schema: Mapping[str, str]) -> Frame:
        """Returns a frame of the rows that a function makes of items, on the ranks.

        ``session.from_map(read_scan, paths, {"energy": "float64", "count": "int64"})`` reads a format of your own.

        Args:
            function: takes an item, and returns its rows as in `Frame.map_batches`. It runs in the interpreter of the
                workers, whenever the frame is computed.
            items: the items. Each is called with once, on one of the ranks, in no order.
            schema: name and type of each column, as in `Frame.map_batches`.

        Raises:
            dayfly.RequestError: as `Frame.map_batches`.
            dayfly.FunctionError: as `Frame.map_batches`.
        """
        columns = columns_of(schema)
        call = dumped(OfItem(function), "arrow")
        pickled = [dumped_item(item) for item in items]
        return Frame(self._native.items(pickled).map_batches(name_of(function), call, columns, 1))

    def _restored(self, plan: bytes) -> Frame:
        """Returns the frame of a plan that another session has saved."""
        return Frame(self._native.restored(plan))

    def sql(self, query: str, /, **frames: Frame) -> Frame:
        """Returns a frame of an SQL query, which sees these frames as its tables.

        ``session.sql("SELECT zone, sum(fare) FROM trips GROUP BY zone", trips=trips)``
        """
        tables = [(name, frame.native) for name, frame in frames.items()]
        return Frame(self._native.sql(query, tables), query)

    def close(self) -> None:
        """Ends the session, its ranks and its lease. Does nothing the second time."""
        reporter, self._reporter = self._reporter, None
        if reporter is not None:
            reporter.finish()
        self._native.close()
        end, self._end = self._end, lambda: None
        end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
