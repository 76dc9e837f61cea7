"""A fake of Amazon's EC2: moto answers its API, and instances are processes here that do what their user data says.

They see none of the files that they are to have no part in, have an address of their own on the loopback, and end when
they shut themselves down or are terminated: then their processes are told by SIGTERM, as an operating system does.
"""

from __future__ import annotations

import base64
import importlib.util
import os
import shlex
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from harness.leaks import die_with_parent
from harness.programs import clean_environment, program
from harness.stores import Server

#: An image that moto knows.
IMAGE = "ami-12c6146b"
#: Seconds that the processes of an instance have when it ends.
GRACE = 10


def unavailable() -> str | None:
    """Why there can be none; none if there can."""
    if importlib.util.find_spec("moto") is None or importlib.util.find_spec("boto3") is None:
        return "moto or boto3 is not installed: pip install -r requirements-dev.txt"
    if os.geteuid() != 0:
        return "hiding files from instances needs root"
    return None


class Ec2(Server):
    """Such a cloud. ``hidden`` is a directory that no instance sees."""

    def __init__(self, directory: Path, hidden: Path) -> None:
        self._hidden = hidden
        self._machines: dict[str, subprocess.Popen[bytes]] = {}
        self._ends = threading.Event()
        super().__init__(directory)
        self.client = self._client()
        self._thread = threading.Thread(target=self._operate, daemon=True)
        self._thread.start()

    def command(self) -> list[str]:
        return [sys.executable, "-m", "moto.server", "--host", "127.0.0.1", "--port", str(self.port)]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def environment(self) -> dict[str, str]:
        """Who is asking."""
        return {"AWS_ACCESS_KEY_ID": "tests", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_EC2_METADATA_DISABLED": "true"}

    def options(self, **more: Any) -> dict[str, Any]:
        """What an endpoint says of its instances."""
        about = {"image": IMAGE, "instance_type": "t3.micro", "region": "us-east-1", "endpoint_url": self.url}
        return about | more

    def instances(self) -> dict[str, dict[str, Any]]:
        """What the API says of all that there were."""
        groups = self.client.describe_instances()["Reservations"]
        return {one["InstanceId"]: one for group in groups for one in group["Instances"]}

    def state(self, instance: str) -> str:
        """Such as ``running``."""
        found: str = self.instances()[instance]["State"]["Name"]
        return found

    def output(self, instance: str) -> list[str]:
        """What was written there so far, by lines."""
        log = self.directory / instance / "output"
        return log.read_text().splitlines() if log.exists() else []

    def stop(self) -> None:
        self._ends.set()
        self._thread.join(3 * GRACE)
        super().stop()

    def _client(self) -> Any:
        import boto3

        return boto3.session.Session(
            aws_access_key_id="tests", aws_secret_access_key="secret", region_name="us-east-1"
        ).client("ec2", endpoint_url=self.url)

    def _operate(self) -> None:
        """What a cloud does behind its API, which here tells of nothing by itself."""
        while not self._ends.wait(0.1):
            for name, about in self.instances().items():
                state, machine = about["State"]["Name"], self._machines.get(name)
                if state == "running" and machine is None:
                    self._machines[name] = self._boot(name)
                elif state == "running" and machine is not None and machine.poll() is not None:
                    self.client.terminate_instances(InstanceIds=[name])
                elif state == "terminated" and machine is not None:
                    self._turn_off(machine)
        # Here, because they die with the thread that started them.
        for machine in self._machines.values():
            self._turn_off(machine)

    def _boot(self, name: str) -> subprocess.Popen[bytes]:
        root = self.directory / name
        (root / "bin").mkdir(parents=True)
        value = self.client.describe_instance_attribute(InstanceId=name, Attribute="userData")["UserData"]["Value"]
        (root / "script").write_bytes(base64.b64decode(value))
        for command, does in {
            "shutdown": f'echo "shutdown $*" >> {root}/output',
            "hostname": "echo 127.0.0.1",
            "mayfly": f'exec {program()} "$@"',
        }.items():
            (root / "bin" / command).write_text(f"#!/bin/sh\n{does}\n")
            (root / "bin" / command).chmod(0o755)
        here = Path(sys.executable).parent
        environment = clean_environment(
            PATH=f"{root}/bin:{here}:{os.environ['PATH']}", HOME=str(root), TMPDIR=str(root)
        )
        hide = f"mount -t tmpfs none {shlex.quote(str(self._hidden))} && exec /bin/sh script"
        with open(root / "output", "ab") as output:
            return subprocess.Popen(
                ["unshare", "--mount", "sh", "-c", hide],
                cwd=root,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,
                preexec_fn=die_with_parent,  # noqa: PLW1509 (one call, loaded before)
            )

    def _turn_off(self, machine: subprocess.Popen[bytes]) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            if machine.poll() is None:
                self._tell(machine.pid, number)
                try:
                    machine.wait(GRACE)
                except subprocess.TimeoutExpired:
                    continue

    def _tell(self, session: int, number: int) -> None:
        """All of a session: ``timeout`` gives what it starts a group of its own."""
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if os.getsid(int(process.name)) == session:
                    os.kill(int(process.name), number)
            except ProcessLookupError:
                continue
