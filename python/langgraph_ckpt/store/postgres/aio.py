"""The PostgreSQL store under the name that LangGraph has for asynchronous code."""

from __future__ import annotations

import asyncio

from langgraph_ckpt.store.postgres.base import PostgresStore


class AsyncPostgresStore(PostgresStore):
    """`PostgresStore`, with the asynchronous methods under the names that they have in LangGraph's class.

    ```python
    async with AsyncPostgresStore.from_conn_string("postgresql://agents@localhost/agents") as store:
        await store.setup()  # once
        await store.aput(("memories", "ann"), "food", {"text": "Ann likes to eat pizza"})
    ```
    """

    async def setup(self) -> None:
        """Creates or upgrades the tables. Idempotent, and safe to run from many processes concurrently."""
        await self.asetup()

    async def sweep_ttl(self) -> int:  # type: ignore[override]
        """Removes expired items, and returns their number."""
        return await self.asweep_ttl()

    async def start_ttl_sweeper(  # type: ignore[override]
        self, sweep_interval_minutes: float | None = None
    ) -> asyncio.Future[None]:
        """Starts a background thread that removes expired items, until `stop_ttl_sweeper` or `aclose`."""
        return await self.astart_ttl_sweeper(sweep_interval_minutes)

    async def stop_ttl_sweeper(self, timeout: float | None = None) -> bool:  # type: ignore[override]
        """Stops the sweeper and waits for it; returns whether it has stopped, or was not running."""
        return await self.astop_ttl_sweeper(timeout)
