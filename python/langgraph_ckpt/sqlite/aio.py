"""The SQLite checkpointer under the name that LangGraph has for asynchronous code."""

from __future__ import annotations

from langgraph_ckpt.sqlite import SqliteSaver


class AsyncSqliteSaver(SqliteSaver):
    """`SqliteSaver`, with an asynchronous `setup`.

    ```python
    async with AsyncSqliteSaver.from_conn_string("agents.sqlite") as saver:
        graph = builder.compile(checkpointer=saver)
        await graph.ainvoke(state, {"configurable": {"thread_id": "1"}})
    ```
    """

    async def setup(self) -> None:
        """Creates or upgrades the tables. Idempotent, and safe to run from many processes concurrently."""
        await self.asetup()
