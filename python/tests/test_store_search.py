"""Semantic search: what is embedded, on which thread, and errors of the embeddings."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from typing import Any

import numpy
import pytest
from conftest import Flow
from langgraph.store.base import GetOp, PutOp, SearchOp
from stores import DIMS, NS, Letters, index, open_store, store_kind, store_place  # noqa: F401

FOOD = {"text": "Ann likes to eat pizza with olives"}
HOME = {"text": "Ann lives in a small house by the sea"}


def keys(found: Any) -> list[str]:
    return [item.key for item in found]


@pytest.fixture
def letters() -> Letters:
    return Letters()


@pytest.fixture
def memories(open_store: Callable[..., Any], letters: Letters) -> Any:
    store = open_store(index=index(letters))
    store.batch([PutOp(NS, "food", {**FOOD, "n": 1}), PutOp(NS, "home", {**HOME, "n": 2})])
    letters.calls.clear()
    return store


def test_a_query_finds_the_nearest_first(memories: Any, flow: Flow) -> None:
    found = flow(memories).search(NS, query="a house near the sea")
    assert keys(found) == ["home", "food"]
    assert 0.3 < found[0].score <= 1 and found[1].score < found[0].score
    assert keys(flow(memories).search(NS, query="a house near the sea", filter={"n": 1})) == ["food"]
    assert keys(flow(memories).search(NS, query="pizza", limit=1)) == ["food"]
    assert keys(flow(memories).search(NS, query="pizza", limit=1, offset=1)) == ["home"]
    assert flow(memories).search(("others",), query="pizza") == []


def test_queries_and_documents_are_embedded_differently(memories: Any, letters: Letters, flow: Flow) -> None:
    a = "a" if flow.is_async else ""
    flow(memories).search(NS, query="pizza")
    assert letters.methods() == [f"{a}embed_query"]
    letters.calls.clear()
    flow(memories).batch(
        [
            PutOp(NS, "x", {"text": "one"}),
            PutOp(NS, "x", {"text": "two"}),
            PutOp(NS, "y", {"text": "two"}),
            PutOp(NS, "z", {"other": "three"}),
            PutOp(NS, "home", None),
            GetOp(NS, "food"),
            SearchOp(NS, query="pizza"),
            SearchOp(NS, query="house"),
            SearchOp(NS, query="pizza", limit=1),
        ]
    )
    asked = sorted((method, texts) for method, texts, *_ in letters.calls)
    # Each text once, without values that a later put replaces.
    assert asked == [
        (f"{a}embed_documents", ["two"]),
        (f"{a}embed_query", ["house"]),
        (f"{a}embed_query", ["pizza"]),
    ]


def test_embeddings_run_on_the_callers_thread_or_loop(memories: Any, letters: Letters) -> None:
    memories.put(NS, "x", {"text": "one"})
    memories.search(NS, query="one")
    assert letters.methods() == ["embed_documents", "embed_query"]
    assert {(thread, loop) for *_, thread, loop in letters.calls} == {(threading.get_ident(), None)}
    letters.calls.clear()

    async def main() -> None:
        await memories.aput(NS, "x", {"text": "two"})
        await memories.asearch(NS, query="two")
        here = (threading.get_ident(), asyncio.get_running_loop())
        assert letters.methods() == ["aembed_documents", "aembed_query"]
        assert {(thread, loop) for *_, thread, loop in letters.calls} == {here}
        letters.calls.clear()
        # The sync methods on the loop, too: they do not need the loop that they block.
        memories.put(NS, "x", {"text": "three"})
        assert keys(memories.search(NS, query="three", limit=1)) == ["x"]

    asyncio.run(main())
    assert letters.methods() == ["embed_documents", "embed_query"]


def test_embeddings_see_the_callers_context(open_store: Callable[..., Any], flow: Flow) -> None:
    who: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="nobody")
    seen = []

    class Seeing(Letters):
        def embed_query(self, text: str) -> list[float]:
            seen.append(who.get())
            return super().embed_query(text)

        async def aembed_query(self, text: str) -> list[float]:
            seen.append(who.get())
            return await super().aembed_query(text)

    store = open_store(index=index(Seeing()))
    token = who.set("me")
    try:
        flow(store).batch([SearchOp(NS, query=text) for text in ("a", "b", "c")])
    finally:
        who.reset(token)
    assert seen == ["me"] * 3


def test_an_items_index_overrides_the_stores(open_store: Callable[..., Any], letters: Letters, flow: Flow) -> None:
    store = open_store(index=index(letters, fields=["text", "parts[*].text"]))
    flow(store).put(NS, "default", {"text": "figs", "parts": [{"text": "plums"}, {"text": "pears"}]})
    flow(store).put(NS, "off", {"text": "figs"}, index=False)
    flow(store).put(NS, "other", {"text": "figs", "title": "walnuts"}, index=["title"])
    flow(store).put(NS, "none", {"n": 1})
    assert [texts for _, texts, *_ in letters.calls] == [["figs", "plums", "pears"], ["walnuts"]]
    assert sorted(keys(flow(store).search(NS, query="figs"))) == ["default", "other"]
    assert keys(flow(store).search(NS, query="walnuts", limit=1)) == ["other"]
    assert keys(flow(store).search(NS, query="pears", limit=1)) == ["default"]
    assert len(flow(store).search(NS)) == 4


def test_the_whole_value_is_embedded_as_python_writes_it(
    open_store: Callable[..., Any], letters: Letters, flow: Flow
) -> None:
    for fields in (None, [], ["$"], "$"):
        store = open_store(index=index(letters, fields=fields))
        flow(store).put(NS, "a", {"z": 1.0, "a": [True, None, "é"]})
    assert [texts for _, texts, *_ in letters.calls] == [['{"a": [true, null, "é"], "z": 1.0}']] * 4


@pytest.mark.parametrize("distance", ["cosine", "l2", "inner_product"])
def test_nearer_items_have_higher_scores(open_store: Callable[..., Any], flow: Flow, distance: str) -> None:
    def embed(texts: Any) -> list[list[float]]:
        return [[float(number) for number in text.split()] for text in texts]

    store = open_store(index={"dims": 2, "embed": embed, "fields": ["v"], "distance_type": distance})
    flow(store).batch([PutOp(NS, key, {"v": v}) for key, v in [("a", "3 4"), ("b", "1 0"), ("c", "-3 4")]])
    found = {item.key: item.score for item in flow(store).search(NS, query="3 4")}
    expected = {
        "cosine": {"a": 1.0, "b": 0.6, "c": 0.28},
        "l2": {"a": 0.0, "b": -(20**0.5), "c": -6.0},
        "inner_product": {"a": 25.0, "b": 3.0, "c": 7.0},
    }[distance]
    assert found == pytest.approx(expected)
    assert list(found) == sorted(expected, key=expected.__getitem__, reverse=True)


def test_embeddings_may_be_functions_and_return_arrays(open_store: Callable[..., Any], flow: Flow) -> None:
    def embed(texts: Any) -> Any:
        return numpy.array([Letters().vector(text) for text in texts], dtype=numpy.float32)

    store = open_store(index=index(embed))
    flow(store).put(NS, "food", FOOD)
    flow(store).put(NS, "home", HOME)
    assert keys(flow(store).search(NS, query="pizza with olives")) == ["food", "home"]


def test_an_asynchronous_function_serves_the_asynchronous_methods(open_store: Callable[..., Any]) -> None:
    async def embed(texts: Any) -> list[list[float]]:
        await asyncio.sleep(0)
        return [Letters().vector(text) for text in texts]

    store = open_store(index=index(embed))

    async def main() -> list[str]:
        await asyncio.gather(store.aput(NS, "food", FOOD), store.aput(NS, "home", HOME))
        return keys(await store.asearch(NS, query="a house"))

    assert asyncio.run(main()) == ["home", "food"]
    with pytest.raises(ValueError, match="async function"):
        store.put(NS, "x", {"text": "one"})
    assert store.get(NS, "x") is None


class Broken(Exception):
    pass


@pytest.mark.parametrize("where", ["documents", "query"])
def test_exceptions_of_the_embeddings_are_raised_unchanged_and_nothing_is_stored(
    open_store: Callable[..., Any], flow: Flow, where: str
) -> None:
    class Failing(Letters):
        broken = False

        def vector(self, text: str) -> list[float]:
            if self.broken and text == where:
                raise Broken("out of credit")
            return super().vector(text)

    embed = Failing()
    store = open_store(index=index(embed))
    flow(store).put(NS, "old", {"text": "documents"})
    embed.broken = True
    ops = [
        PutOp(NS, "old", None),
        PutOp(NS, "a", {"text": "fine"}),
        PutOp(NS, "b", {"text": "documents"}),
        SearchOp(NS, query="query"),
        SearchOp(NS, query="fine"),
    ]
    with pytest.raises(Broken, match="out of credit"):
        flow(store).batch(ops)
    assert keys(flow(store).search(NS)) == ["old"], "nothing is lost, and nothing half done"
    embed.broken = False
    flow(store).batch(ops)
    assert sorted(keys(flow(store).search(NS, query="documents"))) == ["a", "b"]


@pytest.mark.parametrize(
    ("vectors", "error", "text"),
    [
        ([[1.0]], ValueError, "dims"),
        ([], ValueError, "0 vectors for 1 texts"),
        ([[0.0] * DIMS] * 2, ValueError, "2 vectors for 1 texts"),
        (None, TypeError, "not NoneType"),
        ([1.0], TypeError, "not float"),
        ([["x"] * DIMS], TypeError, "list of numbers"),
        ([[float("nan")] * DIMS], RuntimeError, "NaN"),
        ([[1e300] * DIMS], RuntimeError, "infinity"),
    ],
    ids=["dims", "none", "many", "nothing", "flat", "words", "nan", "infinity"],
)
def test_embeddings_that_return_no_vectors_are_errors(
    open_store: Callable[..., Any], flow: Flow, vectors: Any, error: type[Exception], text: str
) -> None:
    store = open_store(index=index(lambda texts: vectors))
    with pytest.raises(error, match=text):
        flow(store).put(NS, "a", {"text": "one"})
    assert flow(store).get(NS, "a") is None


def test_rejected_operations_are_not_embedded(memories: Any, letters: Letters, flow: Flow) -> None:
    for op in (PutOp(("a.b",), "k", FOOD), PutOp(NS, "k", FOOD, ttl=-1), PutOp(NS, "k", [FOOD])):
        with pytest.raises((ValueError, TypeError)):
            flow(memories).batch([PutOp(NS, "j", HOME), op])
    assert letters.calls == []


def test_a_cancelled_call_stores_nothing(open_store: Callable[..., Any]) -> None:
    class Slow(Letters):
        async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
            if texts == ["slow"]:
                started.set()
                await asyncio.Event().wait()
            return await super().aembed_documents(texts)

    store = open_store(index=index(Slow()))
    started = asyncio.Event()

    async def main() -> None:
        task = asyncio.ensure_future(store.aput(NS, "a", {"text": "slow"}))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await store.aput(NS, "b", FOOD)
        assert keys(await store.asearch(NS)) == ["b"]

    asyncio.run(main())


def test_many_tasks_search_and_put(memories: Any) -> None:
    async def one(number: int) -> list[str]:
        await memories.aput(("tasks", str(number)), "k", {"text": f"figs and {number} plums"})
        return keys(await memories.asearch(("tasks", str(number)), query="plums"))

    async def main() -> list[list[str]]:
        return await asyncio.gather(*(one(number) for number in range(32)))

    assert asyncio.run(main()) == [["k"]] * 32
