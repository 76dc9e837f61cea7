"""Kubernetes."""

from __future__ import annotations

import contextlib
import json
import math
from typing import Any, ClassVar

from .batch import Batch
from .provider import ENDED, PENDING, RUNNING, WORDS, Job, ProviderError, RefusedError

#: Seconds to connect, and to wait for a response.
WITHIN = (5, 20)


class Kubernetes(Batch):
    """Kubernetes. A block is a pod, and the id of a job is the name of its pod."""

    module = "parsl.providers.kubernetes.kube"
    provider = "KubernetesProvider"
    libraries = ("parsl", "kubernetes")
    several = False
    defaults: ClassVar[dict[str, Any]] = {}

    def __init__(self, options: dict[str, Any], directory: str) -> None:
        if volumes := options.get("persistent_volumes"):
            options = {**options, "persistent_volumes": [tuple(volume) for volume in volumes]}
        super().__init__(options, directory)
        # The endpoint retries itself.
        pools: Any = self._base.kube_client.api_client.rest_client.pool_manager
        pools.connection_pool_kw["retries"] = False

    def _arguments(self, nodes: int, walltime: float) -> dict[str, Any]:
        return {**self._options, "nodes_per_block": nodes}

    def _submit(self, name: str, command: str, nodes: int, walltime_s: float) -> str:
        provider = self._base
        client = provider.kube_client
        # Parsl's pods restart without limit.
        provider.kube_client = _Once(client, math.ceil(walltime_s))
        try:
            job = provider.submit(self._wrapped(command, nodes), 1, name)
        except Exception as error:
            if 400 <= getattr(error, "status", 0) < 500:
                raise RefusedError(_said(error)) from None
            raise ProviderError(_said(error)) from None
        finally:
            provider.kube_client = client
        return str(provider.resources.pop(job)["pod_name"])

    def _ask(self, jobs: list[str]) -> dict[str, Job]:
        found = {}
        for job in jobs:
            try:
                pod = self._base.kube_client.read_namespaced_pod(
                    name=job, namespace=self._base.namespace, _request_timeout=WITHIN
                )
            except Exception as error:
                if getattr(error, "status", 0) == 404:
                    continue
                raise ProviderError(_said(error)) from None
            status = pod.status
            words = status.reason or ""
            for container in status.container_statuses or ():
                for part in (container.state.waiting, container.state.terminated):
                    words = words or (part.reason if part is not None else "") or ""
            state = {"Pending": PENDING, "Succeeded": ENDED, "Failed": ENDED}.get(status.phase, RUNNING)
            found[job] = Job(state, words)
        return found

    def _cancel(self, jobs: list[str]) -> bool:
        for job in jobs:
            try:
                self._base.kube_client.delete_namespaced_pod(
                    name=job, namespace=self._base.namespace, _request_timeout=WITHIN
                )
            except Exception as error:
                if getattr(error, "status", 0) != 404:
                    raise ProviderError(_said(error)) from None
        return True


class _Once:
    """A Kubernetes client whose pods run once, and for the walltime at most."""

    def __init__(self, client: Any, seconds: int) -> None:
        self._client = client
        self._seconds = seconds

    def create_namespaced_pod(self, namespace: str, body: Any) -> Any:
        body.spec.restart_policy = "Never"
        body.spec.active_deadline_seconds = self._seconds
        return self._client.create_namespaced_pod(namespace=namespace, body=body, _request_timeout=WITHIN)


def _said(error: Exception) -> str:
    """Returns Kubernetes' reason for an error."""
    with contextlib.suppress(AttributeError, TypeError, ValueError):
        return str(json.loads(error.body)["message"])[:WORDS]  # type: ignore[attr-defined]
    return f"{type(error).__name__}: {error}"[:WORDS]
