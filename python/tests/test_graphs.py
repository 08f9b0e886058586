"""Real graphs: what LangGraph's persistence guide shows, run by LangGraph on our savers."""

import operator
import time
from collections import Counter
from typing import Annotated, Any, TypedDict

import pytest
from conftest import Flow
from langgraph.errors import InvalidUpdateError
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Interrupt, Send, interrupt


class State(TypedDict, total=False):
    foo: str
    bar: Annotated[list[str], operator.add]


def guide_graph(saver: Any) -> Any:
    builder = StateGraph(State)
    builder.add_node("node_a", lambda state: {"foo": "a", "bar": ["a"]})
    builder.add_node("node_b", lambda state: {"foo": "b", "bar": ["b"]})
    builder.add_edge(START, "node_a")
    builder.add_edge("node_a", "node_b")
    builder.add_edge("node_b", END)
    return builder.compile(checkpointer=saver)


def test_a_run_leaves_four_checkpoints(saver: Any, flow: Flow, config: dict[str, Any]) -> None:
    graph = flow(guide_graph(saver))
    assert graph.invoke({"foo": "", "bar": []}, config) == {"foo": "b", "bar": ["a", "b"]}

    state = graph.get_state(config)
    assert state.values == {"foo": "b", "bar": ["a", "b"]}
    assert state.next == ()
    assert state.metadata["source"] == "loop"
    assert state.metadata["step"] == 2

    history = graph.get_state_history(config)
    assert [snapshot.metadata["step"] for snapshot in history] == [2, 1, 0, -1]
    assert [snapshot.next for snapshot in history] == [(), ("node_b",), ("node_a",), (START,)]
    assert [snapshot.values for snapshot in history] == [
        {"foo": "b", "bar": ["a", "b"]},
        {"foo": "a", "bar": ["a"]},
        {"foo": "", "bar": []},
        {"bar": []},
    ]
    assert history[-1].metadata["source"] == "input"
    assert history[-1].parent_config is None
    for child, parent in zip(history, history[1:]):
        assert child.parent_config == parent.config
    assert history[1].tasks[0].name == "node_b"
    assert history[1].tasks[0].result == {"foo": "b", "bar": ["b"]}

    tuples = flow(saver).list(config)
    assert [one.config for one in tuples] == [snapshot.config for snapshot in history]
    assert [one.metadata for one in tuples] == [snapshot.metadata for snapshot in history]


def test_history_by_filter_limit_and_before(saver: Any, flow: Flow, config: dict[str, Any]) -> None:
    graph = flow(guide_graph(saver))
    for turn in "xy":
        graph.invoke({"foo": turn, "bar": [turn]}, config)
    history = graph.get_state_history(config)
    assert len(history) == 8
    assert graph.get_state_history(config, limit=3) == history[:3]
    assert graph.get_state_history(config, before=history[4].config) == history[5:]
    assert graph.get_state_history(config, before=history[2].config, limit=2) == history[3:5]
    inputs = graph.get_state_history(config, filter={"source": "input"})
    assert [snapshot.metadata["step"] for snapshot in inputs] == [3, -1]
    assert graph.get_state_history(config, filter={"source": "fork"}) == []


def test_an_older_checkpoint_is_replayed(saver: Any, flow: Flow, config: dict[str, Any]) -> None:
    calls: Counter[str] = Counter()

    def node(name: str) -> Any:
        def run(state: State) -> State:
            calls[name] += 1
            return {"bar": [name]}

        return run

    builder = StateGraph(State)
    for name, after in [("a", START), ("b", "a"), ("c", "b")]:
        builder.add_node(name, node(name))
        builder.add_edge(after, name)
    graph = flow(builder.compile(checkpointer=saver))
    graph.invoke({"foo": "", "bar": []}, config)
    before_c = next(one for one in graph.get_state_history(config) if one.next == ("c",))
    assert before_c.config["configurable"]["checkpoint_id"]

    assert graph.invoke(None, before_c.config)["bar"] == ["a", "b", "c"]
    assert calls == {"a": 1, "b": 1, "c": 2}
    # What was is still there, and the replayed step is a branch of its own.
    history = graph.get_state_history(config)
    assert [one.values["bar"] for one in history if one.next == ()] == [["a", "b", "c"]] * 2
    assert graph.get_state(before_c.config).values == before_c.values


