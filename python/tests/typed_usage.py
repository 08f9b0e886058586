"""What users write, for type checkers: `test_typing.py` runs mypy and pyright on it, nothing runs it.

Each comment that ignores an error is a mistake that both must find: an unnecessary one is an error.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import aiosqlite
import psycopg
import redis
import redis.asyncio
from langchain_core.runnables import RunnableConfig
from langgraph.cache.base import BaseCache
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.graph import MessagesState, StateGraph
from langgraph.store.base import BaseStore, Item, SearchItem
from psycopg.rows import DictRow, dict_row
from psycopg_pool import AsyncConnectionPool, ConnectionPool
from typing_extensions import assert_type

import langgraph_ckpt
from langgraph_ckpt import Cipher
from langgraph_ckpt.cache.postgres import PostgresCache
from langgraph_ckpt.cache.redis import RedisCache
from langgraph_ckpt.cache.sqlite import SqliteCache
from langgraph_ckpt.memory import InMemorySaver, MemorySaver
from langgraph_ckpt.postgres import PostgresSaver
from langgraph_ckpt.postgres.aio import AsyncPostgresSaver
from langgraph_ckpt.mongodb import MongoDBSaver, MongoSaver
from langgraph_ckpt.mongodb.aio import AsyncMongoSaver
from langgraph_ckpt.redis import RedisSaver, TTLConfig
from langgraph_ckpt.redis.aio import AsyncRedisSaver
from langgraph_ckpt.sqlite import SqliteSaver
from langgraph_ckpt.sqlite.aio import AsyncSqliteSaver
from langgraph_ckpt.store.memory import InMemoryStore
from langgraph_ckpt.store.postgres import AsyncPostgresStore, PoolConfig, PostgresStore

CONFIG: RunnableConfig = {"configurable": {"thread_id": "1"}}


def embed(texts: Sequence[str]) -> list[list[float]]:
    return [[0.0] for _ in texts]


def synchronous(builder: StateGraph[MessagesState]) -> None:
    with PostgresSaver.from_conn_string("postgresql://localhost/agents", pipeline=True) as saver:
        assert_type(saver, PostgresSaver)
        saver.setup()
        with PostgresStore.from_conn_string("postgresql://localhost/agents", index={"dims": 1, "embed": embed}) as store:
            assert_type(store, PostgresStore)
            store.setup()
            builder.compile(checkpointer=saver, store=store, cache=SqliteCache(path=Path("cache.sqlite")))
        assert_type(saver.get_tuple(CONFIG), CheckpointTuple | None)
        assert_type(saver.list(CONFIG, limit=1), Iterator[CheckpointTuple])
    saver = PostgresSaver("dbname=agents", serde=EncryptedSerializer.from_pycryptodome_aes(), max_connections=3)
    PostgresSaver("dbname=agents", cipher=Cipher.aes(), compression="server")
    SqliteSaver(Path("agents.sqlite"), synchronous="normal").setup()
    with SqliteSaver.from_conn_string(":memory:") as lite:
        assert_type(lite, SqliteSaver)
    ttl: TTLConfig = {"default_ttl": 60, "refresh_on_read": True}
    with RedisSaver.from_conn_string("redis://localhost", ttl=ttl, checkpoint_prefix="agents") as quick:
        assert_type(quick, RedisSaver)
    with MongoSaver.from_conn_string("mongodb://localhost", "agents", ttl=3600, app_name="agents") as documents:
        assert_type(documents, MongoSaver)
    assert_type(MongoDBSaver("mongodb://localhost", cipher=Cipher.aes(), compression=3, max_pool_size=4), MongoSaver)
    RedisSaver(redis_client=redis.Redis(), cipher=Cipher.aes(), compression=3, wait_replicas=1)
    savers: list[BaseCheckpointSaver[str]] = [InMemorySaver(), MemorySaver(), saver, lite, quick, AsyncSqliteSaver("a.sqlite")]
    stores: list[BaseStore] = [InMemoryStore(), InMemoryStore(ttl={"default_ttl": 1.0}), PostgresStore("")]
    builder.compile(checkpointer=savers[0], store=stores[0])


def connections() -> None:
    with psycopg.Connection.connect("", autocommit=True, row_factory=dict_row) as connection:
        assert_type(connection, psycopg.Connection[DictRow])
        PostgresSaver(connection)
        PostgresStore(connection, index={"dims": 8, "embed": "openai:small", "ann_index_config": {"kind": "flat"}})
    with ConnectionPool("", max_size=3, kwargs={"autocommit": True}) as pool:
        PostgresSaver(pool)
        PostgresStore(conn=pool, ttl={"default_ttl": 5, "refresh_on_read": True})
        PostgresCache[Any](pool)
    SqliteSaver(sqlite3.connect("agents.sqlite", check_same_thread=False))
    pool_config: PoolConfig = {"min_size": 1, "max_size": 5}
    PostgresStore.from_conn_string("", pool_config=pool_config, pipeline=False, max_retries=1)
    PostgresStore.from_conn_string("", pool_config={"max_size": None, "kwargs": {"connect_timeout": 5}})


async def asynchronous(builder: StateGraph[MessagesState]) -> None:
    async with AsyncPostgresSaver.from_conn_string("") as saver:
        assert_type(saver, AsyncPostgresSaver)
        await saver.setup()
        assert_type(await saver.aget_tuple(CONFIG), CheckpointTuple | None)
        async for found in saver.alist(CONFIG):
            assert_type(found, CheckpointTuple)
        builder.compile(checkpointer=saver)
    async with AsyncPostgresStore.from_conn_string("", pool_config={"max_size": 2}) as store:
        assert_type(store, AsyncPostgresStore)
        await store.setup()
        await store.start_ttl_sweeper()
        assert_type(await store.sweep_ttl(), int)
        assert_type(await store.stop_ttl_sweeper(), bool)
        assert_type(await store.aget(("a",), "k"), Item | None)
        assert_type(await store.asearch(("a",), query="x"), list[SearchItem])
    async with AsyncConnectionPool("", open=False) as pool, AsyncPostgresSaver(pool) as saver:
        await saver.setup()
    async with aiosqlite.connect("agents.sqlite") as connection, AsyncSqliteSaver(connection) as lite:
        await lite.setup()
    async with AsyncMongoSaver("mongodb+srv://localhost/agents") as documents:
        assert_type(documents, AsyncMongoSaver)
    async with AsyncRedisSaver(redis_client=redis.asyncio.Redis()) as quick:
        assert_type(quick, AsyncRedisSaver)
        await quick.setup()
    # The synchronous classes, too.
    await PostgresSaver("").setup()
    await InMemoryStore().setup()


def caches() -> None:
    cache: BaseCache[list[int]] = PostgresCache.from_conn_string("")
    cache.set({(("a",), "k"): ([1], 60)})
    assert_type(cache.get([(("a",), "k")]), dict[tuple[tuple[str, ...], str], list[int]])
    RedisCache[list[int]](redis.Redis(), prefix="agents").set({(("a",), "k"): ([1], None)})
    assert_type(RedisCache[int]("redis://").get([(("a",), "k")]), dict[tuple[tuple[str, ...], str], int])
    own = SqliteCache[list[int]](path=":memory:", busy_timeout=1.0)
    own.set({(("a",), "k"): (["x"], 60)})  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]


def mistakes() -> None:
    PostgresSaver(5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    PostgresSaver("", no_such_option=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    RedisSaver("", ttl={"no_such_key": 1})  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    SqliteSaver("", synchronous="sometimes")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    PostgresStore.from_conn_string("", pool_config={"no_such_key": 1})  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Cipher.aes("text")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    langgraph_ckpt.no_such_name  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
