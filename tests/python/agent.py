"""The Python side of the cross-language tests of savers: `worker.py` runs one command in a process of its own, and sends
back the result as one JSON object: {"result": …}, or {"error": the traceback}.

A database is named by the path of a SQLite file or by the URL of a PostgreSQL server. With CHECKPOINT_TEST_ASYNC=1 the
asynchronous saver and graph are used on PostgreSQL.
"""

import asyncio
import datetime
import decimal
import inspect
import json
import operator
import os
import sqlite3
import sys
import traceback
import uuid
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, Interrupt, Send, interrupt
from psycopg import AsyncConnection, Connection
from psycopg.rows import dict_row

try:
    from langgraph.channels import DeltaChannel
except ImportError:
    from langgraph.channels.delta import DeltaChannel


class State(TypedDict, total=False):
    topic: str
    when: datetime.datetime
    log: Annotated[list, operator.add]
    messages: Annotated[list[AnyMessage], add_messages]
    answer: str


def asynchronous():
    return os.environ.get("CHECKPOINT_TEST_ASYNC") == "1"


def graph(saver):
    def plan(state):
        return {
            "when": datetime.datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=datetime.timezone.utc),
            "log": ["plan " + state["topic"]],
            "messages": [
                AIMessage(
                    "looking", id="a1", tool_calls=[{"name": "search", "args": {"q": state["topic"]}, "id": "c1"}]
                )
            ],
        }

    def left(state):
        return {"log": ["left"], "messages": [ToolMessage("found", tool_call_id="c1", id="t1")]}

    def right(state):
        return {"log": ["right"]}

    def inner(state):
        return {"log": ["inner"]}

    def ask(state):
        answer = interrupt({"question": "go on?", "topic": state["topic"]})
        return {"answer": answer, "log": ["asked"]}

    def finish(state):
        return {"log": ["finish " + str(state.get("answer"))]}

    sub = StateGraph(State)
    sub.add_node("inner", inner)
    sub.add_edge(START, "inner")
    sub.add_edge("inner", END)
    builder = StateGraph(State)
    for node in (plan, left, right, ask, finish):
        builder.add_node(node.__name__, node)
    # The subgraph sees and returns the log alone, so that nothing is added twice.
    compiled = sub.compile()

    def call(state):
        return {"log": compiled.invoke({"topic": state["topic"], "log": []})["log"]}

    async def acall(state):
        return {"log": (await compiled.ainvoke({"topic": state["topic"], "log": []}))["log"]}

    builder.add_node("sub", acall if asynchronous() else call)
    builder.add_edge(START, "plan")
    builder.add_edge("plan", "left")
    builder.add_edge("plan", "right")
    builder.add_edge(["left", "right"], "sub")
    builder.add_edge("sub", "ask")
    builder.add_edge("ask", "finish")
    builder.add_edge("finish", END)
    return builder.compile(checkpointer=saver)


class FanState(TypedDict, total=False):
    items: list
    done: Annotated[list, operator.add]
    log: Annotated[list, operator.add]
    broken: bool


def fan_graph(saver):
    """Sends a task for each item, then runs a node that fails while it is told to next to one that does not."""

    def plan(state):
        return {"log": ["plan"]}

    def fan(state):
        return [Send("worker", {"item": item}) for item in state["items"]]

    def worker(state):
        return {"done": [state["item"] * 10]}

    def join(state):
        return {"log": ["join"]}

    def flaky(state):
        if state["broken"]:
            raise ValueError("flaky")
        return {"log": ["flaky by python"]}

    def steady(state):
        return {"log": ["steady"]}

    def finish(state):
        return {"log": ["finish"]}

    builder = StateGraph(FanState)
    for node in (plan, worker, join, flaky, steady, finish):
        builder.add_node(node.__name__, node)
    builder.add_edge(START, "plan")
    builder.add_conditional_edges("plan", fan, ["worker"])
    builder.add_edge("worker", "join")
    builder.add_edge("join", "flaky")
    builder.add_edge("join", "steady")
    builder.add_edge(["flaky", "steady"], "finish")
    builder.add_edge("finish", END)
    return builder.compile(checkpointer=saver)


def append_all(state, writes):
    out = list(state or [])
    for write in writes:
        out.extend(write)
    return out


class DeltaState(TypedDict, total=False):
    items: Annotated[list, DeltaChannel(append_all, snapshot_frequency=4)]
    turn: int


def delta_graph(saver):
    def one(state):
        return {"items": ["one %d" % state["turn"]]}

    def two(state):
        return {"items": ["two %d" % state["turn"]]}

    builder = StateGraph(DeltaState)
    builder.add_node("one", one)
    builder.add_node("two", two)
    builder.add_edge(START, "one")
    builder.add_edge(START, "two")
    return builder.compile(checkpointer=saver)


