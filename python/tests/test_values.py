"""Stored values are read back unchanged: any Python object, any id, any serde."""

import asyncio
import dataclasses
import datetime
import decimal
import enum
import math
import pathlib
import pickle
import re
import threading
import uuid
from collections import deque
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple, TypedDict

import numpy
import pydantic
import pytest
from conftest import Flow, Kind, kinds, peer, put, thread
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import START, StateGraph
from langgraph.types import Interrupt, Send


@dataclasses.dataclass
class Point:
    x: int
    y: float
    tags: set[str] = dataclasses.field(default_factory=set)


class Model(pydantic.BaseModel):
    name: str
    inner: list[dict[str, int]] = []


class Color(enum.Enum):
    RED = "red"


class Text(str, enum.Enum):
    HELLO = "hello"


class Number(enum.IntEnum):
    ONE = 1


class Name(str):
    """A subclass of str that is no enum."""


class Pair(NamedTuple):
    left: int
    right: str


NOW = datetime.datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=datetime.timezone.utc)

VALUES: dict[str, Any] = {
    "none": None,
    "true": True,
    "false": False,
    "zero": 0,
    "negative": -17,
    "int64": 2**63 - 1,
    "int64_min": -(2**63),
    "uint64": 2**64 - 1,
    "float": 0.1,
    "integral_float": 1.0,
    "negative_zero": -0.0,
    "large_float": 1e300,
    "float_at_1e16": 1e16,
    "smallest_float": 5e-324,
    "infinity": math.inf,
    "negative_infinity": -math.inf,
    "empty_text": "",
    "text": "héllo 🎉 \n\t\"quoted\" \\ back",
    "text_of_digits": "123456789012345678901",
    "bytes": bytes(range(256)),
    "bytearray": bytearray(b"\x00\x01"),
    "empty_bytes": b"",
    "list": [1, [2, [3, None]], "x"],
    "empty_list": [],
    "dict": {"a": 1, "b": {"c": [True, 1.5]}},
    "int_keys": {1: "one", 2: "two"},
    "empty_dict": {},
    "nul_inside": {"text": "a\x00b", "list": ["\x00"]},
    "tuple": (1, (2, 3)),
    "set": {1, 2, 3},
    "frozenset": frozenset({"a", "b"}),
    "deque": deque([1, 2, 3]),
    "named_tuple": Pair(1, "two"),
    "dataclass": Point(1, 2.5, {"a"}),
    "pydantic": Model(name="n", inner=[{"a": 1}]),
    "list_of_models": [Model(name=str(number)) for number in range(3)],
    "enum": Color.RED,
    "text_enum": Text.HELLO,
    "int_enum": Number.ONE,
    "text_subclass": Name("name"),
    "uuid": uuid.UUID("12345678-1234-5678-1234-567812345678"),
    "datetime": NOW,
    "naive_datetime": NOW.replace(tzinfo=None),
    "date": NOW.date(),
    "time": NOW.time(),
    "timedelta": datetime.timedelta(days=1, microseconds=5),
    "timezone": datetime.timezone.utc,
    "decimal": decimal.Decimal("1.10"),
    "path": pathlib.Path("/some/where"),
    "pattern": re.compile("a+", re.IGNORECASE),
    "message": HumanMessage("hi", id="h1", additional_kwargs={"n": 1}),
    "messages": [
        AIMessage("", id="a1", tool_calls=[{"name": "t", "args": {"q": 1}, "id": "c1"}]),
        ToolMessage("found", tool_call_id="c1", id="t1", artifact={"raw": [1, 2]}),
    ],
    "document": Document("text", metadata={"page": 3}),
    "send": Send("node", {"a": 1}),
    "interrupt": Interrupt(value={"question": "?"}, id="i1"),
    "large": "x" * 3_000_000,
}


def same(left: Any, right: Any) -> bool:
    """Equal, with the same types at every level."""
    return type(left) is type(right) and repr(left) == repr(right) and (left == right or left != left)


def through_langgraph(value: Any) -> Any:
    serde = JsonPlusSerializer()
    return serde.loads_typed(serde.dumps_typed(value))


class Counting(JsonPlusSerializer):
    def __init__(self) -> None:
        super().__init__()
        self.dumped: list[Any] = []

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        self.dumped.append(obj)
        return super().dumps_typed(obj)


