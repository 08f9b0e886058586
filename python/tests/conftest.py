"""Fixtures of the tests: the backends, the location of their data, sync and async calls."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import langgraph_ckpt
import psycopg
import pymongo
import pytest
import redis
from langgraph.checkpoint.base import BaseCheckpointSaver, empty_checkpoint
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from psycopg import sql
from psycopg.rows import dict_row

POSTGRES = "CHECKPOINT_TEST_POSTGRES_URL"
MONGO = "CHECKPOINT_TEST_MONGO_JAVA_URL"
REDIS = "CHECKPOINT_TEST_REDIS_URL"


@dataclass(frozen=True)
class Kind:
    """A backend: its class, whether its data outlives the saver, and whether a saver of LangGraph's reads it."""

    name: str
    saver: type[BaseCheckpointSaver]
    server: str | None = None
    lasting: bool = True
    peer: bool = True


# A new backend is an entry here, and a branch in `place` if its data needs a location.
KINDS = [
    Kind("memory", langgraph_ckpt.InMemorySaver, lasting=False, peer=False),
    Kind("sqlite", langgraph_ckpt.SqliteSaver),
    Kind("postgres", langgraph_ckpt.PostgresSaver, server=POSTGRES),
    # FerretDB is too slow for all of it: it reads the whole collection for almost every command.
    Kind("mongo", langgraph_ckpt.MongoSaver, server=MONGO, peer=False),
    Kind("redis", langgraph_ckpt.RedisSaver, server=REDIS, peer=False),
]


def kinds(*names: str, lasting: bool = False, peer: bool = False) -> Any:
    """The backends of a test that does not run on all."""
    chosen = [
        kind
        for kind in KINDS
        if (not names or kind.name in names) and (kind.lasting or not lasting) and (kind.peer or not peer)
    ]
    return pytest.mark.parametrize("kind", chosen, ids=lambda kind: kind.name)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    marked = any("kind" in str(mark.args[:1]) for mark in metafunc.definition.iter_markers("parametrize"))
    if "kind" in metafunc.fixturenames and not marked:
        metafunc.parametrize("kind", KINDS, ids=lambda kind: kind.name)


def required(server: str) -> bool:
    """Whether a missing server is a failure: it or its family is in CHECKPOINT_TEST_REQUIRE."""
    wanted = os.environ.get("CHECKPOINT_TEST_REQUIRE", "").lower().replace(" ", "").split(",")
    name = server.removeprefix("CHECKPOINT_TEST_").removesuffix("_URL").lower()
    return any(name == one or name.startswith(f"{one}_") for one in wanted if one)


def server_url(server: str) -> str:
    url = os.environ.get(server)
    if url:
        return url
    if required(server):
        pytest.fail(f"{server} is not set, and CHECKPOINT_TEST_REQUIRE asks for it")
    pytest.skip(f"{server} is not set")


@pytest.fixture(scope="session")
def postgres_database() -> Iterator[str]:
    """The URL of a new database for this run, with the extension `vector` if the server has it."""
    url = server_url(POSTGRES)
    name = sql.Identifier(f"wheel_{uuid.uuid4().hex[:12]}")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(name))
        try:
            own = make_url(url, dbname=name.as_string().strip('"'))
            with psycopg.connect(own, autocommit=True) as inside:
                found = inside.execute("SELECT 1 FROM pg_available_extensions WHERE name = 'vector'").fetchone()
                if found:
                    inside.execute("CREATE EXTENSION vector")
            yield own
        finally:
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(name))


def make_url(url: str, dbname: str | None = None, schema: str | None = None) -> str:
    """The URL with another database, or with a schema in front of `public`."""
    start, _, query = url.partition("?")
    if dbname is not None:
        start = f"{start.rpartition('/')[0]}/{dbname}"
    parts = [query] if query else []
    if schema is not None:
        parts.append(f"options=-csearch_path%3D{schema}%2Cpublic")
    return f"{start}?{'&'.join(parts)}" if parts else start


