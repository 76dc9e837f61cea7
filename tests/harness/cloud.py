"""Fakes of clouds, whose instances are processes that run their scripts; and of Amazon EC2, by moto."""

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

#: An image that moto provides.
IMAGE = "ami-12c6146b"


def unavailable() -> str | None:
    """Returns why the fake is unavailable, or None."""
    if importlib.util.find_spec("moto") is None or importlib.util.find_spec("boto3") is None:
        return "moto or boto3 is not installed: pip install -r requirements-dev.txt"
    if os.geteuid() != 0:
        return "hiding files from instances needs root"
    return None


class Cloud:
    """A cloud behind an API: its machines, and a thread that boots and stops them."""

    #: Name of the provider, and the name and value of the option with the address of the API.
    kind: str
    where: str
    url: str

    def __init__(self, directory: Path, hidden: Path) -> None:
        """Creates the cloud. ``hidden`` is a directory that instances do not see."""
        self.machines = Machines(directory, hidden)
        self._ends = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._operate, daemon=True)

    def begin(self) -> None:
        """Starts the thread that boots and stops machines."""
        self._thread.start()

    def end(self) -> None:
        """Stops the thread and all machines."""
        self._ends.set()
        self._thread.join(3 * GRACE)
        self.machines.close()
        if self._failure is not None:
            raise self._failure

    def _operate(self) -> None:
        """Runs the cloud behind its API, by polling."""
        try:
            while not self._ends.wait(0.05):
                self.look()
        except Exception as failure:
            self._failure = failure

    def look(self) -> None:
        """Does the due work once."""
        raise NotImplementedError

    def output(self, instance: str) -> list[str]:
        """Returns the lines that an instance has printed so far."""
        return self.machines.output(instance)

    def environment(self) -> dict[str, str]:
        """Returns the environment variables with the client's credentials."""
        raise NotImplementedError

    def options(self, **more: Any) -> dict[str, Any]:
        """Returns the options of an endpoint's instances."""
        raise NotImplementedError

    def costs(self) -> list[str]:
        """Returns the instances and other resources that cost something."""
        raise NotImplementedError

    def is_running(self, instance: str) -> bool:
        """Returns whether the API reports an instance as running."""
        raise NotImplementedError

    def asks(self, sent: bytes) -> bool:
        """Returns whether bytes sent to the API complete a request for an instance."""
        raise NotImplementedError


class Ec2(Cloud, Server):
    """A fake Amazon EC2."""

    kind, where = "aws", "endpoint_url"

    def __init__(self, directory: Path, hidden: Path) -> None:
        Cloud.__init__(self, directory, hidden)
        Server.__init__(self, directory)
        self.client = self._client()
        self.begin()

    def command(self) -> list[str]:
        return [sys.executable, "-m", "moto.server", "--host", "127.0.0.1", "--port", str(self.port)]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def environment(self) -> dict[str, str]:
        return {"AWS_ACCESS_KEY_ID": "tests", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_EC2_METADATA_DISABLED": "true"}

    def options(self, **more: Any) -> dict[str, Any]:
        about = {"image": IMAGE, "instance_type": "t3.micro", "region": "us-east-1", "endpoint_url": self.url}
        return about | more

    def instances(self) -> dict[str, dict[str, Any]]:
        """Returns the API's descriptions of all instances, including ended ones."""
        groups = self.client.describe_instances()["Reservations"]
        return {one["InstanceId"]: one for group in groups for one in group["Instances"]}

    def state(self, instance: str) -> str:
        """Returns the state of an instance, such as ``running``."""
        found: str = self.instances()[instance]["State"]["Name"]
        return found

    def costs(self) -> list[str]:
        return [one for one in self.instances() if self.state(one) != "terminated"]

    def is_running(self, instance: str) -> bool:
        return self.state(instance) == "running"

    def asks(self, sent: bytes) -> bool:
        return b"RunInstances" in sent and b"DryRun" not in sent

    def stop(self) -> None:
        self.end()
        Server.stop(self)

    def _client(self) -> Any:
        import boto3

        return boto3.session.Session(
            aws_access_key_id="tests", aws_secret_access_key="secret", region_name="us-east-1"
        ).client("ec2", endpoint_url=self.url)

    def look(self) -> None:
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
