"""Data frames inside the ranks of a group, compared with pandas in one process."""

from __future__ import annotations

import functools
import os
import pickle
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import dayfly
import pandas as pd
import pyarrow as pa
import pytest
from dayfly.frames import Session
from harness import frames_of_ranks
from harness.frames_of_ranks import ROWS, left_table, right_table
from harness.open_mpi import OPEN_MPI, needs_open_mpi
from harness.programs import run

cloudpickle.register_pickle_by_value(frames_of_ranks)
cloudpickle.register_pickle_by_value(sys.modules[__name__])

LEFT, RIGHT = left_table(), right_table()
JOINED = LEFT.merge(RIGHT, on="key")
Found = list[dict[str, Any]]


def of_open_mpi(ranks: int, folder: Path) -> Found:
    program = frames_of_ranks.__file__
    run(*OPEN_MPI, "-n", str(ranks), sys.executable, program, folder, timeout=100)
    return [pickle.loads((folder / f"{rank}.pickle").read_bytes()) for rank in range(ranks)]


def run_in_group(folder: str) -> dict[str, Any]:
    from dayfly import MPI

    return frames_of_ranks.run_all(MPI.COMM_WORLD, folder)


@pytest.fixture(
    scope="module",
    params=[pytest.param("mpi-2", marks=needs_open_mpi), pytest.param("mpi-3", marks=needs_open_mpi), "dayfly-2"],
)
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Found]:
    """The results of each rank."""
    kind, ranks = request.param.split("-")
    folder = tmp_path_factory.mktemp(request.param)
    if kind == "mpi":
        yield of_open_mpi(int(ranks), folder)
    else:
        client = request.getfixturevalue("client")
        yield dayfly.run(run_in_group, ranks=int(ranks), args=(str(folder),), client=client, timeout=100)
    shutil.rmtree(folder)