@pytest.fixture
def postgres_url(postgres_database: str) -> Iterator[str]:
    """The URL of a new, empty schema for this test."""
    schema = f"t{uuid.uuid4().hex[:12]}"
    with psycopg.connect(postgres_database, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
    # It is dropped with the database.
    yield make_url(postgres_database, schema=schema)


@pytest.fixture(scope="session")
def redis_server() -> Iterator[tuple[str, str]]:
    """The URL of the server, and what all keys of this run begin with, which are deleted at the end."""
    url, prefix = server_url(REDIS), f"wheel_{uuid.uuid4().hex[:12]}"
    try:
        yield url, prefix
    finally:
        with redis.Redis.from_url(url) as client:
            for key in client.scan_iter(match=f"{prefix}*", count=5000):
                client.unlink(key)


@pytest.fixture
def redis_url(redis_server: tuple[str, str]) -> str:
    """A URL with a key prefix of this test's own."""
    url, prefix = redis_server
    return f"{url}?prefix={prefix}_{uuid.uuid4().hex[:12]}"


def redis_contents(place: str) -> dict[bytes, Any]:
    """What the keys of a prefix hold."""
    url, _, prefix = place.partition("?prefix=")
    found: dict[bytes, Any] = {}
    with redis.Redis.from_url(url) as client:
        for key in client.scan_iter(match=f"{prefix}:*", count=5000):
            read = {b"hash": client.hgetall, b"zset": client.zrange, b"set": client.smembers, b"string": client.get}
            kind: Any = client.type(key)
            found[key] = read[kind](key, 0, -1) if kind == b"zset" else read[kind](key)
    return found


@pytest.fixture
def mongo_url() -> Iterator[str]:
    """A URL with a database of this test's own, which is dropped at the end."""
    url, name = server_url(MONGO), f"wheel_{uuid.uuid4().hex[:12]}"
    try:
        yield f"{url}/{name}"
    finally:
        with pymongo.MongoClient(url) as client:
            client.drop_database(name)


def mongo_contents(place: str) -> list[dict[str, Any]]:
    """Every document of a database."""
    with pymongo.MongoClient(place) as client:
        database = client.get_default_database()
        return [document for name in database.list_collection_names() for document in database[name].find()]


@pytest.fixture
def sqlite_path(tmp_path: Path) -> str:
    return str(tmp_path / "checkpoints.sqlite")


@pytest.fixture
def place(kind: Kind, request: pytest.FixtureRequest) -> str:
    """The location of this test's data: the argument of `from_conn_string`."""
    if kind.name == "memory":
        return ""
    return request.getfixturevalue("sqlite_path" if kind.name == "sqlite" else f"{kind.name}_url")


def open_at(kind: Kind, place: str, **options: Any) -> Any:
    """A saver at a location, not set up; in memory without one."""
    return kind.saver.from_conn_string(place, **options) if place else kind.saver(**options)


@pytest.fixture
def open_saver(kind: Kind, place: str) -> Iterator[Callable[..., Any]]:
    """Opens savers on this test's data, set up; they are closed at its end."""
    with contextlib.ExitStack() as stack:

        def open_ready(**options: Any) -> Any:
            saver = stack.enter_context(open_at(kind, place, **options))
            saver.setup()
            return saver

        yield open_ready


@pytest.fixture
def saver(open_saver: Callable[..., Any]) -> Any:
    return open_saver()


@contextlib.contextmanager
def peer(kind: Kind, place: str, **options: Any) -> Iterator[BaseCheckpointSaver]:
    """Python's own saver on the same data."""
    if kind.name == "sqlite":
        with contextlib.closing(sqlite3.connect(place, check_same_thread=False)) as connection:
            yield SqliteSaver(connection, **options)
    else:
        with psycopg.connect(place, autocommit=True, prepare_threshold=0, row_factory=dict_row) as connection:
            saver = PostgresSaver(connection, **options)
            saver.setup()
            yield saver


@contextlib.asynccontextmanager
async def async_peer(kind: Kind, place: str, **options: Any) -> Any:
    """Python's own asynchronous saver on the same data."""
    if kind.name == "sqlite":
        async with AsyncSqliteSaver.from_conn_string(place) as saver:
            saver.serde = options.get("serde", saver.serde)
            yield saver
    else:
        async with AsyncPostgresSaver.from_conn_string(place, **options) as saver:
            await saver.setup()
            yield saver


class Flow:
    """Calls a graph's or a saver's methods, the synchronous or the asynchronous ones, on an event loop of its own.

    `flow(graph).invoke(…)` is `graph.invoke(…)`, or `graph.ainvoke(…)` run to its end. What yields comes as a list.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop | None) -> None:
        self.loop = loop

    def __call__(self, target: Any) -> Any:
        return _Calls(self, target)

    @property
    def is_async(self) -> bool:
        return self.loop is not None

    def run(self, awaitable: Any) -> Any:
        assert self.loop is not None
        return self.loop.run_until_complete(awaitable)


class _Calls:
    def __init__(self, flow: Flow, target: Any) -> None:
        self._flow, self._target = flow, target

    def __getattr__(self, name: str) -> Callable[..., Any]:
        flow = self._flow
        method = getattr(self._target, f"a{name}" if flow.is_async else name)

        async def collect(items: Any) -> list[Any]:
            return [item async for item in items]

        def call(*args: Any, **kwargs: Any) -> Any:
            result = method(*args, **kwargs)
            if flow.is_async:
                return flow.run(collect(result) if hasattr(result, "__aiter__") else result)
            return list(result) if hasattr(result, "__next__") else result

        return call


@pytest.fixture(params=["sync", "async"])
def flow(request: pytest.FixtureRequest) -> Iterator[Flow]:
    if request.param == "sync":
        yield Flow(None)
        return
    loop = asyncio.new_event_loop()
    try:
        yield Flow(loop)
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


@pytest.fixture
def config() -> dict[str, Any]:
    """A new thread for this test."""
    return thread(uuid.uuid4().hex)


def thread(thread_id: str, checkpoint_ns: str | None = None, **more: Any) -> dict[str, Any]:
    configurable = {"thread_id": thread_id, **more}
    if checkpoint_ns is not None:
        configurable["checkpoint_ns"] = checkpoint_ns
    return {"configurable": configurable}


def put(
    flow: Flow, saver: Any, config: dict[str, Any], values: dict[str, Any], **metadata: Any
) -> dict[str, Any]:
    """Stores a checkpoint with these channels, and returns its config."""
    checkpoint = empty_checkpoint()
    checkpoint["channel_values"] = values
    checkpoint["channel_versions"] = {channel: f"{1:032}.0" for channel in values}
    # LangGraph passes the namespace with every checkpoint.
    config = {"configurable": {"checkpoint_ns": "", **config["configurable"]}}
    about = {"source": "loop", "step": 0, "parents": {}, **metadata}
    return flow(saver).put(config, checkpoint, about, dict(checkpoint["channel_versions"]))
