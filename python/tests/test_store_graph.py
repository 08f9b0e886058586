"""A store in LangGraph: nodes, tasks and tools search semantically for items that other threads have stored."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypedDict

import langgraph_ckpt
import pytest
from conftest import Flow
from langchain.agents import create_agent
from langchain.tools import ToolRuntime, tool
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import RunnableConfig
from langgraph.config import get_store
from langgraph.func import entrypoint, task
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.runtime import Runtime
from langgraph.store.base import BaseStore
from langmem import create_manage_memory_tool, create_memory_store_manager, create_search_memory_tool
from stores import Letters, index, open_store, store_kind, store_place  # noqa: F401
from test_agents import ToolCaller, calls, model


@dataclass
class User:
    user_id: str


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


class Editor(ToolCaller):
    """A model that changes the one memory that it is shown."""

    tool: str
    arguments: dict[str, Any]

    def _generate(self, messages: list[Any], *_: Any, **__: Any) -> ChatResult:
        [memory] = set(re.findall(r"[0-9a-f]{32}", str([message.content for message in messages])))
        answer = calls(self.tool, json_doc_id=memory, **self.arguments)
        return ChatResult(generations=[ChatGeneration(message=answer)])


def test_langmems_manager_keeps_memories_up_to_date(
    open_store: Callable[..., Any], letters: Letters, flow: Flow
) -> None:
    """A model adds a memory, corrects what a search of the store has found, and forgets it."""
    store = open_store(index=index(letters, fields=["content.content"]))
    config = {"configurable": {"langgraph_user_id": "ann"}}

    def hears(said: str, answers: Any) -> list[str]:
        manager = create_memory_store_manager(answers, store=store, enable_deletes=True)
        flow(manager).invoke({"messages": [HumanMessage(said)]}, config)
        found = store.search(("memories", "ann"), query="pasta", limit=10)
        return [item.value["content"]["content"] for item in found]

    def edit(tool: str, **arguments: Any) -> Editor:
        return Editor(messages=iter(()), tool=tool, arguments=arguments)

    store.put(("memories", "bob"), "his", {"kind": "Memory", "content": {"content": "Bob likes pizza"}})
    assert hears("I like pizza", model(calls("Memory", content="Ann likes pizza"))) == ["Ann likes pizza"]
    patches = [{"op": "replace", "path": "/content", "value": "Ann likes pasta"}]
    corrected = edit("PatchDoc", planned_edits="pasta instead of pizza", patches=patches)
    assert hears("Now I like pasta", corrected) == ["Ann likes pasta"]
    assert hears("Forget it", edit("RemoveDoc")) == []
    assert [item.key for item in store.search(("memories",))] == ["his"], "users are kept apart"


def test_tools_have_the_store(store: Any, flow: Flow) -> None:
    """Tools keep what a user says, and another thread's tools find it."""

    @tool
    def remember(text: str, runtime: ToolRuntime[User]) -> str:
        """Keeps a fact about the user."""
        assert runtime.store is not None
        runtime.store.put(("users", runtime.context.user_id), text, {"text": text})
        return "kept"

    @tool
    async def aremember(text: str, runtime: ToolRuntime[User]) -> str:
        """Keeps a fact about the user."""
        assert runtime.store is not None
        await runtime.store.aput(("users", runtime.context.user_id), text, {"text": text})
        return "kept"

    @tool
    def recall(query: str, runtime: ToolRuntime[User]) -> str:
        """Finds the facts about the user."""
        assert runtime.store is not None
        found = runtime.store.search(("users", runtime.context.user_id), query=query, limit=1)
        return ", ".join(texts(found)) or "nothing"

    keeping = aremember if flow.is_async else remember

    def says(user: str, *answers: AIMessage | str) -> list[AnyMessage]:
        agent = create_agent(model(*answers, "done"), [keeping, recall], store=store, context_schema=User)
        return flow(agent).invoke({"messages": [HumanMessage("go on")]}, context=User(user))["messages"]

    for text in ("likes pizza with olives", "lives by the sea"):
        assert says("ann", calls(keeping.name, text=text))[2].content == "kept"
    assert says("ann", calls("recall", query="pizzas"))[2].content == "likes pizza with olives"
    assert says("bob", calls("recall", query="pizzas"))[2].content == "nothing"


def test_a_chat_remembers_without_an_index(open_store: Callable[..., Any], flow: Flow) -> None:
    """The documentation's first example of a store: it searches with a query, and gives the store no index."""
    store = open_store()

    def answer(state: MessagesState, runtime: Runtime[User]) -> dict[str, Any]:
        namespace, said = ("memories", runtime.context.user_id), str(state["messages"][-1].content)
        assert runtime.store is not None
        known = runtime.store.search(namespace, query=said)
        if said.startswith("remember"):
            runtime.store.put(namespace, said, {"data": said.removeprefix("remember: ")})
        return {"messages": [AIMessage("; ".join(item.value["data"] for item in known) or "nothing")]}

    async def aanswer(state: MessagesState, runtime: Runtime[User]) -> dict[str, Any]:
        namespace, said = ("memories", runtime.context.user_id), str(state["messages"][-1].content)
        assert runtime.store is not None
        known = await runtime.store.asearch(namespace, query=said)
        if said.startswith("remember"):
            await runtime.store.aput(namespace, said, {"data": said.removeprefix("remember: ")})
        return {"messages": [AIMessage("; ".join(item.value["data"] for item in known) or "nothing")]}

    builder = StateGraph(MessagesState, context_schema=User)
    builder.add_node("answer", aanswer if flow.is_async else answer)
    builder.add_edge(START, "answer")
    graph = flow(builder.compile(checkpointer=langgraph_ckpt.InMemorySaver(), store=store))

    def say(thread: str, user: str, text: str) -> str:
        config = {"configurable": {"thread_id": thread}}
        return graph.invoke({"messages": text}, config, context=User(user))["messages"][-1].content

    with pytest.warns(UserWarning, match="no index"):
        assert say("1", "ann", "remember: her name is Ann") == "nothing"
    assert say("2", "ann", "what is my name?") == "her name is Ann"
    assert say("3", "bob", "what is my name?") == "nothing"


def test_errors_of_a_store_reach_the_graphs_caller(store: Any, flow: Flow) -> None:
    def put(state: State, *, store: BaseStore) -> State:
        store.put(("a.b",), "k", {"text": "x"})
        return {}

    graph = StateGraph(State)
    graph.add_node("put", put)
    graph.add_edge(START, "put")
    with pytest.raises(ValueError, match=r"a\.b"):
        flow(graph.compile(store=store)).invoke({"said": "x"})
