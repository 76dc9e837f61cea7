"""Data frames of files that change."""

from __future__ import annotations

import dayfly
import pyarrow as pa
import pyarrow.parquet
import pytest
from dayfly.frames import count


@pytest.fixture(scope="module")
def session():
    with dayfly.connect() as client, client.frames(ranks=2, partition_bytes=1_000) as session:
        yield session


def write(path, rows):
    pa.parquet.write_table(pa.table({"number": range(rows)}), path)


def rows(frame):
    return frame.select(count().alias("rows")).collect().to_pyarrow().to_pylist()[0]["rows"]


def replaced(path, rows):
    """Returns a function over batches that writes another file, while the query reads this one."""

    def replace(batch):
        other = path.with_suffix(".other")
        pa.parquet.write_table(pa.table({"number": range(rows)}), other)
        other.rename(path)
        return {"number": batch.column("number")}

    return replace


def test_next_query_sees_changed_and_new_files(session, tmp_path):
    write(tmp_path / "0.parquet", 100)
    frame = session.scan_parquet(tmp_path)
    assert rows(frame) == 100
    write(tmp_path / "0.parquet", 200)
    write(tmp_path / "1.parquet", 50)
    assert rows(frame) == 250
    assert rows(session.scan_parquet(tmp_path)) == 250


def test_file_changed_under_a_query_ends_it(session, tmp_path):
    path = tmp_path / "0.parquet"
    write(path, 300_000)
    frame = session.scan_parquet(path).map_batches(replaced(path, 10), {"number": "int64"}, batch_rows=1_000)
    with pytest.raises(dayfly.RequestError, match=r"0\.parquet was changed while the query") as error:
        frame.collect()
    assert error.value.code == "input_changed"
    assert rows(session.scan_parquet(path)) == 10


def test_file_removed_under_a_query_ends_it(session, tmp_path):
    path = tmp_path / "0.parquet"
    write(path, 300_000)

    def remove(batch):
        path.unlink(missing_ok=True)
        return {"number": batch.column("number")}

    frame = session.scan_parquet(path).map_batches(remove, {"number": "int64"}, batch_rows=1_000)
    with pytest.raises(dayfly.RequestError, match=r"0\.parquet was removed") as error:
        frame.collect()
    assert error.value.code == "input_changed"
