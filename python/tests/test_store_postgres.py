"""Tests of the PostgreSQL store only: a database shared with Python's stores, TTLs, and connection errors."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from conftest import Flow
from langgraph.store.base import PutOp
from langgraph.store.postgres import AsyncPostgresStore
from langgraph.store.postgres import PostgresStore as PythonStore
from langgraph_ckpt import InMemoryStore, PostgresStore
from stores import DIMS, NS, Letters, index

TEXTS = {"food": "Ann likes to eat pizza", "home": "a small house by the sea", "work": "Ann cooks in Ulm"}


def keys(found: Any) -> list[str]:
    return [item.key for item in found]


def rows(url: str, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(query).fetchall()


@pytest.fixture
def open_postgres(postgres_url: str) -> Iterator[Callable[..., PostgresStore]]:
    opened = []

    def open_ready(**options: Any) -> PostgresStore:
        store = PostgresStore(postgres_url, **options)
        store.setup()
        opened.append(store)
        return store

    yield open_ready
    for store in opened:
        store.close()


@pytest.fixture(params=["sync", "async"])
def python_store(request: pytest.FixtureRequest, postgres_url: str) -> Callable[..., Any]:
    """Runs a method of Python's own store, sync or async, with an index."""

    def run(method: str, *args: Any, **options: Any) -> Any:
        config = index(fields=["text", "parts[*]"])
        if request.param == "sync":
            with PythonStore.from_conn_string(postgres_url, index=config) as store:
                return getattr(store, method)(*args, **options)

        async def main() -> Any:
            async with AsyncPostgresStore.from_conn_string(postgres_url, index=config) as store:
                name = method if method == "setup" else f"a{method}"
                return await getattr(store, name)(*args, **options)

        return asyncio.run(main())

    return run


@pytest.mark.parametrize("first", ["python", "ours"])
def test_both_read_what_the_other_wrote(
    postgres_url: str, python_store: Callable[..., Any], flow: Flow, first: str
) -> None:
    if first == "python":
        python_store("setup")
    with PostgresStore(postgres_url, index=index(fields=["text", "parts[*]"])) as store:
        flow(store).setup()
        if first == "ours":
            python_store("setup")
        values = {key: {"text": text, "parts": [key, "x" + key], "n": 1.5, "u": "é"} for key, text in TEXTS.items()}
        for key, value in values.items():
            flow(store).put((*NS, "ours"), key, value)
            python_store("put", (*NS, "python"), key, value)

        # Each finds everything, by key, by filter and by semantic search, with the same scores.
        for side in ("ours", "python"):
            theirs = {item.key: item for item in python_store("search", (*NS, side), filter={"n": 1.5})}
            own = {item.key: item for item in flow(store).search((*NS, side), filter={"n": 1.5})}
            assert {key: item.value for key, item in own.items()} == values
            assert {key: item.value for key, item in theirs.items()} == values
            for key, item in own.items():
                assert (item.created_at, item.updated_at) == (theirs[key].created_at, theirs[key].updated_at)
            assert flow(store).get((*NS, side), "food").value == python_store("get", (*NS, side), "food").value
        for query in ("who eats pizza", "xhome", "a house near the sea"):
            theirs = {(item.namespace, item.key): item.score for item in python_store("search", NS, query=query)}
            own = {(item.namespace, item.key): item.score for item in flow(store).search(NS, query=query)}
            assert len(own) == 6 and own == pytest.approx(theirs, abs=1e-6)
        assert flow(store).list_namespaces() == sorted(python_store("list_namespaces"))

        # Each changes and deletes what the other wrote.
        flow(store).put((*NS, "python"), "food", {"text": "nothing"})
        python_store("put", (*NS, "ours"), "food", {"text": "nothing"})
        assert python_store("get", (*NS, "python"), "food").value == {"text": "nothing"}
        assert flow(store).get((*NS, "ours"), "food").value == {"text": "nothing"}
        flow(store).delete((*NS, "python"), "food")
        python_store("delete", (*NS, "ours"), "food")
        assert keys(python_store("search", NS, query="nothing")) == keys(flow(store).search(NS, query="nothing"))
        assert rows(postgres_url, "SELECT count(*) FROM store_vectors WHERE key = 'food'") == [(0,)]


