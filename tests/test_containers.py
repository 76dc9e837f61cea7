"""Leases whose workers run in an image: what they find there, which images there may be, and what stays of them."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import cloudpickle
import pytest
from harness.compilers import compile_source
from harness.daemons import Daemon, private_directory
from harness.images import MODULE, Podman, archive, debian
from harness.leaks import descendants, wait_until
from harness.programs import program, run, run_python

dayfly = pytest.importorskip("dayfly", reason="the package is not installed: make build")

Start = Callable[..., Daemon]
# Images have none of our modules.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture(scope="module")
def root() -> Path:
    """The root file system of a small Debian."""
    root, why = debian()
    if why:
        pytest.skip(why)
    return root


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An image that has a C library, and nothing else: unpacked within milliseconds."""
    small = tmp_path_factory.mktemp("small")
    ldd = ["ldd", program("dayfly-executor")]
    listed = subprocess.run(ldd, capture_output=True, text=True, check=True).stdout
    for library in {word for word in listed.split() if word.startswith("/")}:
        to = small / library[1:]
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, to)
    (small / "opt").mkdir()
    (small / "opt" / "message").write_text("of the image\n")
    return small


@pytest.fixture(scope="module")
def podman() -> Iterator[Podman]:
    if shutil.which("podman") is None:
        pytest.skip("podman not found; install it")
    with private_directory() as directory:
        podman = Podman(Path(directory))
        yield podman
        podman.remove()
        Path(directory).mkdir()


def connect(daemon: Daemon) -> dayfly.Client:
    return dayfly.connect(config=daemon.ready["connection"])


def start_up(start: Start, *arguments: str | Path, **options: object) -> Daemon:
    """``dayfly up`` whose Python workers have this interpreter's package."""
    return start("up", "--listen", "127.0.0.1:0", "--python", sys.executable, *map(str, arguments), **options)


def mounts() -> list[str]:
    """What is mounted for everybody to see, but for the networks of tests beside this one."""
    all_of_them = (line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines())
    return sorted(at for at in all_of_them if not at.startswith("/run/netns"))


def imported(name: str) -> tuple[str, str]:
    import importlib
    import sys

    return importlib.import_module(name).__file__ or "", sys.executable


@pytest.mark.parametrize("transport", ["shm", "tcp", "tls"])
def test_function_imports_packages_of_its_image(start: Start, root: Path, transport: str) -> None:
    with pytest.raises(ImportError):
        __import__(MODULE)
    with connect(start_up(start, "--image", root)) as client, client.lease(image=root, transport=transport) as lease:
        assert lease.transport == transport
        place, python = lease.call(imported, MODULE)
        assert place.startswith("/usr/lib/python3/dist-packages")
        assert python.startswith("/usr/bin/python3")
        assert lease.call(len, b"x" * (1 << 20)) == 1 << 20
        assert list(lease.map(lambda x: x * x, range(100))) == [x * x for x in range(100)]


def test_task_runs_in_its_functions_image(start: Start, root: Path) -> None:
    with connect(start_up(start, "--image", root)) as client:
        function = client.register(imported, image=str(root))
        assert function.status["image"] == str(root)
        place, python = client.run(function, MODULE).result(60)
        assert place.startswith("/usr/lib/python3/dist-packages")
        assert python.startswith("/usr/bin/python3")
        with dayfly.Executor(client=client, image="no-such-image") as executor:
            future = executor.submit(imported, MODULE)
            with pytest.raises(dayfly.RequestError, match="no-such-image"):
                future.result(30)


