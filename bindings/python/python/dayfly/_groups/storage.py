"""Stores that the ranks of a run share: their settings and their cleanup."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any

from dayfly._errors import Error

#: Environment variables for S3 that are valid on other hosts.
SETTINGS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
    "AWS_ENDPOINT",
    "AWS_ENDPOINT_URL",
    "AWS_ALLOW_HTTP",
    "AWS_VIRTUAL_HOSTED_STYLE_REQUEST",
    "AWS_UNSIGNED_PAYLOAD",
    "AWS_SERVER_SIDE_ENCRYPTION",
    "AWS_SSE_KMS_KEY_ID",
)


def is_url(place: str | os.PathLike[str]) -> bool:
    """Returns whether a location is a store rather than a directory."""
    return "://" in os.fspath(place)


def local_path(place: str | os.PathLike[str]) -> str:
    """Returns the absolute path of a directory, given with or without ``file://``; any other store unchanged."""
    text = os.fspath(place)
    if text.startswith("file://"):
        text = text.removeprefix("file://")
        if not text.startswith("/"):
            raise Error(f"file://{text} names no directory of this host; write file:///directory", "invalid_request")
    return text if is_url(text) else os.path.abspath(text)


def settings(*places: str | os.PathLike[str] | None) -> dict[str, str]:
    """Returns the environment variables that ranks need for these stores, from this process's environment."""
    if not any(place is not None and os.fspath(place).startswith("s3://") for place in places):
        return {}
    return {name: os.environ[name] for name in SETTINGS if name in os.environ}


def channel_settings(store: str | None, channel: str) -> dict[str, str]:
    """Returns the part of a group's invitation that configures its store."""
    if channel not in ("direct", "stored"):
        raise ValueError(f"channel={channel!r}: 'direct' or 'stored'")
    if store is None:
        if channel == "stored":
            raise ValueError("channel='stored' needs store=, such as 's3://bucket/prefix' or 'redis://host:6379'")
        return {}
    return {"store": store, "channel": channel}


@contextlib.contextmanager
def store_cleanup(group: Mapping[str, Any]) -> Iterator[None]:
    """On exit, deletes objects that killed ranks left in the store of their group."""
    try:
        yield
    finally:
        if "store" in group:
            from dayfly._native import clear_store

            # An unreachable store is not a failure of the run.
            with contextlib.suppress(Error):
                clear_store(group["store"], group["name"])


@contextlib.contextmanager
def environment_variables(more: Mapping[str, str]) -> Iterator[None]:
    """Sets environment variables, and restores them on exit."""
    before = {name: os.environ.get(name) for name in more}
    os.environ.update(more)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
