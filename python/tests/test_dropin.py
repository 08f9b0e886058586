"""LangGraph's own classes replaced by one import: names, modules, arguments, and what its documentation does with them."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import sqlite3
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiosqlite
import langgraph_ckpt
import psycopg
import pytest
from conftest import Flow, Kind, kinds, open_at, put, thread
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph_ckpt import (
    AsyncPostgresSaver,
    AsyncPostgresStore,
    AsyncSqliteSaver,
    InMemoryStore,
    PostgresCache,
    PostgresSaver,
    PostgresStore,
    SqliteSaver,
)
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool, ConnectionPool, PoolClosed
from stores import DIMS, NS, Letters, index, open_store, store_kind, store_place  # noqa: F401

#: LangGraph's modules with ours, and the names that both have.
MODULES = {
    "langgraph.checkpoint.memory": ("langgraph_ckpt.memory", ["InMemorySaver", "MemorySaver"]),
    "langgraph.checkpoint.sqlite": ("langgraph_ckpt.sqlite", ["SqliteSaver"]),
    "langgraph.checkpoint.sqlite.aio": ("langgraph_ckpt.sqlite.aio", ["AsyncSqliteSaver"]),
    "langgraph.checkpoint.postgres": ("langgraph_ckpt.postgres", ["PostgresSaver"]),
    "langgraph.checkpoint.postgres.aio": ("langgraph_ckpt.postgres.aio", ["AsyncPostgresSaver"]),
    "langgraph.store.memory": ("langgraph_ckpt.store.memory", ["InMemoryStore"]),
    "langgraph.store.postgres": (
        "langgraph_ckpt.store.postgres",
        ["AsyncPostgresStore", "PoolConfig", "PostgresStore"],
    ),
    "langgraph.store.postgres.aio": ("langgraph_ckpt.store.postgres.aio", ["AsyncPostgresStore"]),
    "langgraph.store.postgres.base": ("langgraph_ckpt.store.postgres.base", ["PoolConfig", "PostgresStore"]),
    "langgraph.cache.redis": ("langgraph_ckpt.cache.redis", ["RedisCache"]),
    "langgraph.cache.sqlite": ("langgraph_ckpt.cache.sqlite", ["SqliteCache"]),
}

CLASSES = [
    (theirs, ours, name)
    for theirs, (ours, names) in MODULES.items()
    for name in names
    if name not in ("MemorySaver", "PoolConfig")
]


@pytest.mark.parametrize("theirs", MODULES)
def test_every_module_has_langgraphs_names(theirs: str) -> None:
    ours, names = MODULES[theirs]
    for name in names:
        own, other = getattr(importlib.import_module(ours), name), getattr(importlib.import_module(theirs), name)
        assert own is not other
        # `MemorySaver` is another name of a class here as there.
        assert own.__name__ == other.__name__


@pytest.mark.parametrize(("theirs", "ours", "name"), CLASSES, ids=lambda value: value if "." not in value else "")
def test_every_class_takes_langgraphs_arguments(theirs: str, ours: str, name: str) -> None:
    other, own = getattr(importlib.import_module(theirs), name), getattr(importlib.import_module(ours), name)
    for method in ("__init__", "from_conn_string"):
        if not hasattr(other, method):
            continue
        wanted, found = (inspect.signature(getattr(one, method)).parameters for one in (other, own))
        any_name = any(one.kind is one.VAR_KEYWORD for one in found.values())
        # A class of the programming language's own, for the dicts of the in-memory saver.
        names = [one for one in wanted if one not in ("self", "factory")]
        positional = [one for one in names if wanted[one].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
        assert [one for one in found if one != "self"][: len(positional)] == positional
        assert any_name or set(names) <= found.keys()


@pytest.mark.parametrize(("theirs", "ours", "name"), CLASSES, ids=lambda value: value if "." not in value else "")
def test_every_class_has_langgraphs_methods(theirs: str, ours: str, name: str) -> None:
    other, own = getattr(importlib.import_module(theirs), name), getattr(importlib.import_module(ours), name)
    # What each class defines itself; the base classes are LangGraph's in both. `cursor` is sqlite3's.
    defined = {one for base in other.__mro__ if name[-5:] in base.__name__ for one in vars(base)} - {"cursor"}
    methods = {one for one in defined if not one.startswith("_") and callable(getattr(other, one, None))}
    assert {one for one in methods if not hasattr(own, one)} == set()
    for method in methods & vars(own).keys() & {"setup", "sweep_ttl", "start_ttl_sweeper", "stop_ttl_sweeper"}:
        assert inspect.iscoroutinefunction(getattr(own, method)) == inspect.iscoroutinefunction(getattr(other, method))


def test_setup_of_a_saver_can_be_awaited(kind: Kind, place: str) -> None:
    async def main() -> None:
        async with open_at(kind, place) as saver:
            assert await saver.setup() is None
            assert await saver.aget_tuple(thread("nobody")) is None

    asyncio.run(main())
    with open_at(kind, place) as saver:
        saver.setup()
        assert saver.get_tuple(thread("nobody")) is None


def test_setup_of_a_store_can_be_awaited(store_kind: str, store_place: str | None) -> None:  # noqa: F811
    async def main() -> Any:
        store = InMemoryStore() if store_place is None else PostgresStore(store_place)
        async with store:
            assert await store.setup() is None
            await store.aput(NS, "a", {"n": 1})
            return await store.aget(NS, "a")

    assert asyncio.run(main()).value == {"n": 1}


ASYNCHRONOUS = [AsyncSqliteSaver, AsyncPostgresSaver, AsyncPostgresStore]


@pytest.mark.parametrize("saver", ASYNCHRONOUS, ids=lambda one: one.__name__)
def test_asynchronous_classes_set_up_without_blocking_the_loop(
    saver: Any, sqlite_path: str, request: pytest.FixtureRequest
) -> None:
    place = sqlite_path if saver is AsyncSqliteSaver else request.getfixturevalue("postgres_url")

    async def main() -> None:
        async with saver.from_conn_string(place) as opened:
            setup = opened.setup()
            assert inspect.iscoroutine(setup)
            assert await setup is None
            if isinstance(opened, AsyncPostgresStore):
                assert await opened.asearch(()) == []
                return
            graph = chat(opened)
            said = await graph.ainvoke({"messages": "hi"}, thread("t"))
            assert [one.content for one in said["messages"]] == ["hi", "1"]
            assert (await graph.aget_state(thread("t"))).values == said

    asyncio.run(main())


def test_an_asynchronous_stores_sweeper_is_awaited(postgres_url: str) -> None:
    async def main() -> None:
        store = AsyncPostgresStore.from_conn_string(postgres_url, ttl={"default_ttl": 1, "sweep_interval_minutes": 60})
        async with store:
            await store.setup()
            await store.aput(NS, "gone", {"n": 1}, ttl=1e-9)
            running = await store.start_ttl_sweeper()
            assert not running.done()
            assert await store.sweep_ttl() == 1
            assert await store.stop_ttl_sweeper(60) is True
            await asyncio.wait_for(running, 60)
            await store.start_ttl_sweeper(60)
        with AsyncPostgresStore(postgres_url, ttl={"default_ttl": 1}) as store:
            await store.start_ttl_sweeper()

    asyncio.run(main())


def chat(saver: Any) -> Any:
    builder = StateGraph(MessagesState)
    builder.add_node("answer", lambda state: {"messages": [AIMessage(str(len(state["messages"])))]})
    builder.add_edge(START, "answer")
    return builder.compile(checkpointer=saver)


@kinds("sqlite", "postgres", "mongo", "redis")
def test_from_conn_string_without_with(kind: Kind, place: str, flow: Flow) -> None:
    saver = kind.saver.from_conn_string(place)
    saver.setup()
    stored = put(flow, saver, thread("t"), {"value": [1]})
    saver.close()
    with kind.saver.from_conn_string(place) as saver:
        assert flow(saver).get_tuple(thread("t")).config == stored


def test_a_private_database_in_memory(flow: Flow) -> None:
    with SqliteSaver.from_conn_string(":memory:") as saver, SqliteSaver(":memory:") as other:
        saver.setup()
        graph = flow(chat(saver))
        graph.invoke({"messages": "hi"}, thread("t"))
        said = graph.invoke({"messages": "again"}, thread("t"))
        assert [one.content for one in said["messages"]] == ["hi", "1", "again", "3"]
        assert len(graph.get_state_history(thread("t"))) == 6
        assert flow(other).get_tuple(thread("t")) is None
    for options in ({"read_only": True}, {"cipher": langgraph_ckpt.Cipher.aes(bytes(16))}):
        with pytest.raises(ValueError, match="in memory"):
            SqliteSaver(":memory:", **options)
    assert not Path(":memory:").exists()


# psycopg's connections and pools.

CONNECT: dict[str, Any] = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}


def uses(flow: Flow, opened: Any) -> None:
    """Sets it up, and stores and reads something with it."""
    flow.run(opened.asetup()) if flow.is_async else opened.setup()
    if isinstance(opened, PostgresStore):
        flow(opened).put(NS, "a", {"n": 1})
        assert flow(opened).get(NS, "a").value == {"n": 1}
    elif isinstance(opened, PostgresCache):
        flow(opened).set({(("a",), "k"): ([1], None)})
        assert flow(opened).get([(("a",), "k")]) == {(("a",), "k"): [1]}
    else:
        stored = put(flow, opened, thread("t"), {"value": [1]})
        assert flow(opened).get_tuple(thread("t")).config == stored


ON_POSTGRES = [PostgresSaver, PostgresStore, PostgresCache]


@pytest.mark.parametrize("made", ON_POSTGRES, ids=lambda one: one.__name__)
def test_a_connection_of_psycopg(made: Any, postgres_url: str, flow: Flow) -> None:
    with psycopg.Connection.connect(postgres_url, **CONNECT) as connection:
        with made(connection) as opened:
            uses(flow, opened)
            # It is not used, and stays the caller's.
            connection.close()
            uses(flow, opened)
    with psycopg.connect(postgres_url, **CONNECT) as connection, made(connection):
        pass
    with psycopg.connect(postgres_url, **CONNECT) as connection:
        made(connection).close()
        assert connection.execute("SELECT 1 AS one").fetchone() == {"one": 1}


@pytest.mark.parametrize("made", ON_POSTGRES, ids=lambda one: one.__name__)
def test_a_pool_of_psycopg(made: Any, postgres_url: str, flow: Flow) -> None:
    with ConnectionPool(postgres_url, min_size=1, max_size=3, kwargs=CONNECT) as pool, made(pool) as opened:
        uses(flow, opened)
    pool = ConnectionPool(conninfo=postgres_url, open=False, min_size=0, max_size=1, kwargs=CONNECT)
    with made(pool) as opened:
        uses(flow, opened)


@pytest.mark.parametrize("made", [AsyncPostgresSaver, AsyncPostgresStore, PostgresCache], ids=lambda one: one.__name__)
def test_asynchronous_connections_of_psycopg(made: Any, postgres_url: str) -> None:
    async def main() -> None:
        async with await psycopg.AsyncConnection.connect(postgres_url, **CONNECT) as connection:
            async with made(conn=connection) as opened:
                await used(opened)
        async with AsyncConnectionPool(postgres_url, open=False, kwargs=CONNECT) as pool:
            async with made(pool) as opened:
                await used(opened)

    async def used(opened: Any) -> None:
        await opened.setup()
        if isinstance(opened, PostgresStore):
            assert await opened.asearch(("nothing",)) == []
        elif isinstance(opened, PostgresCache):
            assert await opened.aget([(("a",), "k")]) == {}
        else:
            assert await opened.aget_tuple(thread("nobody")) is None

    asyncio.run(main())


def test_a_connections_parameters_are_kept(postgres_url: str, postgres_database: str) -> None:
    parts = psycopg.conninfo.conninfo_to_dict(postgres_database)
    parts.update(options='-c search_path="kept\\ schema"', application_name="it's \\ mine")
    with psycopg.connect(postgres_database, autocommit=True) as connection:
        connection.execute('CREATE SCHEMA "kept schema"')
        with psycopg.connect(**parts, autocommit=True) as given, PostgresSaver(given) as saver:
            saver.setup()
            saver.get_tuple(thread("t"))
            names = "SELECT DISTINCT application_name FROM pg_stat_activity WHERE datname = current_database()"
            assert ("it's \\ mine",) in connection.execute(names).fetchall()
        tables = "SELECT schemaname::text FROM pg_tables WHERE tablename = 'checkpoints' AND schemaname = 'kept schema'"
        assert connection.execute(tables).fetchall() == [("kept schema",)]


def test_a_connection_without_prepared_statements_goes_through_a_pooler(postgres_url: str, flow: Flow) -> None:
    arguments = {**CONNECT, "prepare_threshold": None}
    prepared = "SELECT count(*) FROM pg_prepared_statements"
    with psycopg.connect(postgres_url, **arguments) as connection, PostgresSaver(connection) as saver:
        uses(flow, saver)
        assert connection.execute(prepared).fetchone() == {"count": 0}
        # A timeout of statements cannot pass a pooler: so it is one.
        with pytest.raises(ValueError, match="PgBouncer"):
            PostgresSaver(connection, statement_timeout=5)
        PostgresSaver(connection, statement_timeout=5, pgbouncer=False).close()
    with ConnectionPool(postgres_url, min_size=1, kwargs=arguments, open=False) as pool:
        with pytest.raises(ValueError, match="PgBouncer"):
            PostgresStore(pool, statement_timeout=5)
    with pytest.raises(ValueError, match="PgBouncer"):
        PostgresStore.from_conn_string(
            postgres_url, pool_config={"kwargs": {"prepare_threshold": None}}, statement_timeout=5
        )


@pytest.mark.parametrize("made", ON_POSTGRES, ids=lambda one: one.__name__)
def test_closed_connections_and_pools_are_rejected(made: Any, postgres_url: str) -> None:
    connection = psycopg.connect(postgres_url)
    connection.close()
    with pytest.raises(psycopg.OperationalError, match=f"give {made.__name__} an open one"):
        made(connection)
    pool = ConnectionPool(postgres_url, min_size=0, max_size=1, open=True)
    pool.close()
    with pytest.raises(PoolClosed, match="is closed"):
        made(pool)


def test_pipelines_are_rejected(postgres_url: str) -> None:
    with psycopg.connect(postgres_url, **CONNECT) as connection:
        with connection.pipeline() as pipe:
            for made in ON_POSTGRES:
                with pytest.raises(ValueError, match="pipeline"):
                    made(connection)
            for made in (PostgresSaver, PostgresStore):
                with pytest.raises(ValueError, match="leave out the pipeline"):
                    made(connection, pipe=pipe)
            with ConnectionPool(postgres_url, min_size=0, max_size=1, open=False) as pool:
                # LangGraph's own words.
                with pytest.raises(ValueError, match="Pipeline should be used only with a single Connection"):
                    PostgresSaver(pool, pipe)
            with pytest.raises(ValueError, match="pipeline"):
                PostgresSaver(postgres_url, pipe)
        PostgresSaver(connection, None).close()


def test_a_pool_that_computes_its_parameters_is_rejected(postgres_url: str) -> None:
    pool = ConnectionPool(lambda: postgres_url, min_size=0, max_size=1, open=False)
    with pytest.raises(ValueError, match="connection string"):
        PostgresSaver(pool)


def test_a_pools_configure_is_not_called(postgres_url: str) -> None:
    pool = ConnectionPool(postgres_url, min_size=0, max_size=1, open=False, configure=lambda _: pytest.fail("called"))
    with pytest.warns(UserWarning, match="configure") as caught, PostgresSaver(pool) as saver:
        saver.setup()
    assert caught[0].filename == __file__


def test_parameters_that_cannot_be_read(postgres_url: str) -> None:
    pool = ConnectionPool("host=h password='hunter2", min_size=0, max_size=1, open=False)
    with pytest.raises(ValueError, match="cannot be read; give PostgresSaver its connection string") as caught:
        PostgresSaver(pool)
    assert "hunter2" not in str(caught.value)

    class Hidden(psycopg.Connection):
        @property
        def info(self) -> Any:
            raise AttributeError("hidden")

    with Hidden.connect(postgres_url) as connection:
        with pytest.raises(ValueError, match="cannot be read"):
            PostgresSaver(connection)


@pytest.mark.parametrize("made", ON_POSTGRES, ids=lambda one: one.__name__)
@pytest.mark.parametrize("conn", [None, 5, object(), b"postgres://h/d", sqlite3.connect(":memory:")], ids=str)
def test_other_objects_are_rejected(made: Any, conn: Any) -> None:
    wanted = rf"{made.__name__} takes a connection string .*, not {type(conn).__name__}$"
    with pytest.raises(TypeError, match=wanted):
        made(conn)
    with pytest.raises(TypeError, match=f"{made.__name__} takes a connection string"):
        made.from_conn_string(conn)


def test_a_url_of_another_backend_names_the_class() -> None:
    with pytest.raises(ValueError, match="use SqliteSaver"):
        AsyncPostgresSaver("sqlite:///agents.sqlite")
    with pytest.raises(ValueError, match="use PostgresSaver") as caught:
        AsyncSqliteSaver("postgresql://ann:hunter2@localhost/agents")
    with pytest.raises(ValueError, match="use RedisSaver"):
        AsyncPostgresSaver("redis+cluster://localhost")
    with pytest.raises(ValueError, match="use MongoSaver"):
        AsyncPostgresSaver("mongodb+srv://localhost")
    assert "hunter2" not in str(caught.value)


def test_pipeline_and_pool_config_of_from_conn_string(postgres_url: str, flow: Flow) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with PostgresSaver.from_conn_string(postgres_url, pipeline=True) as saver:
            uses(flow, saver)
        config: Any = {"max_size": 3, "timeout": 12.5, "kwargs": {"application_name": "of pool_config", **CONNECT}}
        with PostgresStore.from_conn_string(postgres_url, pipeline=True, pool_config=config) as store:
            uses(flow, store)
            with psycopg.connect(postgres_url) as connection:
                activity = "SELECT DISTINCT application_name FROM pg_stat_activity"
                assert ("of pool_config",) in connection.execute(activity).fetchall()
    with pytest.warns(UserWarning, match="ignores max_idle, min_size of pool_config") as caught:
        config = {"min_size": 1, "max_size": None, "max_idle": 5}
        with AsyncPostgresStore.from_conn_string(postgres_url, pool_config=config) as store:
            uses(flow, store)
    assert caught[0].filename == __file__
    with pytest.raises(TypeError, match="no_such_key"):
        PostgresStore.from_conn_string(postgres_url, pool_config={"no_such_key": 1})
    with pytest.raises(TypeError, match="pool_config must be a dict"):
        PostgresStore.from_conn_string(postgres_url, pool_config=5)
    with pytest.raises(ValueError, match="no_such_parameter"):
        PostgresStore.from_conn_string(postgres_url, pool_config={"kwargs": {"no_such_parameter": 1}})


@pytest.mark.parametrize("form", ["url", "pairs"])
def test_parameters_of_pool_config_take_precedence(postgres_database: str, form: str) -> None:
    parts = psycopg.conninfo.conninfo_to_dict(postgres_database)
    kwargs = {"dbname": parts["dbname"], "application_name": "it's \\ & mine"}
    start = postgres_database.rpartition("/")[0] + "/no_such_database"
    text = start if form == "url" else psycopg.conninfo.make_conninfo(start)
    with PostgresStore.from_conn_string(text, pool_config={"kwargs": kwargs}, schema=f"precedence_{form}") as store:
        store.setup()
        with psycopg.connect(postgres_database) as connection:
            names = "SELECT DISTINCT application_name FROM pg_stat_activity WHERE datname = current_database()"
            assert ("it's \\ & mine",) in connection.execute(names).fetchall()


def test_a_deserializer_is_ignored(postgres_url: str) -> None:
    with pytest.warns(UserWarning, match="deserializer"), PostgresStore(postgres_url, deserializer=dict) as store:
        store.setup()


def test_embeddings_by_the_name_of_a_provider(
    open_store: Callable[..., Any], flow: Flow, monkeypatch: pytest.MonkeyPatch  # noqa: F811
) -> None:
    """`embed="provider:model"` is LangChain's `init_embeddings`."""
    asked = []

    def make(name: str) -> Letters:
        asked.append(name)
        return Letters()

    monkeypatch.setattr("langgraph.store.base.embed._get_init_embeddings", lambda: make)
    store = open_store(index={"dims": DIMS, "embed": "openai:text-embedding-3-small", "fields": ["text"]})
    assert asked == ["openai:text-embedding-3-small"]
    flow(store).put(NS, "food", {"text": "pizza with olives"})
    flow(store).put(NS, "home", {"text": "a house by the sea"})
    assert [item.key for item in flow(store).search(NS, query="olives")] == ["food", "home"]


