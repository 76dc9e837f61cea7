"""Checkpoints: the state that ranks save together, and that a restarted run restores."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import cloudpickle
import dayfly
import pytest

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def save(values: list[Any], keep: int = 2) -> None:
    """Saves each value with the rank."""
    from dayfly import groups

    checkpoint = dayfly.Checkpoint(keep=keep)
    for value in values:
        checkpoint.save((groups.world().rank, value))


def load(default: Any = None) -> Any:
    return dayfly.Checkpoint().load(default)


def numbers(place: Path) -> list[int]:
    return sorted(int(one.name) for one in place.iterdir())


def test_each_rank_restores_its_last_state(client: dayfly.Client, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert dayfly.run(load, ranks=2, client=client, checkpoint=run, args=("none",)) == ["none", "none"]
    dayfly.run(save, ranks=2, client=client, checkpoint=run, args=(["first", b"x" * 1_000_000, "last"],))
    assert dayfly.run(load, ranks=2, client=client, checkpoint=run) == [(0, "last"), (1, "last")]
    assert numbers(run) == [1, 2], "two are kept"
    dayfly.run(save, ranks=2, client=client, checkpoint=run, args=(["more"], 1))
    assert numbers(run) == [3], "numbers go on, and as many are kept as asked"


def test_truncated_or_damaged_checkpoint_is_ignored(client: dayfly.Client, tmp_path: Path) -> None:
    dayfly.run(save, ranks=2, client=client, checkpoint=tmp_path, args=(["a", "b", "c"], 5))
    (tmp_path / "00000002" / "complete.json").unlink()
    part = tmp_path / "00000001" / "rank-00001"
    part.write_bytes(part.read_bytes()[:-1] + b"?")
    assert dayfly.run(load, ranks=2, client=client, checkpoint=tmp_path) == [(0, "a"), (1, "a")]
    dayfly.run(save, ranks=2, client=client, checkpoint=tmp_path, args=(["d"], 5))
    assert numbers(tmp_path) == [0, 1, 2, 3], "one that was cut short is not written over"


def test_checkpoint_of_another_group_size_is_refused(client: dayfly.Client, tmp_path: Path) -> None:
    dayfly.run(save, ranks=2, client=client, checkpoint=tmp_path, args=(["a"],))
    with pytest.raises(dayfly.Error, match="saved by 2 ranks and there are 3") as refused:
        dayfly.run(load, ranks=3, client=client, checkpoint=tmp_path)
    assert refused.value.code == "invalid_request"


def test_unsaved_part_fails_the_checkpoint_on_all_ranks(client: dayfly.Client, tmp_path: Path) -> None:
    def try_to_save(unsaveable: int) -> str:
        from dayfly import MPI

        checkpoint = dayfly.Checkpoint(comm=MPI.COMM_WORLD)
        rank = MPI.COMM_WORLD.rank
        try:
            checkpoint.save((lambda: rank) if rank == unsaveable else rank)
        except dayfly.Error as error:
            checkpoint.save(rank)
            return f"{error.code}: {error}"
        return "saved"

    told = dayfly.run(try_to_save, ranks=2, client=client, checkpoint=tmp_path, args=(1,))
    assert all(one.startswith("store_failed: rank 1 could not save") for one in told), told
    assert dayfly.run(load, ranks=2, client=client, checkpoint=tmp_path) == [0, 1]
    assert json.loads((tmp_path / "00000001" / "complete.json").read_text())["parts"]


def test_checkpoint_without_directory_names_the_option(client: dayfly.Client) -> None:
    with pytest.raises(dayfly.Error, match="--checkpoint"):
        dayfly.run(load, ranks=1, client=client)
