"""The checkpointer in memory."""

from __future__ import annotations

from langgraph.checkpoint.serde.base import SerializerProtocol

from langgraph_ckpt import _native
from langgraph_ckpt._saver import Saver


class InMemorySaver(Saver):
    """Keeps checkpoints in this process, for tests and for agents that need not outlive it.

    ```python
    graph = builder.compile(checkpointer=InMemorySaver())
    graph.invoke(state, {"configurable": {"thread_id": "1"}})
    ```

    Args:
        serde: The serializer of values: LangGraph's `JsonPlusSerializer` unless given.
    """

    def __init__(self, *, serde: SerializerProtocol | None = None) -> None:
        super().__init__(_native.memory_saver(), serde=serde)
