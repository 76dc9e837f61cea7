"""The backend for Ibis, which Ibis finds by its entry point: ``ibis.dayfly.connect(ranks=2)``."""

from dayfly_frames._ibis.backend import Backend

__all__ = ["Backend"]
