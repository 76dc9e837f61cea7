"""Makes thumbnails of photographs on leased workers.

python examples/apps/thumbnails.py OUT PHOTO...
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

from PIL import Image

SIDE = 200


def thumbnail(photo: bytes, side: int = SIDE) -> bytes:
    """Returns a JPEG whose longer side is at most ``side`` pixels."""
    with Image.open(io.BytesIO(photo)) as image:
        image.thumbnail((side, side))
        out = io.BytesIO()
        image.save(out, "JPEG", quality=85)
    return out.getvalue()


def main() -> None:
    import dayfly

    if len(sys.argv) < 3:
        sys.exit(__doc__)
    out, photos = Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]]
    out.mkdir(parents=True, exist_ok=True)
    with dayfly.connect() as client, client.lease(workers=2) as lease:
        made = lease.map(thumbnail, [photo.read_bytes() for photo in photos])
        for photo, small in zip(photos, made, strict=True):
            (out / f"{photo.stem}.jpg").write_bytes(small)
            print(f"{photo}: {len(small)} bytes")


if __name__ == "__main__":
    main()
