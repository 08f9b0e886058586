"""One thread, two libraries: Python's own savers and ours take turns on it."""

import contextlib
import operator
from collections.abc import Callable, Iterator
from typing import Annotated, Any, TypedDict

import pytest
from conftest import Flow, Kind, async_peer, kinds, peer
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, Send, interrupt

pytestmark = kinds(peer=True)


def extend(state: list[str], writes: list[list[str]]) -> list[str]:
    return [*state, *(item for write in writes for item in write)]


class State(TypedDict, total=False):
    topic: str
    turns: int
    score: float
    log: Annotated[list[str], operator.add]
    deltas: Annotated[list[str], DeltaChannel(extend, snapshot_frequency=2)]
    messages: Annotated[list[AnyMessage], add_messages]


def build(saver: Any) -> Any:
    def plan(state: State) -> State:
        turn = state.get("turns", 0) + 1
        return {
            "turns": turn,
            "score": turn / 4,
            "log": [f"plan {turn}"],
            "deltas": [f"delta {turn}"],
            "messages": [AIMessage(f"turn {turn}", id=f"a{turn}")],
        }

    def work(item: Any) -> State:
        return {"log": [f"work {item}"]}

    def ask(state: State) -> State:
        return {"log": [f"asked {interrupt({'turn': state['turns']})}"]}

    builder = StateGraph(State)
    builder.add_node("plan", plan)
    builder.add_node("work", work)
    builder.add_node("ask", ask)
    builder.add_edge(START, "plan")
    builder.add_conditional_edges("plan", lambda state: [Send("work", i) for i in range(3)], ["work"])
    builder.add_edge("work", "ask")
    builder.add_edge("ask", END)
    return builder.compile(checkpointer=saver)


def said(turn: int) -> dict[str, Any]:
    return {"topic": "cats", "messages": [HumanMessage(f"hello {turn}", id=f"h{turn}")], "deltas": []}


def expected(turns: int, answers: list[str]) -> dict[str, Any]:
    log: list[str] = []
    messages: list[AnyMessage] = []
    for turn in range(1, turns + 1):
        log += [f"plan {turn}", *(f"work {i}" for i in range(3))]
        log += [f"asked {answer}" for answer in answers[turn - 1 : turn]]
        messages += [HumanMessage(f"hello {turn}", id=f"h{turn}"), AIMessage(f"turn {turn}", id=f"a{turn}")]
    return {
        "topic": "cats",
        "turns": turns,
        "score": turns / 4,
        "log": log,
        "deltas": [f"delta {turn}" for turn in range(1, turns + 1)],
        "messages": messages,
    }


Hand = Callable[[], contextlib.AbstractContextManager[tuple[Flow, Any]]]


@pytest.fixture
def ours(kind: Kind, open_saver: Callable[..., Any], flow: Flow) -> Hand:
    """Our saver, sync or async, opened anew for each turn."""

    @contextlib.contextmanager
    def hand() -> Iterator[tuple[Flow, Any]]:
        with open_saver() as saver:
            yield flow, saver

    return hand


@pytest.fixture
def theirs(kind: Kind, place: str, flow: Flow) -> Hand:
    """Python's saver, sync or async."""

    @contextlib.contextmanager
    def hand() -> Iterator[tuple[Flow, Any]]:
        if not flow.is_async:
            with peer(kind, place) as saver:
                yield flow, saver
            return
        context = async_peer(kind, place)
        saver = flow.run(context.__aenter__())
        try:
            yield flow, saver
        finally:
            flow.run(context.__aexit__(None, None, None))

    return hand


