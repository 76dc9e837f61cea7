"""Microsoft Azure. A block is a virtual machine.

A machine that is shut down costs the same until it is deleted. So the script also has the machine deleted at the end,
with the rights of ``identity``; its network interface and disk are deleted with it. If ``identity`` is ``none`` or
lacks the right, the machine costs until the endpoint detects that it is stopped.
"""

from __future__ import annotations

import base64
import importlib
from typing import Any
from urllib.parse import quote

from .instances import Named, away
from .provider import ENDED, GONE, PENDING, RUNNING, WORDS, Job, ProviderError, RefusedError
from .rest import Response, Rest

#: Options and their types.
OPTIONS: dict[str, type] = {
    "subscription": str,
    "resource_group": str,
    "location": str,
    "vm_size": str,
    "image": str,
    "subnet": str,
    "public_ip": bool,
    "identity": str,
    "ssh_public_key": str,
    "spot": bool,
    "tags": dict,
    "endpoint": str,
    "worker_init": str,
}
ENDPOINT = "https://management.azure.com"
#: Versions of the API for machines, for networks, and for the network interfaces that machines create.
COMPUTE, NETWORK, INTERFACES = "2024-07-01", "2023-09-01", "2020-11-01"
#: Address where a machine gets a token of its identity, for the resource named at the end.
TOKEN = "http://169.254.169.254/metadata/identity/oauth2/token?api-version=2018-02-01&resource="
#: Tag that marks the machines of an endpoint.
OWNER = "dayfly"
#: User name for logins with the SSH key.
PERSON = "dayfly"
#: Error codes of a machine or resource group that does not exist.
ABSENT = ("ResourceNotFound", "ResourceGroupNotFound", "NotFound")
POWER = {
    "starting": PENDING,
    "running": RUNNING,
    "stopping": ENDED,
    "stopped": ENDED,
    "deallocating": ENDED,
    "deallocated": ENDED,
}