def test_update_state_goes_through_the_reducers(saver: Any, flow: Flow, config: dict[str, Any]) -> None:
    graph = flow(guide_graph(saver))
    graph.invoke({"foo": "", "bar": []}, config)
    before = graph.get_state(config)
    updated = graph.update_state(config, {"foo": "2", "bar": ["c"]})
    after = graph.get_state(config)
    assert after.values == {"foo": "2", "bar": ["a", "b", "c"]}
    assert after.config == updated
    assert after.parent_config == before.config
    assert after.metadata["source"] == "update"


def test_update_state_as_a_node_decides_what_comes_next(saver: Any, flow: Flow, config: dict[str, Any]) -> None:
    graph = flow(guide_graph(saver))
    graph.invoke({"foo": "", "bar": []}, config)
    graph.update_state(config, {"bar": ["again"]}, as_node="node_a")
    assert graph.get_state(config).next == ("node_b",)
    assert graph.invoke(None, config) == {"foo": "b", "bar": ["a", "b", "again", "b"]}
    with pytest.raises(InvalidUpdateError):
        graph.update_state(config, {"bar": ["no"]}, as_node="nobody")
    assert graph.get_state(config).values["bar"] == ["a", "b", "again", "b"]


def test_a_fork_leaves_its_origin(saver: Any, flow: Flow, config: dict[str, Any]) -> None:
    graph = flow(guide_graph(saver))
    graph.invoke({"foo": "", "bar": []}, config)
    history = graph.get_state_history(config)
    origin = history[1]
    fork = graph.update_state(origin.config, {"bar": ["forked"]})
    assert fork["configurable"]["checkpoint_id"] != origin.config["configurable"]["checkpoint_id"]
    assert graph.invoke(None, fork) == {"foo": "b", "bar": ["a", "forked", "b"]}
    assert graph.get_state(config).values["bar"] == ["a", "forked", "b"]
    # The first way is still there, step by step.
    assert graph.get_state(history[0].config).values["bar"] == ["a", "b"]
    assert graph.get_state(origin.config).values["bar"] == ["a"]
    sources = Counter(one.metadata["source"] for one in graph.get_state_history(config))
    assert sources == {"loop": 4, "input": 1, "update": 1}


def test_bulk_update_state(saver: Any, flow: Flow, config: dict[str, Any]) -> None:
    from langgraph.types import StateUpdate

    graph = flow(guide_graph(saver))
    graph.bulk_update_state(
        config,
        [
            [StateUpdate({"foo": "1", "bar": ["x"]}, "node_a")],
            [StateUpdate({"foo": "2", "bar": ["y"]}, "node_b")],
        ],
    )
    assert graph.get_state(config).values == {"foo": "2", "bar": ["x", "y"]}
    assert len(graph.get_state_history(config)) == 2


def asking_graph(saver: Any, calls: Counter[str]) -> Any:
    def ask(state: State) -> State:
        calls["ask"] += 1
        answer = interrupt({"question": "go on?", "foo": state["foo"]})
        return {"bar": [f"asked {answer}"]}

    def finish(state: State) -> State:
        calls["finish"] += 1
        return {"foo": "done"}

    builder = StateGraph(State)
    builder.add_node("ask", ask)
    builder.add_node("finish", finish)
    builder.add_edge(START, "ask")
    builder.add_edge("ask", "finish")
    return builder.compile(checkpointer=saver)


def test_interrupt_and_resume(saver: Any, flow: Flow, config: dict[str, Any]) -> None:
    calls: Counter[str] = Counter()
    graph = flow(asking_graph(saver, calls))
    result = graph.invoke({"foo": "x", "bar": []}, config)
    [asked] = result["__interrupt__"]
    assert asked.value == {"question": "go on?", "foo": "x"}

    state = graph.get_state(config)
    assert state.next == ("ask",)
    assert state.tasks[0].interrupts == (asked,) == state.interrupts
    writes = flow(saver).get_tuple(config).pending_writes
    [stored] = [value for _, channel, value in writes if channel == "__interrupt__"]
    assert [*stored] == [Interrupt(value=asked.value, id=asked.id)]

    assert graph.invoke(Command(resume="yes"), config) == {"foo": "done", "bar": ["asked yes"]}
    assert calls == {"ask": 2, "finish": 1}
    assert graph.get_state(config).next == ()


