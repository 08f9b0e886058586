"""How savers and stores are closed."""

from __future__ import annotations

from types import TracebackType
from typing import TypeVar

from langgraph_ckpt._native import Cache, Saver, Store

C = TypeVar("C", bound="Closing")


class Closing:
    """What closes itself, with `with` and with `async with`."""

    _native: Saver | Store | Cache

    def close(self) -> None:
        """Waits for running calls, and releases files, threads and connections. Later calls fail. Idempotent."""
        if not self._native.closed:
            self._native.close().wait()

    async def aclose(self) -> None:
        """Closes it as `close` does. Cancelling it does not stop it."""
        if not self._native.closed:
            await self._native.close()

    def __enter__(self: C) -> C:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self: C) -> C:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()