def test_an_index_of_other_dimensions_says_what_to_do(postgres_url: str) -> None:
    with PostgresStore.from_conn_string(postgres_url, index=index()) as store:
        store.setup()
        store.put(NS, "food", {"text": "pizza"})
    with PostgresStore.from_conn_string(postgres_url, index={**index(Letters(32)), "dims": 32}) as store:
        with pytest.raises(RuntimeError, match=r"another index; configure that index, or use another schema"):
            store.setup()
        for call in (lambda: store.put(NS, "a", {"text": "pizza"}), lambda: store.search(NS, query="pizza")):
            with pytest.raises(RuntimeError, match=r"another index; configure that index, or use another schema"):
                call()
    with PostgresStore.from_conn_string(postgres_url, index={**index(Letters(32)), "dims": DIMS}) as store:
        with pytest.raises(ValueError, match=f"(?s){DIMS}.*32|32.*{DIMS}"):
            store.put(NS, "food", {"text": "pizza"})


# Connections of sqlite3 and aiosqlite.


def connected(path: str, **options: Any) -> sqlite3.Connection:
    return sqlite3.connect(path, check_same_thread=False, **options)


def test_a_connection_of_sqlite3(sqlite_path: str, flow: Flow) -> None:
    connection = connected(sqlite_path)
    connection.row_factory = lambda cursor, row: pytest.fail("the row factory was called")
    with pytest.warns(UserWarning, match="do not use or close the connection") as caught, SqliteSaver(connection) as saver:
        stored = put(flow, saver, thread("t"), {"value": [1]})
    assert caught[0].filename == __file__
    connection.close()
    with SqliteSaver(sqlite_path) as saver:
        assert flow(saver).get_tuple(thread("t")).config == stored


