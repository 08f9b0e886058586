"""LangGraph checkpointers and stores implemented in Rust."""

import atexit

from langgraph_ckpt._memory_store import InMemoryStore
from langgraph_ckpt._native import Cipher, __version__, shut_down
from langgraph_ckpt._postgres_store import PostgresStore
from langgraph_ckpt.memory import InMemorySaver
from langgraph_ckpt.postgres import PostgresSaver
from langgraph_ckpt.sqlite import SqliteSaver

__all__ = [
    "Cipher",
    "InMemorySaver",
    "InMemoryStore",
    "PostgresSaver",
    "PostgresStore",
    "SqliteSaver",
    "__version__",
]

# Open savers and stores must be closed, and their threads ended, before the interpreter is finalized.
atexit.register(shut_down)