def test_container_sees_only_its_image_and_named_mounts(start: Start, root: Path, tmp_path: Path) -> None:
    (tmp_path / "data").write_text("input")
    tmp_path.chmod(0o755)

    def look(path: str, hidden: str) -> list[object]:
        import os

        seen: list[object] = [os.getuid() != 0, os.getppid(), os.path.exists(hidden), os.environ.get("SECRET")]
        try:
            with open("/etc/new", "w"):
                seen.append("written")
        except OSError:
            seen.append("kept")
        with open("/etc/debian_version") as file:
            seen.append(file.read().strip())
        if path:
            with open(f"{path}/data") as file:
                seen.append(file.read())
        return seen

    daemon = start_up(start, "--image", root, "--readable", tmp_path, env={"SECRET": "mine"})
    version = (root / "etc/debian_version").read_text().strip()
    expected = [True, 1, False, None, "kept", version]
    with connect(daemon) as client:
        with client.lease(sandbox="container") as lease:
            assert lease.call(look, "", __file__) == expected
        with client.lease(sandbox="container", readable=[tmp_path]) as lease:
            assert lease.call(look, str(tmp_path), __file__) == [*expected, "input"]
        with pytest.raises(dayfly.Error, match="network"):
            client.lease(sandbox="container", network=True)
        with pytest.raises(dayfly.Error, match="does not show"):
            client.lease(sandbox="container", readable=["/root"])
    assert not (root / "etc/new").exists()


def test_own_modules_travel_into_a_container(start: Start, root: Path, tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "beside.py").write_text("def twice(x):\n    return 2 * x\n")
    for directory in [tmp_path, project]:
        directory.chmod(0o755)
    program = """
        import sys
        manager, image, project = sys.argv[1:]
        sys.path.insert(0, project)
        import beside, dayfly
        with dayfly.connect(config=manager) as client:
            # Where their directory is shown, and where it is not.
            with client.lease(image=image, readable=[project]) as lease:
                print(lease.call(beside.twice, 21), lease.call(lambda: beside.__file__))
            with client.lease(image=image) as lease:
                print(lease.call(beside.twice, 21), lease.call(lambda: beside.__file__))
    """
    daemon = start_up(start, "--image", root, "--readable", tmp_path)
    shown, hidden = run_python(program, daemon.ready["connection"], str(root), str(project)).stdout.splitlines()
    assert shown == f"42 {project}/beside.py"
    assert hidden.startswith("42 /tmp/dayfly-code-")


def test_only_images_named_by_the_owner_are_leased(start: Start, small: Path) -> None:
    with connect(start_up(start, "--image", small)) as client:
        for asked in [
            "debian:12",
            "--privileged",
            f"{small}/..",
            f"{small}/",
            "/",
            "../../etc",
            str(small.parent),
            "",
            "a" * 5000,
            "x\n--image",
            "$(touch /tmp/x)",
        ]:
            # And what is asked for does not fill anybody's log.
            with pytest.raises(dayfly.Error, match=r"(?s)^.{0,400}(allows|is not an image).{0,600}$"):
                client.lease(image=asked, runtime="native")
        with pytest.raises(dayfly.Error, match="container"):
            client.lease(image=small, sandbox="isolated", runtime="native")
        with client.lease(image=small, runtime="native") as lease:
            assert lease.grant["image"] == str(small)
    with connect(start_up(start)) as client, pytest.raises(dayfly.Error, match="--image"):
        client.lease(sandbox="container")


def test_invalid_image_option_is_refused_at_start(tmp_path: Path) -> None:
    for wrong in ["-x", "a b", "images/../x", "relative/../../etc"]:
        done = run(program(), "up", f"--image={wrong}", "--state-dir", tmp_path, check=False)
        assert done.returncode != 0
        assert "is not an image" in done.stderr


