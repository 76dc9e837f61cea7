"""Data frames of CSV files."""

from __future__ import annotations

import csv

import dayfly
import pytest


@pytest.fixture(scope="module")
def session():
    with dayfly.connect() as client, client.frames(ranks=2, partition_bytes=1_000) as session:
        yield session


def write(path, rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return path


def rows(frame):
    return frame.collect().to_pyarrow().to_pylist()


def test_quoted_line_breaks_stay_in_their_value(session, tmp_path):
    texts = [f"line {number}\nof\n{'x' * (number % 50)}" for number in range(3_000)]
    path = write(tmp_path / "texts.csv", [("number", "text"), *enumerate(texts)])
    frame = session.scan_csv(path)
    assert frame.schema == {"number": "int64", "text": "string"}
    assert rows(frame.sort("number")) == [{"number": number, "text": text} for number, text in enumerate(texts)]


def test_whole_files_are_divided_among_ranks(session, tmp_path):
    for file in range(3):
        write(tmp_path / f"{file}.csv", [("number", "text"), *((number, "a\nb") for number in range(file, 9_000, 3))])
    frame = session.scan_csv(tmp_path)
    joined = frame.join(frame, on="number", suffix="_again").sort("number")
    assert "OneRankExec" not in joined.explain()
    assert [row["number"] for row in rows(joined)] == list(range(9_000))


def test_plain_file_is_read_by_several_tasks(session, tmp_path):
    path = write(tmp_path / "plain.csv", [("number",), *((number,) for number in range(20_000))])
    frame = session.scan_csv(path, newlines_in_values=False)
    assert [row["number"] for row in rows(frame.sort("number"))] == list(range(20_000))


def test_types_hold_for_all_files(session, tmp_path):
    write(tmp_path / "0.csv", [("a", "b", "c", "d"), (1, 1, "", ""), (2, 2, "", "")])
    write(tmp_path / "1.csv", [("a", "b", "c", "d"), (3, 1.5, "x", ""), (4, 2, 5, "")])
    frame = session.scan_csv(tmp_path)
    assert frame.schema == {"a": "int64", "b": "float64", "c": "string", "d": "string"}
    found = rows(frame.sort("a"))
    assert [(row["a"], row["b"], row["c"]) for row in found] == [
        (1, 1.0, None),
        (2, 2.0, None),
        (3, 1.5, "x"),
        (4, 2.0, "5"),
    ]


def test_files_with_other_columns_are_refused(session, tmp_path):
    write(tmp_path / "0.csv", [("a", "b"), (1, 2)])
    write(tmp_path / "1.csv", [("a", "c"), (1, 2)])
    with pytest.raises(dayfly.RequestError, match=r"different columns: .*0\.csv has a, b, and .*1\.csv has a, c"):
        session.scan_csv(tmp_path)


def test_broken_file_is_named(session, tmp_path):
    path = tmp_path / "broken.csv"
    path.write_text("a,b\n1,2\n3\n")
    with pytest.raises(dayfly.RequestError, match=r"broken\.csv"):
        session.scan_csv(path)


def test_file_without_header_has_numbered_columns(session, tmp_path):
    path = write(tmp_path / "bare.csv", [(1, "x"), (2, "y")])
    frame = session.scan_csv(path, has_header=False)
    assert rows(frame.sort("column_1")) == [{"column_1": 1, "column_2": "x"}, {"column_1": 2, "column_2": "y"}]
