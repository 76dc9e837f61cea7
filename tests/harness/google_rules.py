"""The instances that the fake of Compute Engine accepts, according to the documentation of the real one."""

from __future__ import annotations

import re
from typing import Any

from harness.api import InvalidError, RefusedError, checked

PROJECT, ZONE, MACHINE, IMAGE = (
    "tests-123",
    "europe-west3-a",
    "e2-small",
    "projects/debian-cloud/global/images/family/x",
)
#: The client, and the service account of instances.
PERSON, ACCOUNT = (f"{name}@{PROJECT}.iam.gserviceaccount.com" for name in ("person", "nodes"))
NAME = r"(?:[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?)"
#: The known part of the shape of a request for an instance.
SHAPE = {
    "name!": str,
    "machineType!": str,
    "labels": {"*": str},
    "disks!": [{"boot": bool, "autoDelete": bool, "initializeParams": {"sourceImage": str, "diskSizeGb": str}}],
    "networkInterfaces!": [{"network": str, "subnetwork": str, "accessConfigs": [{"type": str, "name": str}]}],
    "metadata": {"items": [{"key!": str, "value": str}]},
    "scheduling": {
        "automaticRestart": bool,
        "provisioningModel": str,
        "onHostMaintenance": str,
        "maxRunDuration": {"seconds": str, "nanos": int},
        "instanceTerminationAction": str,
    },
    "serviceAccounts": [{"email": str, "scopes": [str]}],
}


def refused(status: int, reason: str, words: str) -> RefusedError:
    """Returns the error for a refused request."""
    errors = [{"message": words, "domain": "global", "reason": reason}]
    return RefusedError(status, {"error": {"code": status, "message": words, "errors": errors}})


def invalid(field: str, why: str) -> RefusedError:
    """Returns the error for an invalid field."""
    return refused(400, "invalid", f"Invalid value for field '{field}': {why}")


def judge(body: dict[str, Any]) -> None:
    """Refuses a request that Google would refuse."""
    try:
        checked(body, SHAPE, "resource")
    except InvalidError as error:
        where, why = error.args
        raise refused(400, "badRequest", f"Invalid JSON payload received at '{where}': {why}") from None
    if not re.fullmatch(NAME, body["name"]):
        raise invalid("resource.name", f"'{body['name']}'. Must be a match of regex '{NAME}'")
    for key, value in body.get("labels", {}).items():
        if not re.fullmatch(r"[a-z][a-z0-9_-]{0,62}", key) or not re.fullmatch(r"[a-z0-9_-]{0,63}", value):
            raise invalid("resource.labels", f"'{key}={value}'. Labels are of lowercase letters, digits, _ and -.")
    if body["machineType"] != f"zones/{ZONE}/machineTypes/{MACHINE}":
        raise invalid("resource.machineType", f"'{body['machineType']}'. The referenced resource does not exist.")
    if body["disks"][0]["initializeParams"]["sourceImage"] != IMAGE:
        raise refused(404, "notFound", "The resource of the image was not found")
    if body["networkInterfaces"][0].get("network", "global/networks/default") != "global/networks/default":
        raise invalid("resource.networkInterfaces[0].network", "The referenced network resource cannot be found.")
    scheduling = body.get("scheduling", {})
    if scheduling.get("provisioningModel") == "SPOT" and (
        scheduling.get("automaticRestart", True) or scheduling.get("onHostMaintenance") != "TERMINATE"
    ):
        raise invalid("resource.scheduling", "Scheduling must have no automatic restart when it is SPOT.")
    if not 30 <= int(scheduling.get("maxRunDuration", {}).get("seconds", 30)) <= 120 * 86400:
        raise invalid("resource.scheduling.maxRunDuration", "Must be between 30 seconds and 120 days.")
    if any(account["email"] != ACCOUNT for account in body.get("serviceAccounts", [])):
        raise invalid("resource.serviceAccounts", "The specified service account was not found.")