def test_a_connection_of_aiosqlite(sqlite_path: str) -> None:
    async def main() -> None:
        async with aiosqlite.connect(sqlite_path) as connection:
            connection.row_factory = aiosqlite.Row
            with pytest.warns(UserWarning, match="do not use or close the connection"):
                saver = AsyncSqliteSaver(connection)
            async with saver:
                assert await saver.aget_tuple(thread("t")) is None
                said = await chat(saver).ainvoke({"messages": "hi"}, thread("t"))
            assert len(said["messages"]) == 2
        async with AsyncSqliteSaver.from_conn_string(sqlite_path) as saver:
            assert (await chat(saver).aget_state(thread("t"))).values == said

    asyncio.run(main())


def test_a_database_in_memory_of_another_connection_is_rejected() -> None:
    for path in (":memory:", ""):
        with pytest.raises(ValueError, match=r"in memory, .*SqliteSaver.from_conn_string\(':memory:'\)"):
            SqliteSaver(connected(path))

    async def main() -> None:
        async with aiosqlite.connect(":memory:") as connection:
            with pytest.raises(ValueError, match="in memory"):
                AsyncSqliteSaver(connection)

    asyncio.run(main())


def test_a_connection_in_a_transaction_is_rejected(sqlite_path: str) -> None:
    connection = connected(sqlite_path)
    connection.execute("CREATE TABLE other (x)")
    connection.execute("INSERT INTO other VALUES (1)")
    with pytest.raises(ValueError, match="transaction: commit it"):
        SqliteSaver(connection)
    connection.commit()
    connection.close()

    async def main() -> None:
        async with aiosqlite.connect(sqlite_path) as connection:
            await connection.execute("INSERT INTO other VALUES (2)")
            with pytest.raises(ValueError, match="transaction: commit it"):
                AsyncSqliteSaver(connection)

    asyncio.run(main())


def test_connections_whose_path_cannot_be_read(sqlite_path: str) -> None:
    connection = connected(sqlite_path)
    connection.close()
    with pytest.raises(sqlite3.ProgrammingError, match="closed.*give SqliteSaver the path of its file"):
        SqliteSaver(connection)

    async def main() -> None:
        connection = aiosqlite.connect(sqlite_path)
        with pytest.raises(sqlite3.ProgrammingError, match="await it first, or give AsyncSqliteSaver the path"):
            AsyncSqliteSaver(connection)

    asyncio.run(main())


@pytest.mark.parametrize("conn", [None, 5, object(), b"agents.sqlite"], ids=str)
def test_sqlite_rejects_other_objects(conn: Any) -> None:
    with pytest.raises(TypeError, match=rf"SqliteSaver takes the path of a file, .*, not {type(conn).__name__}$"):
        SqliteSaver(conn)
