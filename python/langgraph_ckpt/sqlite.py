"""The checkpointer in a SQLite file."""

from __future__ import annotations

import os
from typing import Any, Literal, TypeVar

from langgraph.checkpoint.serde.base import SerializerProtocol, maybe_add_typed_methods
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from langgraph_ckpt import _native
from langgraph_ckpt._saver import Saver, check_conn_string

S = TypeVar("S", bound="SqliteSaver")


class SqliteSaver(Saver):
    """Keeps checkpoints in a SQLite file, in the very tables of LangGraph's own `SqliteSaver`.

    ```python
    with SqliteSaver.from_conn_string("agents.sqlite") as saver:
        graph = builder.compile(checkpointer=saver)
        graph.invoke(state, {"configurable": {"thread_id": "1"}})
    ```

    Other processes may use the file at the same time, with this class or with LangGraph's. The tables are made by the first call. Writes that wait for each other are committed together; what was acknowledged is in the file. With
    LangGraph's `EncryptedSerializer` as `serde` its own saver reads the file with the same key.

    In one process, do not have the file open here and in Python's `sqlite3` (or LangGraph's own saver) at the same time:
    close one before the other opens it. They are two copies of SQLite, which within a process do not see each other's
    locks, and whichever closes first may remove the log that the other still uses.

    Args:
        conn_string: The path of the file; `sqlite:PATH` is the same.
        serde: The serializer of values: LangGraph's `JsonPlusSerializer` unless given.
        cipher: Seals what is stored, below the serializer.
        busy_timeout: How many seconds a call waits for the lock of another connection: 5 unless given.
        synchronous: When a commit is on the disk: `"full"` waits for it, with `"normal"` the last commits may be missing
            after a power failure.
        readers: How many threads read at the same time: 4 unless given.
        read_only: Never writes.

    Raises:
        ValueError: If the path or an option cannot be.
    """

    def __init__(
        self,
        conn_string: str | os.PathLike[str],
        *,
        serde: SerializerProtocol | None = None,
        cipher: _native.Cipher | None = None,
        busy_timeout: float | None = None,
        synchronous: Literal["full", "normal"] | None = None,
        readers: int | None = None,
        read_only: bool = False,
    ) -> None:
        options = {
            "busy_timeout": busy_timeout,
            "synchronous": synchronous,
            "readers": readers,
            "read_only": read_only,
        }
        path = _path(conn_string)
        # What is read without a serializer is LangGraph's own MessagePack.
        serde = maybe_add_typed_methods(serde or self.serde)
        plain = type(serde) is JsonPlusSerializer and not serde.pickle_fallback
        native = _native.sqlite_saver(path, reader=None if plain else serde, cipher=cipher, options=options)
        super().__init__(native, serde=serde, cipher=cipher)

    @classmethod
    def from_conn_string(cls: type[S], conn_string: str | os.PathLike[str], **options: Any) -> S:
        """Makes a saver, which is a context manager that closes itself, with `with` and with `async with`.

        Args:
            conn_string: The path of the file.
            **options: What the class takes.
        """
        return cls(conn_string, **options)


def _path(conn_string: str | os.PathLike[str]) -> str:
    path = os.fspath(conn_string) if isinstance(conn_string, os.PathLike) else conn_string
    path = check_conn_string(path, "SqliteSaver", "the path of a file")
    if path.startswith("sqlite:"):
        path = path.removeprefix("sqlite:").removeprefix("//")
    if path == ":memory:":
        raise ValueError("SqliteSaver keeps a file, whose path it takes; use InMemorySaver for checkpoints in memory")
    return path
