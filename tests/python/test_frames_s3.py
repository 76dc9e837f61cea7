"""Data frames of files in an object store, which a real S3 server keeps."""

from __future__ import annotations

import os
import sys

import dayfly
import pyarrow as pa
import pytest
from dayfly.frames import col, count
from harness import stores
from harness.programs import program, run

ROWS = 20_000


@pytest.fixture(scope="module")
def s3(tmp_path_factory):
    if missing := stores.unavailable():
        pytest.fail(missing)
    server = stores.S3(tmp_path_factory.mktemp("s3"))
    yield server
    server.stop()


@pytest.fixture(scope="module")
def client():
    with dayfly.connect() as client:
        yield client


@pytest.fixture(scope="module")
def session(client, s3):
    options = {name.lower(): value for name, value in s3.environment().items()}
    with client.frames(ranks=2, partition_bytes=1_000, storage_options=options) as session:
        yield session


@pytest.fixture(scope="module")
def numbers(session):
    table = pa.table({"number": range(ROWS), "key": [number % 5 for number in range(ROWS)]})
    return session.from_arrow(table)


def rows(frame):
    return frame.collect().to_pyarrow().to_pylist()


@pytest.mark.parametrize("form", ["parquet", "csv", "ndjson", "ipc"])
def test_written_objects_are_read_as_they_were(session, s3, numbers, form):
    place = f"{s3.url}/{form}"
    files = getattr(numbers, f"write_{form}")(place, partition_by="key")
    assert sum(file.rows for file in files) == ROWS
    again = getattr(session, f"scan_{form}")(place)
    found = again.group_by("key").agg(count().alias("n"), col("number").sum().alias("sum")).sort("key")
    assert rows(found) == [{"key": key, "n": ROWS // 5, "sum": sum(range(key, ROWS, 5))} for key in range(5)]
    one = getattr(session, f"scan_{form}")(f"{place}/{files[0].path}")
    assert one.columns == ["number"]
    with pytest.raises(dayfly.RequestError, match="has something in it"):
        getattr(numbers, f"write_{form}")(place)


def test_missing_object_or_bucket_is_named(session, s3):
    with pytest.raises(dayfly.Error, match="nothing"):
        session.scan_parquet(f"{s3.url}/nothing.parquet").collect()
    with pytest.raises(dayfly.Error, match="nobody"):
        session.scan_parquet("s3://nobody/x.parquet").collect()


def test_address_of_another_store_is_refused(session):
    with pytest.raises(dayfly.RequestError, match="s3://"):
        session.scan_parquet("ftp://host/x.parquet")


def test_unknown_storage_option_is_refused(client):
    with pytest.raises(dayfly.RequestError, match="aws_reggion"):
        client.frames(ranks=1, storage_options={"aws_reggion": "x"})


def test_wrong_secret_never_shows_in_errors(client, s3):
    options = {name.lower(): value for name, value in s3.environment().items()}
    wrong = options | {"aws_secret_access_key": "not-the-secret"}
    with client.frames(ranks=1, storage_options=wrong) as session:
        with pytest.raises(dayfly.Error) as error:
            session.scan_csv(f"{s3.url}/x.csv").collect()
        assert "not-the-secret" not in str(error.value)


def test_command_reads_a_bucket(s3, numbers):
    numbers.write_parquet(f"{s3.url}/command")
    table, query = f"t={s3.url}/command", "SELECT count(*) AS n FROM t"
    environment = os.environ | s3.environment() | {"DAYFLY_PYTHON": sys.executable}
    found = run(program(), "sql", "--ranks", "1", "--format", "csv", "--table", table, query, env=environment)
    assert found.stdout == f"n\n{ROWS}\n"


def test_no_key_is_sent_unasked(client, s3, monkeypatch):
    for name, value in s3.environment().items():
        monkeypatch.setenv(name, value)
    with client.frames(ranks=1) as session, pytest.raises(dayfly.RequestError, match='storage_options="env"'):
        session.scan_parquet(f"{s3.url}/x.parquet")
    with pytest.raises(ValueError, match="env"):
        client.frames(ranks=1, storage_options="environment")


def test_options_come_from_the_environment(client, s3, monkeypatch):
    for name, value in s3.environment().items():
        monkeypatch.setenv(name, value)
    with client.frames(ranks=1, storage_options="env") as session:
        session.from_arrow(pa.table({"x": [1, 2]})).write_parquet(f"{s3.url}/environment")
        assert rows(session.scan_parquet(f"{s3.url}/environment").sort("x")) == [{"x": 1}, {"x": 2}]
