"""A fake of Amazon's EC2: moto answers its API, and instances are processes here that do what their user data says."""

from __future__ import annotations

import base64
import importlib.util
import os
import sys
import threading
from pathlib import Path
from typing import Any

from harness.machines import GRACE, Machines
from harness.stores import Server

#: An image that moto knows.
IMAGE = "ami-12c6146b"


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
        self.machines = Machines(directory, hidden)
        self._ends = threading.Event()
        self._failure: Exception | None = None
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
        return self.machines.output(instance)

    def stop(self) -> None:
        self._ends.set()
        self._thread.join(3 * GRACE)
        self.machines.close()
        super().stop()
        if self._failure is not None:
            raise self._failure

    def _client(self) -> Any:
        import boto3

        return boto3.session.Session(
            aws_access_key_id="tests", aws_secret_access_key="secret", region_name="us-east-1"
        ).client("ec2", endpoint_url=self.url)

    def _operate(self) -> None:
        """What a cloud does behind its API, which here tells of nothing by itself."""
        try:
            while not self._ends.wait(0.1):
                self._look()
        except Exception as failure:
            self._failure = failure

    def _look(self) -> None:
        for name, about in self.instances().items():
            state = about["State"]["Name"]
            if state == "running" and name not in self.machines:
                self.machines.boot(name, ["/bin/sh", self._script(name)])
            elif state == "running" and self.machines.ended(name) is not None:
                self.client.terminate_instances(InstanceIds=[name])
            elif state == "terminated" and name in self.machines:
                self.machines.turn_off(name)

    def _script(self, name: str) -> str:
        value = self.client.describe_instance_attribute(InstanceId=name, Attribute="userData")["UserData"]["Value"]
        script = self.directory / f"{name}.script"
        script.write_bytes(base64.b64decode(value))
        return str(script)
