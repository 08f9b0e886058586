"""The PostgreSQL checkpointer."""

from __future__ import annotations

import warnings
from typing import Any, Literal, TypeVar

from langgraph.checkpoint.base import get_serializable_checkpoint_metadata
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer

from langgraph_ckpt import _native
from langgraph_ckpt._connection import Conn, Options, read_conn
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
        conn: A URL, `postgresql://user:password@host:port/database?sslmode=verify-full`, or
            `host=localhost dbname=agents`, with libpq's parameters, including `sslrootcert`, `sslcert` and
            `sslkey`. Other parameters come from libpq's environment variables, such as `PGPASSWORD`; password files are
            not read. Or a connection or pool of psycopg: its parameters, including the password, are read once to open
            connections of this class's own. It is not used further, and what was set on it afterwards, such as a
            `search_path`, has no effect.
        pipe: Only for compatibility with LangGraph's signature: must be `None`.
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
        keep_last: How many checkpoints of each namespace a put keeps at least; see `retain`. All unless given.

    Raises:
        TypeError: If `conn` is something else.
        ValueError: If the string or an option is invalid, or if the parameters of `conn` cannot be read.
        psycopg.OperationalError: If the connection or pool is closed.
    """

    _schemes = ("postgres", "postgresql")

    # LangGraph's own saver omits the metadata key `writes` of its old versions.
    _metadata = staticmethod(get_serializable_checkpoint_metadata)

    def __init__(
        self,
        conn: Conn,
        pipe: object = None,
        serde: SerializerProtocol | None = None,
        *,
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
        keep_last: int | None = None,
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
        conn_string, options = read_conn(type(self), Saver, conn, pipe, options)
        native = _native.postgres_saver(
            conn_string,
            cipher=cipher,
            read_replica=read_replica,
            compression=compression,
            options={**options, "keep_last": keep_last},
        )
        super().__init__(native, serde=serde, cipher=cipher)
        if isinstance(serde, EncryptedSerializer):
            _warn_of_plain_scalars()

    @classmethod
    def from_conn_string(cls: type[P], conn_string: str, *, pipeline: bool = False, **options: Any) -> P:
        """Creates a saver, which is a context manager for `with` and `async with`, and can be used without.

        Args:
            conn_string: The database.
            pipeline: Ignored: a call is one round trip anyway.
            **options: The class's options.

        Raises:
            TypeError: If an option is unknown, or the string is none.
            ValueError: If the string or an option is invalid.
        """
        return cls(conn_string, **options)


_has_warned = False


def _warn_of_plain_scalars() -> None:
    global _has_warned
    if not _has_warned:
        _has_warned = True
        warnings.warn(
            "On PostgreSQL, LangGraph's EncryptedSerializer leaves texts, numbers and booleans that are channels of their "
            "own in clear; pass cipher=Cipher.aes() instead, with the same key, to encrypt them too",
            UserWarning,
            stacklevel=3,
        )
