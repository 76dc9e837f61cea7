"""Describes every file below a folder, and makes a thumbnail of every picture, with durable tasks.

python examples/python/album.py FOLDER                        on the machine that `dayfly up` runs on
python examples/python/album.py FOLDER --endpoint cluster     on the endpoint that `dayfly endpoint setup cluster` made

You can stop it at any time: the tasks continue. Start it again, and it fetches the results and waits for the rest.
"""

import argparse
import collections
import hashlib
import json
import time
from pathlib import Path

import dayfly

SIDE = 96


def describe(path):
    """Returns the properties of a file, and a small JPEG if it is a picture."""
    import hashlib
    import io
    import mimetypes
    import os

    from PIL import Image, UnidentifiedImageError

    with open(path, "rb") as file:
        known = {
            "path": path,
            "bytes": os.stat(path).st_size,
            "sha256": hashlib.file_digest(file, "sha256").hexdigest(),
        }
    known["type"] = mimetypes.guess_type(path)[0] or "unknown"
    try:
        with Image.open(path) as picture:
            known |= {"type": f"image/{picture.format.lower()}", "size": picture.size, "mode": picture.mode}
            small = picture.convert("RGB")
            small.thumbnail((SIDE, SIDE))
            written = io.BytesIO()
            small.save(written, "JPEG")
            return known, written.getvalue()
    except (UnidentifiedImageError, OSError, ValueError):
        return known, None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--endpoint", default="local", help="where the tasks run")
    parser.add_argument("--out", type=Path, default=Path("build/album"), help="where thumbnails and metadata go")
    parser.add_argument("--most", type=int, default=5_000, help="files at most")
    given = parser.parse_args()
    found = (str(path) for path in given.folder.resolve().rglob("*") if path.is_file() and not path.is_symlink())
    files = sorted(found)[: given.most]
    # The same work has the same name, so that a second run finds its tasks.
    tag = "album-" + hashlib.sha256("\n".join([given.endpoint, *files]).encode()).hexdigest()[:12]
    (given.out / "thumbnails").mkdir(parents=True, exist_ok=True)
    begun = time.perf_counter()
    with dayfly.connect() as client:
        earlier = client.tasks(tag)
        done = earlier.counts()["done"]
        # Reading a file twice does no harm, so another node may repeat the tasks of a lost node.
        rest = client.map(
            describe, files[len(earlier) :], tag=tag, extend=True, endpoint=given.endpoint, repeatable=True
        )
        print(
            f"{len(rest)} tasks submitted to {given.endpoint}, {len(earlier)} there before, {done} of them done",
            flush=True,
        )
        kinds, pictures = collections.Counter(), 0
        with open(given.out / "metadata.jsonl", "w") as metadata:
            for number, (known, thumbnail) in enumerate(
                result for batch in (earlier, rest) for result in batch.results()
            ):
                metadata.write(json.dumps(known) + "\n")
                kinds[known["type"]] += 1
                if thumbnail is not None:
                    pictures += 1
                    (given.out / "thumbnails" / f"{number}.jpg").write_bytes(thumbnail)
                if number % 500 == 499:
                    print(f"{number + 1} of {len(files)}", flush=True)
    most = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common(3))
    print(f"{len(files)} files ({most}), {pictures} thumbnails, in {time.perf_counter() - begun:.1f} s")


if __name__ == "__main__":
    main()
