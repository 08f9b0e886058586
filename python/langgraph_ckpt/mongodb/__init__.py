"""The MongoDB checkpointer."""

from __future__ import annotations

from typing import Any, TypeVar

from langgraph.checkpoint.serde.base import SerializerProtocol

from langgraph_ckpt import _native
from langgraph_ckpt._connection import check_conn_string
from langgraph_ckpt._saver import Saver

M = TypeVar("M", bound="MongoSaver")

__all__ = ["MongoDBSaver", "MongoSaver"]

_WANTED = "a URL (mongodb://user:password@host/database or mongodb+srv://host/database)"


class MongoSaver(Saver):
    """Keeps checkpoints in MongoDB, or in a server that speaks its protocol, without transactions.

    ```python
    with MongoSaver.from_conn_string("mongodb://localhost/agents") as saver:
        graph = builder.compile(checkpointer=saver)
        graph.invoke(state, {"configurable": {"thread_id": "1"}})
    ```

    It takes the place of `MongoDBSaver` of `langgraph-checkpoint-mongodb`, but stores in a format of its own: the two do not
    read each other's threads. Unchanged values, and the unchanged parts of long ones, are not stored again, and a value may
    be larger than a document can be. The first call makes collection and indexes. A call that fails because the primary
    steps down or the connection was lost is retried.

    Args:
        conn_string: `mongodb://user:password@host,host2/database` or `mongodb+srv://host/database`, with the parameters of
            MongoDB's drivers (`replicaSet`, `authSource`, `tls`, …), and with `collection`, `ttl` and `sharded`, for the
            options below.
        db_name: The database. Defaults to that of the URL, else `langgraph`.
        checkpoint_collection_name: The one collection that has everything. Savers with different collections share nothing.
            Defaults to `lg_checkpoints`.
        ttl: How many seconds after its last write a thread expires, as a whole. Threads do not expire unless it is set.
        refresh_on_read: Whether a read counts too.
        serde: The serializer of values. Defaults to LangGraph's `JsonPlusSerializer`.
        cipher: Encrypts the serialized values.
        compression: The level of zstd, from 1 to 22, with which values are compressed. They are not unless it is set.
        sharded: Whether the collection is sharded: each call on a thread then asks one shard.
        connect_timeout: The timeout for opening a connection, and for finding a server that can be used, in seconds.
            Defaults to 5.
        timeout: The timeout of a request, in seconds. Defaults to 30.
        max_retries: How often a request is retried. Defaults to 5.
        max_pool_size: The maximum number of connections to each server. Defaults to 32.
        app_name: The name of the application in the server's log.
        keep_last: How many checkpoints of each namespace a put keeps at least; see `retain`. All unless given.

    Raises:
        TypeError: If `conn_string` is something else, such as a client of pymongo.
        ValueError: If the URL or an option is invalid.
    """

    _schemes = ("mongodb", "mongodb+srv")

    def __init__(
        self,
        conn_string: str,
        db_name: str | None = None,
        checkpoint_collection_name: str | None = None,
        *,
        ttl: float | None = None,
        refresh_on_read: bool = False,
        serde: SerializerProtocol | None = None,
        cipher: _native.Cipher | None = None,
        compression: int | None = None,
        sharded: bool | None = None,
        connect_timeout: float | None = None,
        timeout: float | None = None,
        max_retries: int | None = None,
        max_pool_size: int | None = None,
        app_name: str | None = None,
        keep_last: int | None = None,
    ) -> None:
        options = {
            "database": db_name,
            "collection": checkpoint_collection_name,
            "ttl": ttl,
            "sharded": sharded,
            "compression": compression,
            "connect_timeout": connect_timeout,
            "timeout": timeout,
            "max_retries": max_retries,
            "max_pool_size": max_pool_size,
            "app_name": app_name,
            "keep_last": keep_last,
        }
        url = check_conn_string(type(self), Saver, conn_string, _WANTED)
        native = _native.mongo_saver(url, cipher=cipher, refresh_on_read=refresh_on_read, options=options)
        super().__init__(native, serde=serde, cipher=cipher)

    @classmethod
    def from_conn_string(
        cls: type[M],
        conn_string: str,
        db_name: str | None = None,
        checkpoint_collection_name: str | None = None,
        **options: Any,
    ) -> M:
        """Creates a saver, which is a context manager for `with` and `async with`, and can be used without.

        Args:
            conn_string: The servers.
            db_name: The database.
            checkpoint_collection_name: The collection.
            **options: The class's options.

        Raises:
            TypeError: If an option is unknown, or the URL is none.
            ValueError: If the URL or an option is invalid.
        """
        return cls(conn_string, db_name, checkpoint_collection_name, **options)


#: LangGraph's name.
MongoDBSaver = MongoSaver
