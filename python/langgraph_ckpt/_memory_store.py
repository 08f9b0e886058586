"""The store in memory."""

from __future__ import annotations

from langgraph.store.base import TTLConfig

from langgraph_ckpt import _native
from langgraph_ckpt._store import Store, StoreIndexConfig, read_index, read_ttl


class InMemoryStore(Store):
    """Keeps items in this process, for tests and for agents that need not outlive it.

    ```python
    store = InMemoryStore(index={"dims": 1536, "embed": "openai:text-embedding-3-small", "fields": ["text"]})
    store.put(("memories", "ann"), "food", {"text": "Ann likes to eat pizza"})
    store.search(("memories", "ann"), query="what does she eat?")
    ```

    Unlike LangGraph's it holds JSON, as a database does: what is read is a copy, and a value that is no JSON is refused.
    Searches are exact.

    Args:
        index: What makes searches take a query: `dims`, `embed` (LangChain's embeddings, a function or an asynchronous
            one, or `"provider:model"`), `fields` (the whole value unless set) and `distance_type`.
        ttl: How long items live unless their put says otherwise, in minutes, and whether reading them prolongs it:
            `default_ttl`, `refresh_on_read`, `sweep_interval_minutes`. What has expired is there for nobody; `omit_expired`
            changes nothing.

    Raises:
        ValueError: If the index or the lives cannot be.
    """

    def __init__(self, *, index: StoreIndexConfig | None = None, ttl: TTLConfig | None = None) -> None:
        shown, embeddings, native_index = read_index(index)
        ttl_config, default_ttl, refresh = read_ttl(ttl)
        super().__init__(_native.Store.memory(native_index, default_ttl, refresh), shown, embeddings, ttl_config)
