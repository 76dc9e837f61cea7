"""Rows of data frames as tensors of PyTorch."""

from __future__ import annotations

import sys
import warnings

import dayfly
import pyarrow as pa
import pytest
from dayfly.frames import col
from harness.pytorch import folder, needs_torch

pytestmark = needs_torch


@pytest.fixture(scope="module", autouse=True)
def torch():
    place = folder()
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        if place:
            # Last, because the packages of this Python come first. Not for long, because workers get the same path.
            patch.setattr(sys, "path", [*sys.path, place])
        warnings.simplefilter("ignore")
        import torch.utils.data
    return torch


@pytest.fixture(scope="module")
def session():
    with dayfly.connect() as client, client.frames(ranks=2) as session:
        yield session


def test_columns_are_tensors_of_their_type(session, torch):
    vectors = pa.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], pa.list_(pa.float32(), 2))
    table = pa.table({"number": [1, 2, 3], "flag": [True, False, True], "vector": vectors})
    found = session.from_arrow(table).collect().to_torch()
    assert found["number"].tolist() == [1, 2, 3]
    assert (found["flag"].dtype, found["flag"].tolist()) == (torch.bool, [True, False, True])
    assert (found["vector"].dtype, found["vector"].tolist()) == (torch.float32, [[1, 2], [3, 4], [5, 6]])


def test_tensor_has_the_memory_of_its_column(session):
    table = session.from_arrow(pa.table({"number": range(1000)})).collect()
    column = table.to_pyarrow().column("number")
    assert column.num_chunks == 1
    assert table.to_torch()["number"].data_ptr() == column.chunk(0).buffers()[1].address


def test_unsuitable_columns_are_named(session):
    table = session.from_arrow(pa.table({"name": ["a"], "gap": pa.array([None], pa.int64()), "x": [1]})).collect()
    for name, why in (("name", "cast it to a number"), ("gap", "fill_null")):
        with pytest.raises(dayfly.RequestError, match=f"{name}.*{why}"):
            table.to_torch([name])
    assert table.to_torch(["x"])["x"].tolist() == [1]


def test_loader_returns_all_rows_in_batches(session, torch):
    numbers = session.sql("SELECT value, value * 0.5 AS half FROM generate_series(0, 999)")
    table = numbers.filter(col("value") >= 0).collect()
    batches = list(table.to_dataloader(64, shuffle=True, generator=torch.Generator().manual_seed(1)))
    assert [len(batch["value"]) for batch in batches] == [64] * 15 + [40]
    values = torch.cat([batch["value"] for batch in batches])
    assert values.tolist() != sorted(values.tolist()) == list(range(1000))
    assert all(torch.equal(batch["half"], batch["value"] * 0.5) for batch in batches)
    assert len(list(table.to_dataloader(64, drop_last=True))) == 15
    assert list(numbers.head(0).collect().to_dataloader(8)) == []