async def open_saver(location):
    serde = EncryptedSerializer.from_pycryptodome_aes() if os.environ.get("LANGGRAPH_AES_KEY") else None
    if not location.startswith("postgres"):
        return SqliteSaver(sqlite3.connect(location, check_same_thread=False, timeout=30), serde=serde)
    options = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
    if asynchronous():
        return AsyncPostgresSaver(await AsyncConnection.connect(location, **options), serde=serde)
    return PostgresSaver(Connection.connect(location, **options), serde=serde)


async def resolve(value):
    """The result of a call of either kind: a list where it is a stream."""
    if hasattr(value, "__aiter__"):
        return [item async for item in value]
    if inspect.isawaitable(value):
        return await value
    return list(value) if hasattr(value, "__next__") else value


class Calls:
    """A saver or graph whose methods are the synchronous or the asynchronous ones."""

    def __init__(self, target):
        self.target = target

    def __getattr__(self, name):
        # `setup` has the same name in both.
        method = getattr(self.target, "a" + name if asynchronous() and name != "setup" else name)
        return lambda *arguments, **options: resolve(method(*arguments, **options))


async def agent_on(location, make=graph):
    return Calls(make(await open_saver(location)))


def plain(value: Any) -> Any:
    """JSON for comparing with what Rust reads."""
    if isinstance(value, (AIMessage, HumanMessage, ToolMessage)):
        return {"type": value.type, "content": value.content, "id": value.id}
    if isinstance(value, Interrupt):
        return {"value": plain(value.value), "id": value.id}
    if isinstance(value, Send):
        return {"node": value.node, "arg": plain(value.arg)}
    if isinstance(value, datetime.datetime):
        return value.isoformat()
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def by_key(value):
    if isinstance(value, dict):
        return {key: by_key(value[key]) for key in sorted(value)}
    if isinstance(value, (list, tuple)):
        return type(value)(by_key(item) for item in value)
    return value


def state_of(snapshot):
    return {
        "values": plain(snapshot.values),
        "next": sorted(snapshot.next),
        "id": snapshot.config["configurable"]["checkpoint_id"],
        "parent": snapshot.parent_config and snapshot.parent_config["configurable"]["checkpoint_id"],
        "source": snapshot.metadata["source"],
        "step": snapshot.metadata["step"],
        "interrupts": [plain(item) for task in snapshot.tasks for item in task.interrupts],
    }


def at(thread, checkpoint_id=None):
    configurable = {"thread_id": thread}
    if checkpoint_id:
        configurable["checkpoint_id"] = checkpoint_id
    return {"configurable": configurable}


async def setup(location):
    await Calls(await open_saver(location)).setup()
    return {}


async def start(location, thread, topic):
    agent = await agent_on(location)
    await agent.invoke({"topic": topic, "log": ["start"], "messages": [HumanMessage("hello", id="h1")]}, at(thread))
    return state_of(await agent.get_state(at(thread)))


async def go_on(location, thread):
    agent = await agent_on(location)
    await agent.invoke(None, at(thread))
    return state_of(await agent.get_state(at(thread)))


async def resume(location, thread, answer):
    agent = await agent_on(location)
    await agent.invoke(Command(resume=answer), at(thread))
    return state_of(await agent.get_state(at(thread)))


async def state(location, thread):
    return state_of(await (await agent_on(location)).get_state(at(thread)))


async def history(location, thread, make=graph):
    """The state history of the root graph, and what is stored in every namespace."""
    saver = await open_saver(location)
    states = [state_of(snapshot) for snapshot in await Calls(make(saver)).get_state_history(at(thread))]
    stored = [
        {
            "ns": item.config["configurable"]["checkpoint_ns"],
            "id": item.checkpoint["id"],
            "parent": item.parent_config and item.parent_config["configurable"]["checkpoint_id"],
            "source": item.metadata["source"],
            "step": item.metadata["step"],
            "versions": item.checkpoint["channel_versions"],
            "values": sorted(item.checkpoint["channel_values"]),
            # The generations order tasks differently.
            "writes": sorted([write[0], write[1]] for write in item.pending_writes),
        }
        for item in await Calls(saver).list(at(thread))
    ]
    return {"states": states, "stored": stored}


async def update(location, thread, topic):
    agent = await agent_on(location)
    await agent.update_state(at(thread), {"topic": topic, "log": ["updated"]}, as_node="sub")
    return state_of(await agent.get_state(at(thread)))


async def fan_start(location, thread):
    agent = await agent_on(location, fan_graph)
    # The tasks are still to be sent when it stops, so that both languages see them.
    await agent.invoke({"items": [1, 2, 3], "broken": True}, at(thread), interrupt_before=["worker"])
    return state_of(await agent.get_state(at(thread)))


async def fan_go_on(location, thread):
    agent = await agent_on(location, fan_graph)
    try:
        await agent.invoke(None, at(thread))
        raised = None
    except ValueError as error:
        raised = str(error)
    return {"raised": raised, **state_of(await agent.get_state(at(thread)))}


