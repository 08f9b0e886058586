"""The Python side of the cross-language tests: one command, one JSON object on standard output."""

import datetime
import decimal
import json
import operator
import os
import sqlite3
import sys
import uuid
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, Interrupt, Send, interrupt

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
    builder.add_node("sub", lambda state: {"log": compiled.invoke({"topic": state["topic"], "log": []})["log"]})
    builder.add_edge(START, "plan")
    builder.add_edge("plan", "left")
    builder.add_edge("plan", "right")
    builder.add_edge(["left", "right"], "sub")
    builder.add_edge("sub", "ask")
    builder.add_edge("ask", "finish")
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


def open_saver(path):
    connection = sqlite3.connect(path, check_same_thread=False, timeout=30)
    serde = EncryptedSerializer.from_pycryptodome_aes() if os.environ.get("LANGGRAPH_AES_KEY") else None
    return SqliteSaver(connection, serde=serde)


def plain(value: Any) -> Any:
    """JSON for comparing with what Rust reads."""
    if isinstance(value, (AIMessage, HumanMessage, ToolMessage)):
        return {"type": value.type, "content": value.content, "id": value.id}
    if isinstance(value, Interrupt):
        return {"value": plain(value.value), "id": value.id}
    if isinstance(value, datetime.datetime):
        return value.isoformat()
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
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


def start(path, thread, topic):
    agent = graph(open_saver(path))
    agent.invoke({"topic": topic, "log": ["start"], "messages": [HumanMessage("hello", id="h1")]}, at(thread))
    return state_of(agent.get_state(at(thread)))


def go_on(path, thread):
    agent = graph(open_saver(path))
    agent.invoke(None, at(thread))
    return state_of(agent.get_state(at(thread)))


def resume(path, thread, answer):
    agent = graph(open_saver(path))
    agent.invoke(Command(resume=answer), at(thread))
    return state_of(agent.get_state(at(thread)))


def history(path, thread):
    agent = graph(open_saver(path))
    return [state_of(snapshot) for snapshot in agent.get_state_history(at(thread))]


def update(path, thread, topic):
    agent = graph(open_saver(path))
    agent.update_state(at(thread), {"topic": topic, "log": ["updated"]}, as_node="sub")
    return state_of(agent.get_state(at(thread)))


def equal(first, second, thread):
    """Whether Python reads the same tuples from two files."""
    one, other = open_saver(first), open_saver(second)

    def tuples(saver):
        return [
            (item.config, item.parent_config, item.checkpoint, item.metadata, item.pending_writes)
            for item in saver.list(at(thread))
        ]

    left, right = tuples(one), tuples(other)
    for config, *_ in left:
        assert one.get_tuple(config)[1:] == other.get_tuple(config)[1:], config
    assert [repr(item) for item in left] == [repr(item) for item in right]
    return {"equal": left == right, "count": len(left)}


def delta_start(path, thread, turns):
    agent = delta_graph(open_saver(path))
    for turn in range(int(turns)):
        agent.invoke({"turn": turn, "items": ["input %d" % turn]}, at(thread))
    return delta_state(path, thread)


def delta_state(path, thread):
    saver = open_saver(path)
    agent = delta_graph(saver)
    config = dict(agent.get_state(at(thread)).config)
    found = saver.get_delta_channel_history(config=config, channels=["items"])["items"]
    seed = found.get("seed")
    return {
        "values": plain(agent.get_state(at(thread)).values),
        "count": len(list(saver.list(at(thread)))),
        "writes": [[write[0], write[1], plain(write[2])] for write in found["writes"]],
        "seed": plain(getattr(seed, "value", seed)),
    }


def types(path, thread):
    """What Python makes of each channel of the newest checkpoint."""
    values = open_saver(path).get_tuple(at(thread)).checkpoint["channel_values"]
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


def put_many(path, thread, count):
    """Puts checkpoints one by one, as another process does at the same time."""
    from langgraph.checkpoint.base import empty_checkpoint
    from langgraph.checkpoint.base.id import uuid6

    saver = open_saver(path)
    config = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
    ids = []
    for step in range(int(count)):
        checkpoint = {**empty_checkpoint(), "v": 4, "id": str(uuid6(clock_seq=step)), "channel_values": {"by": "python"}}
        saver.put(config, checkpoint, {"source": "loop", "step": step, "parents": {}}, {})
        saver.put_writes(
            {"configurable": {"thread_id": thread, "checkpoint_ns": "", "checkpoint_id": checkpoint["id"]}},
            [("by", "python")],
            str(uuid.uuid4()),
        )
        ids.append(checkpoint["id"])
    return {"ids": ids}


COMMANDS = (start, go_on, resume, history, update, equal, delta_start, delta_state, types, put_many)


def main():
    command = {function.__name__: function for function in COMMANDS}[sys.argv[1]]
    json.dump(command(*sys.argv[2:]), sys.stdout)


if __name__ == "__main__":
    main()
