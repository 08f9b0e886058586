"""The functional API, and channels that store only what is new."""

import operator
from collections import Counter
from typing import Annotated, Any, TypedDict

import pytest
from conftest import Flow, thread
from langgraph.channels import DeltaChannel
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, RetryPolicy, interrupt


def test_previous_is_what_was_returned(saver: Any, flow: Flow, config: dict[str, Any]) -> None:
    @entrypoint(checkpointer=saver)
    def total(number: int, *, previous: Any = None) -> int:
        return number + (previous or 0)

    assert [flow(total).invoke(number, config) for number in (1, 2, 3)] == [1, 3, 6]
    assert flow(total).invoke(1, thread("another")) == 1
    assert flow(total).get_state(config).values == 6


def test_final_saves_another_value_than_it_returns(saver: Any, flow: Flow, config: dict[str, Any]) -> None:
    @entrypoint(checkpointer=saver)
    def double(number: int, *, previous: Any = None) -> Any:
        return entrypoint.final(value=previous or 0, save=2 * number)

    assert [flow(double).invoke(number, config) for number in (3, 1, 5)] == [0, 6, 2]


def test_finished_tasks_are_not_run_again(saver: Any, flow: Flow, config: dict[str, Any]) -> None:
    calls: Counter[str] = Counter()

    @task
    def slow(number: int) -> int:
        calls["slow"] += 1
        return number * 10

    @task
    def failing(number: int) -> int:
        calls["failing"] += 1
        if calls["failing"] == 1:
            raise ConnectionResetError("not now")
        return number + 1

    @entrypoint(checkpointer=saver)
    def workflow(number: int) -> int:
        tens = [one.result() for one in [slow(number), slow(number + 1)]]
        return failing(sum(tens)).result()

    with pytest.raises(ConnectionResetError):
        flow(workflow).invoke(1, config)
    assert calls == {"slow": 2, "failing": 1}
    assert flow(workflow).invoke(None, config) == 31
    assert calls == {"slow": 2, "failing": 2}


def test_an_interrupt_in_a_task(saver: Any, flow: Flow, config: dict[str, Any]) -> None:
    calls: Counter[str] = Counter()

    @task
    def write(topic: str) -> str:
        calls["write"] += 1
        return f"about {topic}"

    @task
    def review(text: str) -> str:
        return f"{text}: {interrupt({'review': text})}"

    @entrypoint(checkpointer=saver)
    def workflow(topic: str) -> str:
        return review(write(topic).result()).result()

    asked = flow(workflow).invoke("cats", config)["__interrupt__"]
    assert asked[0].value == {"review": "about cats"}
    assert flow(workflow).invoke(Command(resume="fine"), config) == "about cats: fine"
    assert calls == {"write": 1}


def test_retries_write_one_result(saver: Any, flow: Flow, config: dict[str, Any]) -> None:
    calls: Counter[str] = Counter()

    @task(retry_policy=RetryPolicy(max_attempts=3, initial_interval=0.001, retry_on=ConnectionResetError))
    def flaky() -> int:
        calls["flaky"] += 1
        if calls["flaky"] < 3:
            raise ConnectionResetError("not now")
        return calls["flaky"]

    @entrypoint(checkpointer=saver)
    def workflow(_: Any) -> int:
        return flaky().result()

    assert flow(workflow).invoke("go", config) == 3
    assert flow(workflow).get_state(config).values == 3


def test_a_coroutine_as_workflow(saver: Any, config: dict[str, Any]) -> None:
    import asyncio

    @task
    async def add(number: int) -> int:
        return number + 1

    @entrypoint(checkpointer=saver)
    async def workflow(number: int, *, previous: Any = None) -> int:
        numbers = await asyncio.gather(*(add(number + i) for i in range(8)))
        return sum(numbers) + (previous or 0)

    async def main() -> list[int]:
        return [await workflow.ainvoke(0, config) for _ in range(2)]

    assert asyncio.run(main()) == [36, 72]


def extend(state: list[str], writes: list[list[str]]) -> list[str]:
    return [*state, *(item for write in writes for item in write)]


class Deltas(TypedDict, total=False):
    log: Annotated[list[str], DeltaChannel(extend, snapshot_frequency=3)]
    plain: Annotated[list[str], operator.add]


def delta_graph(saver: Any) -> Any:
    builder = StateGraph(Deltas)
    builder.add_node("one", lambda state: {"log": [f"one {len(state['log'])}"], "plain": ["one"]})
    builder.add_node("two", lambda state: {"log": [f"two {len(state['log'])}"]})
    builder.add_edge(START, "one")
    builder.add_edge("one", "two")
    builder.add_edge("two", END)
    return builder.compile(checkpointer=saver)


def test_delta_channels(saver: Any, flow: Flow, config: dict[str, Any]) -> None:
    graph = flow(delta_graph(saver))
    wanted: list[str] = []
    for turn in range(5):
        wanted += [f"in {turn}", f"one {3 * turn + 1}", f"two {3 * turn + 2}"]
        result = graph.invoke({"log": [f"in {turn}"], "plain": []}, config)
        assert result["log"] == wanted
    assert graph.get_state(config).values == {"log": wanted, "plain": ["one"] * 5}
    # Every step of the way, backwards.
    for snapshot in graph.get_state_history(config):
        length = len(snapshot.values.get("log", []))
        assert snapshot.values.get("log", []) == wanted[:length]
        assert flow(delta_graph(saver)).get_state(snapshot.config).values == snapshot.values
    kinds = Counter(
        type(one.checkpoint["channel_values"].get("log")).__name__ for one in flow(saver).list(config)
    )
    # Most checkpoints hold nothing of it, some hold all.
    assert kinds["_DeltaSnapshot"] >= 3
    assert kinds["NoneType"] > kinds["_DeltaSnapshot"]


def test_delta_channels_when_a_thread_forks(saver: Any, flow: Flow, config: dict[str, Any]) -> None:
    graph = flow(delta_graph(saver))
    graph.invoke({"log": ["in"], "plain": []}, config)
    before_two = next(one for one in graph.get_state_history(config) if one.next == ("two",))
    fork = graph.update_state(before_two.config, {"log": ["forked"]})
    assert graph.invoke(None, fork)["log"] == ["in", "one 1", "forked", "two 3"]
    assert graph.get_state(before_two.config).values["log"] == ["in", "one 1"]


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_delta_channels_whatever_the_durability(
    saver: Any, flow: Flow, config: dict[str, Any], durability: Any
) -> None:
    graph = flow(delta_graph(saver))
    for turn in range(3):
        result = graph.invoke({"log": [f"in {turn}"], "plain": []}, config, durability=durability)
    assert result["log"] == graph.get_state(config).values["log"]
    assert [text for text in result["log"] if text.startswith("in")] == ["in 0", "in 1", "in 2"]
    assert len(result["log"]) == 9


def test_delta_channels_after_a_prune_and_in_a_copy(saver: Any, flow: Flow, config: dict[str, Any]) -> None:
    graph = flow(delta_graph(saver))
    for turn in range(3):
        full = graph.invoke({"log": [f"in {turn}"], "plain": []}, config)["log"]
    flow(saver).copy_thread(config["configurable"]["thread_id"], "copy")
    assert graph.get_state(thread("copy")).values["log"] == full
    flow(saver).prune(["copy"], strategy="keep_latest")
    assert graph.get_state(thread("copy")).values["log"] == full
    assert graph.invoke({"log": ["on"], "plain": []}, thread("copy"))["log"][: len(full) + 1] == [*full, "on"]
