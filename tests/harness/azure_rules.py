"""The virtual machines that the fake of Azure accepts, according to the documentation of the real one."""

from __future__ import annotations

import base64
import binascii
import re
from typing import Any

from harness.api import InvalidError, RefusedError, checked

SUBSCRIPTION, GROUP, LOCATION = "11111111-2222-3333-4444-555555555555", "tests", "westeurope"
SIZE, IMAGE = "Standard_B1s", "Canonical:ubuntu-24_04-lts:server:latest"
IN_GROUP = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/{GROUP}"
MACHINES = f"{IN_GROUP}/providers/Microsoft.Compute/virtualMachines"
SUBNET = f"{IN_GROUP}/providers/Microsoft.Network/virtualNetworks/net/subnets/nodes"
IDENTITY = f"{IN_GROUP}/providers/Microsoft.ManagedIdentity/userAssignedIdentities/nodes"
OPERATIONS = f"/subscriptions/{SUBSCRIPTION}/providers/Microsoft.Compute/locations/{LOCATION}/operations"
ADDRESS = {
    "primary": bool,
    "subnet!": {"id!": str},
    "publicIPAddressConfiguration": {
        "name!": str,
        "sku": {"name": str, "tier": str},
        "properties": {"deleteOption": str, "publicIPAllocationMethod": str},
    },
}
INTERFACE = {"primary": bool, "deleteOption": str, "ipConfigurations!": [{"name!": str, "properties": ADDRESS}]}
#: The known part of the shape of a request for a machine.
SHAPE = {
    "location!": str,
    "tags": {"*": str},
    "identity": {"type": str, "userAssignedIdentities": {"*": {}}},
    "properties!": {
        "hardwareProfile!": {"vmSize!": str},
        "storageProfile!": {
            "imageReference": {"id": str, "publisher": str, "offer": str, "sku": str, "version": str},
            "osDisk!": {"createOption!": str, "deleteOption": str, "name": str},
        },
        "osProfile!": {
            "computerName!": str,
            "adminUsername!": str,
            "customData": str,
            "linuxConfiguration!": {
                "disablePasswordAuthentication": bool,
                "ssh": {"publicKeys": [{"path!": str, "keyData!": str}]},
            },
        },
        "networkProfile!": {
            "networkApiVersion!": str,
            "networkInterfaceConfigurations!": [{"name!": str, "properties": INTERFACE}],
        },
        "priority": str,
        "evictionPolicy": str,
        "billingProfile": {"maxPrice": int},
    },
}


def refused(status: int, code: str, words: str) -> RefusedError:
    """Returns the error for a refused request."""
    return RefusedError(status, {"error": {"code": code, "message": words}})


def judge(name: str, body: Any) -> bytes:
    """Refuses a request that Azure would refuse. Returns the script of the machine."""
    try:
        checked(body, SHAPE, "machine")
    except InvalidError as error:
        where, why = error.args
        raise refused(400, "InvalidRequestContent", f"The request content was invalid at '{where}': {why}") from None
    if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,62}[A-Za-z0-9])?", name):
        raise refused(400, "InvalidParameter", f"The entity name '{name}' is invalid according to its validation rule.")
    properties = body["properties"]
    system = properties["osProfile"]
    try:
        data = base64.b64decode(system.get("customData", ""), validate=True)
    except binascii.Error:
        raise refused(400, "InvalidParameter", "Custom data in OSProfile must be in Base64 encoding.") from None
    (key,) = system["linuxConfiguration"]["ssh"]["publicKeys"]
    image = properties["storageProfile"]["imageReference"]
    (interface,) = properties["networkProfile"]["networkInterfaceConfigurations"]
    (address,) = interface["properties"]["ipConfigurations"]
    for wrong, code, words in (
        (len(data) > 65535, "InvalidParameter", "Custom data in OSProfile is too long."),
        (
            key["path"] != f"/home/{system['adminUsername']}/.ssh/authorized_keys",
            "InvalidParameter",
            "The path of the key.",
        ),
        (
            not key["keyData"].startswith(("ssh-rsa AAAA", "ssh-ed25519 AAAA")),
            "InvalidParameter",
            "The key is no public key.",
        ),
        (
            body["location"] != LOCATION,
            "LocationNotAvailableForResourceType",
            f"The location {body['location']} is not available.",
        ),
        (
            properties["hardwareProfile"]["vmSize"] != SIZE,
            "InvalidParameter",
            "The value provided for the VM size is not valid.",
        ),
        (":".join(image.values()) != IMAGE, "PlatformImageNotFound", "The platform image is not available."),
        (
            address["properties"]["subnet"]["id"] != SUBNET,
            "InvalidResourceReference",
            "Resource of the subnet was not found.",
        ),
        (
            set(body.get("identity", {}).get("userAssignedIdentities", {})) - {IDENTITY},
            "FailedIdentityOperation",
            "No such identity.",
        ),
        (
            "evictionPolicy" in properties and properties.get("priority") != "Spot",
            "InvalidParameter",
            "evictionPolicy needs Spot.",
        ),
    ):
        if wrong:
            raise refused(400, code, words)
    return data