@pytest.mark.parametrize(
    ("ann", "vector_type", "method"),
    [
        ({}, "vector", "hnsw"),
        ({"kind": "hnsw", "m": 8, "ef_construction": 32, "vector_type": "halfvec"}, "halfvec", "hnsw"),
        ({"kind": "ivfflat", "nlist": 4}, "vector", "ivfflat"),
        ({"kind": "ivfflat"}, "vector", "ivfflat"),
        ({"kind": "flat"}, "vector", None),
    ],
)
def test_the_index_has_the_configured_options(
    postgres_url: str, flow: Flow, ann: dict[str, Any], vector_type: str, method: str | None
) -> None:
    with PostgresStore(postgres_url, index=index(ann_index_config=ann, distance_type="inner_product")) as store:
        flow(store).setup()
        for key, text in TEXTS.items():
            flow(store).put(NS, key, {"text": text})
        assert keys(flow(store).search(NS, query="pizza", limit=1)) == ["food"]
    name = "schemaname = current_schema() AND indexname = 'store_vectors_embedding_idx'"
    found = rows(postgres_url, f"SELECT indexdef FROM pg_indexes WHERE {name}")
    if method is None:
        assert found == []
    else:
        [(made,)] = found
        assert f"USING {method}" in made and f"{vector_type}_ip_ops" in made
        assert "m='8', ef_construction='32'" in made or ann.get("m") is None
        assert "lists='4'" in made or ann.get("nlist") is None
    column = "SELECT format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = 'store_vectors'::regclass"
    [(found_type,)] = rows(postgres_url, f"{column} AND attname = 'embedding'")
    assert found_type == f"{vector_type}({DIMS})"


@pytest.mark.parametrize(
    ("ann", "text"),
    [({"m": 1}, "m must be 2"), ({"m": 10**6}, "m must be 2"), ({"kind": "ivfflat", "lists": 0}, "lists"), ({"vector_type": "bit"}, "vector_type")],
)
def test_an_invalid_index_is_rejected(postgres_url: str, ann: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        PostgresStore(postgres_url, index=index(ann_index_config=ann))


def test_the_tables_are_in_the_schema(postgres_url: str, flow: Flow) -> None:
    schema = rows(postgres_url, "SELECT current_schema()")[0][0] + "_own"
    with PostgresStore(postgres_url, schema=schema, filter_index=True, max_connections=2) as store:
        flow(store).setup()
        flow(store).setup()
        flow(store).put(NS, "a", {"n": 1})
        assert keys(flow(store).search((), filter={"n": 1})) == ["a"]
    assert rows(postgres_url, f"SELECT key FROM {schema}.store") == [("a",)]
    assert rows(postgres_url, f"SELECT to_regclass('{schema}.store_value_idx') IS NOT NULL") == [(True,)]


def test_from_conn_string_is_a_context_manager(postgres_url: str) -> None:
    with PostgresStore.from_conn_string(postgres_url, ttl={"default_ttl": 5}) as store:
        store.setup()
        store.put(NS, "a", {"n": 1})

    async def main() -> Any:
        async with PostgresStore.from_conn_string(postgres_url) as store:
            await store.asetup()
            return await store.aget(NS, "a")

    assert asyncio.run(main()).value == {"n": 1}
    with pytest.raises(RuntimeError, match="closed"):
        store.get(NS, "a")


def test_items_expire_after_their_ttl(
    postgres_url: str, open_postgres: Callable[..., PostgresStore], flow: Flow
) -> None:
    store = open_postgres(ttl={"default_ttl": 30, "refresh_on_read": False})
    flow(store).put(NS, "default", {"n": 1})
    flow(store).put(NS, "ever", {"n": 1}, ttl=None)
    flow(store).put(NS, "own", {"n": 1}, ttl=90)
    flow(store).put(NS, "gone", {"n": 1}, ttl=1e-9)
    minutes = "SELECT key, ttl_minutes, expires_at FROM store ORDER BY key"
    before = {key: (ttl, expires) for key, ttl, expires in rows(postgres_url, minutes)}
    assert {key: ttl for key, (ttl, _) in before.items()} == {"default": 30, "ever": None, "gone": 1, "own": 90}
    assert before["ever"] == (None, None)
    assert sorted(keys(flow(store).search(NS))) == ["default", "ever", "own"], "what expired is there for nobody"
    assert flow(store).get(NS, "gone") is None

    # Reads refresh the TTL only if requested.
    flow(store).get(NS, "default")
    flow(store).get(NS, "own", refresh_ttl=True)
    after = {key: (ttl, expires) for key, ttl, expires in rows(postgres_url, minutes)}
    assert after["default"] == before["default"] and after["own"][1] > before["own"][1]
    flow(store).search(NS, refresh_ttl=True)
    again = {key: (ttl, expires) for key, ttl, expires in rows(postgres_url, minutes)}
    assert again["default"][1] > after["default"][1] and again["own"][1] > after["own"][1]

    assert flow(store).sweep_ttl() == 1
    assert flow(store).sweep_ttl() == 0
    assert sorted(rows(postgres_url, "SELECT key FROM store")) == [("default",), ("ever",), ("own",)]


def test_pythons_store_sees_the_same_ttls(postgres_url: str, open_postgres: Callable[..., PostgresStore]) -> None:
    store = open_postgres()
    store.put(NS, "ours", {"n": 1}, ttl=10)
    with PythonStore.from_conn_string(postgres_url, ttl={"default_ttl": 10}) as theirs:
        theirs.put(NS, "theirs", {"n": 1})
        assert rows(postgres_url, "SELECT DISTINCT ttl_minutes FROM store") == [(10,)]
        store.put(NS, "ours", {"n": 1}, ttl=1e-9)
        assert theirs.sweep_ttl() == 1
    assert keys(store.search(NS)) == ["theirs"]


@pytest.mark.parametrize("ttl", [0, -1, float("nan"), float("inf"), 1e18])
def test_an_invalid_ttl_is_rejected(
    open_postgres: Callable[..., PostgresStore], flow: Flow, ttl: float
) -> None:
    store = open_postgres()
    with pytest.raises(ValueError, match="invalid TTL"):
        flow(store).put(NS, "a", {"n": 1}, ttl=ttl)
    with pytest.raises(TypeError, match="minutes"):
        flow(store).put(NS, "a", {"n": 1}, ttl="1")


def wait_until(holds: Callable[[], bool]) -> None:
    for _ in range(3000):
        if holds():
            return
        time.sleep(0.01)
    pytest.fail("it did not come about")


def test_a_sweeper_sweeps_until_it_is_stopped(
    postgres_url: str, open_postgres: Callable[..., PostgresStore], flow: Flow
) -> None:
    store = open_postgres(ttl={"sweep_interval_minutes": 0.0001})
    store.put(NS, "gone", {"n": 1}, ttl=1e-9)
    store.put(NS, "stays", {"n": 1}, ttl=10)

    def start(minutes: float | None = None) -> Any:
        if not flow.is_async:
            return store.start_ttl_sweeper(minutes)
        return flow.run(store.astart_ttl_sweeper(minutes))

    running = start()
    again = start()
    assert flow.is_async or again is running, "there is one sweeper"
    wait_until(lambda: rows(postgres_url, "SELECT key FROM store") == [("stays",)])
    assert not running.done()
    assert flow(store).stop_ttl_sweeper(60) is True
    assert flow(store).stop_ttl_sweeper() is True
    if flow.is_async:
        flow.run(asyncio.wait_for(running, 60))
    assert running.done() and not running.cancelled()

    cancelled = start(0.0001)
    cancelled.cancel()
    wait_until(lambda: (not flow.is_async or flow.run(asyncio.sleep(0)) is None) and not sweepers())
    start(1000)
    assert len(sweepers()) == 1
    flow(store).close()
    assert sweepers() == []


def sweepers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "ttl-sweeper"]


