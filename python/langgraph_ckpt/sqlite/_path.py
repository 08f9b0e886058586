"""The path of the file that `SqliteSaver` was given: as text, as a path, or as Python's connection to it."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import TypeAlias

    import aiosqlite

Conn: TypeAlias = "str | os.PathLike[str] | sqlite3.Connection | aiosqlite.Connection"

#: The path of a private database in memory.
MEMORY = ":memory:"


def path_of(name: str, conn: object) -> object:
    """Returns the path of a connection's file, and warns that the connection must not be used now. Other objects are
    returned unchanged."""
    aiosqlite = sys.modules.get("aiosqlite")
    if isinstance(conn, sqlite3.Connection):
        try:
            path, is_in_transaction = _of_connection(conn), conn.in_transaction
        except sqlite3.Error as error:
            raise type(error)(f"the connection cannot be read ({error}); give {name} the path of its file") from error
    elif aiosqlite is not None and isinstance(conn, aiosqlite.Connection):
        try:
            path, is_in_transaction = _of_asynchronous(conn)
        except (ValueError, sqlite3.Error) as error:
            raise sqlite3.ProgrammingError(
                f"the connection cannot be read ({error}); await it first, or give {name} the path of its file"
            ) from error
    else:
        return conn
    if not path:
        raise ValueError(
            "the connection's database is in memory, where only this connection can see it: for a private one use "
            f"{name}.from_conn_string({MEMORY!r}), to share it use a file"
        )
    if is_in_transaction:
        raise ValueError(f"the connection is in a transaction: commit it before you give the connection to {name}")
    warnings.warn(
        f"{name} opens the connection's file with its own SQLite, whose locks Python's sqlite3 does not see: do not use "
        f"or close the connection before the saver is closed, or give {name} the path of the file instead",
        UserWarning,
        stacklevel=4,
    )
    return path


def _of_connection(conn: sqlite3.Connection) -> str:
    cursor = conn.cursor()
    # The connection's own may return anything.
    cursor.row_factory = None
    return _main(cursor.execute("PRAGMA database_list").fetchall())


def _of_asynchronous(conn: aiosqlite.Connection) -> tuple[str, bool]:
    async def read() -> tuple[str, bool]:
        async with conn.execute("PRAGMA database_list") as cursor:
            return _main([tuple(row) for row in await cursor.fetchall()]), conn.in_transaction

    # The connection has a thread of its own; so has this event loop, because the caller's is running.
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(asyncio.run, read()).result()


def _main(databases: list[Any]) -> str:
    return next((path for _, name, path in databases if name == "main"), "") or ""