def test_interrupts_of_parallel_nodes_are_answered_by_id(
    saver: Any, flow: Flow, config: dict[str, Any]
) -> None:
    def asker(name: str) -> Any:
        return lambda state: {"bar": [f"{name} {interrupt(name)}"]}

    builder = StateGraph(State)
    for name in ("left", "right"):
        builder.add_node(name, asker(name))
        builder.add_edge(START, name)
    graph = flow(builder.compile(checkpointer=saver))
    asked = graph.invoke({"foo": "", "bar": []}, config)["__interrupt__"]
    assert sorted(one.value for one in asked) == ["left", "right"]
    answers = {one.id: one.value.upper() for one in asked}
    # One at a time: the answer to the first is kept while the second still waits.
    first, second = ({one.id: answers[one.id]} for one in asked)
    waiting = graph.invoke(Command(resume=first), config)["__interrupt__"]
    assert [one.id for one in waiting] == [*second]
    assert sorted(graph.invoke(Command(resume=second), config)["bar"]) == ["left LEFT", "right RIGHT"]


def test_several_interrupts_in_one_node(saver: Any, flow: Flow, config: dict[str, Any]) -> None:
    def ask(state: State) -> State:
        return {"bar": [interrupt("first"), interrupt("second")]}

    builder = StateGraph(State)
    builder.add_node("ask", ask)
    builder.add_edge(START, "ask")
    graph = flow(builder.compile(checkpointer=saver))
    assert graph.invoke({"foo": "", "bar": []}, config)["__interrupt__"][0].value == "first"
    assert graph.invoke(Command(resume=1), config)["__interrupt__"][0].value == "second"
    assert graph.invoke(Command(resume={"two": 2}), config)["bar"] == [1, {"two": 2}]


def test_static_breakpoints(saver: Any, flow: Flow, config: dict[str, Any]) -> None:
    graph = flow(guide_graph(saver))
    graph.invoke({"foo": "", "bar": []}, config, interrupt_before=["node_b"])
    assert graph.get_state(config).next == ("node_b",)
    assert graph.invoke(None, config)["bar"] == ["a", "b"]


def test_finished_nodes_are_not_run_again(saver: Any, flow: Flow, config: dict[str, Any]) -> None:
    calls: Counter[str] = Counter()
    broken = {"yes": True}

    def written() -> list[tuple[str, Any]]:
        found = saver.get_tuple(config)
        return [(channel, value) for _, channel, value in found.pending_writes] if found else []

    def good(state: State) -> State:
        calls["good"] += 1
        return {"bar": ["good"]}

    def bad(state: State) -> State:
        calls["bad"] += 1
        if broken["yes"]:
            # The other one is finished, and its result is stored, when this one fails.
            for _ in range(1000):
                if ("bar", ["good"]) in written():
                    break
                time.sleep(0.01)
            raise ConnectionResetError("not now")
        return {"bar": ["bad"]}

    builder = StateGraph(State)
    builder.add_node("good", good)
    builder.add_node("bad", bad)
    builder.add_node("join", lambda state: {"foo": "joined"})
    for name in ("good", "bad"):
        builder.add_edge(START, name)
    builder.add_edge(["good", "bad"], "join")
    graph = flow(builder.compile(checkpointer=saver))
    with pytest.raises(ConnectionResetError):
        graph.invoke({"foo": "", "bar": []}, config)
    assert calls == {"good": 1, "bad": 1}
    tasks = {task.name: task for task in graph.get_state(config).tasks}
    assert (tasks["good"].error, tasks["good"].result) == (None, {"bar": ["good"]})
    assert "not now" in str(tasks["bad"].error)
    stored = flow(saver).get_tuple(config).pending_writes
    assert ("bar", ["good"]) in [(channel, value) for _, channel, value in stored]
    assert [task_id for task_id, channel, _ in stored if channel == "__error__"] == [tasks["bad"].id]

    broken["yes"] = False
    result = graph.invoke(None, config)
    assert result["foo"] == "joined"
    assert sorted(result["bar"]) == ["bad", "good"]
    assert calls == {"good": 1, "bad": 2}


