"""Google Compute Engine. A block is an instance.

Two mechanisms end an instance, even without its endpoint:

- Its script shuts it down. In the state ``TERMINATED`` it costs only its disk, until the endpoint deletes it. An
  instance whose service account has the right deletes itself and its disk.
- Google deletes it with its disk a few minutes after its walltime, in any state.

So an endpoint that never returns leaves at most the disk of an instance that shut itself down.
"""

from __future__ import annotations

import functools
import importlib
import re
import uuid
from typing import Any

from .instances import Named, away, lasts
from .provider import ENDED, PENDING, RUNNING, WORDS, Job, ProviderError, RefusedError
from .rest import WITHIN, Response, Rest

#: Options and their types.
OPTIONS: dict[str, type] = {
    "project": str,
    "zone": str,
    "machine_type": str,
    "image": str,
    "network": str,
    "subnetwork": str,
    "external_ip": bool,
    "service_account": str,
    "spot": bool,
    "labels": dict,
    "endpoint": str,
    "worker_init": str,
}
ENDPOINT = "https://compute.googleapis.com"
#: OAuth scope of the token. The rights of its account limit it further.
SCOPE = "https://www.googleapis.com/auth/cloud-platform"
#: Address where an instance gets a token of its service account.
TOKEN = "http://metadata.google.internal/computeMetadata/v1/instance/service-accounts/default/token"
#: Label that marks the instances of an endpoint.
OWNER = "dayfly"
STATES = {"PROVISIONING": PENDING, "STAGING": PENDING, "RUNNING": RUNNING, "REPAIRING": RUNNING}
#: Machine types with accelerators, which cannot migrate during host maintenance.
UNMOVED = re.compile(r"[ag]\d")


