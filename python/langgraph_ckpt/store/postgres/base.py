"""The PostgreSQL store."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, TypeVar

from langgraph.store.base import TTLConfig

from langgraph_ckpt import _native
from langgraph_ckpt._connection import Conn, Options, PoolConfig, check_conn_string, read_conn, read_pool_config
from langgraph_ckpt._store import Store, StoreIndexConfig, read_index, read_ttl

__all__ = ["PoolConfig", "PostgresStore"]

P = TypeVar("P", bound="PostgresStore")


class PostgresStore(Store):
    """Keeps items in PostgreSQL, in the tables of LangGraph's own `PostgresStore`, with pgvector for semantic search.

    ```python
    index = {"dims": 1536, "embed": "openai:text-embedding-3-small", "fields": ["text"]}
    with PostgresStore.from_conn_string("postgresql://agents@localhost/agents", index=index) as store:
        store.setup()  # once
        store.put(("memories", "ann"), "food", {"text": "Ann likes to eat pizza"})
        store.search(("memories", "ann"), query="what does she eat?")
    ```

    It has a connection pool, which the first call opens, and is safe to share between threads and event loops. It must
    not be used after `fork`: create a new one in the child.

    Args:
        conn: A URL, `postgresql://user:password@host:port/database?sslmode=verify-full`, or
            `host=localhost dbname=agents`, with libpq's parameters, including `sslrootcert`, `sslcert` and
            `sslkey`. Other parameters come from libpq's environment variables, such as `PGPASSWORD`; password files are
            not read. Or a connection or pool of psycopg: its parameters, including the password, are read once to open
            connections of this class's own. It is not used further, and what was set on it afterwards, such as a
            `search_path`, has no effect.
        pipe: Only for compatibility with LangGraph's signature: must be `None`.
        deserializer: Only for compatibility with LangGraph's signature: ignored with a warning, because values are JSON.
        index: Enables semantic search: `dims`, `embed` (LangChain's embeddings, a function or an async one, or
            `"provider:model"`), `fields` (the whole value by default), `distance_type` and `ann_index_config`, as in
            LangGraph. All writers to the same tables should have the same index.
        ttl: The default TTL in minutes, and whether reads refresh it: `default_ttl`, `refresh_on_read`,
            `sweep_interval_minutes`. Expired items are always invisible, so `omit_expired` is ignored.
        schema: The schema of the tables, which `setup` creates if it is missing. Defaults to `schema` in the string, else the
            first of the role's `search_path`.
        max_connections: The maximum size of the connection pool. Defaults to `pool_size` in the string, else 10.
        connect_timeout: The timeout for opening a connection, in seconds. Defaults to 10.
        acquire_timeout: The timeout for a free connection of the pool, in seconds. Defaults to 30.
        statement_timeout: The timeout of a statement, in seconds. Defaults to the server's.
        pgbouncer: Whether the connection goes through a pooler in transaction mode.
        max_retries: How often a call is retried that failed because the server restarts, the connection was lost, or
            another transaction conflicted. Defaults to 5.
        filter_index: Whether `setup` builds an index for filters.
        ef_search: The minimum number of candidates that a search in an hnsw index considers. Defaults to 100.
        probes: How many lists a search in an ivfflat index reads. Defaults to the square root of their number.

    Raises:
        TypeError: If `conn` is something else.
        ValueError: If the string or an option is invalid, or if the parameters of `conn` cannot be read.
        psycopg.OperationalError: If the connection or pool is closed.
    """

    _schemes = ("postgres", "postgresql")

    def __init__(
        self,
        conn: Conn,
        *,
        pipe: object = None,
        deserializer: Callable[..., dict[str, Any]] | None = None,
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
        options: Options = {
            "schema": schema,
            "max_connections": max_connections,
            "connect_timeout": connect_timeout,
            "acquire_timeout": acquire_timeout,
            "statement_timeout": statement_timeout,
            "pgbouncer": pgbouncer,
            "max_retries": max_retries,
        }
        conn_string, options = read_conn(type(self), Store, conn, pipe, options)
        if deserializer is not None:
            warnings.warn("the deserializer is ignored: values are JSON", UserWarning, stacklevel=2)
        own = {"filter_index": filter_index, "ef_search": ef_search, "probes": probes}
        native = _native.postgres_store(conn_string, native_index, default_ttl, refresh, {**options, **own})
        super().__init__(native, shown, embeddings, ttl_config)

    @classmethod
    def from_conn_string(
        cls: type[P],
        conn_string: str,
        *,
        pipeline: bool = False,
        pool_config: PoolConfig | None = None,
        index: StoreIndexConfig | None = None,
        ttl: TTLConfig | None = None,
        **options: Any,
    ) -> P:
        """Creates a store, which is a context manager for `with` and `async with`, and can be used without.

        Args:
            conn_string: The database.
            pipeline: Ignored: a batch is one round trip for each kind of operation anyway.
            pool_config: LangGraph's options of a pool: `max_size` is `max_connections`, `timeout` is `acquire_timeout`,
                `kwargs` are parameters of the connection. Others are ignored with a warning.
            index: Enables semantic search.
            ttl: The default TTL, and whether reads refresh it.
            **options: The class's other options.

        Raises:
            TypeError: If an option is unknown, or the string is none.
            ValueError: If the string or an option is invalid.
        """
        check_conn_string(cls, Store, conn_string, "a connection string")
        conn_string, found = read_pool_config(cls.__name__, conn_string, pool_config)
        return cls(conn_string, index=index, ttl=ttl, **{**found, **options})