class Azure(Named):
    """Microsoft Azure, by its API."""

    libraries = ("azure.identity", "requests")
    takes = OPTIONS
    needs = ("subscription", "resource_group", "location", "vm_size", "image", "subnet")
    longest = (64 << 10) - 1

    def __init__(self, options: dict[str, Any], directory: str) -> None:
        super().__init__(options, directory)
        identity: Any = importlib.import_module("azure.identity")
        failure: Any = importlib.import_module("azure.core.exceptions").AzureError
        credential: Any = identity.DefaultAzureCredential()
        self._endpoint = options.get("endpoint", ENDPOINT).rstrip("/")
        scope = f"{self._endpoint}/.default"
        self._rest = Rest(
            self._endpoint, lambda: {"Authorization": f"Bearer {credential.get_token(scope).token}"}, failure
        )
        self._group = f"/subscriptions/{options['subscription']}/resourceGroups/{options['resource_group']}"
        self._machines = f"{self._group}/providers/Microsoft.Compute/virtualMachines"
        network, _, subnet = options["subnet"].partition("/")
        self._subnet = self._own("Microsoft.Network", f"virtualNetworks/{network}/subnets/{subnet}", options["subnet"])
        self._key = options.get("ssh_public_key") or _nobodys_key()
        # On trouble, existing machines can still be queried.
        self.trouble = self._tried()

    def _check(self) -> None:
        super()._check()
        if "identity" not in self._options:
            raise ProviderError(
                "option identity is needed: a managed identity that may delete virtual machines in the resource group, "
                "as which they end themselves; or none, and they cost until the endpoint sees that they are over"
            )

    def _own(self, of: str, path: str, given: str) -> str:
        """Returns the id of a resource in the resource group, or the given id."""
        return given if given.startswith("/") else f"{self._group}/providers/{of}/{path}"

    def _tried(self) -> str:
        """Returns why such machines are refused, if known, and deletes machines of an earlier process."""
        try:
            self._script("true", 60)
            response = self._rest.ask("GET", self._subnet.lstrip("/"), {"api-version": NETWORK})
            if not response.is_granted and not response.is_busy:
                return response.words
            page, query, left = self._machines.lstrip("/"), {"api-version": COMPUTE}, []
            while page:
                listed = self._rest.must("GET", page, query)
                left += [one["name"] for one in listed["value"] if one.get("tags", {}).get(OWNER) == self._owner]
                # The address contains the whole query.
                page, query = listed.get("nextLink", "").removeprefix(f"{self._endpoint}/"), {}
            self._ask(left)
        except (ProviderError, RefusedError) as error:
            return str(error)
        return ""

    def _away(self, job: str) -> str:
        if self._options["identity"] == "none":
            return ""
        resource = quote(f"{self._endpoint}/", safe="")
        return away("Metadata: true", TOKEN + resource, f"{self._endpoint}{self._machines}/{job}?api-version={COMPUTE}")

    def _make(self, job: str, script: str, walltime_s: float) -> Response:
        del walltime_s
        options = self._options
        address: dict[str, Any] = {"primary": True, "subnet": {"id": self._subnet}}
        if options.get("public_ip"):
            properties = {"deleteOption": "Delete", "publicIPAllocationMethod": "Static"}
            address["publicIPAddressConfiguration"] = {
                "name": job,
                "sku": {"name": "Standard"},
                "properties": properties,
            }
        interface = {
            "primary": True,
            "deleteOption": "Delete",
            "ipConfigurations": [{"name": job, "properties": address}],
        }
        key = {"path": f"/home/{PERSON}/.ssh/authorized_keys", "keyData": self._key}
        machine: dict[str, Any] = {
            "hardwareProfile": {"vmSize": options["vm_size"]},
            "storageProfile": {
                "imageReference": _image(options["image"]),
                "osDisk": {"createOption": "FromImage", "deleteOption": "Delete"},
            },
            "osProfile": {
                "computerName": job,
                "adminUsername": PERSON,
                # Not `userData`, which every process on the machine can read.
                "customData": base64.b64encode(script.encode()).decode(),
                "linuxConfiguration": {"disablePasswordAuthentication": True, "ssh": {"publicKeys": [key]}},
            },
            "networkProfile": {
                "networkApiVersion": INTERFACES,
                "networkInterfaceConfigurations": [{"name": job, "properties": interface}],
            },
        }
        if options.get("spot"):
            machine |= {"priority": "Spot", "evictionPolicy": "Delete", "billingProfile": {"maxPrice": -1}}
        tags = options.get("tags", {})
        request: dict[str, Any] = {
            "location": options["location"],
            "tags": {**{str(key): str(tags[key]) for key in tags}, OWNER: self._owner},
            "properties": machine,
        }
        if (name := options["identity"]) != "none":
            identity = self._own("Microsoft.ManagedIdentity", f"userAssignedIdentities/{name}", name)
            request["identity"] = {"type": "UserAssigned", "userAssignedIdentities": {identity: {}}}
        return self._rest.ask("PUT", self._path(job), {"api-version": COMPUTE}, request)

    def _path(self, job: str) -> str:
        return f"{self._machines}/{job}".lstrip("/")

    def _is_there(self, response: Response) -> bool:
        # Creating an existing machine again has no effect.
        return False

    def _look(self, jobs: list[str]) -> dict[str, Job]:
        found = {}
        for job in jobs:
            response = self._rest.ask("GET", self._path(job), {"api-version": COMPUTE, "$expand": "instanceView"})
            if response.is_granted:
                found[job] = _how(response.body["properties"])
            elif response.status != 404 or response.code not in ABSENT:
                raise ProviderError(response.words)
        return found

    def _delete(self, job: str) -> bool:
        response = self._rest.ask("DELETE", self._path(job), {"api-version": COMPUTE})
        absent = response.status == 204 or (response.status == 404 and response.code in ABSENT)
        if not response.is_granted and not absent:
            raise ProviderError(response.words)
        return not absent


def _how(machine: dict[str, Any]) -> Job:
    """Returns the state of a machine. A running one may count as failed, because Azure waits for an agent on it."""
    found = {"power": ("", ""), "provisioning": ("", "")}
    for status in machine.get("instanceView", {}).get("statuses", []):
        what, _, state = status["code"].partition("/")
        found[what.lower().removesuffix("state")] = state, status.get("message") or status.get("displayStatus", "")
    (power, still), (provisioning, words) = found["power"], found["provisioning"]
    if machine.get("provisioningState") == "Deleting":
        return GONE
    if power in POWER:
        return Job(POWER[power], still[:WORDS] if POWER[power] == ENDED else "")
    if machine.get("provisioningState") == "Failed":
        return Job(ENDED, f"{words} ({provisioning.rpartition('/')[2]})"[:WORDS])
    return Job(PENDING)


def _image(image: str) -> dict[str, str]:
    """Returns the reference to an image, by its id, its id in a gallery, or as publisher:offer:sku:version."""
    if image.startswith("/CommunityGalleries/"):
        return {"communityGalleryImageId": image}
    if image.startswith("/SharedGalleries/"):
        return {"sharedGalleryImageId": image}
    parts = image.split(":")
    if len(parts) == 4:
        return dict(zip(("publisher", "offer", "sku", "version"), parts, strict=True))
    return {"id": image}


def _nobodys_key() -> str:
    """Returns a public key whose private key is discarded. Azure requires one."""
    rsa: Any = importlib.import_module("cryptography.hazmat.primitives.asymmetric.rsa")
    forms: Any = importlib.import_module("cryptography.hazmat.primitives.serialization")
    public = rsa.generate_private_key(public_exponent=65537, key_size=2048).public_key()
    return str(public.public_bytes(forms.Encoding.OpenSSH, forms.PublicFormat.OpenSSH).decode())
