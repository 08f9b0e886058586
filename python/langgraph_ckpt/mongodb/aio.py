"""The MongoDB checkpointer under the name that `langgraph-checkpoint-mongodb` had for asynchronous code."""

from __future__ import annotations

from langgraph_ckpt.mongodb import MongoSaver

__all__ = ["AsyncMongoDBSaver", "AsyncMongoSaver"]


class AsyncMongoSaver(MongoSaver):
    """`MongoSaver`, with an asynchronous `setup`.

    ```python
    async with AsyncMongoSaver.from_conn_string("mongodb://localhost/agents") as saver:
        graph = builder.compile(checkpointer=saver)
        await graph.ainvoke(state, {"configurable": {"thread_id": "1"}})
    ```
    """

    async def setup(self) -> None:
        """Makes collection and indexes. Idempotent, and safe to run from many processes concurrently."""
        await self.asetup()


#: LangGraph's name.
AsyncMongoDBSaver = AsyncMongoSaver