def sorted_rows(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return sorted((tuple(row[name] for name in sorted(row)) for row in rows), key=repr)


def expected(table: pd.DataFrame) -> list[dict[str, Any]]:
    return pa.Table.from_pandas(table, preserve_index=False).to_pylist()


def parts(found: Found, name: str) -> list[dict[str, Any]]:
    return [row for of_rank in found for row in of_rank[name]]


def test_ranks_have_the_parts_of_results(found: Found) -> None:
    assert sorted_rows(parts(found, "join here")) == sorted_rows(expected(JOINED))
    assert all(of_rank["join here"] for of_rank in found)
    grouped = JOINED.groupby("name").agg(rows=("key", "size"), fare=("fare", "sum")).reset_index()
    assert sorted_rows(parts(found, "group here")) == sorted_rows(expected(grouped))
    assert parts(found, "sort here") == expected(LEFT)
    twice = [{"twice": 2 * number} for number in range(ROWS)]
    assert sorted_rows(parts(found, "map here")) == sorted_rows(twice)


def test_filtered_rows_stay_on_their_rank(found: Found) -> None:
    for rank, of_rank in enumerate(found):
        own = LEFT.iloc[rank :: len(found)]
        assert sorted_rows(of_rank["local here"]) == sorted_rows(expected(own))
        assert sorted_rows(of_rank["filter here"]) == sorted_rows(expected(own[own["number"] % 5 == 0]))


def test_every_rank_collects_all_rows(found: Found) -> None:
    grouped = JOINED.groupby("name").agg(rows=("key", "size"), fare=("fare", "sum")).reset_index()
    ordered = LEFT.sort_values(["fare", "number"], ascending=False).dropna()[:50]
    most = JOINED.groupby("name").agg(most=("number", "max")).reset_index()
    early = JOINED[JOINED["number"] < 900]
    for of_rank in found:
        assert sorted_rows(of_rank["join"]) == sorted_rows(expected(JOINED))
        assert of_rank["group"] == expected(grouped)
        assert of_rank["sort"] == expected(ordered)
        assert of_rank["sql"] == expected(most)
        assert [row["number"] for row in of_rank["kept"]] == sorted(early["number"])
        assert of_rank["kept again"] == [{"rows": len(early)}]
        assert of_rank["few"] == expected(LEFT[LEFT["key"].isin([2, 4])])
        assert of_rank["from_arrow"] == expected(LEFT[LEFT["key"].isin([2, 4])])
        assert sum(of_rank["written"]) == ROWS
        assert of_rank["read"] == [{"number": sum(range(ROWS))}]
        assert of_rank["empty"] == ([], [])
        assert "number" in of_rank["describe"]
        assert "KeptExec" in of_rank["measured"]


def test_different_columns_are_refused_everywhere(found: Found) -> None:
    last = len(found) - 1
    messages = {
        "other type": f'"key" is Int64 on rank 0 and Utf8 on rank {last}',
        "other name": f'rank 0 has "key" where rank {last} has "other"',
        "fewer columns": f"rank 0 has 2 of them, and rank {last} has 1",
    }
    for rank, of_rank in enumerate(found):
        for name, message in messages.items():
            assert of_rank["errors"][name] == "invalid_request"
            assert message in of_rank["errors"][f"{name}: message"]
        assert of_rank["errors"]["no table"] == ("TypeError" if rank == last else "RequestError")
        assert rank == last or f"rank {last}: TypeError" in of_rank["errors"]["no table: message"]


def test_failed_query_fails_on_all_ranks(found: Found) -> None:
    codes = {
        "no column": "invalid_request",
        "function": "function_error",
        "function in collect": "function_error",
        "query": "invalid_request",
        "batches": "invalid_request",
    }
    for of_rank in found:
        assert {name: of_rank["errors"][name] for name in codes} == codes
        assert "only a test" in of_rank["errors"]["function: message"]
        assert of_rank["errors"]["rows"] == [{"rows": ROWS}]
        assert of_rank["memory"] == "out_of_memory"
        assert "of rank 0" in of_rank["memory: message"]
        assert of_rank["closed"] == "lease_ended"


def test_different_operations_are_refused_everywhere(found: Found) -> None:
    last = len(found) - 1
    for of_rank in found:
        assert of_rank["errors"]["other operations"] == "mismatch"
        assert of_rank["errors"]["other calls"] == "mismatch"
        assert f"rank 0 calls here(), and rank {last} calls persist()" in of_rank["errors"]["other calls: message"]
        assert of_rank["errors"]["other files"] == "mismatch"
        assert of_rank["options"] == "invalid_request"
        assert f"rank {last} is refused: cores=0" in of_rank["options: message"]


def test_sessions_of_one_communicator_are_independent(found: Found) -> None:
    for rank, of_rank in enumerate(found):
        assert of_rank["second"] == [{"key": 2}, {"key": 4}]
        assert of_rank["read later"] == (len(LEFT.iloc[rank :: len(found)]), 1)
        assert of_rank["closed frame"] == "lease_ended"


def one_row(comm: Any) -> pa.Table:
    return pa.table({"rank": [comm.rank]})


def end_process(victim: int, batch: pa.Table) -> pa.Table:
    from dayfly import MPI

    if victim == MPI.COMM_WORLD.rank:
        os.kill(os.getpid(), signal.SIGKILL)
    return batch


def die(folder: str, victim: int, in_query: bool) -> None:
    from dayfly import MPI

    comm = MPI.COMM_WORLD
    found: dict[str, Any] = {}
    with Session.of(comm, timeout=60) as session:
        local = session.local(one_row(comm))
        if not in_query:
            end_process(victim, one_row(comm))
        with frames_of_ranks.code_into(found, "call"):
            local.map_batches(functools.partial(end_process, victim), {"rank": "int64"}).sort("rank").here()
        with frames_of_ranks.code_into(found, "next call"):
            local.collect()
    Path(folder, f"{comm.rank}.pickle").write_bytes(pickle.dumps(found))


@pytest.mark.parametrize(("victim", "in_query"), [(1, False), (1, True), (0, True)])
def test_killed_rank_is_reported_to_all(client: dayfly.Client, tmp_path: Path, victim: int, in_query: bool) -> None:
    with pytest.raises(dayfly.Error):
        dayfly.run(die, ranks=3, args=(str(tmp_path), victim, in_query), client=client, timeout=60)
    for rank in {0, 1, 2} - {victim}:
        found = pickle.loads((tmp_path / f"{rank}.pickle").read_bytes())
        assert found["call"] == "rank_lost"
        assert found["next call"] == "lease_ended"


def stay_away() -> str:
    from dayfly import MPI

    comm = MPI.COMM_WORLD
    found: dict[str, Any] = {}
    with frames_of_ranks.code_into(found, "exit"), Session.of(comm, timeout=1) as session:
        local = session.local(one_row(comm))
        if comm.rank == 0:
            with frames_of_ranks.code_into(found, "call"):
                local.here()
        # The other rank comes when rank 0 has given up.
        comm.barrier()
    return str(found.get("call", found.get("exit")))


def test_absent_rank_ends_the_wait(client: dayfly.Client) -> None:
    first, second = dayfly.run(stay_away, ranks=2, client=client, timeout=60)
    assert first == "timed_out"
    assert second in ("rank_lost", "cancelled")


def leave_by_exception() -> str:
    from dayfly import MPI

    comm = MPI.COMM_WORLD
    found: dict[str, Any] = {}
    try:
        with frames_of_ranks.code_into(found, "call"), Session.of(comm, timeout=60) as session:
            local = session.local(one_row(comm))
            if comm.rank == 0:
                raise KeyError("only here")
            local.here()
    except KeyError:
        found["call"] = "left"
    return str(found["call"])


def test_exception_of_one_rank_ends_the_session(client: dayfly.Client) -> None:
    assert dayfly.run(leave_by_exception, ranks=2, client=client, timeout=60) == ["left", "rank_lost"]


def alone() -> list[Any]:
    from dayfly import MPI

    with Session.of(MPI.COMM_SELF) as session:
        return frames_of_ranks.rows(session.local(one_row(MPI.COMM_SELF)).here())


def test_single_rank_has_all_rows() -> None:
    assert alone() == [{"rank": 0}]


def wait_for(gate: str, batch: pa.Table) -> pa.Table:
    until = time.monotonic() + 30
    while not os.path.exists(gate) and time.monotonic() < until:
        time.sleep(0.01)
    return batch


def test_long_query_ends_by_the_timeout(tmp_path: Path) -> None:
    from dayfly import MPI

    gate = tmp_path / "gate"
    with Session.of(MPI.COMM_SELF, timeout=1) as session:
        local = session.local(one_row(MPI.COMM_SELF))
        waiting = local.map_batches(functools.partial(wait_for, str(gate)), {"rank": "int64"})
        with pytest.raises(dayfly.Error) as raised:
            waiting.here()
        assert raised.value.code == "timed_out"
        gate.touch()
        assert frames_of_ranks.rows(local.here()) == [{"rank": 0}]


def test_here_needs_a_session_of_ranks(client: dayfly.Client) -> None:
    with client.frames(ranks=1) as session:
        frame = session.from_arrow(pa.table({"number": [1]}))
        with pytest.raises(dayfly.RequestError, match=r"collect\(\) returns all rows"):
            frame.here()


def join_isolated() -> list[Any]:
    from dayfly import MPI, groups

    found = []
    for comm in (groups.world(), MPI.COMM_WORLD):
        with Session.of(comm) as session:
            found += frames_of_ranks.rows(session.local(one_row(comm)).sort("rank").collect())
    return found


def test_isolated_ranks_have_frames(client: dayfly.Client) -> None:
    found = dayfly.run(join_isolated, ranks=2, client=client, sandbox="isolated", timeout=60)
    assert found == [[{"rank": 0}, {"rank": 1}] * 2] * 2
