"""Data frames and SQL across workers. The package ``dayfly-frames`` has them: ``pip install 'dayfly[frames]'``."""

try:
    import dayfly_frames
    from dayfly_frames import *  # noqa: F403
except ImportError as error:
    if error.name != "dayfly_frames":
        raise
    raise ImportError(
        "frames are in a package of their own: install it with pip install 'dayfly[frames]'", name="dayfly_frames"
    ) from None

__all__ = dayfly_frames.__all__
