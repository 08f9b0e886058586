"""The SQLite checkpointer."""

from __future__ import annotations

import os
from typing import Any, Literal, TypeVar

from langgraph.checkpoint.serde.base import SerializerProtocol, maybe_add_typed_methods
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from langgraph_ckpt import _native
from langgraph_ckpt._connection import check_conn_string
from langgraph_ckpt._saver import Saver
from langgraph_ckpt.sqlite._path import MEMORY, Conn, path_of

S = TypeVar("S", bound="SqliteSaver")


class SqliteSaver(Saver):
    """Keeps checkpoints in a SQLite file, in the tables of LangGraph's own `SqliteSaver`.

    ```python
    with SqliteSaver.from_conn_string("agents.sqlite") as saver:
        graph = builder.compile(checkpointer=saver)
        graph.invoke(state, {"configurable": {"thread_id": "1"}})
    ```

    Other processes may use the file at the same time, with this class or with LangGraph's. The first call creates the
    tables. Concurrent writes are committed together; acknowledged writes are durable. With LangGraph's
    `EncryptedSerializer` as `serde` its own saver reads the file with the same key.

    In one process, never open the file here and with Python's `sqlite3` (or LangGraph's own saver) at the same time: close
    one before the other opens it. They are two copies of SQLite, which within a process do not see each other's locks, and
    the one that closes first may delete the write-ahead log that the other still uses.

    Args:
        conn: The path of the file, or `sqlite:PATH`; `":memory:"` for a private database in memory, which lasts as long as
            the saver. Or a connection of `sqlite3` or `aiosqlite` to a file, whose path is read. Do not use or close that
            connection before the saver is closed.
        serde: The serializer of values. Defaults to LangGraph's `JsonPlusSerializer`.
        cipher: Encrypts the serialized values.
        busy_timeout: The timeout for the lock of another connection, in seconds. Defaults to 5.
        synchronous: `"full"` waits until a commit is on disk; with `"normal"` the last commits may be lost in a power
            failure.
        readers: The number of threads that read concurrently. Defaults to 4.
        read_only: Whether to open the file read-only.
        keep_last: How many checkpoints of each namespace a put keeps at least; see `retain`. All unless given.

    Raises:
        ValueError: If the path or an option is invalid.
    """

    _schemes = ("sqlite",)

    def __init__(
        self,
        conn: Conn,
        *,
        serde: SerializerProtocol | None = None,
        cipher: _native.Cipher | None = None,
        busy_timeout: float | None = None,
        synchronous: Literal["full", "normal"] | None = None,
        readers: int | None = None,
        read_only: bool = False,
        keep_last: int | None = None,
    ) -> None:
        options = {
            "busy_timeout": busy_timeout,
            "synchronous": synchronous,
            "readers": readers,
            "read_only": read_only,
            "keep_last": keep_last,
        }
        # LangGraph's own MessagePack is decoded without calling a serializer.
        serde = maybe_add_typed_methods(serde or self.serde)
        plain = type(serde) is JsonPlusSerializer and not serde.pickle_fallback
        path = self._path(conn)
        if path != MEMORY:
            native = _native.sqlite_saver(path, reader=None if plain else serde, cipher=cipher, options=options)
        elif cipher is not None or read_only:
            raise ValueError("a database in memory can be neither encrypted nor read-only; leave out cipher and read_only")
        else:
            native = _native.memory_saver(options={"keep_last": keep_last})
        super().__init__(native, serde=serde, cipher=cipher)

    @classmethod
    def from_conn_string(cls: type[S], conn_string: str | os.PathLike[str], **options: Any) -> S:
        """Creates a saver, which is a context manager for `with` and `async with`, and can be used without.

        Args:
            conn_string: The path of the file, or `":memory:"`.
            **options: The class's options.
        """
        return cls(conn_string, **options)

    @classmethod
    def _path(cls, conn: Conn) -> str:
        found = path_of(cls.__name__, conn)
        text = os.fspath(found) if isinstance(found, os.PathLike) else found
        path = check_conn_string(cls, Saver, text, "the path of a file, or a connection of sqlite3 or aiosqlite to one")
        if path.startswith("sqlite:"):
            path = path.removeprefix("sqlite:").removeprefix("//")
        return path
