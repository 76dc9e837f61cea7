"""A fake of Kubernetes. Its pods are processes that run the commands of their containers."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import threading
import time
from pathlib import Path
from typing import Any

from harness.api import Api, RefusedError, Reply, Request
from harness.machines import Machines


def unavailable() -> str | None:
    """Returns why the fake is unavailable, or None."""
    if importlib.util.find_spec("parsl") is None or importlib.util.find_spec("kubernetes") is None:
        return "Parsl or the client of Kubernetes is not installed: pip install -r requirements-dev.txt"
    if os.geteuid() != 0:
        return "hiding files from pods needs root"
    return None


def _refused(status: int, words: str) -> RefusedError:
    said = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": words, "code": status}
    return RefusedError(status, said)


class Kubernetes(Api):
    """A cluster with ``room`` pods in each namespace. ``hidden`` is a directory that pods do not see."""

    def __init__(self, directory: Path, hidden: Path, room: int = 4) -> None:
        self.machines = Machines(directory, hidden)
        self.room = room
        #: Pods and their creation times, by namespace and name.
        self.pods: dict[tuple[str, str], tuple[dict[str, Any], float]] = {}
        self._lock = threading.Lock()
        super().__init__()
        self._config = directory / "config"
        user, cluster_name = {"name": "tests", "user": {"token": "secret"}}, "here"
        about = {"server": self.url}
        context = {"name": "here", "context": {"cluster": cluster_name, "user": "tests"}}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "here",
            "clusters": [{"name": cluster_name, "cluster": about}],
            "contexts": [context],
            "users": [user],
        }
        self._config.write_text(json.dumps(config))

    def environment(self) -> dict[str, str]:
        """The environment variables that select this cluster."""
        return {"KUBECONFIG": str(self._config)}

    def output(self, pod: str) -> list[str]:
        """Returns the lines that a pod has printed so far."""
        return self.machines.output(pod)

    def names(self) -> list[str]:
        """Returns the names of all pods."""
        with self._lock:
            return [name for _, name in self.pods]

    def stop(self) -> None:
        """Stops the cluster and all its pods."""
        super().stop()
        self.machines.close()

    def answer(self, request: Request) -> Any:
        """Returns the response to a request."""
        verb = request.method
        found = re.fullmatch(r"/api/v1/namespaces/([a-z-]+)/pods(?:/([a-z0-9.-]+))?", request.path)
        if found is None:
            raise _refused(404, "the server could not find the requested resource")
        namespace, name = found.groups()
        with self._lock:
            if verb == "POST":
                return Reply(201, self._create(namespace, request.json()), {})
            if (namespace, name) not in self.pods:
                raise _refused(404, f'pods "{name}" not found')
            pod, since = self.pods[namespace, name]
            late = time.monotonic() - since > pod["spec"]["activeDeadlineSeconds"]
            if verb == "DELETE":
                del self.pods[namespace, name]
        if verb == "DELETE" or late:
            self.machines.turn_off(name)
        return pod | {"status": self._status(name, late)}

    def _create(self, namespace: str, pod: dict[str, Any]) -> Any:
        name = pod["metadata"]["name"]
        running = [pod for there, pod in self.pods if there == namespace and self.machines.ended(pod) is None]
        if len(running) >= self.room:
            raise _refused(403, f'pods "{name}" is forbidden: exceeded quota: pods={self.room}')
        (container,) = pod["spec"]["containers"]
        # A pod that restarts is not a batch job.
        assert pod["spec"]["restartPolicy"] == "Never"
        self.pods[namespace, name] = pod, time.monotonic()
        self.machines.boot(name, [*container["command"], *container["args"]])
        return pod | {"status": {"phase": "Pending"}}

    def _status(self, name: str, late: bool) -> dict[str, Any]:
        ended = self.machines.ended(name)
        if late:
            return {"phase": "Failed", "reason": "DeadlineExceeded"}
        if ended is None:
            return {"phase": "Running"}
        return {"phase": "Failed" if ended else "Succeeded"}
