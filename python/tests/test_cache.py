"""Caches: LangGraph's `BaseCache` on SQLite, PostgreSQL and Redis."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypedDict

import psycopg
import pytest
from conftest import Flow, redis_contents, thread
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.cache.base import BaseCache
from langgraph.cache.memory import InMemoryCache
from langgraph.cache.sqlite import SqliteCache as PythonCache
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.func import entrypoint, task
from langgraph.graph import START, StateGraph
from langgraph.types import CachePolicy
from langgraph_ckpt import PostgresCache, RedisCache, SqliteCache, SqliteSaver

NS = ("__pregel_ns_writes", "module.node", "node")


@pytest.fixture(params=["sqlite", "postgres", "redis", "sqlite in memory"])
def cache_place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return request.getfixturevalue("postgres_url")
    if request.param == "redis":
        return request.getfixturevalue("redis_url")
    return str(tmp_path / "cache.sqlite") if request.param == "sqlite" else ":memory:"


def open_cache(place: str, **options: Any) -> Any:
    if place.startswith("redis"):
        made: Any = RedisCache(place, **options)
    else:
        made = PostgresCache(place, **options) if "://" in place else SqliteCache(path=place, **options)
    made.setup()
    return made


@pytest.fixture
def opened(cache_place: str) -> Iterator[Callable[..., Any]]:
    with contextlib.ExitStack() as stack:
        yield lambda **options: stack.enter_context(open_cache(cache_place, **options))


@pytest.fixture
def cache(opened: Callable[..., Any]) -> Any:
    return opened()


def test_it_is_langgraphs(cache: Any) -> None:
    assert isinstance(cache, BaseCache)


def test_values_come_back_as_the_serializer_wrote_them(cache: Any, flow: Flow) -> None:
    values = {
        "none": None,
        "writes": [("messages", [AIMessage("hi", id="1")]), ("count", 3)],
        "bytes": b"\x00\xff",
        "text": "naïve \x00 \U0001f980",
        "large": list(range(100_000)),
    }
    flow(cache).set({(NS, key): (value, None) for key, value in values.items()})
    found = flow(cache).get([(NS, key) for key in (*values, "absent")])
    # Pairs become lists, as in LangGraph's caches.
    values["writes"] = [list(one) for one in values["writes"]]
    assert {key: value for (_, key), value in found.items()} == values
    assert flow(cache).get([]) == {}
    flow(cache).set({})
    flow(cache).set({(NS, "none"): (1, None), (NS, "text"): (2, 60)})
    assert flow(cache).get([(NS, "text"), (NS, "none")]) == {(NS, "text"): 2, (NS, "none"): 1}


def test_namespaces_are_kept_apart_and_cleared(cache: Any, flow: Flow) -> None:
    spaces = [("a",), ("a", "b"), ("b", "a"), ("ü \U0001f980", "x"), ()]
    flow(cache).set({(space, "k"): (at, None) for at, space in enumerate(spaces)})
    assert flow(cache).get([(space, "k") for space in spaces]) == {(space, "k"): at for at, space in enumerate(spaces)}
    flow(cache).clear([("a",), ("nobody",)])
    assert flow(cache).get([(("a",), "k"), (("a", "b"), "k")]) == {(("a", "b"), "k"): 1}
    flow(cache).clear([])
    assert len(flow(cache).get([(space, "k") for space in spaces])) == 4
    flow(cache).clear()
    assert flow(cache).get([(space, "k") for space in spaces]) == {}


def wait_until(holds: Callable[[], bool]) -> None:
    for _ in range(3000):
        if holds():
            return
        time.sleep(0.01)
    pytest.fail("it did not come about")


def test_expired_values_are_invisible_and_removed(cache: Any, cache_place: str, flow: Flow) -> None:
    flow(cache).set({(NS, "gone"): (1, 0), (NS, "before"): (1, -5), (NS, "kept"): (2, 3600), (NS, "ever"): (3, None)})
    flow(cache).set({(NS, "soon"): (4, 0.05)})
    asked = [(NS, key) for key in ("gone", "before", "kept", "ever", "soon")]
    wait_until(lambda: flow(cache).get(asked) == {(NS, "kept"): 2, (NS, "ever"): 3})
    # Written again, it is there again.
    flow(cache).set({(NS, "gone"): (5, 3600)})
    assert flow(cache).get([(NS, "gone")]) == {(NS, "gone"): 5}
    if cache_place != ":memory:":
        # The last `set` has removed what had expired before it.
        assert sorted(stored_keys(cache_place)) == ["ever", "gone", "kept"]


def stored_keys(place: str) -> list[str]:
    if place.startswith("redis"):
        keys = [key.decode() for key in redis_contents(place)]
        return [key.partition("}:value:")[2] for key in keys if "}:value:" in key]
    if "://" in place:
        with psycopg.connect(place) as connection:
            return [key for (key,) in connection.execute("SELECT key FROM result_cache").fetchall()]
    copy = sqlite3.connect(f"file:{place}?mode=ro", uri=True)
    with contextlib.closing(copy):
        return [key for (key,) in copy.execute("SELECT key FROM cache").fetchall()]


@pytest.mark.parametrize("ttl", [float("nan"), float("inf"), "soon"])
def test_invalid_ttls_are_rejected(cache: Any, flow: Flow, ttl: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="TTL"):
        flow(cache).set({(NS, "good"): (1, None), (NS, "bad"): (1, ttl)})
    assert flow(cache).get([(NS, "good")]) == {}


def test_invalid_keys_and_values_are_rejected(cache: Any, flow: Flow) -> None:
    with pytest.raises(TypeError, match="serializable"):
        flow(cache).set({(NS, "good"): (1, None), (NS, "bad"): (object(), None)})
    with pytest.raises(TypeError, match="key"):
        flow(cache).get([(NS, 5)])
    with pytest.raises(TypeError, match="namespace"):
        flow(cache).get([((1, 2), "k")])
    for namespace in ((1,), "abc", (None,)):
        with pytest.raises(TypeError, match="namespace"):
            flow(cache).clear([namespace])
        with pytest.raises(TypeError, match="namespace"):
            flow(cache).set({(namespace, "k"): (1, None)})
    assert flow(cache).get([(NS, "good")]) == {}


def test_nul_and_long_keys(cache: Any, cache_place: str, flow: Flow) -> None:
    flow(cache).set({(("a\0b",), "k"): (1, None)})
    assert flow(cache).get([(("a\0b",), "k")]) == {(("a\0b",), "k"): 1}
    if not cache_place.startswith("postgres"):
        flow(cache).set({(NS, "a\0b"): (1, None), (NS, "x" * 10_000): (2, None)})
        assert flow(cache).get([(NS, "a\0b"), (NS, "a")]) == {(NS, "a\0b"): 1}
        return
    with pytest.raises(ValueError, match=r"U\+0000"):
        flow(cache).set({(NS, "a\0b"): (1, None)})
    with pytest.raises(ValueError, match="2,700 bytes"):
        flow(cache).set({(NS, os.urandom(5_000).hex()): (1, None)})


def test_a_serializer_of_the_callers(opened: Callable[..., Any], flow: Flow) -> None:
    serde = EncryptedSerializer.from_pycryptodome_aes(key=bytes(32))
    cache = opened(serde=serde)
    flow(cache).set({(NS, "k"): ("hidden", None)})
    assert flow(cache).get([(NS, "k")]) == {(NS, "k"): "hidden"}


def test_many_calls_at_once(cache: Any) -> None:
    """Threads and tasks write the same keys in different orders."""
    keys = [(NS, f"k{number}") for number in range(20)]

    def write(start: int) -> None:
        for turn in range(10):
            order = keys[start:] + keys[:start]
            cache.set({key: (turn, 60) for key in order})
            assert len(cache.get(keys)) == len(keys)

    threads = [threading.Thread(target=write, args=(start,)) for start in range(0, 20, 5)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()

    async def main() -> None:
        await asyncio.gather(*(cache.aset({key: (99, None) for key in keys[n:] + keys[:n]}) for n in range(20)))

    asyncio.run(main())
    assert set(cache.get(keys).values()) == {99}


def test_a_closed_cache(cache: Any, flow: Flow) -> None:
    cache.close()
    for call in (
        lambda: flow(cache).get([(NS, "k")]),
        lambda: flow(cache).set({(NS, "k"): (1, None)}),
        lambda: flow(cache).clear(),
        lambda: flow(cache).setup(),
    ):
        with pytest.raises(RuntimeError, match="this cache is closed"):
            call()
    flow.run(cache.aclose()) if flow.is_async else cache.close()


def test_setup_can_be_awaited(cache_place: str) -> None:
    async def main() -> None:
        made: Any = SqliteCache(path=cache_place) if "://" not in cache_place else PostgresCache
        if cache_place.startswith("redis"):
            made = RedisCache
        if "://" in cache_place:
            made = made.from_conn_string(cache_place)
        async with made as cache:
            assert await cache.setup() is None
            assert await cache.setup() is None
            assert await cache.aget([(NS, "k")]) == {}

    asyncio.run(main())


def test_before_setup(postgres_url: str, flow: Flow) -> None:
    with PostgresCache(postgres_url) as cache:
        with pytest.raises(RuntimeError, match=r"setup\(\)"):
            flow(cache).get([(NS, "k")])
        with pytest.raises(RuntimeError, match=r"setup\(\)"):
            flow(cache).set({(NS, "k"): (1, None)})
        flow(cache).setup()
        assert flow(cache).get([(NS, "k")]) == {}


def test_the_table_is_in_the_schema(postgres_url: str) -> None:
    with PostgresCache(postgres_url, schema="cache schema") as cache:
        cache.setup()
        cache.set({(NS, "k"): (1, None)})
    with psycopg.connect(postgres_url) as connection:
        rows = connection.execute('SELECT ns, key FROM "cache schema".result_cache').fetchall()
        assert rows == [('["__pregel_ns_writes","module.node","node"]', "k")]
        connection.execute('DROP SCHEMA "cache schema" CASCADE')


def test_pythons_cache_and_ours_share_a_file(tmp_path: Path, flow: Flow) -> None:
    path = str(tmp_path / "cache.sqlite")
    theirs: Any = PythonCache(path=path)
    theirs.set({(NS, "python"): ([("a", [1])], 3600), (NS, "gone"): (1, -1)})
    # One SQLite at a time.
    theirs._conn.close()
    with SqliteCache(path=path) as cache:
        assert flow(cache).get([(NS, "python"), (NS, "gone")]) == {(NS, "python"): [["a", [1]]]}
        flow(cache).set({(NS, "ours"): ({"b": [AIMessage("hi")]}, 3600), (NS, "python"): (2, None)})
    theirs = PythonCache(path=path)
    assert theirs.get([(NS, "ours"), (NS, "python")]) == {(NS, "ours"): {"b": [AIMessage("hi")]}, (NS, "python"): 2}
    theirs._conn.close()


def test_checkpoints_and_results_share_a_file(tmp_path: Path, flow: Flow) -> None:
    path = str(tmp_path / "all.sqlite")
    with SqliteSaver(path) as saver, SqliteCache(path=path) as cache:
        graph, ran = cached(saver, cache, ttl=None)
        for thread_id in ("1", "2"):
            config = {"configurable": {"thread_id": thread_id}}
            assert flow(graph).invoke({"x": 5}, config)["y"] == 10
            assert flow(graph).get_state(config).values == {"x": 5, "y": 10}
        assert ran == [5]


def test_a_path_is_resolved_when_the_cache_is_created(
    tmp_path: Path, flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    # No URI, as in Python's `sqlite3`.
    with SqliteCache(path="file:cache?mode=memory") as cache:
        monkeypatch.chdir(tmp_path / "elsewhere")
        flow(cache).set({(NS, "k"): (1, None)})
    assert stored_keys(str(tmp_path / "file:cache%3Fmode=memory")) == ["k"]
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_files_that_cannot_be_used(tmp_path: Path, flow: Flow) -> None:
    with pytest.raises(ValueError, match="path"):
        SqliteCache(path="")
    with pytest.raises(ValueError, match="busy"):
        SqliteCache(path="x", busy_timeout=1e9)
    with SqliteCache(path=tmp_path / "no" / "cache.sqlite") as cache, pytest.raises(ConnectionError):
        flow(cache).get([(NS, "k")])
    letter = tmp_path / "letter.txt"
    letter.write_text("Dear Sir or Madam, " * 100)
    with SqliteCache(path=letter) as cache, pytest.raises(RuntimeError, match="not a SQLite database"):
        flow(cache).get([(NS, "k")])
    other = str(tmp_path / "other.sqlite")
    with contextlib.closing(sqlite3.connect(other)) as connection:
        connection.execute("CREATE TABLE cache (something)")
    with SqliteCache(path=other) as cache, pytest.raises(RuntimeError, match="another program"):
        flow(cache).set({(NS, "k"): (1, None)})


class State(TypedDict, total=False):
    x: int
    y: int


def cached(saver: Any, cache: Any, ttl: int | None) -> tuple[Any, list[int]]:
    """A graph with a slow node, and the list of its runs."""
    ran: list[int] = []

    def slow(state: State) -> State:
        ran.append(state["x"])
        return {"y": 2 * state["x"]}

    builder = StateGraph(State)
    builder.add_node("slow", slow, cache_policy=CachePolicy(ttl=ttl))
    builder.add_edge(START, "slow")
    return builder.compile(checkpointer=saver, cache=cache), ran


def test_a_cached_node_is_run_once(saver: Any, flow: Flow) -> None:
    """The cache returns the node's writes as lists, which the checkpointer stores."""
    graph, ran = cached(saver, InMemoryCache(), ttl=3600)
    for turn in range(3):
        config = {"configurable": {"thread_id": f"{turn}"}}
        assert flow(graph).invoke({"x": 5}, config) == {"x": 5, "y": 10}
        assert flow(graph).get_state(config).values == {"x": 5, "y": 10}
        assert [step.next for step in flow(graph).get_state_history(config)] == [(), ("slow",), ("__start__",)]
    assert flow(graph).invoke({"x": 6}, config)["y"] == 12
    assert ran == [5, 6]


