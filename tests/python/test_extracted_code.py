"""Directories where workers extract code: they are complete, or removed."""

from __future__ import annotations

import json
import os
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("dayfly", reason="the package is not installed: make build")

from dayfly import _modules


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of extracted bundles."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"dayfly-code-{os.getuid()}"


def bundle(digest: str = "digest") -> _modules.Bundle:
    content = b"data"
    head = json.dumps([["package", "/nowhere", "data.txt", len(content)]]).encode()
    return _modules.Bundle(digest, zlib.compress(len(head).to_bytes(8, "little") + head + content))


def failing(error: BaseException) -> Callable[..., None]:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


@pytest.mark.parametrize("step", ["makedirs", "rename"])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError("no space")], ids=["interrupt", "error"])
def test_failed_extraction_leaves_no_part(
    root: Path, monkeypatch: pytest.MonkeyPatch, step: str, error: BaseException
) -> None:
    root.mkdir(mode=0o700)
    with monkeypatch.context() as patch:
        fail, makedirs = failing(error), os.makedirs
        patch.setattr(os, step, lambda path, *args, **rest: (makedirs if path == str(root) else fail)(path, **rest))
        with pytest.raises(type(error)):
            bundle().extracted("data.txt")
    assert os.listdir(root) == []
    written = next(Path(bundle().extracted("")).rglob("data.txt"))
    assert written.read_bytes() == b"data"


def test_slower_of_two_workers_leaves_no_part(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def rename(part: str, directory: str) -> None:
        os.mkdir(directory)
        raise OSError("another worker was faster")

    monkeypatch.setattr(os, "rename", rename)
    assert bundle().extracted("data.txt") == str(root / "digest" / "data.txt")
    assert os.listdir(root) == ["digest"]


def test_part_of_a_killed_worker_is_removed_later(root: Path) -> None:
    root.mkdir(mode=0o700)
    for name, hours in {"part-killed": 2, "part-written": 0.5, "digest-of-yesterday": 24}.items():
        (root / name / "package").mkdir(parents=True)
        then = time.time() - hours * 3600
        os.utime(root / name, (then, then))
    bundle().extracted("data.txt")
    assert sorted(os.listdir(root)) == ["digest", "digest-of-yesterday", "part-written"]