def test_a_sweeper_ends_with_its_store(postgres_url: str, open_postgres: Callable[..., PostgresStore]) -> None:
    assert open_postgres().start_ttl_sweeper().done(), "without lives there is nothing to sweep"
    store = PostgresStore(postgres_url, ttl={"sweep_interval_minutes": 1000})
    store.start_ttl_sweeper()
    assert len(sweepers()) == 1
    # A cancelled sweeper has stopped.
    assert store.start_ttl_sweeper().cancel()
    assert not store.start_ttl_sweeper().done()
    wait_until(lambda: len(sweepers()) == 1)
    del store
    wait_until(lambda: sweepers() == [])


def test_a_sweeper_outlives_a_failure(
    postgres_url: str, open_postgres: Callable[..., PostgresStore], caplog: pytest.LogCaptureFixture
) -> None:
    store = PostgresStore(postgres_url, ttl={"sweep_interval_minutes": 0.0001})
    running = store.start_ttl_sweeper()
    wait_until(lambda: "the next sweep tries again" in caplog.text)
    store.setup()
    store.put(NS, "gone", {"n": 1}, ttl=1e-9)
    wait_until(lambda: rows(postgres_url, "SELECT key FROM store") == [])
    assert not running.done()
    store.close()


def test_an_in_memory_store_removes_expired_items(flow: Flow) -> None:
    store = InMemoryStore(ttl={"default_ttl": 1e-9})
    flow(store).put(NS, "gone", {"n": 1})
    flow(store).put(NS, "stays", {"n": 1}, ttl=None)
    wait_until(lambda: keys(flow(store).search(NS)) == ["stays"])
    assert flow(store).sweep_ttl() in (0, 1)
    assert flow(store).list_namespaces() == [NS]


