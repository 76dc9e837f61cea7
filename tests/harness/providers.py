"""The process that starts blocks of nodes for an endpoint, with the endpoint's requests."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

from harness.leaks import die_with_parent, wait_until
from harness.programs import clean_environment

#: Prints that it has started and waits. On SIGTERM, prints that and exits after a moment. It ignores further signals:
#: `timeout` sends two, one to its child and one to its child's group.
STAYS = (
    "trap 'trap \"\" TERM; echo told $DAYFLY_RANK; sleep 0.2; exit 0' TERM; "
    "echo here $DAYFLY_RANK; while :; do sleep 0.05; done"
)


class Provider:
    """One provider process. Entering it sends the first request."""

    def __init__(self, kind: str, directory: Path, environment: dict[str, str], **options: Any) -> None:
        self.directory = directory
        self._first = {"kind": kind, "options": options, "directory": str(directory)}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "dayfly._providers"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=clean_environment(**environment),
            preexec_fn=die_with_parent,  # noqa: PLW1509 (one call, loaded before)
        )

    def say(self, line: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(line, file=self.process.stdin, flush=True)
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def ask(self, **request: Any) -> dict[str, Any]:
        return self.say(json.dumps(request))

    def begin(self) -> dict[str, Any]:
        return self.ask(**self._first)

    def submit(self, command: str = STAYS, nodes: int = 1, walltime_s: float = 600) -> dict[str, Any]:
        about = {"name": "block-1", "command": command, "nodes": nodes, "walltime_s": walltime_s}
        return self.ask(submit=about)

    def job(self, command: str = STAYS, nodes: int = 1, walltime_s: float = 600) -> str:
        answer = self.submit(command, nodes, walltime_s)
        assert list(answer) == ["job"], answer
        return str(answer["job"])

    def how(self, job: str) -> tuple[str, str]:
        answer = self.ask(status=[job])
        assert list(answer) == ["jobs"], answer
        return answer["jobs"][job]["state"], answer["jobs"][job]["words"]

    def wait_for(self, job: str, state: str, timeout: float = 30) -> str:
        wait_until(lambda: self.how(job)[0] == state, f"job {job} is {state}", timeout)
        return self.how(job)[1]

    def output(self) -> list[str]:
        """Returns the output lines of jobs, without the task numbers that Slurm adds."""
        texts = [file.read_text() for file in self.directory.glob("*.stdout")]
        return sorted(line.partition(": ")[2] or line for text in texts for line in text.splitlines())

    def wait_for_output(self, *lines: str, timeout: float = 30) -> None:
        wait_until(lambda: set(lines) <= set(self.output()), f"jobs write {lines}", timeout)

    def __enter__(self) -> Self:
        answer = self.begin()
        assert answer.keys() == {"ready", "libraries"}, answer
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Ends the process by closing its input."""
        rest, _ = self.process.communicate(timeout=20)
        assert (self.process.returncode, rest) == (0, "")
