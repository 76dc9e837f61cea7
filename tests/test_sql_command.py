"""``dayfly sql``: queries over files from the shell, in batches and at a prompt."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.daemons import Daemon
from harness.leaks import wait_until, with_thread
from harness.managers import manager_here
from harness.programs import ROOT, clean_environment, program, run
from harness.terminal import Terminal

pytest.importorskip("dayfly_frames", reason="the package of frames is not installed: make build")
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from dayfly_frames._sql.failures import STATUSES
from dayfly_frames._sql.statements import split

#: A query that runs far longer than a test.
ENDLESS = "SELECT a.fare + b.fare + c.fare AS fare FROM trips a, trips b, trips c"


@pytest.fixture(scope="module")
def manager(data: Path) -> Iterator[Daemon]:
    with manager_here("--readable", str(data)) as manager:
        yield manager


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two files of trips, and one of zones."""
    place = tmp_path_factory.mktemp("sql")
    (place / "trips").mkdir()
    for file in range(2):
        numbers = range(file * 5_000, (file + 1) * 5_000)
        table = pa.table({"zone": [n % 4 for n in numbers], "fare": [float(n % 10) for n in numbers]})
        pyarrow.parquet.write_table(table, place / f"trips/{file}.parquet")
    (place / "zones.csv").write_text('zone,borough\n0,"north, upper"\n1,\n2,say "hello"\n3,west\n')
    return place


class Shell:
    """Runs ``dayfly sql`` in a directory of data."""

    def __init__(self, manager: Daemon, data: Path) -> None:
        self.data = data
        self.environment = manager.client_environment() | {"DAYFLY_PYTHON": sys.executable}
        self.tables = ("--table", "trips=trips/", "--table", "zones=zones.csv")

    def __call__(self, *args: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return run(program(), "sql", *self.tables, *args, env=self.environment, cwd=self.data, check=check)

    def refusal(self, *args: str) -> tuple[int, str]:
        """The exit status and the standard error of a command that fails."""
        done = self(*args, check=False)
        return done.returncode, done.stderr


@pytest.fixture(scope="module")
def sql(manager: Daemon, data: Path) -> Shell:
    return Shell(manager, data)


def test_table_shows_the_first_rows(sql: Shell) -> None:
    done = sql("--rows", "2", "SELECT zone, count(*) AS n FROM trips GROUP BY zone ORDER BY zone")
    lines = done.stdout.splitlines()
    assert [line.split() for line in lines[4:6]] == [["│", "0", "│", "2500", "│"], ["│", "1", "│", "2500", "│"]]
    assert lines[-1] == "4 rows, of which 2 are shown: --rows shows more"


def test_isolated_ranks_see_the_tables(sql: Shell) -> None:
    pattern = ("--table", "files=trips/?.parquet")
    done = sql(*pattern, "--sandbox", "isolated", "--format", "csv", "SELECT sum(fare) AS fare FROM files")
    assert done.stdout == "fare\n45000.0\n"


JOINED = """
SELECT z.zone, borough, sum(fare) AS fare  -- the semicolon; of this comment ends nothing
FROM trips t JOIN zones z ON t.zone = z.zone GROUP BY z.zone, borough ORDER BY z.zone
"""


def test_formats_hold_the_same_rows(sql: Shell, tmp_path: Path) -> None:
    file = tmp_path / "query.sql"
    file.write_text(f"{JOINED};\n")
    from_json = json.loads(sql("--json", JOINED).stdout)
    assert [row["borough"] for row in from_json] == ["north, upper", None, 'say "hello"', "west"]
    lines = sql("--format", "ndjson", "--file", str(file)).stdout.splitlines()
    assert [json.loads(line) for line in lines] == from_json
    sql("--output", str(tmp_path / "result.csv"), JOINED)
    null = pyarrow.csv.ConvertOptions(strings_can_be_null=True)
    from_csv = pyarrow.csv.read_csv(tmp_path / "result.csv", convert_options=null)
    assert from_csv.to_pylist() == from_json
    sql("--output", str(tmp_path / "result.parquet"), JOINED)
    assert pyarrow.parquet.read_table(tmp_path / "result.parquet").to_pylist() == from_json
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".csv", ".parquet", ".sql"]