def step(
    flow: Flow,
    saver: Any,
    config: dict[str, Any],
    values: dict[str, Any],
    versions: dict[str, int],
    **metadata: Any,
) -> dict[str, Any]:
    """Stores a checkpoint, of which the channels are new whose version is the highest."""
    checkpoint = {**empty_checkpoint(), "channel_values": values}
    checkpoint["channel_versions"] = {channel: f"{version:032}.0" for channel, version in versions.items()}
    newest = max(versions.values())
    changed = {c: v for c, v in checkpoint["channel_versions"].items() if versions[c] == newest}
    config = {"configurable": {"checkpoint_ns": "", **config["configurable"]}}
    return flow(saver).put(config, checkpoint, {"source": "loop", "step": 0, "parents": {}, **metadata}, changed)


@pytest.mark.parametrize("way", ["by its run", "with its thread", "it is another's"])
def test_unchanged_values_survive_the_parents_deletion(
    saver: Any, flow: Flow, config: dict[str, Any], way: str
) -> None:
    """A step continues from a checkpoint that is deleted meanwhile."""
    docs = ["d1", "d2"]
    first = step(flow, saver, config, {"docs": docs, "n": [1]}, {"docs": 1, "n": 1}, run_id="run")
    if way == "by its run":
        flow(saver).delete_for_runs(["run"])
    elif way == "with its thread":
        flow(saver).delete_thread(config["configurable"]["thread_id"])
    else:
        first = thread(config["configurable"]["thread_id"], checkpoint_id=empty_checkpoint()["id"])
    stored = step(flow, saver, first, {"docs": docs, "n": [2]}, {"docs": 1, "n": 2})
    assert flow(saver).get_tuple(stored).checkpoint["channel_values"] == {"docs": docs, "n": [2]}


@kinds("memory", "postgres", "mongo", "redis")
def test_unchanged_values_are_not_serialized(
    open_saver: Callable[..., Any], flow: Flow, config: dict[str, Any]
) -> None:
    serde = Counting()
    saver = open_saver(serde=serde)
    docs = ["d1", "d2"]
    at = step(flow, saver, config, {"docs": docs, "n": [1]}, {"docs": 1, "n": 1})
    for number in range(2, 5):
        at = step(flow, saver, at, {"docs": docs, "n": [number]}, {"docs": 1, "n": number})
    assert serde.dumped.count(docs) == 1
    found = [one.checkpoint["channel_values"] for one in flow(saver).list(config)]
    assert found == [{"docs": docs, "n": [number]} for number in (4, 3, 2, 1)]


def test_large_values_do_not_block_the_loop(
    open_saver: Callable[..., Any], config: dict[str, Any]
) -> None:
    """After a large value, values are serialized in another thread, as by LangGraph's savers."""
    threads: list[threading.Thread] = []

    class Watching(JsonPlusSerializer):
        def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
            threads.append(threading.current_thread())
            return super().dumps_typed(obj)

    saver = open_saver(serde=Watching())

    async def main() -> None:
        value = {"value": ["x" * 1_000_000]}
        for where in ("here", "there"):
            threads.clear()
            versions = {"value": f"{where}.0"}
            checkpoint = {**empty_checkpoint(), "channel_values": value, "channel_versions": versions}
            about = {"source": "loop", "step": 0, "parents": {}}
            at = thread(config["configurable"]["thread_id"], "")
            stored = await saver.aput(at, checkpoint, about, versions)
            assert (threading.current_thread() in threads) == (where == "here")
            assert (await saver.aget_tuple(stored)).checkpoint["channel_values"] == value
            await saver.aput_writes(stored, [*value.items()], f"task {where}")
            assert threads[-1] is not threading.current_thread()
        for number in range(20):
            await saver.aput_writes(stored, [("value", [number])], f"task {number}")
        assert threads[-1] is threading.current_thread()

    asyncio.run(main())


def test_a_serializer_that_changes_what_it_is_given(
    open_saver: Callable[..., Any], flow: Flow, config: dict[str, Any]
) -> None:
    values: dict[str, Any] = {"a": [1], "b": [2]}

    class Changing(JsonPlusSerializer):
        def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
            values["another"] = [3]
            return super().dumps_typed(obj)

    try:
        put(flow, open_saver(serde=Changing()), config, values)
    except RuntimeError:
        pass  # As Python has it when a dict changes under a loop. There is no panic.


@pytest.mark.parametrize("name", list(VALUES))
def test_values(saver: Any, flow: Flow, config: dict[str, Any], name: str) -> None:
    value = VALUES[name]
    wanted = through_langgraph(value)
    stored = put(flow, saver, config, {"value": value, "list": [value]})
    flow(saver).put_writes(stored, [("value", value)], "task")
    found = flow(saver).get_tuple(config)
    values = found.checkpoint["channel_values"]
    assert values["list"] == through_langgraph([value])
    # Inline scalars keep their type; other values are as the serializer decodes them.
    assert same(values["value"], wanted) or values["value"] == value == wanted
    [(task, channel, written)] = found.pending_writes
    assert (task, channel) == ("task", "value")
    assert same(written, wanted)
    [listed] = flow(saver).list(config)
    assert listed.checkpoint["channel_values"]["list"] == values["list"]