def test_our_caches_in_graphs(saver: Any, cache: Any, flow: Flow) -> None:
    graph, ran = cached(saver, cache, ttl=3600)
    assert flow(graph).invoke({"x": 5}, thread("1"))["y"] == 10
    updates = flow(graph).stream({"x": 5}, thread("2"), stream_mode="updates")
    assert updates[0]["slow"] == {"y": 10} and ran == [5]
    # Another graph object, and thus another process, finds the results.
    graph, again = cached(saver, cache, ttl=3600)
    assert flow(graph).invoke({"x": 5}, thread("3"))["y"] == 10
    assert (ran, again) == ([5], [])
    flow(graph).clear_cache()
    assert flow(graph).invoke({"x": 5}, thread("4"))["y"] == 10
    assert again == [5]


def test_cached_tasks(saver: Any, cache: Any, flow: Flow, config: dict[str, Any]) -> None:
    ran: list[str] = []

    @task(cache_policy=CachePolicy(ttl=3600))
    def answer(question: HumanMessage) -> AIMessage:
        ran.append(str(question.content))
        return AIMessage(f"{question.content}!", id="1")

    @entrypoint(checkpointer=saver, cache=cache)
    def workflow(question: str) -> list[AIMessage]:
        return [answer(HumanMessage(question, id="q")).result()]

    for _ in range(3):
        assert flow(workflow).invoke("why", config) == [AIMessage("why!", id="1")]
    assert flow(workflow).get_state(config).values == [AIMessage("why!", id="1")]
    assert ran == ["why"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_cache_from_before_a_fork_is_an_error(cache: Any) -> None:
    cache.set({(NS, "k"): (1, None)})
    child = os.fork()
    if child == 0:
        status = 1
        try:
            cache.get([(NS, "k")])
        except RuntimeError as error:
            status = 0 if "fork" in str(error) else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert cache.get([(NS, "k")]) == {(NS, "k"): 1}