def test_results_without_rows_have_their_columns(sql: Shell, tmp_path: Path) -> None:
    empty = "SELECT zone FROM trips WHERE zone > 9"
    assert sql("--format", "csv", empty).stdout == "zone\n"
    assert sql("--format", "json", empty).stdout == "[]\n"
    assert sql(empty).stdout.endswith("\n0 rows\n")
    output = tmp_path / "empty.parquet"
    sql("--output", str(output), empty)
    assert pyarrow.parquet.read_table(output).column_names == ["zone"]


def peak(sql: Shell, *args: str) -> int:
    """The most memory that a query took here, in bytes."""
    command = [sys.executable, "-m", "dayfly_frames", "sql", *sql.tables, *args]
    process = subprocess.Popen(command, env=sql.environment, cwd=sql.data)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return used.ru_maxrss * 1024


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_large_results_stream_through_little_memory(sql: Shell, tmp_path: Path, form: str) -> None:
    small, large = (str(tmp_path / f"{size}.{form}") for size in ("small", "large"))
    needed = peak(sql, "--output", small, "SELECT fare, zone FROM trips")
    # 5,000,000 rows of 16 bytes.
    query = "SELECT a.fare + b.fare AS fare, a.zone FROM trips a, trips b WHERE b.zone = 0 AND b.fare < 2"
    assert peak(sql, "--output", large, query) < needed + (40 << 20)
    rows = pyarrow.parquet.read_metadata(large).num_rows if form == "parquet" else len(Path(large).read_bytes()) // 6
    assert rows >= 5_000_000