def test_image_without_python_or_glibc_is_recognized(start: Start, small: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    (empty / "usr").mkdir(parents=True)
    with connect(start_up(start, "--image", small, "--image", empty)) as client:
        with pytest.raises(dayfly.Error, match=r"python3\.\d+.*PATH"):
            client.lease(image=small)
        with pytest.raises(dayfly.Error, match="glibc"):
            client.lease(image=empty, runtime="native")
        # Nobody else suffers for it.
        with client.lease(image=small, runtime="native"):
            assert [node["state"] for node in client.nodes()] == ["up"]


def test_c_function_reads_files_of_its_image(start: Start, small: Path, tmp_path: Path) -> None:
    source = tmp_path / "message.c"
    source.write_text("""
        #include <stdint.h>
        #include <stdio.h>
        uint32_t message(void *in, uint32_t size, void *out) {
            FILE *file = fopen("/opt/message", "r");
            if (!file) return 0;
            (void)in, (void)size;
            size_t length = fread(out, 1, 64, file);
            fclose(file);
            return (uint32_t)length;
        }
    """)
    library = compile_source(source, tmp_path / "message.so")
    daemon = start_up(start, "--image", small)
    said = daemon.cli("invoke", "--image", str(small), str(library), "message")
    assert "of the image" in str(said)


def test_podman_image_has_its_digest_and_variables(start: Start, podman: Podman, root: Path, tmp_path: Path) -> None:
    packed = archive(root, tmp_path / "root.tar")
    podman(
        "import", "--change", "ENV PATH=/opt/none:/usr/bin", "--change", "ENV OF_IMAGE=yes", packed, "tests/debian:1"
    )
    packed.unlink()
    digest = podman("image", "inspect", "--format", "{{.Digest}}", "tests/debian:1")
    before = mounts()
    daemon = start_up(start, "--image", "tests/debian:1", env=podman.environment)
    with connect(daemon) as client:
        with client.lease(image="tests/debian:1", wait=60) as lease:
            assert lease.grant["image"] == f"tests/debian:1@{digest}"
            (shown,) = [entry for entry in client.leases() if entry["lease"] == lease.id]
            assert (shown["sandbox"], shown["image"]) == ("container", f"tests/debian:1@{digest}")
            assert lease.call(imported, MODULE)[0].startswith("/usr/lib/python3")
            assert lease.call(os.getenv, "OF_IMAGE") == "yes"
            assert lease.call(os.getenv, "PATH") == "/opt/none:/usr/bin"
            listed = daemon.cli("lease", "list")
            assert f"tests/debian:1@{digest}" in str(listed)
        with client.lease(image=f"tests/debian:1@{digest}") as lease:
            assert lease.call(abs, -1) == 1
        with pytest.raises(dayfly.Error, match=digest):
            client.lease(image="tests/debian:1@sha256:" + "0" * 64)
    assert mounts() == before
    assert podman.containers() == []


TOOL = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int main(int count, char **words) {
    char directory[256];
    if (!strcmp(words[count - 1], "fail")) {
        fputs("no such thing\\n", stderr);
        return 3;
    }
    while (!strcmp(words[count - 1], "hang")) pause();
    for (int i = 1; i < count; i++) printf("[%s]", words[i]);
    printf(" %s %s\\n", getcwd(directory, sizeof directory), getenv("OF_IMAGE"));
    return 0;
}
"""


@pytest.fixture(scope="module")
def tool(podman: Podman, small: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An image that has a program, which it begins with, and no Python."""
    directory = tmp_path_factory.mktemp("tool")
    (directory / "tool.c").write_text(TOOL)
    shutil.copytree(small, directory / "root")
    program = ["cc", "-o", directory / "root" / "opt" / "tool", directory / "tool.c"]
    subprocess.run(program, check=True)
    packed = archive(directory / "root", directory / "tool.tar")
    begins = (
        'ENTRYPOINT ["tool", "--fixed"]',
        'CMD ["by", "itself"]',
        "WORKDIR /opt",
        "ENV PATH=/opt",
        "ENV OF_IMAGE=yes",
    )
    podman("import", *(part for begin in begins for part in ("--change", begin)), packed, "tests/tool:1")
    return "tests/tool:1"


def test_entry_point_of_an_image_is_a_function(start: Start, podman: Podman, tool: str) -> None:
    daemon = start_up(start, "--image", tool, env=podman.environment)
    with connect(daemon) as client:
        run_it = client.register(dayfly.EntryPoint("--size {size} {files}"), name="tool", image=tool)
        assert (run_it.status["form"], run_it.status["source"]) == (
            {"form": "entry_point", "name": tool},
            "--size '{size}' '{files}'",
        )
        # It is there a moment after the node.
        future = client.run(run_it, 64, files=["a b.jpg", Path("$HOME")])
        assert future.result(60) == "[--fixed][--size][64][a b.jpg][$HOME] /opt yes\n"
        # Whoever finds it by its name calls it alike, and so do a batch, and those that speak no Python.
        found = client.function("tool")
        with client.map(found, [1, 2], ["x", "y"]) as batch:
            assert [future.result(60) for future in batch.futures] == [
                f"[--fixed][--size][{size}][{name}] /opt yes\n" for size, name in ((1, "x"), (2, "y"))
            ]
        words = base64.b64encode(json.dumps(["--size={size}"]).encode()).decode()
        described = {"name": "plain", "form": {"form": "entry_point"}, "image": tool, "code": words}
        status, plain = daemon.post("/v1/functions", described)
        assert (status, plain["runtime"]) == (201, {"kind": "native"})
        submission = {"function": plain["id"], "tasks": [{"call": {"arguments": [3]}}]}
        status, accepted = daemon.post("/v1/tasks", submission)
        assert status == 201
        shown = daemon.cli("task", "result", accepted["tasks"][0], "--wait", "60s")
        assert shown["result"] == "[--fixed][--size=3] /opt yes\n"
        with pytest.raises(dayfly.FunctionError, match="`files` is missing"):
            client.run(found, 1).result(60)
        with dayfly.Executor(client=client, image=tool, walltime=1) as executor:
            assert executor.submit(dayfly.EntryPoint()).result(60) == "[--fixed][by][itself] /opt yes\n"
            with pytest.raises(dayfly.FunctionError, match=r"`tool --fixed fail` ended with status 3: no such thing"):
                executor.submit(dayfly.EntryPoint("{how}"), "fail").result(60)
            with pytest.raises(dayfly.DeadlineExceeded):
                executor.submit(dayfly.EntryPoint("{how}"), "hang").result(60)
        with pytest.raises(TypeError, match="cannot be a word"):
            client.run(found, 1, {"a": 1, "b": object()})


def test_image_without_entry_point_is_refused(start: Start, small: Path) -> None:
    with connect(start_up(start, "--image", small)) as client:
        with pytest.raises(dayfly.Error, match="name the image"):
            client.register(dayfly.EntryPoint("x"))
        with pytest.raises(dayfly.Error, match="unmatched brace"):
            client.register(dayfly.EntryPoint("{"), image=str(small))
        with pytest.raises(TypeError, match="runs in its image"):
            dayfly.EntryPoint("x")()
        with (
            dayfly.Executor(client=client, image=str(small)) as executor,
            pytest.raises(dayfly.Error, match="has no entry point"),
        ):
            executor.submit(dayfly.EntryPoint("x")).result(60)


def test_node_killed_while_unpacking_leaves_no_files(
    start: Start, podman: Podman, root: Path, tmp_path: Path, state: Path
) -> None:
    packed = archive(root, tmp_path / "root.tar")
    podman("import", packed, "tests/large:1")
    packed.unlink()
    before = mounts()
    options = {"env": podman.environment, "state": state / "again"}
    first = start_up(start, "--image", "tests/large:1", **options)
    images = state / "again" / "node" / "images"
    wait_until(lambda: images.is_dir() and any((at / "usr").is_dir() for at in images.iterdir()), "it unpacks", 60)
    first.kill()
    wait_until(lambda: not [name for name in descendants().values() if "podman" in name], "Podman ends with its node")
    assert mounts() == before
    second = start_up(start, "--image", "tests/large:1", **options)
    with connect(second) as client, client.lease(wait=60, image="tests/large:1") as lease:
        assert lease.call(abs, -1) == 1
    wait_until(lambda: podman.containers() == [], "what was left in Podman's storage goes")
    assert len([at for at in images.iterdir() if at.is_dir()]) == 1
    assert mounts() == before


def test_packed_root_is_unpacked_once(start: Start, small: Path, tmp_path: Path, state: Path) -> None:
    if shutil.which("mksquashfs") is None:
        pytest.skip("mksquashfs not found; install squashfs-tools")
    packed = tmp_path / "small.sqfs"
    subprocess.run(["mksquashfs", small, packed, "-quiet", "-no-progress"], check=True, capture_output=True)
    seen = []
    for _ in range(2):
        daemon = start_up(start, "--image", packed, state=state / "again")
        with connect(daemon) as client, client.lease(image=packed, runtime="native", wait=20) as lease:
            image = lease.grant["image"]
            assert image.startswith(f"{packed}@sha256:")
        (unpacked,) = [at for at in (state / "again" / "node" / "images").iterdir() if at.is_dir()]
        seen.append((image, unpacked.stat().st_ino))
        daemon.stop()
    assert seen[0] == seen[1]


def test_invalid_image_is_refused_and_leaves_no_files(start: Start, tmp_path: Path, state: Path) -> None:
    if shutil.which("unsquashfs") is None:
        pytest.skip("unsquashfs not found; install squashfs-tools")
    broken = tmp_path / "broken.sqfs"
    broken.write_bytes(b"hsqs" + bytes(8192))
    daemon = start_up(start, "--image", broken, state=state / "own")
    with connect(daemon) as client, pytest.raises(dayfly.Error, match="unsquashfs"):
        client.lease(image=broken, runtime="native")
    assert list((state / "own" / "node" / "images").iterdir()) == []


def test_charliecloud_images_are_used_in_place(start: Start, small: Path, tmp_path: Path) -> None:
    if shutil.which("ch-run") is None or shutil.which("ch-image") is None:
        pytest.skip("Charliecloud not found; install charliecloud, python3-lark and python3-requests")
    packed = archive(small, tmp_path / "small.tar")
    # Debian's own Python first: the tool is written for it.
    own = {"CH_IMAGE_STORAGE": str(tmp_path / "ch"), "USER": "root", "PATH": "/usr/bin:/bin"}
    subprocess.run(
        ["ch-image", "import", packed, "tests/small:1"], env=os.environ | own, check=True, capture_output=True
    )
    # As on a machine without Podman.
    path = tmp_path / "bin"
    path.mkdir()
    (path / "ch-run").symlink_to(shutil.which("ch-run") or "")
    daemon = start_up(start, "--image", "tests/small:1", env=own | {"PATH": str(path)})
    with connect(daemon) as client, client.lease(image="tests/small:1", runtime="native") as lease:
        assert lease.grant["image"] == "tests/small:1"
    daemon = start_up(start, "--image", "tests/none:1", env=own | {"PATH": str(path)})
    with connect(daemon) as client, pytest.raises(dayfly.Error, match="Charliecloud"):
        client.lease(image="tests/none:1", runtime="native")


def test_containers_end_with_their_lease_or_killed_node(start: Start, root: Path) -> None:
    def begin() -> int:
        import subprocess

        # One that ignores everything that it may.
        return subprocess.Popen(["sh", "-c", "trap '' TERM HUP INT; exec sleep 1000"], start_new_session=True).pid

    def is_asleep() -> bool:
        return any("sleep 1000" in name for name in descendants().values())

    before, count = mounts(), len(descendants())
    daemon = start_up(start, "--image", root, env={"DAYFLY_WARM_POOL": "0"})
    with connect(daemon) as client:
        with client.lease(sandbox="container") as lease:
            assert lease.call(begin) > 1
            wait_until(is_asleep, "the process begins")
        wait_until(lambda: not is_asleep(), "the lease's processes end")
        with client.lease(sandbox="container") as lease:
            assert lease.call(begin) > 1
            daemon.kill()
            wait_until(lambda: len(descendants()) <= count, "everything ends with the node")
            assert mounts() == before


def test_parked_executor_serves_next_lease_of_its_image(start: Start, small: Path, tmp_path: Path) -> None:
    other = shutil.copytree(small, tmp_path / "other")
    with connect(start_up(start, "--image", small, "--image", other)) as client:
        with client.lease(image=small, runtime="native"):
            pass
        wait_until(lambda: [name for name in descendants().values() if "dayfly-executor" in name], "one is parked")
        with client.lease(image=other, runtime="native") as lease:
            assert lease.grant["image"] == str(other)