def test_nan(saver: Any, flow: Flow, config: dict[str, Any]) -> None:
    stored = put(flow, saver, config, {"value": math.nan, "list": [math.nan]})
    flow(saver).put_writes(stored, [("value", math.nan)], "task")
    found = flow(saver).get_tuple(config)
    assert math.isnan(found.checkpoint["channel_values"]["value"])
    assert math.isnan(found.checkpoint["channel_values"]["list"][0])
    assert math.isnan(found.pending_writes[0][2])


def test_numpy(saver: Any, flow: Flow, config: dict[str, Any]) -> None:
    array = numpy.arange(12, dtype=numpy.float32).reshape(3, 4)
    put(flow, saver, config, {"array": array})
    values = flow(saver).get_tuple(config).checkpoint["channel_values"]
    assert values["array"].dtype == array.dtype
    assert numpy.array_equal(values["array"], array)


@kinds("postgres")
def test_numbers_of_numpy(saver: Any, flow: Flow, config: dict[str, Any]) -> None:
    """They are Python floats too, so Python's PostgresSaver stores them inline. LangGraph's serializer rejects them."""
    put(flow, saver, config, {"number": numpy.float64(0.1)})
    assert flow(saver).get_tuple(config).checkpoint["channel_values"] == {"number": 0.1}


BIG = pytest.mark.parametrize("value", [2**64, -(2**63) - 1, 10**40], ids=["2**64", "-2**63-1", "10**40"])


@BIG
@kinds("memory", "postgres", "mongo", "redis")
def test_integers_of_any_size(saver: Any, flow: Flow, config: dict[str, Any], value: int) -> None:
    """As in Python's PostgresSaver they are inline. LangGraph's serializer supports only 64 bits."""
    put(flow, saver, config, {"value": value})
    assert flow(saver).get_tuple(config).checkpoint["channel_values"] == {"value": value}


@BIG
@kinds("sqlite")
def test_integers_that_the_serializer_rejects(
    saver: Any, flow: Flow, config: dict[str, Any], value: int
) -> None:
    with pytest.raises(TypeError, match="64"):
        put(flow, saver, config, {"value": value})
    assert flow(saver).get_tuple(config) is None


IDS = {
    "empty": "",
    "newline": "line\nbreak",
    "emoji": "🎉 party",
    "long": "x" * 5_000,
    "delimiters": "a:b|c{d}e%f/g\\h'i\"j--;k",
    "spaces": "  ",
    "percent": "%s %(name)s",
}


@pytest.mark.parametrize("name", [name for name in IDS if name != "empty"])
def test_odd_ids(saver: Any, flow: Flow, name: str) -> None:
    odd = IDS[name]
    config = thread(odd, odd)
    # With PostgreSQL a backslash in names of channels and tasks is rejected: Python could not read the row.
    channel = task = odd.replace("\\", "")
    stored = put(flow, saver, config, {channel: [odd]}, odd=odd)
    assert stored["configurable"]["thread_id"] == odd
    flow(saver).put_writes(stored, [(channel, odd)], task, odd)
    for found in [flow(saver).get_tuple(config), *flow(saver).list(config, filter={"odd": odd})]:
        assert found.config == stored
        assert found.checkpoint["channel_values"] == {channel: [odd]}
        assert found.pending_writes == [(task, channel, odd)]
        assert found.metadata["odd"] == odd
    assert flow(saver).get_tuple(thread(odd, "")) is None
    flow(saver).delete_thread(odd)
    assert flow(saver).get_tuple(config) is None


def test_empty_ids(saver: Any, flow: Flow) -> None:
    put(flow, saver, thread(""), {"value": ["of the empty thread"]})
    put(flow, saver, thread("other"), {"value": ["of another"]})
    assert flow(saver).get_tuple(thread("")).checkpoint["channel_values"] == {"value": ["of the empty thread"]}
    assert len(flow(saver).list(thread(""))) == 1


def test_an_integer_as_thread_id(saver: Any, flow: Flow) -> None:
    """As in Python's savers: numbers are stored as text."""
    put(flow, saver, thread(17), {"value": [1]})  # type: ignore[arg-type]
    assert flow(saver).get_tuple(thread("17")).checkpoint["channel_values"] == {"value": [1]}