def test_send_fans_out(saver: Any, flow: Flow, config: dict[str, Any]) -> None:
    builder = StateGraph(State)
    builder.add_node("plan", lambda state: {"foo": "planned"})
    builder.add_node("work", lambda item: {"bar": [f"{item['index']}²={item['index'] ** 2}"]})
    builder.add_node("finish", lambda state: {"foo": f"{len(state['bar'])} done"})
    builder.add_edge(START, "plan")
    builder.add_conditional_edges("plan", lambda state: [Send("work", {"index": i}) for i in range(12)], ["work"])
    builder.add_edge("work", "finish")
    graph = flow(builder.compile(checkpointer=saver))
    wanted = [f"{i}²={i**2}" for i in range(12)]
    assert graph.invoke({"foo": "", "bar": []}, config) == {"foo": "12 done", "bar": wanted}
    fanned = next(one for one in graph.get_state_history(config) if one.next == ("work",) * 12)
    assert [task.result for task in fanned.tasks] == [{"bar": [one]} for one in wanted]
    # The sends are kept: the fan-out is replayed from its checkpoint.
    assert graph.invoke(None, fanned.config)["bar"] == wanted


def counting_subgraph(checkpointer: Any) -> Any:
    class Inner(TypedDict, total=False):
        foo: str
        seen: Annotated[list[str], operator.add]

    builder = StateGraph(Inner)
    builder.add_node("count", lambda state: {"seen": [state["foo"]], "foo": f"{len(state.get('seen', []))}"})
    builder.add_edge(START, "count")
    return builder.compile(checkpointer=checkpointer)


@pytest.mark.parametrize(("own", "counts"), [(True, ["0", "1", "2"]), (None, ["0", "0", "0"])])
def test_subgraphs_with_and_without_their_own_memory(
    saver: Any, flow: Flow, config: dict[str, Any], own: Any, counts: list[str]
) -> None:
    builder = StateGraph(State)
    builder.add_node("sub", counting_subgraph(own))
    builder.add_edge(START, "sub")
    graph = flow(builder.compile(checkpointer=saver))
    assert [graph.invoke({"foo": turn}, config)["foo"] for turn in "xyz"] == counts
    namespaces = {one.config["configurable"]["checkpoint_ns"] for one in flow(saver).list(config)}
    inner = namespaces - {""}
    if own:
        # One namespace, the node's name, for every turn.
        assert inner == {"sub"}
        tuples = flow(saver).list({"configurable": {**config["configurable"], "checkpoint_ns": "sub"}})
        assert tuples[0].checkpoint["channel_values"]["seen"] == ["x", "y", "z"]
    else:
        assert len(inner) == 3
        assert all(namespace.startswith("sub:") for namespace in inner)


@pytest.mark.parametrize("own", [True, None])
def test_an_interrupt_in_a_subgraph(saver: Any, flow: Flow, config: dict[str, Any], own: Any) -> None:
    def ask(state: State) -> State:
        return {"bar": [interrupt("inner")]}

    inner = StateGraph(State)
    inner.add_node("ask", ask)
    inner.add_edge(START, "ask")
    builder = StateGraph(State)
    builder.add_node("sub", inner.compile(checkpointer=own))
    builder.add_edge(START, "sub")
    graph = flow(builder.compile(checkpointer=saver))
    graph.invoke({"foo": "", "bar": []}, config)
    state = graph.get_state(config, subgraphs=True)
    [task] = state.tasks
    assert task.interrupts[0].value == "inner"
    assert task.state.next == ("ask",)
    namespace = task.state.config["configurable"]["checkpoint_ns"]
    assert namespace == "sub" if own else namespace.startswith("sub:")
    # The subgraph's state can be changed while it waits.
    graph.update_state(task.state.config, {"foo": "changed"})
    assert graph.get_state(config, subgraphs=True).tasks[0].state.values["foo"] == "changed"
    result = graph.invoke(Command(resume="answer"), config)
    assert result["bar"] == ["answer"]


def test_nested_subgraphs(saver: Any, flow: Flow, config: dict[str, Any]) -> None:
    def ask(state: State) -> State:
        return {"foo": interrupt("deep")}

    deepest = StateGraph(State)
    deepest.add_node("ask", ask)
    deepest.add_edge(START, "ask")
    middle = StateGraph(State)
    middle.add_node("deepest", deepest.compile())
    middle.add_edge(START, "deepest")
    outer = StateGraph(State)
    outer.add_node("middle", middle.compile())
    outer.add_edge(START, "middle")
    graph = flow(outer.compile(checkpointer=saver))
    graph.invoke({"foo": "x", "bar": []}, config)
    inner = graph.get_state(config, subgraphs=True).tasks[0].state.tasks[0].state
    assert inner.next == ("ask",)
    assert inner.config["configurable"]["checkpoint_ns"].count("|") == 1
    assert graph.invoke(Command(resume="up"), config)["foo"] == "up"


