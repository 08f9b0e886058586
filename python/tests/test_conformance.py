"""LangGraph's own conformance suite: all its capabilities, on every backend."""

import contextlib
from typing import Any

import pytest
from conftest import Flow, Kind, open_at, thread
from langgraph.checkpoint.base import BaseCheckpointSaver, empty_checkpoint
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.conformance.capabilities import Capability
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph_ckpt import AsyncMongoSaver, AsyncPostgresSaver, AsyncRedisSaver, AsyncSqliteSaver


@pytest.mark.parametrize("flow", ["async"], indirect=True)
@pytest.mark.parametrize("capability", list(Capability), ids=lambda capability: capability.value)
def test_langgraph_suite(kind: Kind, place: str, flow: Flow, capability: Capability) -> None:
    @checkpointer_test(name=kind.name)
    async def saver() -> Any:
        async with open_at(kind, place) as opened:
            await opened.asetup()
            yield opened

    report = flow.run(validate(saver, capabilities={capability.value}))
    result = report.results[capability.value]
    assert result.detected, "the suite does not see the capability"
    assert (result.failures, result.tests_failed, result.passed) == ([], 0, True)
    assert result.tests_passed > 0
    assert report.conformance_level() == "FULL"


@pytest.mark.parametrize("flow", ["async"], indirect=True)
@pytest.mark.parametrize(
    ("made", "at"),
    [
        (AsyncSqliteSaver, "sqlite_path"),
        (AsyncPostgresSaver, "postgres_url"),
        (AsyncMongoSaver, "mongo_url"),
        (AsyncRedisSaver, "redis_url"),
    ],
    ids=["sqlite", "postgres", "mongo", "redis"],
)
def test_langgraph_suite_under_langgraphs_names(
    made: Any, at: str, flow: Flow, request: pytest.FixtureRequest
) -> None:
    place = request.getfixturevalue(at)

    @checkpointer_test(name=made.__name__)
    async def saver() -> Any:
        async with made.from_conn_string(place) as opened:
            await opened.setup()
            yield opened

    report = flow.run(validate(saver))
    assert report.conformance_level() == "FULL"
    assert report.passed_all()


def test_every_method_is_ours(kind: Kind) -> None:
    """One class has the sync and async methods, and inherits none from the base class."""
    assert issubclass(kind.saver, BaseCheckpointSaver)
    names = ["get_tuple", "list", "put", "put_writes", "delete_thread", "delete_for_runs", "copy_thread", "prune"]
    for name in [*names, *(f"a{name}" for name in names)]:
        assert getattr(kind.saver, name) is not getattr(BaseCheckpointSaver, name), name


# The suite on the registry does not have the capability `delta_channel_history` yet; this is what its next version asks.


class Chain:
    """A chain of checkpoints, with the writes that led to each."""

    def __init__(self, flow: Flow, saver: Any, config: dict[str, Any]) -> None:
        self.saver = flow(saver)
        self.base = {"configurable": {**config["configurable"], "checkpoint_ns": ""}}
        self.tip = self.base
        self.step = -1

    def put(self, writes: list[tuple[str, Any]], **values: Any) -> dict[str, Any]:
        """Adds a checkpoint with these channels, and the writes that were made on it."""
        self.step += 1
        version = f"{self.step + 1:032}.0"
        checkpoint = empty_checkpoint()
        checkpoint["id"] = str(uuid6(clock_seq=self.step))
        checkpoint["channel_values"] = values
        checkpoint["channel_versions"] = dict.fromkeys(values, version)
        metadata = {"source": "loop", "step": self.step, "parents": {}}
        self.tip = self.saver.put(self.tip, checkpoint, metadata, dict(checkpoint["channel_versions"]))
        if writes:
            self.saver.put_writes(self.tip, writes, f"task-{self.step}")
        return self.tip

    def history(self, config: dict[str, Any], *channels: str) -> Any:
        return self.saver.get_delta_channel_history(config=config, channels=list(channels))


@pytest.fixture
def chain(flow: Flow, saver: Any, config: dict[str, Any]) -> Chain:
    return Chain(flow, saver, config)


def values(history: Any, channel: str) -> list[Any]:
    return [value for _, written, value in history[channel]["writes"] if written == channel]


def test_delta_history_is_oldest_first_and_stops_at_the_nearest_snapshot(chain: Chain) -> None:
    chain.put([("log", ["lost"])], log=_DeltaSnapshot(["older"]))
    chain.put([("log", ["a"])], log=_DeltaSnapshot(["seed"]))
    chain.put([("log", ["b"]), ("other", 1), ("log", ["c"])])
    target = chain.put([("log", ["pending"])])
    history = chain.history(target, "log")
    assert values(history, "log") == [["a"], ["b"], ["c"]]
    assert [channel for _, channel, _ in history["log"]["writes"]] == ["log"] * 3
    assert history["log"]["seed"] == _DeltaSnapshot(["seed"])


def test_delta_history_of_channels_stops_for_each_on_its_own(chain: Chain) -> None:
    chain.put([("a", 1), ("b", 10)], a=_DeltaSnapshot([0]))
    chain.put([("a", 2), ("b", 20)], b=_DeltaSnapshot([5]))
    history = chain.history(chain.put([]), "a", "b")
    assert values(history, "a") == [1, 2]
    assert values(history, "b") == [20]
    assert (history["a"]["seed"], history["b"]["seed"]) == (_DeltaSnapshot([0]), _DeltaSnapshot([5]))


def test_delta_history_to_the_root_has_no_seed(chain: Chain) -> None:
    chain.put([("log", ["a"])])
    chain.put([("log", ["b"])])
    history = chain.history(chain.put([]), "log")
    assert values(history, "log") == [["a"], ["b"]]
    assert "seed" not in history["log"]


def test_delta_history_takes_a_plain_value_as_seed(chain: Chain) -> None:
    """A thread from before the channel was a delta channel."""
    chain.put([("log", ["b"])], log=["plain"])
    history = chain.history(chain.put([]), "log")
    assert history["log"]["seed"] == ["plain"]
    assert values(history, "log") == [["b"]]


def test_delta_history_of_nothing(chain: Chain) -> None:
    target = chain.put([("log", ["a"])])
    assert chain.history(target) == {}


def test_delta_history_keeps_threads_apart(flow: Flow, saver: Any, config: dict[str, Any]) -> None:
    ours = Chain(flow, saver, config)
    other = Chain(flow, saver, thread("another"))
    for chain, text in [(ours, "ours"), (other, "theirs")]:
        chain.put([("log", [text])])
        chain.put([])
    assert values(ours.history(ours.tip, "log"), "log") == [["ours"]]


def test_a_saver_is_a_context_manager_of_both_kinds(kind: Kind, place: str, flow: Flow) -> None:
    with open_at(kind, place) as saver:
        saver.setup()
        assert saver.get_tuple(thread("nobody")) is None

    async def entered() -> None:
        async with open_at(kind, place) as saver:
            await saver.asetup()
            assert await saver.aget_tuple(thread("nobody")) is None

    if flow.is_async:
        flow.run(entered())
    with contextlib.closing(open_at(kind, place)) as saver:
        saver.setup()
