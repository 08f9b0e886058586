"""How tables are created."""

from __future__ import annotations

from collections.abc import Awaitable, Generator
from typing import Any

from langgraph_ckpt._native import Cache, Saver, Store


class Done:
    """What `setup` returns after it has finished, so that it can be awaited as well: `await saver.setup()`."""

    def __await__(self) -> Generator[Any, None, None]:
        return
        yield

    def __repr__(self) -> str:
        return "<done>"


class SettingUp:
    """What creates its tables."""

    _native: Saver | Store | Cache

    def setup(self) -> Awaitable[None]:
        """Creates or upgrades the tables. Idempotent, and safe to run from many processes concurrently.

        It has finished when it returns. It can be awaited all the same; `asetup`, and `setup` of the classes whose names
        begin with `Async`, do not block the event loop.
        """
        self._native.setup().wait()
        return Done()

    async def asetup(self) -> None:
        """Creates or upgrades the tables as `setup` does, without blocking the event loop."""
        await self._native.setup()
