"""The SQLite cache."""

from __future__ import annotations

import os

from langgraph.checkpoint.serde.base import SerializerProtocol

from langgraph_ckpt import _native
from langgraph_ckpt._cache import Cache, ValueT


class SqliteCache(Cache[ValueT]):
    """Keeps results in a SQLite file, in the table of LangGraph's own `SqliteCache`.

    ```python
    graph = builder.compile(cache=SqliteCache(path="cache.sqlite"))
    ```

    The first call creates the table. The file may be the one of `SqliteSaver`. In one process, do not open it with Python's
    `sqlite3` at the same time.

    Args:
        path: The path of the file, or `":memory:"` for a private database in memory.
        serde: The serializer of values. Defaults to LangGraph's `JsonPlusSerializer`.
        busy_timeout: The timeout for the lock of another connection, in seconds. Defaults to 5.

    Raises:
        ValueError: If the path or an option is invalid.
    """

    def __init__(
        self, *, path: str | os.PathLike[str], serde: SerializerProtocol | None = None, busy_timeout: float | None = None
    ) -> None:
        super().__init__(_native.sqlite_cache(os.fspath(path), {"busy_timeout": busy_timeout}), serde=serde)