async def fan_history(location, thread):
    return await history(location, thread, fan_graph)


async def equal(first, second, thread):
    """Whether Python reads the same tuples from two databases."""

    async def tuples(saver):
        return [
            (item.config, item.parent_config, item.checkpoint, item.metadata, item.pending_writes)
            for item in await saver.list(at(thread))
        ]

    one, other = Calls(await open_saver(first)), Calls(await open_saver(second))
    left, right = await tuples(one), await tuples(other)
    for config, *_ in left:
        assert (await one.get_tuple(config))[1:] == (await other.get_tuple(config))[1:], config
    # By type too: 1 == 1.0 == True. PostgreSQL orders the keys of JSON in its own way.
    both_files = not any(location.startswith("postgres") for location in (first, second))
    order = (lambda item: item) if both_files else by_key
    assert [repr(order(item)) for item in left] == [repr(order(item)) for item in right]
    return {"equal": left == right, "count": len(left)}


async def delta_start(location, thread, turns):
    agent = await agent_on(location, delta_graph)
    for turn in range(int(turns)):
        await agent.invoke({"turn": turn, "items": ["input %d" % turn]}, at(thread))
    return await delta_state(location, thread)


async def delta_state(location, thread):
    saver = await open_saver(location)
    agent, calls = Calls(delta_graph(saver)), Calls(saver)
    now = await agent.get_state(at(thread))
    found = (await calls.get_delta_channel_history(config=dict(now.config), channels=["items"]))["items"]
    seed = found.get("seed")
    return {
        "values": plain(now.values),
        "count": len(await calls.list(at(thread))),
        "writes": [[write[0], write[1], plain(write[2])] for write in found["writes"]],
        "seed": plain(getattr(seed, "value", seed)),
    }


async def newest(location, thread):
    """The newest tuple as the saver reads it."""
    found = await Calls(await open_saver(location)).get_tuple(at(thread))
    checkpoint = found.checkpoint
    return {
        "values": {key: repr(value) for key, value in checkpoint["channel_values"].items()},
        "versions": checkpoint["channel_versions"],
        "writes": [[write[0], write[1], repr(write[2])] for write in found.pending_writes],
    }


async def types(location, thread):
    """What Python makes of each channel of the newest checkpoint."""
    values = (await Calls(await open_saver(location)).get_tuple(at(thread))).checkpoint["channel_values"]
    expected = {
        "when": datetime.datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=datetime.timezone.utc),
        "day": datetime.date(2026, 1, 2),
        "span": datetime.timedelta(days=1, seconds=2, microseconds=3),
        "uuid": uuid.UUID("12345678-1234-5678-1234-567812345678"),
        "price": decimal.Decimal("1.50"),
        "tags": {"a", "b"},
        "human": HumanMessage("hello", id="h1"),
        "ai": AIMessage("looking", id="a1", tool_calls=[{"name": "search", "args": {"q": "x"}, "id": "c1"}]),
        "tool": ToolMessage("found", tool_call_id="c1", id="t1"),
        "send": Send("node", {"x": 1}),
        "raw": b"\x00\xff",
        "list": [1, -1, 2**63, 0.5, None, True, "text"],
    }
    wrong = {
        key: repr(values.get(key))
        for key, value in expected.items()
        if values.get(key) != value or type(values.get(key)) is not type(value)
    }
    return {"wrong": wrong, "checked": len(expected)}


async def put_many(location, thread, count):
    """Puts checkpoints one by one, as another process does at the same time."""
    from langgraph.checkpoint.base import empty_checkpoint
    from langgraph.checkpoint.base.id import uuid6

    saver = Calls(await open_saver(location))
    config = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
    ids = []
    for step in range(int(count)):
        checkpoint = {**empty_checkpoint(), "v": 4, "id": str(uuid6(clock_seq=step)), "channel_values": {"by": "python"}}
        await saver.put(config, checkpoint, {"source": "loop", "step": step, "parents": {}}, {})
        await saver.put_writes(
            {"configurable": {"thread_id": thread, "checkpoint_ns": "", "checkpoint_id": checkpoint["id"]}},
            [("by", "python")],
            str(uuid.uuid4()),
        )
        ids.append(checkpoint["id"])
    return {"ids": ids}


COMMANDS = (
    setup,
    start,
    go_on,
    resume,
    state,
    history,
    update,
    fan_start,
    fan_go_on,
    fan_history,
    equal,
    delta_start,
    delta_state,
    newest,
    types,
    put_many,
)


def main(name, *arguments):
    command = {function.__name__: function for function in COMMANDS}[name]
    try:
        answer = {"result": asyncio.run(command(*arguments))}
    except Exception:
        answer = {"error": traceback.format_exc()}
    json.dump(answer, sys.stdout)
