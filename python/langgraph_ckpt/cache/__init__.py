"""Caches of the results of nodes and tasks, in modules that are named as LangGraph's in `langgraph.cache`."""
