"""The in-memory checkpointer."""

from __future__ import annotations

from langgraph.checkpoint.serde.base import SerializerProtocol

from langgraph_ckpt import _native
from langgraph_ckpt._saver import Saver


class InMemorySaver(Saver):
    """Keeps checkpoints in memory, for tests and for agents that need no durability.

    ```python
    graph = builder.compile(checkpointer=InMemorySaver())
    graph.invoke(state, {"configurable": {"thread_id": "1"}})
    ```

    Args:
        serde: The serializer of values. Defaults to LangGraph's `JsonPlusSerializer`.
        keep_last: How many checkpoints of each namespace a put keeps at least; see `retain`. All unless given.
    """

    def __init__(self, *, serde: SerializerProtocol | None = None, keep_last: int | None = None) -> None:
        super().__init__(_native.memory_saver(options={"keep_last": keep_last}), serde=serde)


#: LangGraph's other name of the class.
MemorySaver = InMemorySaver
