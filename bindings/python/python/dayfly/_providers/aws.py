"""Amazon EC2. A block is an instance, and the id of a job is the id of its instance.

Parsl's provider is not used: it creates its own networks, discards errors, and can only be asked by the process that
submitted.
"""

from __future__ import annotations

import hashlib
import importlib
import time
from typing import Any

from .instances import LOOKED_FOR, Cloud
from .provider import ENDED, PENDING, RUNNING, WORDS, Job, ProviderError, RefusedError

#: Options and their types.
OPTIONS: dict[str, type] = {
    "image": str,
    "instance_type": str,
    "launch_template": str,
    "region": str,
    "profile": str,
    "endpoint_url": str,
    "subnet": str,
    "security_groups": list,
    "key_name": str,
    "instance_profile": str,
    "spot": bool,
    "tags": dict,
    "worker_init": str,
}
#: Tag that identifies an instance before its id is known.
REQUEST = "dayfly:request"
STATES = {"pending": PENDING, "running": RUNNING}
#: Error codes of transient failures.
BUSY = frozenset(
    ("RequestLimitExceeded", "Throttling", "ThrottlingException", "InternalError", "InternalFailure", "Unavailable")
) | {"ServiceUnavailable"}


class Aws(Cloud):
    """Amazon EC2, by its API."""

    libraries = ("boto3",)
    takes = OPTIONS
    longest = 16 << 10

    def __init__(self, options: dict[str, Any], directory: str) -> None:
        super().__init__(options, directory)
        boto3: Any = importlib.import_module("boto3")
        self._errors: Any = importlib.import_module("botocore.exceptions")
        config: Any = importlib.import_module("botocore.config")
        try:
            session = boto3.session.Session(profile_name=options.get("profile"), region_name=options.get("region"))
            # All calls of one request must fit into the time that the endpoint waits for the response.
            self._ec2 = session.client(
                "ec2",
                endpoint_url=options.get("endpoint_url"),
                config=config.Config(
                    connect_timeout=5, read_timeout=10, retries={"mode": "standard", "total_max_attempts": 2}
                ),
            )
        except (self._errors.BotoCoreError, ValueError) as error:
            raise ProviderError(f"EC2 cannot be asked: {error}"[:WORDS]) from None
        # On trouble, existing instances can still be queried.
        self.trouble = self._tried()

    def _check(self) -> None:
        super()._check()
        for name in ("image", "instance_type"):
            if name not in self._options and "launch_template" not in self._options:
                raise ProviderError(f"option {name} is needed, or a launch_template that has it")

    def _tried(self) -> str:
        """Returns why such instances are refused, or an empty string. Uses EC2's dry run."""
        try:
            self._ec2.run_instances(**self._request("dayfly", self._script("true", 60)), DryRun=True)
        except self._errors.ClientError as error:
            wanted = error.response["Error"]["Code"] == "DryRunOperation"
            return "" if wanted or _is_busy(error) else _said(error)
        except self._errors.NoCredentialsError as error:
            return f"EC2 cannot be asked: {error}; see `aws configure`"
        except self._errors.BotoCoreError as error:
            return f"EC2 cannot be asked: {error}"[:WORDS]
        except RefusedError as error:
            return str(error)
        return ""

    def _request(self, name: str, script: str) -> dict[str, Any]:
        """Returns a request for an instance that terminates on shutdown. Idempotent, by a client token."""
        options = self._options
        token = hashlib.sha256(f"{name}\n{script}".encode()).hexdigest()
        tags = {"Name": name, **options.get("tags", {}), REQUEST: token}
        request: dict[str, Any] = {
            "MinCount": 1,
            "MaxCount": 1,
            "UserData": script,
            "ClientToken": token,
            "InstanceInitiatedShutdownBehavior": "terminate",
            # The script contains a token. IMDSv2 protects it from programs that can be made to fetch a URL.
            "MetadataOptions": {"HttpTokens": "required"},
            "TagSpecifications": [
                {"ResourceType": "instance", "Tags": [{"Key": key, "Value": str(tags[key])} for key in tags]}
            ],
        }
        given = {
            "ImageId": options.get("image"),
            "InstanceType": options.get("instance_type"),
            "SubnetId": options.get("subnet"),
            "SecurityGroupIds": options.get("security_groups"),
            "KeyName": options.get("key_name"),
        }
        request |= {key: value for key, value in given.items() if value}
        if template := options.get("launch_template"):
            by = "LaunchTemplateId" if template.startswith("lt-") else "LaunchTemplateName"
            request["LaunchTemplate"] = {by: template}
        if profile := options.get("instance_profile"):
            request["IamInstanceProfile"] = {"Arn" if profile.startswith("arn:") else "Name": profile}
        if options.get("spot"):
            once = {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}
            request["InstanceMarketOptions"] = {"MarketType": "spot", "SpotOptions": once}
        return request

    def _submit(self, name: str, command: str, nodes: int, walltime_s: float) -> str:
        del nodes
        if self._lost:
            self._ask([])
        request = self._request(name, self._script(command, walltime_s))
        try:
            (instance,) = self._ec2.run_instances(**request)["Instances"]
        except self._errors.ClientError as error:
            if not _is_busy(error):
                raise RefusedError(_said(error)) from None
            words = _said(error)
        except self._errors.ParamValidationError as error:
            raise RefusedError(str(error)[:WORDS]) from None
        except self._errors.BotoCoreError as error:
            words = str(error)[:WORDS]
        else:
            return str(instance["InstanceId"])
        # The instance may have started despite the failure.
        self._lost[request["ClientToken"]] = time.monotonic()
        raise ProviderError(words)

    def _described(self, by: str, values: list[str]) -> list[dict[str, Any]]:
        """Returns the descriptions of instances, by filters: a query by id fails for all if one is unknown."""
        found = []
        try:
            for at in range(0, len(values), 200):
                filters = [{"Name": by, "Values": values[at : at + 200]}]
                pages = self._ec2.get_paginator("describe_instances").paginate(Filters=filters)
                found += [one for page in pages for group in page["Reservations"] for one in group["Instances"]]
        except self._errors.ClientError as error:
            raise ProviderError(_said(error)) from None
        except self._errors.BotoCoreError as error:
            raise ProviderError(str(error)[:WORDS]) from None
        return found

    def _ask(self, jobs: list[str]) -> dict[str, Job]:
        self._end_lost()
        found = {}
        for instance in self._described("instance-id", jobs):
            state = STATES.get(instance["State"]["Name"], ENDED)
            words = instance.get("StateReason", {}).get("Message", "") if state == ENDED else ""
            found[str(instance["InstanceId"])] = Job(state, words[:WORDS])
        return found

    def _end_lost(self) -> None:
        """Terminates instances whose request failed without a response. The endpoint does not know them."""
        if not self._lost:
            return
        found = self._described(f"tag:{REQUEST}", list(self._lost))
        self.cancel([str(instance["InstanceId"]) for instance in found])
        for instance in found:
            for tag in instance["Tags"]:
                self._lost.pop(tag["Value"], None)
        now = time.monotonic()
        self._lost = {token: since for token, since in self._lost.items() if now - since < LOOKED_FOR}

    def cancel(self, jobs: list[str]) -> None:
        if not jobs:
            return
        try:
            self._ec2.terminate_instances(InstanceIds=jobs)
        except self._errors.ClientError as error:
            if not error.response["Error"]["Code"].startswith("InvalidInstanceID"):
                raise ProviderError(_said(error)) from None
            # An unknown instance fails the call for all. It ended long ago, or is too new to be known everywhere.
            if len(jobs) > 1:
                for job in jobs:
                    self.cancel([job])
            elif self._is_new(jobs[0]):
                raise ProviderError(_said(error)) from None
        except self._errors.BotoCoreError as error:
            raise ProviderError(str(error)[:WORDS]) from None


def _is_busy(error: Any) -> bool:
    return error.response["Error"]["Code"] in BUSY


def _said(error: Any) -> str:
    """Returns EC2's error message with its code."""
    about = error.response["Error"]
    return f"{about.get('Message', '')} ({about.get('Code', 'no code')})"[:WORDS]
