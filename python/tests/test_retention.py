"""Retention: what LangGraph does with threads after old checkpoints were removed."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from conftest import Flow, Kind, async_peer, kinds, peer, put, thread
from langgraph.types import Command
from test_functional import delta_graph
from test_graphs import asking_graph, guide_graph

#: The backends that have it.
RETAINING = kinds("memory", "sqlite", "postgres", "mongo", "redis")

DAY = timedelta(days=1)
MOMENT = timedelta(microseconds=1)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def turns(graph: Any, config: dict[str, Any], count: int) -> None:
    for turn in range(count):
        graph.invoke({"foo": "", "bar": [str(turn)]}, config)


@RETAINING
def test_what_is_kept_goes_on(saver: Any, flow: Flow, config: dict[str, Any]) -> None:
    graph = flow(guide_graph(saver))
    turns(graph, config, 3)
    before = graph.get_state_history(config)
    planned = flow(saver).retain(keep_last=5, dry_run=True)
    assert graph.get_state_history(config) == before
    report = flow(saver).retain(keep_last=5)
    assert (planned.dry_run, report.dry_run) == (True, False)
    assert report.removed == planned.removed == report.by_rule["keep_last"]
    assert (report.threads, report.checkpoints, report.removed.checkpoints) == (1, 12, 7)
    assert report.removed.bytes > 0 and not report.busy and not report.failed

    history = graph.get_state_history(config)
    assert history == before[:5]
    assert graph.get_state(config) == before[0]
    # A fork from the oldest checkpoint that is kept, a replay, and the next turn.
    forked = graph.update_state(history[-1].config, {"foo": "fork", "bar": ["fork"]})
    assert graph.get_state(forked).values["bar"][-1] == "fork"
    assert graph.invoke(None, history[2].config)["bar"][-1] == "b"
    assert graph.invoke({"foo": "", "bar": ["on"]}, config)["bar"][-3:] == ["on", "a", "b"]
    assert flow(saver).retain(keep_last=1).removed.threads == 1
    assert len(graph.get_state_history(config)) == 1


@RETAINING
def test_threads_that_wait_for_a_person_stay(saver: Any, flow: Flow, config: dict[str, Any]) -> None:
    calls: Counter[str] = Counter()
    graph = flow(asking_graph(saver, calls))
    first = graph.invoke({"foo": "", "bar": []}, config)
    assert first["__interrupt__"]
    history = graph.get_state_history(config)
    report = flow(saver).retain(keep_last=1, idle_for=MOMENT)
    assert (report.waiting, report.removed.checkpoints) == (1, 0)
    assert graph.get_state_history(config) == history
    # Even without them, the newest checkpoint can be resumed.
    flow(saver).retain(keep_last=1, include_waiting=True)
    assert len(graph.get_state_history(config)) == 1
    finished = graph.invoke(Command(resume="yes"), config)
    assert "__interrupt__" not in finished
    assert flow(saver).retain(idle_for=MOMENT).removed.threads == 1
    assert graph.get_state(config).values == {}


@RETAINING
def test_delta_channels_keep_what_they_need(saver: Any, flow: Flow, config: dict[str, Any]) -> None:
    graph = flow(delta_graph(saver))
    for turn in range(4):
        full = graph.invoke({"log": [f"in {turn}"], "plain": []}, config)["log"]
    flow(saver).retain(keep_last=2)
    assert graph.get_state(config).values["log"] == full
    for snapshot in graph.get_state_history(config)[:2]:
        assert snapshot.values["log"] == full[: len(snapshot.values["log"])]
    assert graph.invoke({"log": ["on"], "plain": []}, config)["log"][: len(full) + 1] == [*full, "on"]


@RETAINING
def test_rules_pins_and_threads(saver: Any, flow: Flow) -> None:
    names = [f"{name}-{uuid.uuid4().hex}" for name in "abcd"]
    for name in names:
        last = thread(name)
        for step in range(3):
            last = put(flow, saver, last, {"x": step}, step=step, hold=name[0] == "b")
    graph = flow(guide_graph(saver))
    run = flow(saver).retain
    assert run(max_age=DAY, idle_for=DAY).removed.checkpoints == 0
    assert run(keep_last=1, thread_ids=[]).threads == 0
    assert run(keep_last=1, thread_ids=["none"]).threads == 0
    report = run(keep_last=1, thread_ids=names[:2], pin={"hold": True})
    assert (report.threads, report.pinned, report.removed.checkpoints) == (2, 1, 2)
    assert run(max_age=MOMENT, namespaces={"": {"keep_last": 2}}, thread_ids=names[2:3]).removed.checkpoints == 1
    report = run(idle_for=MOMENT, keep_last=1, pin={"hold": True})
    assert report.removed.threads == 3
    assert set(report.by_rule) == {"idle_for", "keep_last", "max_age"}
    assert {one.config["configurable"]["thread_id"] for one in flow(saver).list(None)} == {names[1]}
    assert graph.get_state(thread(names[0])).values == {}


@RETAINING
@pytest.mark.parametrize(
    ("policy", "error"),
    [
        ({}, ValueError),
        ({"keep_last": 0}, ValueError),
        ({"keep_last": -1}, ValueError),
        ({"keep_last": 10**30}, ValueError),
        ({"keep_last": "3"}, TypeError),
        ({"keep_last": True}, TypeError),
        ({"max_age": timedelta(0)}, ValueError),
        ({"max_age": -DAY}, ValueError),
        ({"max_age": 30}, TypeError),
        ({"idle_for": timedelta.max}, ValueError),
        ({"keep_last": 1, "pin": {}}, ValueError),
        ({"keep_last": 1, "namespaces": {"a": {"keep": 1}}}, ValueError),
        ({"keep_last": 1, "namespaces": {"a": {"keep_last": 0}}}, ValueError),
        ({"keep_last": 1, "namespaces": 5}, TypeError),
        ({"keep_last": 1, "thread_ids": "abc"}, TypeError),
    ],
    ids=str,
)
def test_bad_policies_remove_nothing(
    saver: Any, flow: Flow, config: dict[str, Any], policy: dict[str, Any], error: type[Exception]
) -> None:
    put(flow, saver, put(flow, saver, config, {"x": 1}), {"x": 2})
    with pytest.raises(error):
        flow(saver).retain(**policy)
    with pytest.raises(error):
        saver.start_retention_sweeper(**policy)
    assert len(flow(saver).list(config)) == 2


@RETAINING
def test_puts_keep_the_last(open_saver: Callable[..., Any], flow: Flow, config: dict[str, Any]) -> None:
    for wrong in (0, -1):
        with pytest.raises(ValueError, match="keep_last"):
            open_saver(keep_last=wrong)
    graph = flow(guide_graph(open_saver(keep_last=4)))
    turns(graph, config, 8)
    history = graph.get_state_history(config)
    assert 4 <= len(history) < 32
    assert graph.get_state(config).values["bar"][-3:] == ["7", "a", "b"]
    assert graph.invoke(None, history[2].config)["bar"][-1] == "b"


@RETAINING
def test_a_sweeper_sweeps_until_it_is_stopped(
    saver: Any, flow: Flow, config: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    graph = flow(guide_graph(saver))
    turns(graph, config, 2)
    running = saver.start_retention_sweeper(0.0001, keep_last=2)
    with pytest.raises(RuntimeError, match="is running"):
        saver.start_retention_sweeper(keep_last=2)
    wait_until(lambda: len(saver_list(saver, config)) == 2)
    assert not running.done()
    assert flow(saver).stop_retention_sweeper(60) is True
    assert flow(saver).stop_retention_sweeper() is True
    assert running.done() and not running.cancelled()
    for interval in (0, -1, float("nan")):
        with pytest.raises(ValueError):
            saver.start_retention_sweeper(interval, keep_last=1)
    saver.start_retention_sweeper(1000, keep_last=2)
    assert len(sweepers()) == 1
    flow(saver).close()
    assert sweepers() == []


def saver_list(saver: Any, config: dict[str, Any]) -> list[Any]:
    return list(saver.list(config))


def sweepers() -> list[threading.Thread]:
    return [found for found in threading.enumerate() if found.name == "retention-sweeper"]


@kinds("sqlite", "postgres", peer=True)
def test_pythons_savers_go_on_with_what_is_kept(
    kind: Kind, place: str, saver: Any, flow: Flow, config: dict[str, Any]
) -> None:
    turns(flow(guide_graph(saver)), config, 3)
    full = flow(delta_graph(saver))
    deltas = thread(uuid.uuid4().hex)
    for turn in range(3):
        log = full.invoke({"log": [f"in {turn}"], "plain": []}, deltas)["log"]
    flow(saver).retain(keep_last=5)

    def check(theirs: Any) -> None:
        graph = flow(guide_graph(theirs))
        history = graph.get_state_history(config)
        assert len(history) == 5
        forked = graph.update_state(history[-1].config, {"foo": "fork", "bar": ["fork"]})
        assert graph.get_state(forked).values["bar"][-1] == "fork"
        assert graph.invoke({"foo": "", "bar": ["on"]}, config)["bar"][-3:] == ["on", "a", "b"]
        assert flow(delta_graph(theirs)).get_state(deltas).values["log"] == log

    if flow.is_async:

        async def opened() -> Any:
            context = async_peer(kind, place)
            return context, await context.__aenter__()

        context, theirs = flow.run(opened())
        try:
            check(theirs)
        finally:
            flow.run(context.__aexit__(None, None, None))
    else:
        with peer(kind, place) as theirs:
            check(theirs)
