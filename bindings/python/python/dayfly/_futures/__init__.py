"""Futures of calls and tasks, and support for asyncio."""