@kinds("postgres")
def test_nul_is_rejected_if_the_server_cannot_store_it(saver: Any, flow: Flow) -> None:
    for config, values in [
        (thread("a\x00b"), {"value": 1}),
        (thread("t", "n\x00s"), {"value": 1}),
        (thread("t"), {"cha\x00nnel": [1]}),
    ]:
        with pytest.raises(ValueError, match=r"U\+0000"):
            put(flow, saver, config, values)
    # An empty config is like `None`, as in LangGraph's savers.
    assert flow(saver).list(None) == flow(saver).list({}) == []


@kinds("postgres")
def test_backslashes_in_channels_are_rejected(saver: Any, flow: Flow, config: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="backslash"):
        put(flow, saver, config, {"back\\slash": [1]})
    assert flow(saver).get_tuple(config) is None


@kinds("memory", "sqlite", "mongo", "redis")
def test_nul_elsewhere(saver: Any, flow: Flow) -> None:
    put(flow, saver, thread("a\x00b"), {"cha\x00nnel": "v\x00"})
    assert flow(saver).get_tuple(thread("a\x00b")).checkpoint["channel_values"] == {"cha\x00nnel": "v\x00"}
    assert flow(saver).get_tuple(thread("a")) is None


def test_a_text_with_nul_in_it(saver: Any, flow: Flow, config: dict[str, Any]) -> None:
    """Python's own PostgresSaver cannot store it."""
    put(flow, saver, config, {"value": "a\x00b"})
    assert flow(saver).get_tuple(config).checkpoint["channel_values"] == {"value": "a\x00b"}


def test_metadata(saver: Any, flow: Flow, config: dict[str, Any]) -> None:
    about = {
        "user": "ann",
        "tags": ["a", "b"],
        "nested": {"deep": {"n": 1}},
        "score": 0.5,
        "nothing": None,
        "ok": True,
        "umlaut": "ü🎉",
    }
    put(flow, saver, config, {"value": 1}, **about)
    found = flow(saver).get_tuple(config).metadata
    assert found == {"source": "loop", "step": 0, "parents": {}, **about}
    for wanted in [{"user": "ann"}, {"score": 0.5, "ok": True}, {"step": 0, "umlaut": "ü🎉"}]:
        assert len(flow(saver).list(config, filter=wanted)) == 1
        assert len(flow(saver).list(None, filter=wanted)) == 1
    for other in [{"user": "bob"}, {"score": 0.25}, {"user": "ann", "ok": False}]:
        assert flow(saver).list(config, filter=other) == []


def test_metadata_from_the_config(saver: Any, flow: Flow) -> None:
    """As in `get_checkpoint_metadata`: the config's entries are metadata too, except for the ids."""
    config = {
        "configurable": {"thread_id": "t", "checkpoint_ns": "", "user_id": "u1", "__private": "no"},
        "metadata": {"run_id": "r1", "team": "blue"},
    }
    stored = put(flow, saver, config, {"value": 1})
    assert stored["configurable"]["thread_id"] == "t"
    plain = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}, "metadata": config["metadata"]}
    checkpoint = empty_checkpoint()
    flow(saver).put({**plain, "configurable": config["configurable"]}, checkpoint, {"step": 1}, {})
    found = flow(saver).get_tuple(thread("t")).metadata
    assert (found["run_id"], found["team"], found["user_id"], found["step"]) == ("r1", "blue", "u1", 1)
    assert "__private" not in found
    assert "thread_id" not in found


class Reversing:
    """An unusual serde: reversed bytes, and its own tag."""

    def __init__(self) -> None:
        self.inner = JsonPlusSerializer()

    def dumps_typed(self, value: Any) -> tuple[str, bytes]:
        tag, data = self.inner.dumps_typed(value)
        return f"reversed-{tag}", data[::-1]

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        tag, backwards = data
        assert tag.startswith("reversed-"), tag
        return self.inner.loads_typed((tag.removeprefix("reversed-"), bytes(backwards)[::-1]))


class Untyped:
    """A legacy serde without tags."""

    def dumps(self, value: Any) -> bytes:
        return b"old" + pickle.dumps(value)

    def loads(self, data: bytes) -> Any:
        assert data[:3] == b"old"
        return pickle.loads(data[3:])


