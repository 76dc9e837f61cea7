"""Data frames and SQL across workers. The package ``dayfly-frames`` has them."""

try:
    import dayfly_frames
    from dayfly_frames import *  # noqa: F403
    from dayfly_frames import _lease
except ImportError as error:
    if error.name != "dayfly_frames":
        raise
    raise ImportError(
        "frames are in the package dayfly-frames: install its wheel, which `make build` builds", name="dayfly_frames"
    ) from None

#: What `Client.frames` calls.
open_session = _lease.open_session

__all__ = dayfly_frames.__all__
