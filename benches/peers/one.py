"""Runs one peer: `one.py MODULE WORKERS OUTPUT`, in a separate process so that it can be stopped completely."""

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from measure import measure


def main() -> None:
    module, workers, output = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])

    def say(found: dict[str, Any]) -> None:
        partial = output.with_suffix(".part")
        partial.write_text(json.dumps(found))
        os.replace(partial, output)

    with importlib.import_module(module).start(workers) as peer:
        measure(peer, say)


if __name__ == "__main__":
    main()
