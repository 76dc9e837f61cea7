"""Projects: directories of a user's own modules, and scripts that import them."""

from __future__ import annotations

import sys
from pathlib import Path

from harness.daemons import Daemon
from harness.programs import clean_environment, run

#: Lines of a script that print the result of a call.
DURABLE = "print(client.run({call}).result(60))"
LEASED = "with client.lease(workers=1, mode='warm') as lease: print(lease.submit({call}).result(60))"


class Project:
    """A directory of a user's own modules."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.write("helper1.py", "def f():\n    return 1\n")
        self.write("helper2.py", "import os\n\nimport helper1\n\ndef g():\n    return helper1.f()\n")

    def write(self, name: str, text: str) -> Path:
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def script(self, manager: Daemon | None, body: str, imports: str = "import helper2") -> str:
        """Runs a script with a client of the manager, or of an embedded one. Returns its output."""
        main = f"{imports}\nimport dayfly\nwith dayfly.connect() as client:\n"
        self.write("main.py", main + "".join(f"    {line}\n" for line in body.splitlines()))
        env = clean_environment() if manager is None else manager.client_environment()
        env |= {"PYTHONDONTWRITEBYTECODE": ""}
        return run(sys.executable, "main.py", env=env, cwd=self.directory).stdout.strip()