@pytest.mark.parametrize("begins", ["theirs", "ours"])
def test_a_thread_goes_from_hand_to_hand(
    ours: Hand, theirs: Hand, config: dict[str, Any], begins: str
) -> None:
    hands = [theirs, ours] if begins == "theirs" else [ours, theirs]
    answers: list[str] = []
    snapshots: list[Any] = []
    for turn in range(1, 5):
        # One asks, the other answers; then the other way round.
        with hands[turn % 2]() as (flow, saver):
            graph = flow(build(saver))
            asked = graph.invoke(said(turn), config)["__interrupt__"]
            assert asked[0].value == {"turn": turn}
            snapshots = graph.get_state_history(config)
            assert graph.get_state(config).values == expected(turn, answers)
        with hands[(turn + 1) % 2]() as (flow, saver):
            graph = flow(build(saver))
            assert graph.get_state_history(config) == snapshots
            state = graph.get_state(config)
            assert state.next == ("ask",)
            assert state.interrupts == tuple(asked)
            answers.append(f"answer {turn}")
            assert graph.invoke(Command(resume=answers[-1]), config) == expected(turn, answers)
    views = []
    for hand in hands:
        with hand() as (flow, saver):
            views.append(flow(build(saver)).get_state_history(config))
            assert views[-1][0].values == expected(4, answers)
    assert views[0] == views[1]
    assert len(views[0]) == 4 * 5


def by_task(found: CheckpointTuple) -> CheckpointTuple:
    """With the tasks of its pending writes by id: so Python's savers ordered them before 4.3, since then by path."""
    return found._replace(pending_writes=sorted(found.pending_writes or [], key=lambda write: write[0]))


@pytest.mark.parametrize("begins", ["theirs", "ours"])
def test_both_read_the_same_tuples(
    ours: Hand, theirs: Hand, config: dict[str, Any], begins: str
) -> None:
    hands = [theirs, ours] if begins == "theirs" else [ours, theirs]
    with hands[0]() as (flow, saver):
        flow(build(saver)).invoke(said(1), config)
    seen = []
    for hand in hands:
        with hand() as (flow, saver):
            tuples = flow(saver).list(config)
            latest = flow(saver).get_tuple(config)
            assert latest == tuples[0]
            seen.append(tuples)
            assert flow(saver).list(config, filter={"step": 1})[0].metadata["step"] == 1
    assert [by_task(one) for one in seen[0]] == [by_task(one) for one in seen[1]]
    for left, right in zip(*seen):
        assert left.checkpoint.keys() == right.checkpoint.keys()
        assert [*left.metadata] == [*right.metadata]
        for channel, value in left.checkpoint["channel_values"].items():
            assert type(value) is type(right.checkpoint["channel_values"][channel]), channel


@pytest.mark.parametrize("begins", ["theirs", "ours"])
def test_a_failed_step_is_resumed_by_the_other(
    ours: Hand, theirs: Hand, config: dict[str, Any], begins: str
) -> None:
    calls = {"good": 0, "bad": 0}

    def graph_on(saver: Any, broken: bool) -> Any:
        def good(state: State) -> State:
            calls["good"] += 1
            return {"log": ["good"]}

        def bad(state: State) -> State:
            calls["bad"] += 1
            if broken:
                raise ConnectionResetError("not now")
            return {"log": ["bad"]}

        builder = StateGraph(State)
        builder.add_node("good", good)
        builder.add_node("bad", bad)
        builder.add_edge(START, "good")
        builder.add_edge("good", "bad")
        return builder.compile(checkpointer=saver)

    hands = [theirs, ours] if begins == "theirs" else [ours, theirs]
    with hands[0]() as (flow, saver):
        with pytest.raises(ConnectionResetError):
            flow(graph_on(saver, True)).invoke({"log": []}, config)
    with hands[1]() as (flow, saver):
        graph = flow(graph_on(saver, False))
        [task] = graph.get_state(config).tasks
        assert task.name == "bad"
        assert "not now" in str(task.error)
        assert graph.invoke(None, config)["log"] == ["good", "bad"]
    assert calls == {"good": 1, "bad": 2}
    with hands[0]() as (flow, saver):
        assert flow(graph_on(saver, False)).get_state(config).values["log"] == ["good", "bad"]


def test_deletions_are_visible_to_the_other(ours: Hand, theirs: Hand, config: dict[str, Any]) -> None:
    for writer, reader in [(ours, theirs), (theirs, ours)]:
        with writer() as (flow, saver):
            flow(build(saver)).invoke(said(1), config)
        with reader() as (flow, saver):
            assert flow(saver).get_tuple(config) is not None
            flow(saver).delete_thread(config["configurable"]["thread_id"])
        with writer() as (flow, saver):
            assert flow(saver).get_tuple(config) is None
            assert flow(saver).list(config) == []
