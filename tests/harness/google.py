"""A fake of Google Compute Engine. Its instances are processes that run their scripts."""

from __future__ import annotations

import functools
import importlib.util
import itertools
import json
import os
import re
import secrets
import shutil
import threading
import time
import urllib.parse
import uuid
from pathlib import Path
from typing import Any

from harness.api import Api, RefusedError, Request
from harness.cloud import Cloud
from harness.google_rules import IMAGE, MACHINE, NAME, PERSON, PROJECT, ZONE, invalid, judge, refused


def unavailable() -> str | None:
    """Returns why the fake is unavailable, or None."""
    if importlib.util.find_spec("google") is None or importlib.util.find_spec("google.auth") is None:
        return "google-auth is not installed: pip install -r requirements-dev.txt"
    if os.geteuid() != 0:
        return "hiding files from instances needs root"
    return None


@functools.cache
def _key() -> tuple[str, str]:
    """Returns the client's private and public keys."""
    from cryptography.hazmat.primitives import serialization as forms
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    private = key.private_bytes(forms.Encoding.PEM, forms.PrivateFormat.PKCS8, forms.NoEncryption())
    public = key.public_key().public_bytes(forms.Encoding.PEM, forms.PublicFormat.SubjectPublicKeyInfo)
    return private.decode(), public.decode()


