"""The checkpointer in PostgreSQL."""

from __future__ import annotations

from typing import Any, Literal, TypeVar

from langgraph.checkpoint.base import get_serializable_checkpoint_metadata
from langgraph.checkpoint.serde.base import SerializerProtocol

from langgraph_ckpt import _native
from langgraph_ckpt._saver import Saver, check_conn_string

P = TypeVar("P", bound="PostgresSaver")


class PostgresSaver(Saver):
    """Keeps checkpoints in PostgreSQL, in the very tables of LangGraph's own `PostgresSaver`.

    ```python
    with PostgresSaver.from_conn_string("postgresql://agents@localhost/agents") as saver:
        saver.setup()  # once
        graph = builder.compile(checkpointer=saver)
        graph.invoke(state, {"configurable": {"thread_id": "1"}})
    ```

    It has a pool of connections, which the first call opens. Each call is one round trip. A call that fails because the
    server restarts, a connection was cut, or another transaction was in the way is repeated.

    Args:
        conn_string: A URL, `postgresql://user:password@host:port/database?sslmode=verify-full`, or
            `host=localhost dbname=agents`, with libpq's parameters, `sslrootcert`, `sslcert` and `sslkey` among them. What it does
            not say comes from libpq's environment variables, such as `PGPASSWORD`; no password file is read.
        serde: The serializer of values: LangGraph's `JsonPlusSerializer` unless given.
        cipher: Seals what is stored, below the serializer.
        schema: The schema of the tables, which `setup` creates when it is missing: the first of the role's `search_path`
            unless given here or as `schema` in the string.
        max_connections: How many connections are opened at most: 10 unless given here or as `pool_size` in the string.
        connect_timeout: How many seconds it may take to open one: 10 unless given.
        acquire_timeout: How many seconds a call waits for a free one: 30 unless given.
        statement_timeout: How many seconds one statement may run: what the server says unless given.
        pgbouncer: Whether a pooler in transaction mode is between.
        max_retries: How often a call is repeated: 5 times unless given.
        read_replica: The connection string of a replica, which may be behind, for `list`.
        compression: `"lz4"` lets `setup` choose LZ4 for large values where the server has it, `"server"` leaves it alone.

    Raises:
        ValueError: If the string or an option cannot be.
    """

    # LangGraph's own saver leaves out what old versions of it kept under `writes`.
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
        check_conn_string(conn_string, "PostgresSaver", "a URL, postgresql://user@host/database")
        native = _native.postgres_saver(
            conn_string, cipher=cipher, read_replica=read_replica, compression=compression, options=options
        )
        super().__init__(native, serde=serde, cipher=cipher)

    @classmethod
    def from_conn_string(cls: type[P], conn_string: str, **options: Any) -> P:
        """Makes a saver, which is a context manager that closes itself, with `with` and with `async with`.

        Args:
            conn_string: The database.
            **options: What the class takes.
        """
        return cls(conn_string, **options)