def test_before_setup_the_error_says_what_to_do(postgres_url: str, flow: Flow) -> None:
    with PostgresStore(postgres_url) as store:
        for call in (lambda: flow(store).get(NS, "a"), lambda: flow(store).put(NS, "a", {"n": 1})):
            with pytest.raises(RuntimeError, match=r"setup\(\)") as raised:
                call()
            assert raised.value.kind == "schema"  # type: ignore[attr-defined]


def test_an_unreachable_server(flow: Flow) -> None:
    url = "postgres://nobody:hidden@127.0.0.1:1/none"
    with PostgresStore(url, max_retries=0, connect_timeout=5) as store:
        assert "hidden" not in repr(store)
        with pytest.raises(ConnectionError) as raised:
            flow(store).get(NS, "a")
        assert "hidden" not in str(raised.value)


@pytest.mark.parametrize("url", ["sqlite:///a.db", "redis://localhost", "a.db", "mongodb://localhost/a"])
def test_a_url_of_another_backend_is_rejected(url: str) -> None:
    with pytest.raises(ValueError):
        PostgresStore(url)


@pytest.mark.parametrize(
    ("options", "text"),
    [({"schema": ""}, "schema"), ({"ef_search": 0}, "ef_search"), ({"probes": 0}, "probes"), ({"connect_timeout": -1}, "connect_timeout")],
)
def test_an_invalid_option_is_rejected(postgres_url: str, options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        PostgresStore(postgres_url, index=index(), **options)


@pytest.mark.parametrize(("key", "value"), [("a\0b", {"n": 1}), ("a", {"n": "x\0"}), ("a", {"x\0": 1})])
def test_nul_is_rejected(
    open_postgres: Callable[..., PostgresStore], flow: Flow, key: str, value: dict[str, Any]
) -> None:
    store = open_postgres()
    with pytest.raises(ValueError, match=r"U\+0000"):
        flow(store).put(NS, key, value)


def test_another_index_fails_setup(postgres_url: str, open_postgres: Callable[..., PostgresStore]) -> None:
    open_postgres(index=index())
    with pytest.raises(RuntimeError, match="another index"):
        open_postgres(index={**index(Letters(32)), "dims": 32})


def test_a_store_works_after_a_cancelled_call(
    postgres_url: str, open_postgres: Callable[..., PostgresStore]
) -> None:
    store = open_postgres(max_connections=2)

    async def main() -> None:
        await store.aput(NS, "a", {"n": 1})
        with psycopg.connect(postgres_url) as connection:
            connection.execute("LOCK TABLE store IN ACCESS EXCLUSIVE MODE")
            waiting = "SELECT 1 FROM pg_locks WHERE relation = 'store'::regclass AND NOT granted"
            task = asyncio.ensure_future(store.aput(NS, "a", {"n": 2}))
            while not connection.execute(waiting).fetchone():
                assert not task.done(), task
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert (await store.aget(NS, "a")).value in ({"n": 1}, {"n": 2})
        await store.aput(NS, "a", {"n": 3})
        assert (await store.aget(NS, "a")).value == {"n": 3}

    asyncio.run(main())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_store_from_before_a_fork_is_an_error(
    postgres_url: str, open_postgres: Callable[..., PostgresStore]
) -> None:
    store = open_postgres()
    store.put(NS, "a", {"n": 1})
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        said = "nothing"
        try:
            try:
                store.get(NS, "a")
            except RuntimeError as error:
                said = str(error)
            with PostgresStore(postgres_url) as own:
                own.put(NS, "child", {"n": 1})
        except BaseException as error:
            said = f"{said}, and then {error!r}"
        finally:
            os.write(writer, said.encode())
            os._exit(0)
    os.close(writer)
    with open(reader) as answer:
        said = answer.read()
    os.waitpid(child, 0)
    assert "fork" in said and "and then" not in said
    assert sorted(keys(store.search(NS))) == ["a", "child"]


def test_a_batch_is_one_transaction(postgres_url: str, open_postgres: Callable[..., PostgresStore], flow: Flow) -> None:
    store = open_postgres()
    flow(store).batch([PutOp(NS, f"k{number}", {"n": number}) for number in range(100)])
    assert rows(postgres_url, "SELECT count(*), count(DISTINCT updated_at) FROM store") == [(100, 1)]