class Google(Named):
    """Google Compute Engine, by its API."""

    libraries = ("google.auth", "requests")
    takes = OPTIONS
    needs = ("zone", "machine_type", "image")
    longest = 256 << 10

    def __init__(self, options: dict[str, Any], directory: str) -> None:
        super().__init__(options, directory)
        auth: Any = importlib.import_module("google.auth")
        failure: Any = importlib.import_module("google.auth.exceptions").GoogleAuthError
        requests: Any = importlib.import_module("google.auth.transport.requests")
        try:
            credentials, project = auth.default(scopes=[SCOPE])
        except failure as error:
            words = f"Google cannot be asked: {error}; see `gcloud auth application-default login`"
            raise ProviderError(words[:WORDS]) from None
        project = options.get("project") or project
        if not project:
            raise ProviderError("option project is needed: the credentials that were found are of none")
        within = functools.partial(requests.Request(), timeout=sum(WITHIN))

        def signed() -> dict[str, str]:
            if not credentials.valid:
                credentials.refresh(within)
            headers: dict[str, str] = {}
            # Sets the token, and the project that the quota applies to.
            credentials.apply(headers)
            return headers

        self._endpoint = options.get("endpoint", ENDPOINT).rstrip("/")
        self._project = f"compute/v1/projects/{project}"
        self._zone = f"{self._project}/zones/{options['zone']}"
        self._rest = Rest(self._endpoint, signed, failure)
        # On trouble, existing instances can still be queried.
        self.trouble = self._tried()

    def _tried(self) -> str:
        """Returns why such instances are refused, if known, and deletes those of an earlier process."""
        image = _part(self._options["image"], "global/images/").rpartition("/v1/")[2]
        own = "" if image.startswith("projects/") else f"{self._project.removeprefix('compute/v1/')}/"
        try:
            self._script("true", 60)
            for what in (f"{self._zone}/machineTypes/{self._options['machine_type']}", f"compute/v1/{own}{image}"):
                response = self._rest.ask("GET", what)
                if not response.is_granted and not response.is_busy:
                    return response.words
            self._look([])
        except (ProviderError, RefusedError) as error:
            return str(error)
        return ""

    def _away(self, job: str) -> str:
        if "service_account" not in self._options:
            return ""
        return away("Metadata-Flavor: Google", TOKEN, f"{self._endpoint}/{self._zone}/instances/{job}")

    def _make(self, job: str, script: str, walltime_s: float) -> Response:
        options, spot = self._options, self._options.get("spot", False)
        network: dict[str, Any] = {}
        if subnetwork := options.get("subnetwork"):
            region = options["zone"].rpartition("-")[0]
            network["subnetwork"] = _part(subnetwork, f"regions/{region}/subnetworks/")
        if "network" in options or not subnetwork:
            network["network"] = _part(options.get("network", "default"), "global/networks/")
        if options.get("external_ip"):
            network["accessConfigs"] = [{"type": "ONE_TO_ONE_NAT", "name": "External NAT"}]
        scheduling: dict[str, Any] = {
            "automaticRestart": False,
            "provisioningModel": "SPOT" if spot else "STANDARD",
            # A margin after its own shutdown.
            "maxRunDuration": {"seconds": str(60 * (lasts(walltime_s) + 1))},
            "instanceTerminationAction": "DELETE",
        }
        if spot or UNMOVED.match(options["machine_type"]):
            scheduling["onHostMaintenance"] = "TERMINATE"
        labels = options.get("labels", {})
        request: dict[str, Any] = {
            "name": job,
            "machineType": f"zones/{options['zone']}/machineTypes/{options['machine_type']}",
            "labels": {**{str(key): str(labels[key]) for key in labels}, OWNER: self._owner},
            "disks": [
                {
                    "boot": True,
                    "autoDelete": True,
                    "initializeParams": {"sourceImage": _part(options["image"], "global/images/")},
                }
            ],
            "networkInterfaces": [network],
            "metadata": {"items": [{"key": "startup-script", "value": script}]},
            "scheduling": scheduling,
        }
        if account := options.get("service_account"):
            request["serviceAccounts"] = [{"email": account, "scopes": [SCOPE]}]
        return self._rest.ask("POST", f"{self._zone}/instances", {"requestId": _request(job)}, request)

    def _is_there(self, response: Response) -> bool:
        return response.status == 409 and response.code == "alreadyExists"

    def _look(self, jobs: list[str]) -> dict[str, Job]:
        there = {one["name"]: one for one in self._listed("instances", f'labels.{OWNER}="{self._owner}"')}
        for name, instance in there.items():
            # An ended instance that the endpoint no longer queries.
            if instance["status"] == "TERMINATED" and name not in jobs:
                self._delete(name)
        found = {job: _how(there[job]) if job in there else self._missed(job) for job in jobs}
        return {job: how for job, how in found.items() if how is not None}

    def _missed(self, job: str) -> Job | None:
        """Returns the state of an instance that the list lacks. The operation that created it has the reason."""
        made = next(iter(self._listed("operations", f'clientOperationId="{_request(job)}"')), None)
        faults = (made or {}).get("error", {}).get("errors", [])
        if faults:
            words = "; ".join(f"{fault.get('message', '')} ({fault.get('code', '')})" for fault in faults)
            return Job(ENDED, words[:WORDS])
        # Asked last, because the instance may have appeared since the list.
        response = self._rest.ask("GET", f"{self._zone}/instances/{job}")
        if response.is_granted:
            return _how(response.body)
        if response.status != 404:
            raise ProviderError(response.words)
        if made is None:
            return None
        return Job(ENDED if made.get("status") == "DONE" else PENDING)

    def _listed(self, what: str, wanted: str) -> list[dict[str, Any]]:
        found, page = [], {"filter": wanted}
        while True:
            listed = self._rest.must("GET", f"{self._zone}/{what}", page)
            found += listed.get("items", [])
            if not listed.get("nextPageToken"):
                return found
            page["pageToken"] = listed["nextPageToken"]

    def _delete(self, job: str) -> bool:
        response = self._rest.ask("DELETE", f"{self._zone}/instances/{job}")
        # An instance that is already being deleted may be not ready.
        if not response.is_granted and response.status != 404 and response.code != "resourceNotReady":
            raise ProviderError(response.words)
        return response.status != 404


def _request(job: str) -> str:
    """Returns the request id of an instance. It makes the request idempotent, and finds its operation."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, job))


def _part(name: str, below: str) -> str:
    """Returns the path of a resource, given by its name or by any path."""
    return name if "/" in name else below + name


def _how(instance: dict[str, Any]) -> Job:
    state = STATES.get(instance["status"], ENDED)
    words = instance.get("statusMessage") or (instance["status"] if state == ENDED else "")
    return Job(state, words[:WORDS] if state != RUNNING else "")
