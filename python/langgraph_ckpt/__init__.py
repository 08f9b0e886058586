"""LangGraph checkpointers, stores and caches implemented in Rust."""

import atexit

from langgraph_ckpt._native import Cipher, __version__, shut_down
from langgraph_ckpt.cache.postgres import PostgresCache
from langgraph_ckpt.cache.redis import RedisCache
from langgraph_ckpt.cache.sqlite import SqliteCache
from langgraph_ckpt.memory import InMemorySaver
from langgraph_ckpt.mongodb import MongoSaver
from langgraph_ckpt.mongodb.aio import AsyncMongoSaver
from langgraph_ckpt.postgres import PostgresSaver
from langgraph_ckpt.postgres.aio import AsyncPostgresSaver
from langgraph_ckpt.redis import RedisSaver
from langgraph_ckpt.redis.aio import AsyncRedisSaver
from langgraph_ckpt.sqlite import SqliteSaver
from langgraph_ckpt.sqlite.aio import AsyncSqliteSaver
from langgraph_ckpt.store.memory import InMemoryStore
from langgraph_ckpt.store.postgres import AsyncPostgresStore, PostgresStore

__all__ = [
    "AsyncMongoSaver",
    "AsyncPostgresSaver",
    "AsyncPostgresStore",
    "AsyncRedisSaver",
    "AsyncSqliteSaver",
    "Cipher",
    "InMemorySaver",
    "InMemoryStore",
    "MongoSaver",
    "PostgresCache",
    "PostgresSaver",
    "PostgresStore",
    "RedisCache",
    "RedisSaver",
    "SqliteCache",
    "SqliteSaver",
    "__version__",
]

# What is open must be closed, and its threads ended, before the interpreter is finalized.
atexit.register(shut_down)
