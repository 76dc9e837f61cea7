"""The plugin for narwhals, which narwhals finds by its entry point: ``narwhals.from_native(frame)``."""

from __future__ import annotations

from typing import Any

from dayfly_frames._frame import Frame
from dayfly_frames._narwhals.namespace import DayflyNamespace

#: narwhals asks the plugin about objects of this package only.
NATIVE_PACKAGE = "dayfly_frames"


def is_native(native_object: Any, /) -> bool:
    """Whether narwhals wraps the object by this plugin."""
    return isinstance(native_object, Frame)


def __narwhals_namespace__(version: Any) -> DayflyNamespace:  # noqa: N807
    """Returns what makes frames and expressions for one of narwhals' versions of its interface."""
    return DayflyNamespace(version=version)
