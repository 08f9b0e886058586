"""LangGraph checkpointers and stores whose work is done in Rust."""

from langgraph_ckpt._native import __version__

__all__ = ["__version__"]
