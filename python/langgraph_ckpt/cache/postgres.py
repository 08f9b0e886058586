"""The PostgreSQL cache."""

from __future__ import annotations

from typing import Any, TypeVar

from langgraph.checkpoint.serde.base import SerializerProtocol

from langgraph_ckpt import _native
from langgraph_ckpt._cache import Cache, ValueT
from langgraph_ckpt._connection import Conn, Options, read_conn

P = TypeVar("P", bound="PostgresCache[Any]")


class PostgresCache(Cache[ValueT]):
    """Keeps results in PostgreSQL, in the table `result_cache`. LangGraph has no such cache.

    ```python
    with PostgresCache.from_conn_string("postgresql://agents@localhost/agents") as cache:
        cache.setup()  # once
        graph = builder.compile(cache=cache)
    ```

    It has a connection pool, which the first call opens. Each call is one round trip.

    Args:
        conn: A connection string, or a connection or pool of psycopg, as for `PostgresSaver`.
        serde: The serializer of values. Defaults to LangGraph's `JsonPlusSerializer`.
        schema: The schema of the table, which `setup` creates if it is missing. Defaults to `schema` in the string, else the
            first of the role's `search_path`.
        max_connections: The maximum size of the connection pool. Defaults to `pool_size` in the string, else 10.
        connect_timeout: The timeout for opening a connection, in seconds. Defaults to 10.
        acquire_timeout: The timeout for a free connection of the pool, in seconds. Defaults to 30.
        statement_timeout: The timeout of a statement, in seconds. Defaults to the server's.
        pgbouncer: Whether the connection goes through a pooler in transaction mode.
        max_retries: How often a call is retried. Defaults to 5.

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
        serde: SerializerProtocol | None = None,
        schema: str | None = None,
        max_connections: int | None = None,
        connect_timeout: float | None = None,
        acquire_timeout: float | None = None,
        statement_timeout: float | None = None,
        pgbouncer: bool | None = None,
        max_retries: int | None = None,
    ) -> None:
        options: Options = {
            "schema": schema,
            "max_connections": max_connections,
            "connect_timeout": connect_timeout,
            "acquire_timeout": acquire_timeout,
            "statement_timeout": statement_timeout,
            "pgbouncer": pgbouncer,
            "max_retries": max_retries,
        }
        conn_string, options = read_conn(type(self), Cache, conn, None, options)
        super().__init__(_native.postgres_cache(conn_string, {**options}), serde=serde)

    @classmethod
    def from_conn_string(cls: type[P], conn_string: str, **options: Any) -> P:
        """Creates a cache, which is a context manager for `with` and `async with`, and can be used without.

        Args:
            conn_string: The database.
            **options: The class's options.
        """
        return cls(conn_string, **options)
