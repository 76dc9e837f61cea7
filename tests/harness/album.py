"""The album example on real files: metadata of all files, and thumbnails of pictures."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from PIL import Image

from harness.programs import ROOT

#: Installed libraries whose files the album covers: programs, data, and some pictures.
LIBRARIES = ("matplotlib", "scipy", "skimage", "sklearn")
PROGRAM = ROOT / "examples" / "python" / "album.py"


def fill(folder: Path) -> int:
    """Copies some thousand real files into a private folder. Returns their number."""
    count = 0
    for library in LIBRARIES:
        of = Path(Image.__file__).parents[1] / library
        for file in of.rglob("*"):
            if file.is_file() and not file.is_symlink() and file.suffix != ".pyc":
                place = folder / library / file.relative_to(of)
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, place)
                count += 1
    return count


class Album:
    """One album, which several runs of the program may begin and continue."""

    def __init__(self, place: Path, environment: dict[str, str], endpoint: str) -> None:
        self.out = place / "out"
        self.files = fill(place / "files")
        assert self.files > 1_000
        self._command = [sys.executable, str(PROGRAM), str(place / "files"), "--out", str(self.out)]
        self._command += ["--endpoint", endpoint]
        self._environment = os.environ | environment

    def begin_and_die(self) -> None:
        """Starts the program and kills it halfway."""
        program = subprocess.Popen(self._command, env=self._environment, stdout=subprocess.PIPE, text=True)
        assert program.stdout is not None
        try:
            for line in program.stdout:
                if line.startswith("500 of"):
                    break
        finally:
            program.kill()
            program.stdout.close()
            program.wait(10)

    def finish(self) -> tuple[int, int, int]:
        """Runs the program to its end. Returns the numbers of tasks submitted, found from before, and found done."""
        run = subprocess.run(
            self._command, env=self._environment, capture_output=True, text=True, timeout=100, check=False
        )
        assert run.returncode == 0, run.stdout + run.stderr
        said = re.match(r"(\d+) tasks submitted to \w+, (\d+) there before, (\d+) of them done", run.stdout)
        assert said is not None, run.stdout
        return int(said[1]), int(said[2]), int(said[3])

    def check(self) -> None:
        """Asserts that the album describes every file correctly."""
        known = [json.loads(line) for line in (self.out / "metadata.jsonl").read_text().splitlines()]
        assert len({one["path"] for one in known}) == len(known) == self.files
        assert all(os.stat(one["path"]).st_size == one["bytes"] for one in known)
        pictures = [one for one in known if "size" in one]
        thumbnails = list((self.out / "thumbnails").iterdir())
        assert len(thumbnails) == len(pictures) > 10
        for thumbnail in thumbnails:
            with Image.open(thumbnail) as small:
                assert max(small.size) <= 96
