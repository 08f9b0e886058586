"""A store in LangGraph: nodes, tasks and tools search semantically for items that other threads have stored."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypedDict

import langgraph_ckpt
import pytest
from conftest import Flow
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.config import get_store
from langgraph.func import entrypoint, task
from langgraph.graph import START, StateGraph
from langgraph.runtime import Runtime
from langgraph.store.base import BaseStore
from langmem import create_manage_memory_tool, create_search_memory_tool
from stores import Letters, index, open_store, store_kind, store_place  # noqa: F401
from test_agents import calls, model


class State(TypedDict, total=False):
    said: str
    known: list[str]


@pytest.fixture
def letters() -> Letters:
    return Letters()


@pytest.fixture
def store(open_store: Callable[..., Any], letters: Letters) -> Any:
    return open_store(index=index(letters))


def texts(found: Any) -> list[str]:
    return [item.value["text"] for item in found]


def agent(store: Any, flow: Flow) -> Any:
    """Stores what a user says, and answers with the nearest memories."""

    def remember(state: State, config: RunnableConfig, *, store: BaseStore) -> State:
        user = config["configurable"]["user_id"]
        known = texts(store.search(("memories", user), query=state["said"], limit=1))
        store.put(("memories", user), state["said"], {"text": state["said"]})
        return {"known": known}

    async def aremember(state: State, config: RunnableConfig, *, store: BaseStore) -> State:
        user = config["configurable"]["user_id"]
        known = texts(await store.asearch(("memories", user), query=state["said"], limit=1))
        await store.aput(("memories", user), state["said"], {"text": state["said"]})
        return {"known": known}

    def count(state: State, runtime: Runtime[Any]) -> State:
        assert isinstance(runtime.store, BaseStore)
        # A synchronous node of an asynchronous graph has the same store.
        return {"known": [*state["known"], str(len(runtime.store.search(("memories",), limit=100)))]}

    graph = StateGraph(State)
    graph.add_node("remember", aremember if flow.is_async else remember)
    graph.add_node("count", count)
    graph.add_edge(START, "remember")
    graph.add_edge("remember", "count")
    return graph.compile(checkpointer=langgraph_ckpt.InMemorySaver(), store=store)


def test_a_node_finds_items_that_another_thread_has_stored(store: Any, letters: Letters, flow: Flow) -> None:
    graph = agent(store, flow)

    def say(user: str, thread: str, said: str) -> list[str]:
        config = {"configurable": {"thread_id": thread, "user_id": user}}
        return flow(graph).invoke({"said": said}, config)["known"]

    assert say("ann", "1", "Ann likes to eat pizza with olives") == ["1"]
    assert say("ann", "1", "Ann lives in a small house by the sea")[1:] == ["2"]
    assert say("ann", "2", "who likes pizza?") == ["Ann likes to eat pizza with olives", "3"]
    assert say("ann", "2", "a house near the sea") == ["Ann lives in a small house by the sea", "4"]
    assert say("bob", "3", "who likes pizza?") == ["5"], "users are kept apart"
    expected = {"aembed_documents", "aembed_query"} if flow.is_async else {"embed_documents", "embed_query"}
    assert set(letters.methods()) == expected


def test_the_functional_api_has_the_store(store: Any, flow: Flow) -> None:
    if flow.is_async:

        @task
        async def keep(key: str) -> None:
            await get_store().aput(("notes",), key, {"text": key})

        @entrypoint(store=store)
        async def run(keys: list[str], *, store: BaseStore) -> list[str]:
            for key in keys:
                await keep(key)
            return texts(await store.asearch(("notes",), query="pizzas", limit=1))

    else:

        @task
        def keep(key: str) -> None:
            get_store().put(("notes",), key, {"text": key})

        @entrypoint(store=store)
        def run(keys: list[str], *, store: BaseStore) -> list[str]:
            for each in [keep(key) for key in keys]:
                each.result()
            return texts(store.search(("notes",), query="pizzas", limit=1))

    assert flow(run).invoke(["pizza with olives", "a house", "the sea"]) == ["pizza with olives"]
    assert len(store.search(("notes",))) == 3


def test_langmems_tools_keep_and_find_memories(
    open_store: Callable[..., Any], letters: Letters, flow: Flow
) -> None:
    store = open_store(index=index(letters, fields=["content"]))
    namespace = ("memories", "{user_id}")
    tools = [create_manage_memory_tool(namespace), create_search_memory_tool(namespace)]

    def says(*answers: AIMessage | str, user: str = "ann") -> list[AnyMessage]:
        agent = create_agent(model(*answers, "done"), tools, store=store)
        config = {"configurable": {"user_id": user}}
        return flow(agent).invoke({"messages": [HumanMessage("go on")]}, config)["messages"]

    said = ["Ann likes to eat pizza with olives", "Ann lives in a small house by the sea"]
    for content in said:
        assert "created memory" in says(calls("manage_memory", content=content))[2].content
    [found] = json.loads(says(calls("search_memory", query="who likes pizza?", limit=1))[2].content)
    assert found["value"] == {"content": said[0]}
    assert json.loads(says(calls("search_memory", query="who likes pizza?"), user="bob")[2].content) == []
    says(calls("manage_memory", content="Ann likes pasta", action="update", id=found["key"]))
    kept = store.get(("memories", "ann"), found["key"])
    assert kept is not None and kept.value == {"content": "Ann likes pasta"}
    says(calls("manage_memory", action="delete", id=found["key"]))
    assert [item.value["content"] for item in store.search(("memories",))] == said[1:]


def test_errors_of_a_store_reach_the_graphs_caller(store: Any, flow: Flow) -> None:
    def put(state: State, *, store: BaseStore) -> State:
        store.put(("a.b",), "k", {"text": "x"})
        return {}

    graph = StateGraph(State)
    graph.add_node("put", put)
    graph.add_edge(START, "put")
    with pytest.raises(ValueError, match=r"a\.b"):
        flow(graph.compile(store=store)).invoke({"said": "x"})
