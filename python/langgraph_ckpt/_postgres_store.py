"""The store in PostgreSQL."""

from __future__ import annotations

from typing import Any, TypeVar

from langgraph.store.base import TTLConfig

from langgraph_ckpt import _native
from langgraph_ckpt._store import Store, StoreIndexConfig, read_index, read_ttl

P = TypeVar("P", bound="PostgresStore")


class PostgresStore(Store):
    """Keeps items in PostgreSQL, in the very tables of LangGraph's own `PostgresStore`, with pgvector for queries.

    ```python
    index = {"dims": 1536, "embed": "openai:text-embedding-3-small", "fields": ["text"]}
    with PostgresStore.from_conn_string("postgresql://agents@localhost/agents", index=index) as store:
        store.setup()  # once
        store.put(("memories", "ann"), "food", {"text": "Ann likes to eat pizza"})
        store.search(("memories", "ann"), query="what does she eat?")
    ```

    It has a pool of connections, which the first call opens, and may be used by all threads and event loops at once. It
    belongs to the process that made it: make a new one in a child of `fork`.

    Args:
        conn_string: A URL, `postgresql://user:password@host:port/database?sslmode=verify-full`, or
            `host=localhost dbname=agents`, with libpq's parameters, `sslrootcert`, `sslcert` and `sslkey` among them. What it does
            not say comes from libpq's environment variables, such as `PGPASSWORD`; no password file is read.
        index: What makes searches take a query: `dims`, `embed` (LangChain's embeddings, a function or an asynchronous
            one, or `"provider:model"`), `fields` (the whole value unless set), `distance_type` and `ann_index_config`,
            as LangGraph's. Everybody who writes to the tables should have the same.
        ttl: How long items live unless their put says otherwise, in minutes, and whether reading them prolongs it:
            `default_ttl`, `refresh_on_read`, `sweep_interval_minutes`. What has expired is there for nobody; `omit_expired`
            changes nothing.
        schema: The schema of the tables, which `setup` creates when it is missing: the first of the role's `search_path`
            unless given here or as `schema` in the string.
        max_connections: How many connections are opened at most: 10 unless given here or as `pool_size` in the string.
        connect_timeout: How many seconds it may take to open one: 10 unless given.
        acquire_timeout: How many seconds a call waits for a free one: 30 unless given.
        statement_timeout: How many seconds one statement may run: what the server says unless given.
        pgbouncer: Whether a pooler in transaction mode is between.
        max_retries: How often a call is repeated that failed because the server restarts, a connection was cut, or another
            transaction was in the way: 5 unless given.
        filter_index: Whether `setup` makes an index for filters.
        ef_search: How many candidates a search in an hnsw index looks at, at least: 100 unless given.
        probes: How many lists a search in an ivfflat index looks at: the square root of their number unless given.

    Raises:
        ValueError: If the string or an option cannot be.
    """

    def __init__(
        self,
        conn_string: str,
        *,
        index: StoreIndexConfig | None = None,
        ttl: TTLConfig | None = None,
        schema: str | None = None,
        max_connections: int | None = None,
        connect_timeout: float | None = None,
        acquire_timeout: float | None = None,
        statement_timeout: float | None = None,
        pgbouncer: bool | None = None,
        max_retries: int | None = None,
        filter_index: bool | None = None,
        ef_search: int | None = None,
        probes: int | None = None,
    ) -> None:
        shown, embeddings, native_index = read_index(index)
        ttl_config, default_ttl, refresh = read_ttl(ttl)
        options = {
            "schema": schema,
            "max_connections": max_connections,
            "connect_timeout": connect_timeout,
            "acquire_timeout": acquire_timeout,
            "statement_timeout": statement_timeout,
            "pgbouncer": pgbouncer,
            "max_retries": max_retries,
            "filter_index": filter_index,
            "ef_search": ef_search,
            "probes": probes,
        }
        native = _native.Store.postgres(conn_string, native_index, default_ttl, refresh, options)
        super().__init__(native, shown, embeddings, ttl_config)

    @classmethod
    def from_conn_string(cls: type[P], conn_string: str, **options: Any) -> P:
        """Makes a store, which is a context manager that closes itself, with `with` and with `async with`.

        Args:
            conn_string: The database.
            **options: What the class takes.
        """
        return cls(conn_string, **options)
