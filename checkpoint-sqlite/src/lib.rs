//! LangGraph checkpoints in a SQLite file.