DURABILITIES = {"sync": [2, 1, 0, -1], "async": [2, 1, 0, -1], "exit": [2]}


@pytest.mark.parametrize(("durability", "steps"), DURABILITIES.items(), ids=list(DURABILITIES))
def test_durability(saver: Any, flow: Flow, config: dict[str, Any], durability: Any, steps: list[int]) -> None:
    graph = flow(guide_graph(saver))
    result = graph.invoke({"foo": "", "bar": []}, config, durability=durability)
    assert result == {"foo": "b", "bar": ["a", "b"]}
    tuples = flow(saver).list(config)
    assert [one.metadata["step"] for one in tuples] == steps
    assert tuples[0].checkpoint["channel_values"]["bar"] == ["a", "b"]
    # And the thread goes on.
    result = graph.invoke({"foo": "", "bar": ["more"]}, config, durability=durability)
    assert result["bar"] == ["a", "b", "more", "a", "b"]


@pytest.mark.parametrize("durability", list(DURABILITIES))
def test_an_interrupt_survives_whatever_the_durability(
    saver: Any, flow: Flow, config: dict[str, Any], durability: Any
) -> None:
    graph = flow(asking_graph(saver, Counter()))
    graph.invoke({"foo": "x", "bar": []}, config, durability=durability)
    assert graph.get_state(config).interrupts[0].value == {"question": "go on?", "foo": "x"}
    result = graph.invoke(Command(resume="ok"), config, durability=durability)
    assert result == {"foo": "done", "bar": ["asked ok"]}


def test_streaming_checkpoints(saver: Any, flow: Flow, config: dict[str, Any]) -> None:
    graph = flow(guide_graph(saver))
    events = graph.stream({"foo": "", "bar": []}, config, stream_mode="checkpoints")
    streamed = [event["config"]["configurable"]["checkpoint_id"] for event in events]
    stored = [one.config["configurable"]["checkpoint_id"] for one in flow(saver).list(config)]
    assert streamed == stored[::-1]
    assert len(stored) == 4


def test_a_deleted_thread_starts_from_scratch(saver: Any, flow: Flow, config: dict[str, Any]) -> None:
    graph = flow(guide_graph(saver))
    graph.invoke({"foo": "", "bar": ["old"]}, config)
    flow(saver).delete_thread(config["configurable"]["thread_id"])
    assert flow(saver).list(config) == []
    assert graph.get_state(config).values == {}
    assert graph.invoke({"foo": "", "bar": []}, config)["bar"] == ["a", "b"]


def test_copies_prunes_and_runs(saver: Any, flow: Flow, config: dict[str, Any]) -> None:
    graph = flow(guide_graph(saver))
    source = config["configurable"]["thread_id"]
    runs = []
    for turn in range(2):
        run_id = f"00000000-0000-4000-8000-00000000000{turn}"
        runs.append(run_id)
        graph.invoke({"foo": "", "bar": [str(turn)]}, {**config, "metadata": {"run_id": run_id}})
    full = ["0", "a", "b", "1", "a", "b"]
    flow(saver).copy_thread(source, "copy")
    copied = {"configurable": {"thread_id": "copy"}}
    original = graph.get_state_history(config)
    assert [one.values for one in graph.get_state_history(copied)] == [one.values for one in original]
    assert graph.get_state(copied).values["bar"] == full

    flow(saver).prune(["copy"], strategy="keep_latest")
    assert len(flow(saver).list(copied)) == 1
    assert graph.invoke({"foo": "", "bar": ["on"]}, copied)["bar"] == [*full, "on", "a", "b"]
    assert len(flow(saver).list(config)) == 8

    assert {one.metadata["run_id"] for one in flow(saver).list(config)} == set(runs)
    flow(saver).delete_for_runs([runs[1]])
    assert {one.metadata["run_id"] for one in flow(saver).list(config)} == {runs[0]}
    assert graph.get_state(config).values["bar"] == ["0", "a", "b"]
