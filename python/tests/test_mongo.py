"""What is particular to MongoDB: URLs, TTLs, names, errors."""

from __future__ import annotations

import asyncio
import datetime
from typing import Any

import pymongo
import pymongo.errors
import pytest
from conftest import Flow, mongo_contents, put, thread
from langgraph_ckpt import AsyncMongoSaver, MongoSaver, PostgresSaver
from langgraph_ckpt.mongodb import MongoDBSaver
from langgraph_ckpt.mongodb.aio import AsyncMongoDBSaver

BOTH = pytest.mark.parametrize("made", [MongoSaver, AsyncMongoSaver], ids=lambda one: one.__name__)


def test_langgraphs_names() -> None:
    assert MongoDBSaver is MongoSaver
    assert AsyncMongoDBSaver is AsyncMongoSaver


@BOTH
@pytest.mark.parametrize("given", [None, 5, b"mongodb://h", pymongo.MongoClient(connect=False)], ids=lambda one: type(one).__name__)
def test_other_objects_are_rejected(made: Any, given: Any) -> None:
    with pytest.raises(TypeError, match=f"{made.__name__} takes a URL .*, not {type(given).__name__}$"):
        made(given)


@BOTH
@pytest.mark.parametrize(
    ("url", "part"),
    [
        ("postgresql://u:SECRET@h/d", f"use {PostgresSaver.__name__}"),
        ("mongodb://u:SECRET@h:port", "URL"),
        ("mongodb://u:SECRET@h/?foo=SECRET", "URL"),
        ("mongodb://u:SECRET@h/?ttl=SECRET", "ttl"),
        ("mongodb://u:SECRET@h/?sharded=SECRET", "sharded"),
        ("u:SECRET@h", "mongodb://"),
        ("mongodb://h/?collection=a$b", "collection"),
    ],
)
def test_invalid_urls(made: Any, url: str, part: str) -> None:
    with pytest.raises(ValueError, match=part) as caught:
        made(url)
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {"compression": 23},
        {"ttl": 0},
        {"ttl": -1},
        {"ttl": float("nan")},
        {"ttl": "1"},
        {"timeout": 0},
        {"max_pool_size": 0},
        {"app_name": ""},
        {"db_name": "a.b"},
        {"checkpoint_collection_name": ""},
    ],
    ids=str,
)
def test_invalid_options(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        MongoSaver("mongodb://h", **options)


@pytest.mark.parametrize(
    "options",
    [
        {"compression": 3},
        {"sharded": False},
        {"app_name": "agents", "connect_timeout": 2.0, "timeout": 20.0, "max_retries": 1, "max_pool_size": 2},
    ],
    ids=str,
)
def test_options(mongo_url: str, flow: Flow, options: dict[str, Any]) -> None:
    values = {"text": ["word " * 5000], "count": 3}
    with MongoSaver(mongo_url, **options) as saver:
        put(flow, saver, thread("t"), values)
        assert flow(saver).get_tuple(thread("t")).checkpoint["channel_values"] == values
    size = sum(len(value) for one in mongo_contents(mongo_url) for value in one.values() if isinstance(value, bytes))
    assert (size < 10_000) == ("compression" in options)


def test_database_and_collection(mongo_url: str, flow: Flow) -> None:
    server, _, database = mongo_url.rpartition("/")
    with MongoSaver.from_conn_string(server, database, "mine") as saver:
        put(flow, saver, thread("t"), {"value": [1]})
    with MongoSaver(f"{mongo_url}?collection=mine") as saver:
        assert flow(saver).get_tuple(thread("t")).checkpoint["channel_values"] == {"value": [1]}
    with MongoSaver(mongo_url) as saver:
        assert flow(saver).get_tuple(thread("t")) is None
    with pymongo.MongoClient(mongo_url) as client:
        assert {"mine", "lg_checkpoints"} <= set(client[database].list_collection_names())


def expiries(place: str, thread_id: str) -> list[float]:
    """In how many seconds the documents of a thread expire."""
    now = datetime.datetime.now(datetime.timezone.utc).replace(tzinfo=None)
    found = [one for one in mongo_contents(place) if one.get("t") == thread_id]
    assert found
    return [(one["x"] - now).total_seconds() for one in found if "x" in one]


def test_threads_expire(mongo_url: str, flow: Flow) -> None:
    with MongoSaver(mongo_url, ttl=1000) as saver:
        stored = put(flow, saver, thread("t"), {"value": [1]})
        flow(saver).put_writes(stored, [("value", 2)], "task")
    assert all(900 < seconds < 1200 for seconds in expiries(mongo_url, "t"))
    with MongoSaver(mongo_url) as saver:
        put(flow, saver, thread("u"), {"value": [1]})
    assert expiries(mongo_url, "u") == []
    with MongoSaver(mongo_url, ttl=0.05) as saver:
        put(flow, saver, thread("v"), {"value": [1]})
        for _ in range(1000):
            if flow(saver).get_tuple(thread("v")) is None:
                break
        assert flow(saver).list(thread("v")) == []


@BOTH
def test_errors_are_also_those_of_pymongo(made: Any) -> None:
    with made("mongodb://127.0.0.1:1", connect_timeout=0.5, max_retries=0) as opened:
        with pytest.raises(pymongo.errors.AutoReconnect) as caught:
            asyncio.run(opened.asetup())
    assert isinstance(caught.value, ConnectionError)
    assert caught.value.kind == "unavailable"  # type: ignore[attr-defined]


def test_a_refused_login(mongo_url: str) -> None:
    server = mongo_url.removeprefix("mongodb://").partition("/")[0]
    with MongoSaver(f"mongodb://nobody:SECRET@{server}", connect_timeout=1, max_retries=0) as saver:
        with pytest.raises((ConnectionError, ValueError, RuntimeError, NotImplementedError)) as caught:
            saver.setup()
    assert "SECRET" not in str(caught.value)


def test_a_value_larger_than_a_document(mongo_url: str, flow: Flow) -> None:
    large = bytes(range(256)) * (20 << 12)
    with MongoSaver(mongo_url) as saver:
        put(flow, saver, thread("t"), {"value": large})
    with MongoSaver(mongo_url) as saver:
        assert flow(saver).get_tuple(thread("t")).checkpoint["channel_values"] == {"value": large}
