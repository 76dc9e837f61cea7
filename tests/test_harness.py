"""The harness itself: a proof that nothing leaks is worth what its instruments see."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from harness import Snapshot, descendants, index
from harness.leaks import descriptors, die_with_parent, kill, memory_files, wait_until
from harness.programs import ROOT


def test_leftover_child_is_a_leak() -> None:
    before = Snapshot()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert any(f"process {child.pid}:" in leak for leak in before.leaks())
        child.kill()
    assert before.leaks() == []


def test_orphan_is_found_and_killed() -> None:
    before = Snapshot()
    # The child starts a grandchild that waits for ever on a pipe that nobody closes, then exits.
    script = (
        "import subprocess, sys\n"
        "p = subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'], stdout=-3)\n"
        "print(p.pid)"
    )
    done = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, check=True, text=True)
    orphan = int(done.stdout)
    assert orphan in descendants()
    assert any(f"process {orphan}:" in leak for leak in before.leaks())
    kill([orphan])
    assert before.leaks() == []


def test_memory_file_is_found_open_and_mapped() -> None:
    before = Snapshot()
    with os.fdopen(os.memfd_create("harness-test"), "r+b") as memory:
        assert any("harness-test" in line for line in memory_files([os.getpid()]))
        assert any("harness-test" in leak for leak in before.leaks())
        assert memory.fileno() > 2
    assert before.leaks() == []


def test_open_descriptor_is_found() -> None:
    before = Snapshot()
    with tempfile.NamedTemporaryFile() as file:
        assert any(file.name in leak for leak in before.leaks())
    assert before.leaks() == []


def test_leak_fails_the_test_and_is_named() -> None:
    before = Snapshot()
    with tempfile.NamedTemporaryFile() as file, pytest.raises(AssertionError, match=os.path.basename(file.name)):
        before.assert_no_leaks(timeout=0.05)


def test_unchanged_process_has_equal_snapshots() -> None:
    assert descriptors() == descriptors()


def test_wait_until_fails_and_names_the_event() -> None:
    with pytest.raises(AssertionError, match="the moon is full"):
        wait_until(lambda: False, "the moon is full", timeout=0.02)


@pytest.mark.parametrize("tool", ["pip", "uv"])
def test_package_tools_use_no_public_index(tool: str, tmp_path: Path) -> None:
    install = {
        "pip": [sys.executable, "-m", "pip", "install", "--quiet", "--retries=0"],
        "uv": [Path(sys.executable).with_name("uv"), "pip", "install", "--quiet", f"--cache-dir={tmp_path}/cache"],
    }
    wanted = [*install[tool], "--target", tmp_path / "installed", "dayfly-test-package"]
    with index.serving(tmp_path) as proxy:
        proxied = os.environ | {"ALL_PROXY": proxy.address, "HTTPS_PROXY": proxy.address}
        done = subprocess.run(wanted, env=proxied, check=False, capture_output=True, text=True, timeout=60)
        assert done.returncode != 0
        assert proxy.requests == []
        index.write_wheel(tmp_path, "dayfly_test_package", "1.0")
        subprocess.run(wanted, env=proxied | index.settings(proxy.url), check=True, timeout=60)
    assert (tmp_path / "installed" / "dayfly_test_package").is_dir()


def run_of(test: str, tmp_path: Path, *options: str) -> tuple[subprocess.Popen[str], Path]:
    """A run of one test, and its temporary directory."""
    (tmp_path / "test_one.py").write_text(f"import tempfile, time\ndef test_one():\n    {test}\n")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    plugins = ("-p", "harness.temporary", "-p", "no:cacheprovider")
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-q", f"--rootdir={tmp_path}", *plugins, *options, tmp_path / "test_one.py"],
        env=os.environ | {"TMPDIR": str(temporary), "PYTHONPATH": str(ROOT / "tests")},
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        preexec_fn=die_with_parent,  # noqa: PLW1509 (one call, loaded before)
    )
    return process, temporary


@pytest.mark.parametrize("options", [(), ("-n", "1")])
def test_run_that_leaves_a_temporary_file_fails(options: tuple[str, ...], tmp_path: Path) -> None:
    process, temporary = run_of("tempfile.mkstemp(suffix='.key')", tmp_path, *options)
    said = process.communicate(timeout=60)[0]
    assert process.returncode == 1
    assert "1 passed" in said
    assert ".key (test_one.py::test_one)" in said
    assert os.listdir(temporary) == []


def test_killed_run_leaves_no_temporary_file(tmp_path: Path) -> None:
    process, temporary = run_of("tempfile.mkstemp(suffix='.key'); time.sleep(60)", tmp_path)
    wait_until(lambda: list(temporary.glob("*/*/*.key")), "the test to begin", 30)
    process.kill()
    process.communicate(timeout=10)
    wait_until(lambda: not os.listdir(temporary), "the directory to go", 30)
