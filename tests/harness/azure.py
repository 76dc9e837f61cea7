"""A fake of Microsoft Azure. Its virtual machines are processes that run their scripts."""

from __future__ import annotations

import importlib.util
import itertools
import os
import re
import secrets
import shutil
import threading
import time
from pathlib import Path
from typing import Any

from harness.api import Api, RefusedError, Reply, Request
from harness.azure_rules import GROUP, IMAGE, LOCATION, MACHINES, OPERATIONS, SIZE, SUBNET, SUBSCRIPTION, judge, refused
from harness.cloud import Cloud

#: Secret that a client sends to the token endpoint.
SECRET = "only-tests-know-it"


def unavailable() -> str | None:
    """Returns why the fake is unavailable, or None."""
    if importlib.util.find_spec("azure") is None or importlib.util.find_spec("azure.identity") is None:
        return "azure-identity is not installed: pip install -r requirements-dev.txt"
    if os.geteuid() != 0:
        return "hiding files from instances needs root"
    return None


class Azure(Cloud, Api):
    """A fake Azure with one subscription and one resource group."""

    kind, where = "azure", "endpoint"

    def __init__(self, directory: Path, hidden: Path) -> None:
        #: Code and message of the error with which new machines fail, or None.
        self.fault: tuple[str, str] | None = None
        #: Maximum number of machines.
        self.quota = 10
        #: Whether machines may delete machines, with their identity.
        self.trusts_machines = True
        #: Entries in one page of a list.
        self.page = 100
        self.there: dict[str, dict[str, Any]] = {}
        #: Network interfaces, disks and addresses, and whether each is deleted with its machine.
        self.parts: dict[str, bool] = {}
        self._tokens: dict[str, str] = {}
        self._operations: dict[str, dict[str, Any]] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.RLock()
        self._directory = directory
        Cloud.__init__(self, directory, hidden)
        Api.__init__(self)
        self.begin()

    def environment(self) -> dict[str, str]:
        found = {"IDENTITY_ENDPOINT": f"{self.url}/msi/token", "IDENTITY_HEADER": SECRET}
        return found | {"AZURE_TOKEN_CREDENTIALS": "ManagedIdentityCredential"}

    def options(self, **more: Any) -> dict[str, Any]:
        where = {"subscription": SUBSCRIPTION, "resource_group": GROUP, "location": LOCATION, "endpoint": self.url}
        return where | {"vm_size": SIZE, "image": IMAGE, "subnet": "net/nodes", "identity": "none"} | more

    def costs(self) -> list[str]:
        with self._lock:
            return [*self.there, *self.parts]

    def is_running(self, instance: str) -> bool:
        return bool(self.there.get(instance, {}).get("_power") == "running")

    def asks(self, sent: bytes) -> bool:
        return b"customData" in sent

    def stop(self) -> None:
        Api.stop(self)
        self.end()

    # Background activity

    def look(self) -> None:
        for name, about in list(self.there.items()):
            properties = about["properties"]
            if properties["provisioningState"] == "Deleting":
                if name in self.machines:
                    self.machines.turn_off(name)
                with self._lock:
                    del self.there[name]
                    for part in [part for part, goes in self.parts.items() if part.startswith(f"{name}/") and goes]:
                        del self.parts[part]
            elif properties["provisioningState"] == "Creating":
                with self._lock:
                    # The machine may have been deleted meanwhile.
                    if properties["provisioningState"] == "Creating":
                        self._place(name, about)
            elif about["_power"] == "running" and self.machines.ended(name) is not None:
                about["_power"] = "stopped"
            else:
                continue
            for operation in self._operations.values():
                if operation["_of"] == name and (name not in self.there) == (operation["_does"] == "delete"):
                    operation["status"] = "Failed" if self.fault and operation["_does"] == "create" else "Succeeded"

    def _place(self, name: str, about: dict[str, Any]) -> None:
        if self.fault is not None:
            about["properties"]["provisioningState"] = "Failed"
            about["_fault"] = self.fault
            return
        script = self._directory / f"{name}.script"
        script.write_bytes(about["_data"])
        # Redirect all HTTP requests of the script to this server.
        curl = f'exec {shutil.which("curl")} --connect-to ::127.0.0.1:{self.port} -H "X-Machine: {name}" "$@"'
        self.machines.boot(name, ["/bin/sh", str(script)], curl=curl)
        about["properties"]["provisioningState"] = "Succeeded"
        about["_power"] = "running"

    # Requests

    def answer(self, request: Request) -> Any:
        if request.path == "/msi/token":
            return self._persons_token(request)
        if request.path == "/metadata/identity/oauth2/token":
            return self._machines_token(request)
        who = self._tokens.get(request.headers.get("authorization", "").removeprefix("Bearer "))
        if who is None:
            raise refused(401, "InvalidAuthenticationToken", "The access token is invalid.")
        if not re.fullmatch(r"\d{4}-\d\d-\d\d(-preview)?", request.query.get("api-version", "")):
            raise refused(
                400, "MissingApiVersionParameter", "The api-version query parameter (?api-version=) is required."
            )
        with self._lock:
            return self._of_group(who, request)

    def _persons_token(self, request: Request) -> Any:
        """Returns a token, as Azure's App Service does for a program."""
        assert request.headers.get("x-identity-header") == SECRET
        # The audience is the address of the API, as the client uses it.
        assert re.fullmatch(r"http://127.0.0.1:\d+", request.query.pop("resource"))
        assert request.query == {"api-version": "2019-08-01"}
        return self._given("person")

    def _machines_token(self, request: Request) -> Any:
        assert request.query == {"api-version": "2018-02-01", "resource": f"{self.url}/"}
        if request.headers.get("metadata") != "true":
            raise RefusedError(
                400, {"error": "invalid_request", "error_description": "Required metadata header not specified"}
            )
        if "identity" not in self.there[request.headers["x-machine"]]:
            raise RefusedError(400, {"error": "invalid_request", "error_description": "Identity not found"})
        return self._given("nodes")

    def _given(self, who: str) -> dict[str, Any]:
        token = secrets.token_urlsafe()
        self._tokens[token] = who
        expires = str(int(time.time()) + 86399)
        return {"access_token": token, "expires_on": expires, "resource": self.url, "token_type": "Bearer"}

    def _of_group(self, who: str, request: Request) -> Any:
        path = request.path
        found = re.match("/subscriptions/([^/]+)(?:/resourceGroups/([^/]+))?", path)
        if found is None or found[1] != SUBSCRIPTION:
            raise refused(404, "SubscriptionNotFound", f"The subscription '{found and found[1]}' could not be found.")
        if found[2] not in (None, GROUP):
            raise refused(404, "ResourceGroupNotFound", f"Resource group '{found[2]}' could not be found.")
        if path == SUBNET and request.method == "GET":
            return {"id": SUBNET, "name": "nodes", "properties": {"provisioningState": "Succeeded"}}
        if path == MACHINES and request.method == "GET":
            return self._list(request)
        if path.startswith(f"{OPERATIONS}/"):
            return _shown(self._operations[path.rpartition("/")[2]])
        name = path.removeprefix(f"{MACHINES}/")
        if request.method == "PUT" and "/" not in name:
            return self._put(name, request.json())
        if name not in self.there:
            if request.method == "DELETE":
                return Reply(204, None, {})
            words = f"The Resource '{path.partition('/providers/')[2]}' under resource group '{GROUP}' was not found."
            raise refused(404, "ResourceNotFound", words)
        if request.method == "DELETE":
            return self._delete(who, name)
        return self._shown(name, request.query.get("$expand") == "instanceView")

    def _list(self, request: Request) -> Any:
        at, names = int(request.query.get("$skiptoken", 0)), list(self.there)
        said = {"value": [self._shown(name) for name in names[at : at + self.page]]}
        if at + self.page < len(names):
            said["nextLink"] = f"{self.url}{MACHINES}?api-version=2024-07-01&%24skiptoken={at + self.page}"  # type: ignore[assignment]
        return said

    def _begun(self, status: int, name: str, does: str, body: Any) -> Reply:
        """Returns a response that refers to a new asynchronous operation."""
        number = str(next(self._numbers))
        self._operations[number] = {"name": number, "status": "InProgress", "_of": name, "_does": does}
        at = f"{self.url}{OPERATIONS}/{number}?api-version=2024-07-01"
        return Reply(status, body, {"Azure-AsyncOperation": at, "Retry-After": "10"})

    def _delete(self, who: str, name: str) -> Reply:
        if who != "person" and not self.trusts_machines:
            words = f"The client has no authorization to perform 'Microsoft.Compute/virtualMachines/delete' on {name}."
            raise refused(403, "AuthorizationFailed", words)
        self.there[name]["properties"]["provisioningState"] = "Deleting"
        return self._begun(202, name, "delete", None)

    def _put(self, name: str, body: Any) -> Any:
        data = judge(name, body)
        if name in self.there:
            if body != self.there[name]["_asked"]:
                raise refused(409, "PropertyChangeNotAllowed", "Changing property 'osProfile' is not allowed.")
            return self._shown(name)
        if len(self.there) >= self.quota:
            words = f"Operation results in exceeding approved Total Regional Cores quota. Current Limit: {self.quota}"
            raise refused(409, "OperationNotAllowed", words)
        properties = body["properties"]
        interfaces = properties["networkProfile"]["networkInterfaceConfigurations"]
        for one in interfaces:
            self.parts[f"{name}/nic/{one['name']}"] = one["properties"].get("deleteOption") == "Delete"
            for address in one["properties"]["ipConfigurations"]:
                if public := address["properties"].get("publicIPAddressConfiguration"):
                    goes = public.get("properties", {}).get("deleteOption") == "Delete"
                    self.parts[f"{name}/address/{public['name']}"] = goes
        self.parts[f"{name}/disk"] = properties["storageProfile"]["osDisk"].get("deleteOption") == "Delete"
        self.there[name] = {
            "id": f"{MACHINES}/{name}",
            "name": name,
            "type": "Microsoft.Compute/virtualMachines",
            **{key: value for key, value in body.items() if key != "properties"},
            "properties": {**properties, "provisioningState": "Creating"},
            "_asked": body,
            "_data": data,
            "_power": None,
            "_fault": None,
        }
        return self._begun(201, name, "create", self._shown(name))

    def _shown(self, name: str, with_view: bool = False) -> dict[str, Any]:
        about = self.there[name]
        shown = _shown(about)
        # Azure never returns customData.
        system = {key: value for key, value in about["properties"]["osProfile"].items() if key != "customData"}
        shown["properties"] = {**about["properties"], "osProfile": system}
        if with_view:
            shown["properties"]["instanceView"] = {"statuses": self._statuses(about)}
        return shown

    def _statuses(self, about: dict[str, Any]) -> list[dict[str, str]]:
        state = about["properties"]["provisioningState"]
        found = [{"code": f"ProvisioningState/{state.lower()}", "level": "Info", "displayStatus": state}]
        if state == "Failed":
            code, words = about["_fault"]
            failed = {
                "code": f"ProvisioningState/failed/{code}",
                "level": "Error",
                "displayStatus": "Provisioning failed",
            }
            found = [failed | {"message": words}]
        if power := about["_power"]:
            found.append({"code": f"PowerState/{power}", "level": "Info", "displayStatus": f"VM {power}"})
        return found


def _shown(resource: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in resource.items() if not name.startswith("_")}
