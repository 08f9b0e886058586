"""The PostgreSQL checkpointer under the name that LangGraph has for asynchronous code."""

from __future__ import annotations

from langgraph_ckpt.postgres import PostgresSaver


class AsyncPostgresSaver(PostgresSaver):
    """`PostgresSaver`, with an asynchronous `setup`.

    ```python
    async with AsyncPostgresSaver.from_conn_string("postgresql://agents@localhost/agents") as saver:
        await saver.setup()  # once
        graph = builder.compile(checkpointer=saver)
        await graph.ainvoke(state, {"configurable": {"thread_id": "1"}})
    ```
    """

    async def setup(self) -> None:
        """Creates or upgrades the tables. Idempotent, and safe to run from many processes concurrently."""
        await self.asetup()
