"""Google's Compute Engine, where a block is an instance.

What ends an instance, whether its endpoint is there or not:

- its script, which shuts it down. It stands there as ``TERMINATED`` then, and costs what its disk does, until the
  endpoint sees that and has it deleted. One with a service account that may do so deletes itself, and its disk;
- Google, which deletes it with its disk when it has run for its walltime and a few minutes, whatever it does.

So all that may be left by an endpoint that never comes back is the disk of an instance that shut itself down.
"""

from __future__ import annotations

import functools
import importlib
import re
import uuid
from typing import Any

from .instances import Named, away, lasts
from .provider import ENDED, PENDING, RUNNING, WORDS, Job, ProviderError, RefusedError
from .rest import WITHIN, Answer, Rest

#: Options, and what they are.
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
#: What its token may be for; what it may do is said by the rights of whom it is for.
SCOPE = "https://www.googleapis.com/auth/cloud-platform"
#: Where an instance has a token of its service account.
TOKEN = "http://metadata.google.internal/computeMetadata/v1/instance/service-accounts/default/token"
#: The label by which the instances of an endpoint are known.
OWNER = "dayfly"
STATES = {"PROVISIONING": PENDING, "STAGING": PENDING, "RUNNING": RUNNING, "REPAIRING": RUNNING}
#: Kinds of machines that have accelerators, and so cannot be moved while their host is maintained.
UNMOVED = re.compile(r"[ag]\d")


class Google(Named):
    """Google's Compute Engine, by its API."""

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
            # Beside a token, whose quota it is.
            credentials.apply(headers)
            return headers

        self._endpoint = options.get("endpoint", ENDPOINT).rstrip("/")
        self._project = f"compute/v1/projects/{project}"
        self._zone = f"{self._project}/zones/{options['zone']}"
        self._rest = Rest(self._endpoint, signed, failure)
        # Those that are there are asked about all the same.
        self.trouble = self._tried()

    def _tried(self) -> str:
        """Why such instances may not be had, as far as that can be told without one; ends what an earlier life left."""
        image = _part(self._options["image"], "global/images/").rpartition("/v1/")[2]
        own = "" if image.startswith("projects/") else f"{self._project.removeprefix('compute/v1/')}/"
        try:
            self._script("true", 60)
            for what in (f"{self._zone}/machineTypes/{self._options['machine_type']}", f"compute/v1/{own}{image}"):
                answer = self._rest.ask("GET", what)
                if not answer.is_granted and not answer.is_busy:
                    return answer.words
            self._look([])
        except (ProviderError, RefusedError) as error:
            return str(error)
        return ""

    def _away(self, job: str) -> str:
        if "service_account" not in self._options:
            return ""
        return away("Metadata-Flavor: Google", TOKEN, f"{self._endpoint}/{self._zone}/instances/{job}")

    def _make(self, job: str, script: str, walltime_s: float) -> Answer:
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
            # Later than it shuts down by itself.
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

    def _is_there(self, answer: Answer) -> bool:
        return answer.status == 409 and answer.code == "alreadyExists"

    def _look(self, jobs: list[str]) -> dict[str, Job]:
        there = {one["name"]: one for one in self._listed("instances", f'labels.{OWNER}="{self._owner}"')}
        for name, instance in there.items():
            # What nobody asks for any more.
            if instance["status"] == "TERMINATED" and name not in jobs:
                self._delete(name)
        found = {job: _how(there[job]) if job in there else self._missed(job) for job in jobs}
        return {job: how for job, how in found.items() if how is not None}

    def _missed(self, job: str) -> Job | None:
        """How one is that was not in the list: what became of the request for it says why it is not there."""
        made = next(iter(self._listed("operations", f'clientOperationId="{_request(job)}"')), None)
        faults = (made or {}).get("error", {}).get("errors", [])
        if faults:
            words = "; ".join(f"{fault.get('message', '')} ({fault.get('code', '')})" for fault in faults)
            return Job(ENDED, words[:WORDS])
        # After that: it may have been there since.
        answer = self._rest.ask("GET", f"{self._zone}/instances/{job}")
        if answer.is_granted:
            return _how(answer.body)
        if answer.status != 404:
            raise ProviderError(answer.words)
        if made is None:
            return None
        return Job(ENDED if made.get("status") == "DONE" else PENDING)

    def _listed(self, what: str, wanted: str) -> list[dict[str, Any]]:
        found, page = [], {"filter": wanted}
        while True:
            said = self._rest.must("GET", f"{self._zone}/{what}", page)
            found += said.get("items", [])
            if not said.get("nextPageToken"):
                return found
            page["pageToken"] = said["nextPageToken"]

    def _delete(self, job: str) -> bool:
        answer = self._rest.ask("DELETE", f"{self._zone}/instances/{job}")
        # One that goes already may not be ready for anything else.
        if not answer.is_granted and answer.status != 404 and answer.code != "resourceNotReady":
            raise ProviderError(answer.words)
        return answer.status != 404


def _request(job: str) -> str:
    """What the request for an instance is known by: Google does it once, and finds what became of it."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, job))


def _part(name: str, below: str) -> str:
    """A part of Google's by its name alone, or by whatever path it was given with."""
    return name if "/" in name else below + name


def _how(instance: dict[str, Any]) -> Job:
    state = STATES.get(instance["status"], ENDED)
    words = instance.get("statusMessage") or (instance["status"] if state == ENDED else "")
    return Job(state, words[:WORDS] if state != RUNNING else "")
