"""A client's own modules: the code on disk at the submission of a function is the code that runs."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.daemons import Daemon, private_directory
from harness.programs import run
from harness.projects import DURABLE, LEASED, Project

dayfly = pytest.importorskip("dayfly", reason="the package is not installed: make build")


@contextlib.contextmanager
def manager_and_node() -> Iterator[Daemon]:
    with private_directory() as directory:
        daemon = Daemon("up", "--listen", "127.0.0.1:0", state=Path(directory) / "up")
        yield daemon
        daemon.stop()


@pytest.fixture(scope="module")
def up() -> Iterator[Daemon]:
    """One manager for all tests: each test has its own code, and so its own workers."""
    with manager_and_node() as daemon:
        yield daemon


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path / "project")


@pytest.mark.parametrize("way", [DURABLE, LEASED], ids=["durable", "leased"])
def test_edited_helper_of_a_helper_runs(up: Daemon, project: Project, way: str) -> None:
    body = way.format(call="helper2.g")
    assert project.script(up, body) == "1"
    project.write("helper1.py", "def f():\n    return 'edited'\n")
    assert project.script(up, body) == "edited"
    # A function of the script itself, which refers only to the module.
    assert project.script(up, way.format(call="lambda: helper2.g() + '!'")) == "edited!"


def test_module_edited_while_the_client_runs_is_used(up: Daemon, project: Project) -> None:
    # An edit takes effect after at most 2 s, which applies if a check of the files is slow.
    body = """
    import pathlib, time
    with client.lease(workers=1, mode="warm") as lease:
        for text in ("1", "2", "3"):
            pathlib.Path("helper1.py").write_text(f"def f():\\n    return {text}\\n")
            time.sleep(2.1)
            print(client.run(helper2.g).result(60), lease.call(helper2.g), lease.call(lambda: helper2.g()))
            print(*lease.map(lambda _: helper2.g(), range(2)), lease.call(helper1.f))
    """
    imports = "import helper1, helper2"
    said = project.script(up, "\n".join(line.removeprefix("    ") for line in body.splitlines()), imports)
    assert said.splitlines() == ["1 1 1", "1 1 1", "2 2 2", "2 2 2", "3 3 3", "3 3 3"]


def test_function_of_a_reloaded_module_is_current(up: Daemon, project: Project) -> None:
    body = """
import importlib, pathlib, time
with client.lease(workers=1, mode="warm") as lease:
    print(client.run(f).result(60), lease.call(f))
    pathlib.Path("helper1.py").write_text("def f():\\n    return 'edited'\\n")
    importlib.reload(helper1)
    time.sleep(2.1)
    print(client.run(f).result(60), lease.call(f))
"""
    assert project.script(up, body, "import helper1\nfrom helper1 import f").split() == ["1", "1", "edited", "edited"]


def test_edit_with_same_size_and_time_is_used(up: Daemon, project: Project) -> None:
    helper = project.directory / "helper1.py"
    body = DURABLE.format(call="helper2.g")
    before = helper.stat()
    assert project.script(up, body) == "1"
    helper.write_text("def f():\n    return 2\n")
    os.utime(helper, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert helper.stat().st_size == before.st_size
    assert project.script(up, body) == "2"


def test_edited_code_gets_other_warm_workers(project: Project) -> None:
    body = DURABLE.format(call="helper2.os.getppid")
    # A separate manager: idle workers end if others wait for capacity.
    with manager_and_node() as up:
        where = [project.script(up, body) for _ in range(2)]
        project.write("helper1.py", "def f():\n    return 2\n")
        where.append(project.script(up, body))
    assert where[0] == where[1] != where[2]


def test_unimported_modules_in_function_bodies_travel(up: Daemon, project: Project) -> None:
    project.write("later.py", "value = 'later'\n")
    project.write("helper1.py", "def f():\n    import later\n    return later.value\n")
    body = LEASED.format(call="helper2.g")
    assert project.script(up, body) == "later"
    project.write("later.py", "value = 'sooner'\n")
    assert project.script(up, body) == "sooner"


def test_directory_named_in_a_comment_does_not_travel(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write("data/big.py", "")
    project.write("helper1.py", '"""\nfrom data we have\n"""\ndef f():\n    import later.part\n')
    project.write("later/part.py", "")
    program = "import helper2; from dayfly._functions.own_code import tracker as t; t.check(); print(*sorted(t._files))"
    said = run(sys.executable, "-c", program, cwd=tmp_path).stdout.split()
    assert [Path(path).relative_to(tmp_path).as_posix() for path in said] == [
        "helper1.py",
        "helper2.py",
        "later/part.py",
    ]


PTH = """
import pathlib, site
pathlib.Path("site").mkdir(exist_ok=True)
pathlib.Path("site/project.pth").write_text(str(pathlib.Path("elsewhere").resolve()))
site.addsitedir("site")
import tool
"""
FINDER = """
import importlib.util, sys
class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "tool":
            return importlib.util.spec_from_file_location(name, "elsewhere/source/__init__.py")
