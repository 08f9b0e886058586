"""The PostgreSQL store."""

from langgraph_ckpt.store.postgres.aio import AsyncPostgresStore
from langgraph_ckpt.store.postgres.base import PoolConfig, PostgresStore

__all__ = ["AsyncPostgresStore", "PoolConfig", "PostgresStore"]
