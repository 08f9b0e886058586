"""The stores, in modules that are named as LangGraph's in `langgraph.store`."""