sys.meta_path.append(Finder)
import tool
"""


@pytest.mark.parametrize(("imports", "name"), [(PTH, "tool"), (FINDER, "source")], ids=["path", "finder"])
def test_editable_install_runs_current_code(up: Daemon, project: Project, imports: str, name: str) -> None:
    project.write(f"elsewhere/{name}/__init__.py", "from tool.inner import value\ndef get():\n    return value\n")
    for value in ("first", "second"):
        project.write(f"elsewhere/{name}/inner.py", f"value = {value!r}\n")
        assert project.script(up, DURABLE.format(call="tool.get"), imports) == value


EXTENSION = """
#include <Python.h>
static PyObject *get(PyObject *self, PyObject *none) { return PyLong_FromLong(VALUE); }
static PyMethodDef methods[] = {{"get", get, METH_NOARGS, 0}, {0}};
static struct PyModuleDef about = {PyModuleDef_HEAD_INIT, "native", 0, -1, methods};
PyMODINIT_FUNC PyInit_native(void) { return PyModule_Create(&about); }
"""


def build_extension(directory: Path, value: int) -> None:
    source = directory / "native.c"
    source.write_text(EXTENSION)
    # As compilers do: write a new file with the old name.
    part, include = directory / "part", sysconfig.get_paths()["include"]
    command = ["cc", "-shared", "-fPIC", f"-I{include}", f"-DVALUE={value}", str(source), "-o", str(part)]
    subprocess.run(command, check=True, timeout=60)
    part.rename(directory / "native.so")


@pytest.mark.skipif(
    not (Path(sysconfig.get_paths()["include"]) / "Python.h").exists(), reason="there are no headers of Python"
)
def test_replaced_extension_is_used(up: Daemon, project: Project) -> None:
    body = """
import os, time
with client.lease(workers=1, mode="warm") as lease:
    print(lease.call(lambda: native.get()), client.run(native.get).result(60))
    os.rename("next/native.so", "native.so")
    time.sleep(2.1)
    print(lease.call(lambda: native.get()), client.run(native.get).result(60))
"""
    build_extension(project.directory, 1)
    (project.directory / "next").mkdir()
    build_extension(project.directory / "next", 2)
    assert project.script(up, body, "import native").split() == ["1", "1", "2", "2"]


def test_modules_travel_to_workers_without_them(project: Project) -> None:
    project.write("pack/__init__.py", "from pack.deep.inner import read\n")
    project.write("pack/deep/__init__.py", "")
    project.write(
        "pack/deep/inner.py",
        "import importlib.resources, pathlib\nimport spread.part\n"
        "def read():\n"
        "    text = (importlib.resources.files('pack') / 'data.txt').read_text()\n"
        "    beside = (pathlib.Path(__file__).parent.parent / 'data.txt').read_text()\n"
        "    return text, beside, spread.part.value\n",
    )
    project.write("pack/data.txt", "data")
    project.write("spread/part.py", "value = 'part'\n")
    Path(os.fsdecode(os.fsencode(project.directory / "pack") + b"/\xff.bin")).write_bytes(b"\xff")
    (project.directory / "pack" / "loop").symlink_to("..")
    (project.directory / "pack" / "deep" / "loop").symlink_to(".")
    # If the node runs as root, isolated workers do not, and read only world-readable files.
    project.directory.chmod(0o700)
    body = """