@pytest.mark.parametrize("serde", [Reversing, Untyped, lambda: JsonPlusSerializer(pickle_fallback=True)])
def test_a_custom_serde(
    open_saver: Callable[..., Any], flow: Flow, config: dict[str, Any], serde: Callable[[], Any]
) -> None:
    class State(TypedDict, total=False):
        log: Annotated[list[Any], lambda left, right: left + right]
        count: int

    builder = StateGraph(State)
    builder.add_node("node", lambda state: {"log": [Point(1, 2.0)], "count": state.get("count", 0) + 1})
    builder.add_edge(START, "node")
    saver = open_saver(serde=serde())
    graph = flow(builder.compile(checkpointer=saver))
    for turn in range(3):
        graph.invoke({"log": [turn]}, config)
    points = Point(1, 2.0)
    assert graph.get_state(config).values == {"log": [0, points, 1, points, 2, points], "count": 3}
    assert len(graph.get_state_history(config)) == 9


def test_pickle_fallback(open_saver: Callable[..., Any], flow: Flow, config: dict[str, Any]) -> None:
    saver = open_saver(serde=JsonPlusSerializer(pickle_fallback=True))
    put(flow, saver, config, {"value": slice(1, 2), "complex": 1 + 2j})
    values = flow(saver).get_tuple(config).checkpoint["channel_values"]
    assert values == {"value": slice(1, 2), "complex": 1 + 2j}


def test_a_strict_allowlist_holds(
    open_saver: Callable[..., Any], kind: Kind, flow: Flow, config: dict[str, Any]
) -> None:
    """A class that is not allowed is read as plain data, and one that `with_allowlist` adds as itself."""
    saver = open_saver(serde=JsonPlusSerializer(allowed_msgpack_modules=None))
    put(flow, saver, config, {"value": [Point(1, 2.0)], "model": Model(name="n")})
    plain = flow(saver).get_tuple(config).checkpoint["channel_values"]["value"][0]
    assert not isinstance(plain, Point)
    allowing = saver.with_allowlist([(Point.__module__, "Point")])
    found = flow(allowing).get_tuple(config).checkpoint["channel_values"]
    assert found["value"] == [Point(1, 2.0)]
    assert not isinstance(found["model"], Model)
    assert saver.serde is not allowing.serde
    # Both share one saver: each reads the other's writes.
    put(flow, allowing, config, {"later": ["x"]})
    assert flow(saver).get_tuple(config).checkpoint["channel_values"] == {"later": ["x"]}


# What is absent stays absent, and `None`, as `copy_checkpoint` and forks have it, stays `None`.
UPDATED_CHANNELS = {"absent": {}, "none": {"updated_channels": None}, "list": {"updated_channels": ["a", "b"]}}


def put_with_updated_channels(flow: Flow, saver: Any, config: dict[str, Any], updated: dict[str, Any]) -> None:
    checkpoint = {key: value for key, value in empty_checkpoint().items() if key != "updated_channels"}
    config = {"configurable": {"checkpoint_ns": "", **config["configurable"]}}
    about = {"source": "loop", "step": 0, "parents": {}}
    flow(saver).put(config, {**checkpoint, **updated}, about, {})


def updated_channels(checkpoint: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in checkpoint.items() if key == "updated_channels"}


@pytest.mark.parametrize("updated", UPDATED_CHANNELS.values(), ids=UPDATED_CHANNELS.keys())
def test_updated_channels_come_back_as_they_were(
    saver: Any, flow: Flow, config: dict[str, Any], updated: dict[str, Any]
) -> None:
    put_with_updated_channels(flow, saver, config, updated)
    found = flow(saver).get_tuple(config)
    assert updated_channels(found.checkpoint) == updated
    # And once more, from what was read.
    flow(saver).put(found.config, found.checkpoint, found.metadata, {})
    assert updated_channels(flow(saver).get_tuple(config).checkpoint) == updated
    assert [updated_channels(one.checkpoint) for one in flow(saver).list(config)] == [updated]


@kinds(peer=True)
@pytest.mark.parametrize("begins", ["theirs", "ours"])
@pytest.mark.parametrize("updated", UPDATED_CHANNELS.values(), ids=UPDATED_CHANNELS.keys())
def test_updated_channels_are_the_same_for_python(
    kind: Kind,
    place: str,
    saver: Any,
    flow: Flow,
    config: dict[str, Any],
    begins: str,
    updated: dict[str, Any],
) -> None:
    with peer(kind, place) as theirs:
        if begins == "theirs":
            put_with_updated_channels(Flow(None), theirs, config, updated)
        else:
            put_with_updated_channels(flow, saver, config, updated)
        assert updated_channels(theirs.get_tuple(config).checkpoint) == updated
    assert updated_channels(flow(saver).get_tuple(config).checkpoint) == updated
