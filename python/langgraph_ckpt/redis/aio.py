"""The Redis checkpointer under the name that `langgraph-checkpoint-redis` has for asynchronous code."""

from __future__ import annotations

from langgraph_ckpt.redis import RedisSaver


class AsyncRedisSaver(RedisSaver):
    """`RedisSaver`, with an asynchronous `setup`.

    ```python
    async with AsyncRedisSaver.from_conn_string("redis://localhost:6379") as saver:
        await saver.setup()  # once
        graph = builder.compile(checkpointer=saver)
        await graph.ainvoke(state, {"configurable": {"thread_id": "1"}})
    ```
    """

    async def setup(self) -> None:
        """Prepares the key prefix. Idempotent, and safe to run from many processes concurrently."""
        await self.asetup()
