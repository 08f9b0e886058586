"""The PostgreSQL checkpointer."""

from __future__ import annotations

from typing import Any, Literal, TypeVar

from langgraph.checkpoint.base import get_serializable_checkpoint_metadata
from langgraph.checkpoint.serde.base import SerializerProtocol

from langgraph_ckpt import _native
from langgraph_ckpt._saver import Saver

P = TypeVar("P", bound="PostgresSaver")


class PostgresSaver(Saver):
    """Keeps checkpoints in PostgreSQL, in the tables of LangGraph's own `PostgresSaver`.

    ```python
    with PostgresSaver.from_conn_string("postgresql://agents@localhost/agents") as saver:
        saver.setup()  # once
        graph = builder.compile(checkpointer=saver)
        graph.invoke(state, {"configurable": {"thread_id": "1"}})
    ```

    It has a connection pool, which the first call opens. Each call is one round trip. A call that fails because the server
    restarts, the connection was lost, or another transaction conflicted is retried.

    Args:
        conn_string: A URL, `postgresql://user:password@host:port/database?sslmode=verify-full`, or
            `host=localhost dbname=agents`, with libpq's parameters, including `sslrootcert`, `sslcert` and
            `sslkey`. Other parameters come from libpq's environment variables, such as `PGPASSWORD`; password files are
            not read.
        serde: The serializer of values. Defaults to LangGraph's `JsonPlusSerializer`.
        cipher: Encrypts the serialized values.
        schema: The schema of the tables, which `setup` creates if it is missing. Defaults to `schema` in the string, else the
            first of the role's `search_path`.
        max_connections: The maximum size of the connection pool. Defaults to `pool_size` in the string, else 10.
        connect_timeout: The timeout for opening a connection, in seconds. Defaults to 10.
        acquire_timeout: The timeout for a free connection of the pool, in seconds. Defaults to 30.
        statement_timeout: The timeout of a statement, in seconds. Defaults to the server's.
        pgbouncer: Whether the connection goes through a pooler in transaction mode.
        max_retries: How often a call is retried. Defaults to 5.
        read_replica: The connection string of a replica for `list`, whose data may be stale.
        compression: With `"lz4"`, `setup` enables LZ4 for large values if the server supports it; `"server"` keeps the
            server's default.

    Raises:
        ValueError: If the string or an option is invalid.
    """

    _schemes = ("postgres", "postgresql")

    # LangGraph's own saver omits the metadata key `writes` of its old versions.
    _metadata = staticmethod(get_serializable_checkpoint_metadata)

    def __init__(
        self,
        conn_string: str,
        *,
        serde: SerializerProtocol | None = None,
        cipher: _native.Cipher | None = None,
        schema: str | None = None,
        max_connections: int | None = None,
        connect_timeout: float | None = None,
        acquire_timeout: float | None = None,
        statement_timeout: float | None = None,
        pgbouncer: bool | None = None,
        max_retries: int | None = None,
        read_replica: str | None = None,
        compression: Literal["lz4", "server"] = "lz4",
    ) -> None:
        options = {
            "schema": schema,
            "max_connections": max_connections,
            "connect_timeout": connect_timeout,
            "acquire_timeout": acquire_timeout,
            "statement_timeout": statement_timeout,
            "pgbouncer": pgbouncer,
            "max_retries": max_retries,
        }
        self._check_conn_string(conn_string, "a URL, postgresql://user@host/database")
        native = _native.postgres_saver(
            conn_string, cipher=cipher, read_replica=read_replica, compression=compression, options=options
        )
        super().__init__(native, serde=serde, cipher=cipher)

    @classmethod
    def from_conn_string(cls: type[P], conn_string: str, **options: Any) -> P:
        """Creates a saver, which is a context manager for `with` and `async with`.

        Args:
            conn_string: The database.
            **options: The class's options.
        """
        return cls(conn_string, **options)
