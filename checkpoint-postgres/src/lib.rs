//! LangGraph checkpoints in PostgreSQL.
