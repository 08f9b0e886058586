"""The context manager that savers and stores share."""

from __future__ import annotations

from types import TracebackType
from typing import TypeVar

C = TypeVar("C", bound="Closing")


class Closing:
    """A context manager that closes itself, with `with` and with `async with`."""

    def close(self) -> None:
        """Closes it. Idempotent."""
        raise NotImplementedError

    async def aclose(self) -> None:
        """Closes it, as `close` does."""
        raise NotImplementedError

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