with client.lease(workers=1, mode="warm", sandbox="isolated") as lease:
    print(lease.call(pack.read))
"""
    assert project.script(None, body, "import pack") == "('data', 'data', 'part')"


def test_class_in_arguments_travels_unnamed_by_the_function(up: Daemon, project: Project) -> None:
    project.write("shapes.py", "class Square:\n    side = 2\n    def area(self):\n        return self.side ** 2\n")
    body = "print(client.run(lambda shape: shape.area(), shapes.Square()).result(60))"
    assert project.script(up, body, "import shapes") == "4"
    project.write("shapes.py", "class Square:\n    side = 3\n    def area(self):\n        return self.side ** 2\n")
    assert project.script(up, body, "import shapes") == "9"


def test_edited_helper_makes_a_new_function_version(up: Daemon, project: Project) -> None:
    body = """
function = client.register(helper2.g, name="versions")
print(function.version, client.run(function).result(60), end=" ")
executor = dayfly.Executor(client=client, memoize=True)
print(executor.submit(helper2.g).result(60))
executor.shutdown()
"""
    assert project.script(up, body) == "1 1 1"
    assert project.script(up, body) == "1 1 1"
    project.write("helper1.py", "def f():\n    return 2\n")
    assert project.script(up, body) == "2 2 2"


def test_too_much_code_is_refused_naming_its_largest(up: Daemon, project: Project) -> None:
    with open(project.directory / "libhuge.so", "wb") as file:
        file.truncate(65 << 20)
    body = """
try:
    client.run(helper2.g)
except dayfly.RequestError as error:
    print(error)
import os
os.environ["DAYFLY_LOCAL_MODULES"] = "helper1, helper2"
print(client.run(helper2.g).result(60))
"""
    refused, ran = project.script(up, body).splitlines()
    assert "libhuge.so" in refused
    assert "[too_large]" in refused
    # The module may stay where workers of this host import it.
    assert "DAYFLY_LOCAL_MODULES=helper" in refused
    assert ran == "1"


def test_child_forked_during_a_check_checks_again(tmp_path: Path) -> None:
    Project(tmp_path)
    program = """
import os, signal, threading
import helper2
from dayfly._functions import own_code
digest = own_code.tracker.check().digest
looking, go_on = threading.Event(), threading.Event()
def gather():
    own_code.tracker._files.clear()
    looking.set()
    go_on.wait(30)
gathers, own_code.tracker._gather = own_code.tracker._gather, gather
own_code.tracker._modules, own_code.tracker.due_ns = None, 0
thread = threading.Thread(target=own_code.tracker.check)
thread.start()
looking.wait(30)
child = os.fork()
if child == 0:
    signal.alarm(10)
    own_code.tracker._gather = gathers
    is_same = own_code.tracker.check().digest == digest
    os._exit(0 if is_same and len(own_code.tracker._files) == 2 else 1)
go_on.set()
thread.join()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert run(sys.executable, "-W", "ignore", "-c", program, cwd=tmp_path).stdout.strip() == "0"


def test_unchanged_code_is_checked_within_a_millisecond(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write("pack/__init__.py", "")
    for number in range(100):
        project.write(f"pack/module{number}.py", f"value = {number}\n")
    measure = """
import time, pack
from dayfly._functions import own_code
own_code._UNSURE_NS = 0
before, took = own_code.tracker.check(), []
for _ in range(50):
    own_code.tracker.due_ns = 0
    start = time.perf_counter()
    assert own_code.tracker.check() is before
    took.append(time.perf_counter() - start)
print(min(took) * 1e6, len(own_code.tracker._files))
"""
    took_us, files = run(sys.executable, "-c", measure, cwd=tmp_path).stdout.split()
    assert int(files) == 101
    assert float(took_us) < 1000
    print(f"a check of {files} files takes {took_us} us")