def test_closed_pipe_ends_quietly(sql: Shell) -> None:
    query = "SELECT a.fare FROM trips a, trips b"
    command = [program(), "sql", *sql.tables, "--format", "csv", query]
    with subprocess.Popen(
        command, env=sql.environment, cwd=sql.data, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "fare\n"
        process.stdout.close()
        assert process.wait(20) == 0
        assert process.stderr.read() == ""


def test_explain_shows_the_stages_of_ranks(sql: Shell) -> None:
    plan = sql("EXPLAIN SELECT zone, count(*) FROM trips GROUP BY zone").stdout
    assert "logical_plan" in plan
    assert "Stage 1" in plan
    # The first node of this plan is the exchange.
    assert "DataSourceExec" in sql("EXPLAIN SELECT sum(fare) FROM trips").stdout
    assert "output_rows" in sql("EXPLAIN ANALYZE SELECT zone, count(*) FROM trips GROUP BY zone").stdout


@pytest.mark.parametrize(
    ("recover", "line"),
    [
        ("auto", "the query runs again on the ranks that are left: its scans read about "),
        ("query", 'the query runs again on other ranks: the session asks for recovery "query"'),
        ("tasks", 'tasks of lost ranks run again: the session asks for recovery "tasks"'),
    ],
)
def test_recovery_is_chosen_and_explained(sql: Shell, recover: str, line: str) -> None:
    plan = sql("--recover", recover, "/* a comment */ explain\nSELECT sum(fare) FROM trips").stdout
    assert f"\nrecovery: {line}" in plan


WRONG = [
    ("SELECT zone\nFROM trips,\n  tripz", 'line 3, column 3: there is no table "tripz"', "    tripz\n    ^"),
    (
        "SELECT 'ä',\tzon FROM trips",
        "line 1, column 13: No field named zon",
        "  SELECT 'ä',\tzon FROM trips\n             \t^",
    ),
    ("SELECT no_function(1)", "line 1, column 8: Invalid function 'no_function'", "^"),
    (
        "SELECT 1;\nSELECT ) FROM trips",
        "line 2, column 8: Expected: an expression, found: )",
        "  SELECT ) FROM trips\n         ^",
    ),
    ("SELECT 'open", "line 1, column 8: Unterminated string literal", "  SELECT 'open\n         ^"),
]


@pytest.mark.parametrize(("query", "message", "mark"), WRONG)
def test_wrong_sql_is_shown_with_its_place(sql: Shell, query: str, message: str, mark: str) -> None:
    status, errors = sql.refusal(query)
    assert status == 2
    assert errors.startswith(f"error [invalid_request]: {message}")
    assert errors.rstrip("\n").endswith(mark)


def test_wrong_statement_of_a_file_names_it(sql: Shell, tmp_path: Path) -> None:
    file = tmp_path / "several.sql"
    file.write_text("SELECT 1 AS first;\n\nSELECT zon FROM trips;\n")
    done = sql("--format", "csv", "--file", str(file), check=False)
    assert (done.returncode, done.stdout) == (2, "first\n1\n")
    assert f"{file}, line 3, column 8: No field named zon" in done.stderr
    as_json = json.loads(sql.refusal("--json", "SELECT zon FROM trips")[1])
    assert as_json["error"]["code"] == "invalid_request"


REFUSED = [
    (["--table", "more=nothing.parquet", "SELECT 1"], 4, "there is no file nothing.parquet"),
    (["--table", "more", "SELECT 1"], 2, "NAME=PATH"),
    (["--table", "trips=zones.csv", "SELECT 1"], 2, "two tables are named trips"),
    (["--table", "more=.", "SELECT 1"], 2, "several formats"),
    (["--format", "parquet", "SELECT 1"], 2, "--output"),
    (["--format", "csv", "SELECT [1, 2] AS parts"], 2, '"parts" has lists'),
    (["--format", "json", "SELECT a.zone, b.zone FROM zones a, zones b"], 2, 'two columns are named "zone"'),
    (["--output", "nowhere/x.csv", "SELECT 1"], 2, "nowhere/x.csv cannot be written"),
    (["--output", "zones.csv/x.csv", "SELECT 1"], 2, "zones.csv/x.csv cannot be written"),
    (["--output", "trips", "--format", "csv", "SELECT 1"], 2, "trips cannot be written"),
    (["DROP TABLE trips"], 2, "DropTable"),
    (["--file", "nothing.sql"], 2, "nothing.sql cannot be read"),
    ([" ; "], 2, "there is no statement"),
]


@pytest.mark.parametrize(("arguments", "status", "message"), REFUSED)
def test_refusal_names_its_reason(sql: Shell, arguments: list[str], status: int, message: str) -> None:
    refused, errors = sql.refusal(*arguments)
    assert message in errors
    assert refused == status
    assert "Traceback" not in errors


def test_failed_query_leaves_the_output_alone(sql: Shell, tmp_path: Path) -> None:
    output = tmp_path / "result.csv"
    output.write_text("earlier")
    assert sql.refusal("--output", str(output), "SELECT 1 / (zone - 3) FROM trips")[0] == 2
    assert [path.read_text() for path in tmp_path.iterdir()] == ["earlier"]


def test_output_into_a_pipe_keeps_the_pipe(sql: Shell, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE, text=True) as reader:
        sql("--output", str(pipe), "--format", "csv", "SELECT 1 AS one")
        assert reader.communicate(timeout=20)[0] == "one\n1\n"
    assert pipe.is_fifo()


def test_exit_statuses_are_those_of_the_reference() -> None:
    page = (ROOT / "docs/reference/cli.md").read_text()
    rows = re.findall(r"^\| ([234]) \| [^|]* \| ([^|]+) \|$", page, re.MULTILINE)
    assert {code: int(status) for status, codes in rows for code in re.findall(r"`(\w+)`", codes)} == STATUSES


def test_missing_package_is_named(tmp_path: Path) -> None:
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S -I "$@"\n')
    bare.chmod(0o755)
    done = run(program(), "sql", "--python", str(bare), "SELECT 1", check=False)
    assert done.returncode == 4
    assert "error [not_found]: frames are in the package dayfly-frames: install its wheel" in done.stderr
    described = run(program(), "sql", "--help", "--python", str(bare), env=clean_environment()).stdout
    assert "--table <NAME=PATH>" in described


CUT = [
    ("", [], None),
    ("SELECT 1", [], (0, 0)),
    ("SELECT 1; -- done;\n", [(0, 0)], None),
    ("SELECT ';' || \"a;\"; /* ; */\n  SELECT E'\\';'", [(0, 0)], (1, 2)),
    (";;\nSELECT $x$;$x$;SELECT 'open;", [(1, 0)], (1, 15)),
]


@pytest.mark.parametrize(("text", "ended", "rest"), CUT)
def test_semicolons_end_statements_outside_quotes(text: str, ended: list[Any], rest: Any) -> None:
    statements, last = split(text)
    assert [statement[1:] for statement in statements] == ended
    assert (last and last[1:]) == rest


def processor_seconds(manager: Daemon) -> float:
    """Processor time of all processes below the manager."""
    ticks = 0
    for pid in manager.processes():
        # It may have ended by now.
        with contextlib.suppress(FileNotFoundError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def is_idle(manager: Daemon) -> bool:
    before = processor_seconds(manager)
    time.sleep(0.2)
    return processor_seconds(manager) - before < 0.05


def test_prompt_keeps_its_session(sql: Shell, manager: Daemon, tmp_path: Path) -> None:
    environment = sql.environment | {"XDG_STATE_HOME": str(tmp_path)}
    terminal = Terminal(program(), "sql", *sql.tables, env=environment, cwd=sql.data)
    assert "2 ranks; tables: trips, zones" in terminal.wait_for("dayfly> ")
    terminal.type("\\d\n")
    assert "trips\nzones\n" in terminal.wait_for("dayfly> ")
    terminal.type("\\d trips\n")
    assert "zone  int64\nfare  float64\n" in terminal.wait_for("dayfly> ")
    terminal.type("SELECT count(*) AS n\n")
    terminal.wait_for("     -> ")
    terminal.type("FROM trips; SELECT 1 AS one;\n")
    assert re.search(r"10000 .*1 row\n.*one .*1 row\n", terminal.wait_for("dayfly> "), re.DOTALL)
    terminal.type("SELECT zon FROM trips;\n")
    assert "column 8: No field named zon" in terminal.wait_for("dayfly> ")
    terminal.type("\\timing\n")
    terminal.wait_for("Timing is on.")
    terminal.type("SELECT 1 AS timed;\n")
    terminal.wait_for("Time: ")
    terminal.wait_for("dayfly> ")
    before = processor_seconds(manager)
    terminal.type(f"{ENDLESS};\n")
    wait_until(lambda: processor_seconds(manager) > before + 0.3, "ranks compute")
    terminal.type("\x03")
    terminal.wait_for("Cancelled.")
    wait_until(lambda: is_idle(manager), "the ranks stop")
    terminal.wait_for("dayfly> ")
    # Of an aggregation, no row comes before the end.
    before = processor_seconds(manager)
    terminal.type(f"SELECT sum(fare) FROM ({ENDLESS});\n")
    wait_until(lambda: processor_seconds(manager) > before + 0.3, "ranks compute")
    terminal.type("\x03")
    terminal.wait_for("Cancelled.")
    wait_until(lambda: is_idle(manager), "the ranks stop", 3)
    terminal.wait_for("dayfly> ")
    terminal.type("SELECT 2 AS after;\n")
    assert "1 row" in terminal.wait_for("dayfly> ")
    terminal.type("\x04")
    assert terminal.close() == 0
    history = tmp_path / "dayfly/sql-history"
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    assert "FROM trips; SELECT 1 AS one;" in history.read_text()


def serving(manager: Daemon) -> set[int]:
    """Process numbers of the ranks, which have a thread of that name."""
    return with_thread("frame", manager.processes())


def test_prompt_leases_again_after_a_loss(sql: Shell, manager: Daemon, tmp_path: Path) -> None:
    environment = sql.environment | {"XDG_STATE_HOME": str(tmp_path)}
    terminal = Terminal(program(), "sql", *sql.tables, env=environment, cwd=sql.data)
    terminal.wait_for("dayfly> ")
    wait_until(lambda: len(serving(manager)) == 2, "two ranks serve")
    for pid in serving(manager):
        os.kill(pid, signal.SIGKILL)
    terminal.type("SELECT sum(fare) FROM trips;\n")
    assert "45000.0" in terminal.wait_for("dayfly> ")
    terminal.type("\\q\n")
    assert terminal.close() == 0


def test_interrupt_ends_a_batch(sql: Shell, manager: Daemon) -> None:
    before = processor_seconds(manager)
    process = subprocess.Popen([program(), "sql", *sql.tables, ENDLESS], env=sql.environment, cwd=sql.data)
    wait_until(lambda: processor_seconds(manager) > before + 0.3, "ranks compute", 20)
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 130
