"""How frames are written as files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, overload

from dayfly._failures import error_for

from dayfly_frames import _frames
from dayfly_frames._paths import absolute

if TYPE_CHECKING:
    from dayfly import Future

Directory = str | os.PathLike[str]
Names = str | Sequence[str]


def names_of(columns: Names) -> list[str]:
    """Returns names of columns as a list."""
    return [columns] if isinstance(columns, str) else list(columns)


class WrittenFile(NamedTuple):
    """A file that a rank has written."""

    #: Its path below the directory.
    path: str
    #: Its rows.
    rows: int
    #: Its bytes.
    bytes: int


class Writing:
    """The part of `Frame` that writes files."""

    _native: _frames.Frame

    def _watched(self, call: str) -> AbstractContextManager[None]:
        raise NotImplementedError

    @overload
    def write_parquet(
        self, directory: Directory, *, partition_by: Names = (), detach: Literal[False] = False
    ) -> list[WrittenFile]: ...

    @overload
    def write_parquet(
        self, directory: Directory, *, partition_by: Names = (), detach: Literal[True] | str
    ) -> Future[list[list[WrittenFile]]]: ...

    def write_parquet(self, directory: Directory, *, partition_by: Names = (), detach: bool | str = False) -> Any:
        """Computes the frame, and writes it as Parquet files. Every rank writes its own rows.

        The directory has all rows or none: a manifest comes last, and `Session.scan_parquet` of the directory reads the
        files that it names. A write that fails removes its files.

        Files of a sorted frame have all rows in order if they are read in the order of their paths, unless there is
        ``partition_by``. The manifest names the columns.

        Args:
            directory: an empty directory, or one that is not there. All ranks see it under this path.
            partition_by: columns whose values name subdirectories, such as ``zone=3``. The files lack these columns.
            detach: whether to submit the write as a durable task, which needs neither this session nor this process:
                True for the endpoint of ``dayfly up``, or the only one there is, or the name of an endpoint. The task
                has as many ranks as the session, with the same cores, memory, environment and image. It reads the files
                that are there when it runs. If ranks are lost, it runs again. The storage options of the session
                are kept with the task.

        Returns:
            The files, in the order of their paths. With ``detach``, the future of the task: its result is a list with
            the files for each rank, the same for all. ``client.task(future.id)`` finds it again.

        Raises:
            dayfly.RequestError: if the directory has something in it, or there is no such column; with ``detach``, if
                the frame reads rows that the session keeps, holds more than 64 MiB of rows of this process, or is of
                `Session.of`.
            dayfly.Error: as `collect`, and if the files cannot be written.
        """
        return self._written("parquet", directory, partition_by, detach)

    @overload
    def write_csv(
        self, directory: Directory, *, partition_by: Names = (), detach: Literal[False] = False
    ) -> list[WrittenFile]: ...

    @overload
    def write_csv(
        self, directory: Directory, *, partition_by: Names = (), detach: Literal[True] | str
    ) -> Future[list[list[WrittenFile]]]: ...

    def write_csv(self, directory: Directory, *, partition_by: Names = (), detach: bool | str = False) -> Any:
        """Writes CSV files as `write_parquet` does Parquet, each with the names of its columns in the first line.

        CSV knows no types and no difference between null and an empty text. It holds no lists and no structs.
        """
        return self._written("csv", directory, partition_by, detach)

    @overload
    def write_ndjson(
        self, directory: Directory, *, partition_by: Names = (), detach: Literal[False] = False
    ) -> list[WrittenFile]: ...

    @overload
    def write_ndjson(
        self, directory: Directory, *, partition_by: Names = (), detach: Literal[True] | str
    ) -> Future[list[list[WrittenFile]]]: ...

    def write_ndjson(self, directory: Directory, *, partition_by: Names = (), detach: bool | str = False) -> Any:
        """Writes files with one JSON object a line, as `write_parquet` does Parquet."""
        return self._written("ndjson", directory, partition_by, detach)

    @overload
    def write_ipc(
        self, directory: Directory, *, partition_by: Names = (), detach: Literal[False] = False
    ) -> list[WrittenFile]: ...

    @overload
    def write_ipc(
        self, directory: Directory, *, partition_by: Names = (), detach: Literal[True] | str
    ) -> Future[list[list[WrittenFile]]]: ...

    def write_ipc(self, directory: Directory, *, partition_by: Names = (), detach: bool | str = False) -> Any:
        """Writes files in Arrow's IPC format, as `write_parquet` does Parquet."""
        return self._written("ipc", directory, partition_by, detach)

    def _written(self, form: str, directory: Directory, partition_by: Names, detach: bool | str) -> Any:
        asked = form, absolute(directory), names_of(partition_by)
        if detach is False:
            return self._write(*asked)
        submit = self._native.detach()
        if submit is None:
            message = "detach= is for sessions of client.frames(): this session's rows are those of its own ranks"
            raise error_for("invalid_request", message)
        return submit(self._native.saved(), *asked, None if detach is True else detach)

    def _write(
        self, form: str, directory: str, partition_by: list[str], write_id: str | None = None
    ) -> list[WrittenFile]:
        """Writes the frame from the ranks of its session. A write with an id may run several times."""
        native, group = self._native, self._native.group()

        def write() -> list[tuple[str, int, int]]:
            return native.write(form, directory, partition_by, write_id)

        with self._watched(f"write_{form}"):
            written = write() if group is None else group.lead(f"write_{form}", native, write)
        return [WrittenFile(*file) for file in written]
