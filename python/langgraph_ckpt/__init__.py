"""LangGraph checkpointers and stores whose work is done in Rust."""

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

# Savers and stores that are still open are closed, and their threads ended, while there is an interpreter.
atexit.register(shut_down)