class Google(Cloud, Api):
    """A fake Compute Engine with one project and one zone."""

    kind, where = "google", "endpoint"

    def __init__(self, directory: Path, hidden: Path) -> None:
        #: Code and message of the error with which requests for instances fail, or None.
        self.fault: tuple[str, str] | None = None
        #: Whether instances may delete instances, with their service account.
        self.trusts_instances = True
        #: Entries in one page of a list.
        self.page = 500
        self.instances: dict[str, dict[str, Any]] = {}
        self.operations: list[dict[str, Any]] = []
        self._tokens: dict[str, str] = {}
        self._numbers = itertools.count(1)
        self._ahead = 0.0
        self._lock = threading.RLock()
        self._directory = directory
        Cloud.__init__(self, directory, hidden)
        Api.__init__(self)
        who = {"type": "service_account", "project_id": PROJECT, "client_email": PERSON, "client_id": "1"}
        key = {"private_key_id": "1", "private_key": _key()[0], "token_uri": f"{self.url}/token"}
        (directory / "credentials.json").write_text(json.dumps(who | key))
        self.begin()

    def environment(self) -> dict[str, str]:
        return {"GOOGLE_APPLICATION_CREDENTIALS": str(self._directory / "credentials.json")}

    def options(self, **more: Any) -> dict[str, Any]:
        return {"zone": ZONE, "machine_type": MACHINE, "image": IMAGE, "endpoint": self.url} | more

    def costs(self) -> list[str]:
        with self._lock:
            return list(self.instances)

    def is_running(self, instance: str) -> bool:
        return self.instances.get(instance, {}).get("status") == "RUNNING"

    def asks(self, sent: bytes) -> bool:
        return b"startup-script" in sent

    def stop(self) -> None:
        Api.stop(self)
        self.end()

    def pass_over(self, seconds: float) -> None:
        """Advances the cloud's clock."""
        self._ahead += seconds

    # Background activity

    def look(self) -> None:
        for name, about in list(self.instances.items()):
            status, since = about["status"], about["_since"]
            if about["_deleted"] is not None:
                if name in self.machines:
                    self.machines.turn_off(name)
                with self._lock:
                    del self.instances[name]
                    about["_made"]["status"] = about["_deleted"]["status"] = "DONE"
            elif status == "PROVISIONING":
                self._provide(name, about)
            elif status == "STAGING":
                self._boot(name, about)
            elif status == "STOPPING":
                about["status"] = "TERMINATED"
            elif status == "RUNNING" and self.machines.ended(name) is not None:
                about["status"] = "STOPPING"
            elif status == "RUNNING" and self._now() - since > float(about["scheduling"]["maxRunDuration"]["seconds"]):
                with self._lock:
                    self._delete(name, "compute.instances.terminateOnSchedule")

    def _now(self) -> float:
        return time.monotonic() + self._ahead

    def _provide(self, name: str, about: dict[str, Any]) -> None:
        with self._lock:
            if self.fault is None:
                about["status"] = "STAGING"
                return
            code, words = self.fault
            del self.instances[name]
            about["_made"]["error"] = {"errors": [{"code": code, "message": words}]}
            about["_made"] |= {"httpErrorStatusCode": 503, "httpErrorMessage": "SERVICE UNAVAILABLE", "status": "DONE"}

    def _boot(self, name: str, about: dict[str, Any]) -> None:
        script = self._directory / f"{name}.script"
        script.write_text(next(one["value"] for one in about["metadata"]["items"] if one["key"] == "startup-script"))
        # Redirect all HTTP requests of the script to this server.
        curl = f'exec {shutil.which("curl")} --connect-to ::127.0.0.1:{self.port} -H "X-Machine: {name}" "$@"'
        self.machines.boot(name, ["/bin/sh", str(script)], curl=curl)
        about |= {"status": "RUNNING", "_since": self._now()}
        about["_made"]["status"] = "DONE"

    # Requests

    def answer(self, request: Request) -> Any:
        if request.path == "/token":
            return self._token(urllib.parse.parse_qs(request.body.decode()))
        if request.path == "/computeMetadata/v1/instance/service-accounts/default/token":
            return self._instances_token(request)
        who = self._tokens.get(request.headers.get("authorization", "").removeprefix("Bearer "))
        if who is None:
            raise refused(401, "authError", "Request had invalid authentication credentials.")
        path = request.path.removeprefix("/compute/v1/")
        if path == IMAGE and request.method == "GET":
            return {"kind": "compute#image", "name": "x", "status": "READY"}
        zone = f"projects/{PROJECT}/zones/{ZONE}/"
        if path == f"{zone}machineTypes/{MACHINE}":
            return {"kind": "compute#machineType", "name": MACHINE, "zone": ZONE}
        found = re.fullmatch(f"{zone}(instances|operations)(?:/({NAME}))?", path)
        if found is None:
            raise refused(404, "notFound", f"The resource '{path}' was not found")
        with self._lock:
            return self._of_zone(who, request, *found.groups())

    def _token(self, form: dict[str, list[str]]) -> Any:
        """Returns a token for a request signed with the client's key."""
        from google.auth import jwt

        # The audience is Google's address, wherever the request was sent.
        claims = jwt.decode(form["assertion"][0], certs=_key()[1], audience="https://oauth2.googleapis.com/token")
        assert form["grant_type"] == ["urn:ietf:params:oauth:grant-type:jwt-bearer"]
        assert claims["scope"] == "https://www.googleapis.com/auth/cloud-platform"
        return self._given(str(claims["iss"]))

    def _given(self, who: str) -> dict[str, Any]:
        token = secrets.token_urlsafe()
        self._tokens[token] = who
        return {"access_token": token, "expires_in": 3599, "token_type": "Bearer"}

    def _instances_token(self, request: Request) -> Any:
        if request.headers.get("metadata-flavor") != "Google":
            raise RefusedError(403, None)
        accounts = self.instances[request.headers["x-machine"]].get("serviceAccounts")
        if not accounts:
            raise RefusedError(404, None)
        return self._given(accounts[0]["email"])

    def _of_zone(self, who: str, request: Request, what: str, name: str | None) -> Any:
        if request.method == "POST" and what == "instances" and name is None:
            return self._insert(request)
        there = self.instances if what == "instances" else {one["name"]: one for one in self.operations}
        if name is None:
            return self._list(list(there.values()), request.query)
        if name not in there:
            raise refused(
                404, "notFound", f"The resource 'projects/{PROJECT}/zones/{ZONE}/{what}/{name}' was not found"
            )
        if request.method == "DELETE":
            if who != PERSON and not self.trusts_instances:
                raise refused(403, "forbidden", f"Required 'compute.instances.delete' permission for '{name}'")
            if there[name]["_deleted"] is not None:
                raise refused(400, "resourceNotReady", f"The resource '{name}' is not ready")
            return _shown(self._delete(name, "delete"))
        return _shown(there[name])

    def _list(self, all_of: list[dict[str, Any]], query: dict[str, str]) -> Any:
        found = re.fullmatch(r'([\w.]+) *= *"([^"]*)"', query.get("filter", ""))
        if found is None:
            raise invalid("filter", f"'{query.get('filter')}'. Invalid list filter expression.")
        at = int(query.get("pageToken", 0))
        all_of = [one for one in all_of if _field(one, found[1]) == found[2]]
        said = {"items": [_shown(one) for one in all_of[at : at + self.page]]} if all_of else {}
        return said | ({"nextPageToken": str(at + self.page)} if at + self.page < len(all_of) else {})

    def _operation(self, kind: str, name: str, request: str = "") -> dict[str, Any]:
        operation: dict[str, Any] = {
            "kind": "compute#operation",
            "name": f"operation-{next(self._numbers)}",
            "operationType": kind,
            "targetLink": f"https://www.googleapis.com/compute/v1/projects/{PROJECT}/zones/{ZONE}/instances/{name}",
            "status": "RUNNING",
        }
        if request:
            operation["clientOperationId"] = request
        self.operations.append(operation)
        return operation

    def _delete(self, name: str, kind: str) -> dict[str, Any]:
        self.instances[name] |= {"status": "STOPPING", "_deleted": self._operation(kind, name)}
        deleted: dict[str, Any] = self.instances[name]["_deleted"]
        return deleted

    def _insert(self, request: Request) -> Any:
        asked = request.query.get("requestId", "")
        try:
            assert uuid.UUID(asked).int
        except (ValueError, AssertionError):
            raise invalid("requestId", f"'{asked}'. Must be a valid UUID.") from None
        for operation in self.operations:
            if operation.get("clientOperationId") == asked:
                return _shown(operation)
        body = request.json()
        judge(body)
        name = body["name"]
        if name in self.instances:
            raise refused(409, "alreadyExists", f"The resource 'projects/{PROJECT}/…/{name}' already exists")
        made = self._operation("insert", name, asked)
        hidden = {"_made": made, "_deleted": None, "_since": self._now()}
        self.instances[name] = {"kind": "compute#instance", **body, "status": "PROVISIONING", **hidden}
        return _shown(made)


def _shown(resource: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in resource.items() if not name.startswith("_")}


def _field(resource: Any, path: str) -> Any:
    for name in path.split("."):
        resource = resource.get(name, {}) if isinstance(resource, dict) else None
    return resource
