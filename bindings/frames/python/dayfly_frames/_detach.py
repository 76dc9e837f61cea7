"""Writes that need no client: durable tasks of several ranks."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, NamedTuple

from dayfly import groups

from dayfly_frames._write import WrittenFile

if TYPE_CHECKING:
    from dayfly import Client, Future

#: Arguments of a lease that a task has too.
SHARED = ("ranks", "placement", "cores", "gpus", "environment", "image")


class Write(NamedTuple):
    """What the ranks of such a task do."""

    plan: bytes
    form: str
    directory: str
    partition_by: list[str]
    #: Names the write. Its runs before a loss may have left files.
    write_id: str
    cores: int
    memory_bytes: int | None
    partition_bytes: int
    stores: dict[str, str]


class Detacher:
    """Submits writes of a session as durable tasks."""

    def __init__(self, client: Client, lease: dict[str, Any], partition_bytes: int, stores: dict[str, str]) -> None:
        self._client = client
        self._about = {name: lease[name] for name in SHARED if name in lease}
        # That of a lease is for all ranks together.
        self._about["memory"] = lease.get("memory", 0) // lease["ranks"]
        self._partition_bytes = partition_bytes
        self._stores = stores

    def __call__(
        self, plan: bytes, form: str, directory: str, partition_by: list[str], endpoint: str | None
    ) -> Future[list[list[WrittenFile]]]:
        """Submits the write of a saved plan. Returns when the manager has the task on its disk.

        Raises:
            dayfly.RequestError: ``not_found`` if there is no such endpoint.
            dayfly.Error: if the manager refuses the task.
            TimeoutError: if the manager does not take it within an hour.
        """
        write = Write(
            plan,
            form,
            directory,
            partition_by,
            secrets.token_hex(16),
            max(1, round(float(self._about.get("cores", 1)))),
            self._about["memory"] or None,
            self._partition_bytes,
            self._stores,
        )
        batch = self._client.map(written, [write], endpoint=endpoint, repeatable=True, **self._about)
        future: Future[list[list[WrittenFile]]] = batch.futures[0]
        return future


def written(write: Write) -> list[WrittenFile]:
    """Writes a saved plan from the ranks of this task. All of them call this."""
    # They import this module.
    from dayfly_frames._meeting import MAX_TIMEOUT_S
    from dayfly_frames._session import Session

    session = Session.of(
        groups.world(),
        cores=write.cores,
        memory_bytes=write.memory_bytes,
        partition_bytes=write.partition_bytes,
        storage_options=write.stores,
        timeout=MAX_TIMEOUT_S,
    )
    with session:
        frame = session._restored(write.plan)
        return frame._write(write.form, write.directory, write.partition_by, write.write_id)
