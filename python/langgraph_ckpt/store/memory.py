"""The in-memory store."""

from __future__ import annotations

from langgraph.store.base import TTLConfig

from langgraph_ckpt import _native
from langgraph_ckpt._store import Store, StoreIndexConfig, read_index, read_ttl


class InMemoryStore(Store):
    """Keeps items in memory, for tests and for agents that need no durability.

    ```python
    store = InMemoryStore(index={"dims": 1536, "embed": "openai:text-embedding-3-small", "fields": ["text"]})
    store.put(("memories", "ann"), "food", {"text": "Ann likes to eat pizza"})
    store.search(("memories", "ann"), query="what does she eat?")
    ```

    Unlike LangGraph's it stores JSON, as a database does: reads return copies, and values that are no JSON are rejected.
    Searches are exact.

    Args:
        index: Enables semantic search: `dims`, `embed` (LangChain's embeddings, a function or an async one, or
            `"provider:model"`), `fields` (the whole value by default) and `distance_type`.
        ttl: The default TTL in minutes, and whether reads refresh it: `default_ttl`, `refresh_on_read`,
            `sweep_interval_minutes`. Expired items are always invisible, so `omit_expired` is ignored.

    Raises:
        ValueError: If `index` or `ttl` is invalid.
    """

    def __init__(self, *, index: StoreIndexConfig | None = None, ttl: TTLConfig | None = None) -> None:
        shown, embeddings, native_index = read_index(index)
        ttl_config, default_ttl, refresh = read_ttl(ttl)
        super().__init__(_native.memory_store(native_index, default_ttl, refresh), shown, embeddings, ttl_config)
