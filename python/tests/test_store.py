"""Every operation of a store, on every store, synchronous and asynchronous."""

from __future__ import annotations

import asyncio
import math
import warnings
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from types import MappingProxyType
from typing import Any

import pytest
from conftest import Flow
from langgraph.store.base import (
    BaseStore,
    GetOp,
    InvalidNamespaceError,
    Item,
    ListNamespacesOp,
    MatchCondition,
    PutOp,
    SearchItem,
    SearchOp,
)
from stores import NS, open_store, plain_url, store, store_kind, store_place  # noqa: F401


def keys(found: list[SearchItem]) -> list[str]:
    return [item.key for item in found]


def test_a_store_is_langgraphs(store: Any) -> None:
    assert isinstance(store, BaseStore) and store.supports_ttl


def test_an_item_comes_back_as_it_was_put(store: Any, flow: Flow) -> None:
    value = {
        "text": "é ☃ \U0001f600",
        "n": 2**63,
        "huge": 10**40,
        "f": 1.5,
        "none": None,
        "list": [1, [True], {"deep": {}}],
        "": "empty",
        "quotes": '"\\\n',
    }
    flow(store).put(NS, "a", value)
    item = flow(store).get(NS, "a")
    assert type(item) is Item
    assert (item.namespace, item.key, item.value) == (NS, "a", value)
    assert isinstance(item.value["huge"], int)
    assert item.created_at == item.updated_at
    assert item.created_at.tzinfo is not None and item.created_at.utcoffset() == timedelta(0)
    assert abs(item.created_at - datetime.now(timezone.utc)) < timedelta(minutes=10)
    assert item.dict()["namespace"] == list(NS)


def test_a_second_put_replaces_the_value(store: Any, flow: Flow) -> None:
    flow(store).put(NS, "a", {"n": 1})
    first = flow(store).get(NS, "a")
    flow(store).put(NS, "a", {"m": 2})
    second = flow(store).get(NS, "a")
    assert second.value == {"m": 2}
    assert second.created_at == first.created_at and second.updated_at > first.updated_at


def test_what_was_deleted_is_gone(store: Any, flow: Flow) -> None:
    flow(store).put(NS, "a", {"n": 1})
    flow(store).delete(NS, "a")
    flow(store).delete(NS, "never")
    assert flow(store).get(NS, "a") is None
    assert flow(store).search(()) == []
    assert flow(store).list_namespaces() == []


def test_keys_need_not_be_text_in_the_methods(store: Any, flow: Flow) -> None:
    flow(store).put(NS, 7, {"n": 1})
    assert flow(store).get(NS, "7").key == "7"


def test_any_mapping_is_a_value(store: Any, flow: Flow) -> None:
    flow(store).put(NS, "a", MappingProxyType({"n": 1, "t": (1, 2)}))
    flow(store).put(NS, "b", {1: "one", None: "none"})
    assert flow(store).get(NS, "a").value == {"n": 1, "t": [1, 2]}
    assert flow(store).get(NS, "b").value == {"1": "one", "null": "none"}


class Opaque:
    pass


circle: dict[str, Any] = {}
circle["again"] = circle


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        ([1], TypeError, "a dict, not list"),
        ("text", TypeError, "a dict, not str"),
        ({"a": Opaque()}, TypeError, "Opaque is not JSON serializable"),
        ({"a": b"bytes"}, TypeError, "bytes is not JSON serializable"),
        ({"a": datetime(2026, 1, 1)}, TypeError, "datetime is not JSON serializable"),
        ({(1, 2): 3}, TypeError, "keys must be"),
        ({"a": math.nan}, ValueError, "not JSON compliant"),
        ({"a": math.inf}, ValueError, "not JSON compliant"),
        ({"a": "\ud800"}, ValueError, "surrogates"),
        (circle, ValueError, "Circular"),
    ],
    ids=lambda case: type(case).__name__ if not isinstance(case, str) else None,
)
def test_a_value_that_is_no_json_is_rejected(
    store: Any, flow: Flow, value: Any, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text) as raised:
        flow(store).put(NS, "a", value)
    assert "item's value" in str(raised.value)
    assert flow(store).get(NS, "a") is None


@pytest.mark.parametrize(
    "namespace",
    [("a.b",), ("a", ""), ("a\0b",), ("a", 1), ("a", None), "users", ("\ud800",)],
    ids=["dot", "empty", "nul", "number", "none", "text", "surrogate"],
)
def test_an_invalid_namespace_is_rejected_in_every_operation(
    store: Any, flow: Flow, namespace: Any
) -> None:
    condition = MatchCondition(match_type="suffix", path=namespace)
    for op in (
        GetOp(namespace, "k"),
        PutOp(namespace, "k", {"n": 1}),
        PutOp(namespace, "k", None),
        SearchOp(namespace),
        ListNamespacesOp(match_conditions=(condition,)),
    ):
        with pytest.raises(InvalidNamespaceError):
            flow(store).batch([PutOp(NS, "k", {"n": 1}), op])
    assert flow(store).get(NS, "k") is None


@pytest.mark.parametrize("namespace", [(), ("langgraph",), ("langgraph", "a")])
def test_nothing_is_put_without_a_namespace_or_under_a_reserved_one(
    store: Any, flow: Flow, namespace: tuple[str, ...]
) -> None:
    with pytest.raises(InvalidNamespaceError):
        flow(store).put(namespace, "k", {"n": 1})
    with pytest.raises(InvalidNamespaceError):
        flow(store).batch([PutOp(namespace, "k", {"n": 1})])


@pytest.fixture
def people(store: Any) -> Any:
    for number, (key, value) in enumerate(
        [
            ("ann", {"age": 9, "town": "Ulm", "tags": ["a"], "job": {"title": "cook", "years": 3}}),
            ("bob", {"age": 30, "town": "Bonn"}),
            ("cid", {"age": 100, "town": "Ulm", "text": "likes figs"}),
        ]
    ):
        store.put(("people", str(number % 2)), key, value)
    store.put(("peoples",), "dot", {"age": 1})
    return store


def test_a_search_finds_what_is_under_a_namespace(people: Any, flow: Flow) -> None:
    found = flow(people).search(("people",))
    assert keys(found) == ["cid", "bob", "ann"], "the last put first"
    assert all(type(item) is SearchItem and item.score is None for item in found)
    assert keys(flow(people).search(("people", "0"))) == ["cid", "ann"]
    assert keys(flow(people).search((), limit=2)) == ["dot", "cid"]
    assert keys(flow(people).search((), limit=2, offset=2)) == ["bob", "ann"]
    assert flow(people).search((), limit=0) == []
    assert flow(people).search(("nobody",)) == []


@pytest.mark.parametrize(
    ("filter", "expected"),
    [
        ({"town": "Ulm"}, ["cid", "ann"]),
        ({"age": {"$gt": 9}}, ["cid", "bob"]),
        ({"age": {"$gte": 9, "$lt": 100}}, ["bob", "ann"]),
        ({"age": {"$lte": 30}, "town": {"$ne": "Bonn"}}, ["ann"]),
        ({"age": {"$eq": 30.0}}, ["bob"]),
        ({"town": {"$lt": "C"}}, ["bob"]),
        ({"job": {"years": {"$gt": 2}}}, ["ann"]),
        ({"tags": ["a"]}, ["ann"]),
        ({"job": None}, []),
        ({}, ["cid", "bob", "ann"]),
    ],
)
def test_a_filter_compares_by_type(people: Any, flow: Flow, filter: dict[str, Any], expected: list[str]) -> None:
    assert keys(flow(people).search(("people",), filter=filter)) == expected


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"filter": {"n": {"$in": [1]}}}, r"\$eq"),
        ({"filter": {"n": {"$gt": True}}}, "number or a text"),
        ({"filter": {"n": math.nan}}, "JSON"),
        ({"filter": {"n": 2**70}}, "64 bits"),
        ({"filter": {"n": {"$gt": -(2**64)}}}, "64 bits"),
        ({"limit": -1}, "limit"),
        ({"offset": -1}, "offset"),
        ({"limit": 10**30}, "limit"),
    ],
)
def test_an_invalid_search_is_rejected(
    store: Any, flow: Flow, options: dict[str, Any], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        flow(store).search((), **options)


def test_a_query_without_an_index_is_ignored_with_one_warning(
    open_store: Callable[..., Any], flow: Flow, recwarn: pytest.WarningsRecorder
) -> None:
    """As in LangGraph's stores: the first example of its documentation searches in a store without an index."""
    store = open_store()
    warnings.simplefilter("always")
    for key, color in [("a", "red"), ("b", "blue"), ("c", "red")]:
        flow(store).put(NS, key, {"color": color})
    plain = flow(store).search(NS)
    assert [item.key for item in plain] == ["c", "b", "a"]
    assert flow(store).search(NS, query="which color?") == plain
    [warned] = [one for one in recwarn if "no index" in str(one.message)]
    assert warned.category is UserWarning
    found = flow(store).search(NS, query="which color?", filter={"color": "red"}, limit=1, offset=1)
    assert [(item.key, item.score) for item in found] == [("a", None)]
    ops = [GetOp(NS, "b"), SearchOp(NS, query="again"), PutOp(NS, "d", {"color": "red"})]
    item, found, _ = flow(store).batch(ops)
    assert (item.key, found) == ("b", plain)
    flow(store).search(NS, query="")
    assert len([one for one in recwarn if "no index" in str(one.message)]) == 1
    # Once for each store.
    flow(open_store()).search(NS, query="which color?")
    assert len([one for one in recwarn if "no index" in str(one.message)]) == 2


def test_the_warning_names_the_callers_line(store: Any) -> None:
    with pytest.warns(UserWarning, match="no index") as caught:
        store.search(NS, query="which color?")
    assert caught[0].filename == __file__


def test_namespaces_are_listed(store: Any, flow: Flow) -> None:
    all_of_them = [("a", "b", "c"), ("a", "b", "d", "e"), ("a", "b", "d", "i"), ("a", "c", "f"), ("b", "c")]
    flow(store).batch([PutOp(namespace, "k", {"n": 1}) for namespace in reversed(all_of_them)])
    lists = flow(store).list_namespaces
    assert lists() == all_of_them
    assert lists(prefix=("a", "b")) == all_of_them[:3]
    assert lists(prefix=("a", "*", "d")) == all_of_them[1:3]
    assert lists(suffix=("c",)) == [("a", "b", "c"), ("b", "c")]
    assert lists(suffix=("d", "*")) == all_of_them[1:3]
    assert lists(prefix=("a",), suffix=("f",)) == [("a", "c", "f")]
    assert lists(max_depth=2) == [("a", "b"), ("a", "c"), ("b", "c")]
    assert lists(prefix=("a", "b"), max_depth=3) == [("a", "b", "c"), ("a", "b", "d")]
    assert lists(limit=2, offset=1) == all_of_them[1:3]
    with pytest.raises(ValueError, match="max_depth"):
        lists(max_depth=-1)
    with pytest.raises(ValueError, match="max_depth must be at least 1"):
        lists(max_depth=0)


def test_a_batch_reads_before_it_puts(store: Any, flow: Flow) -> None:
    flow(store).put(NS, "a", {"n": 1})
    ops = [
        PutOp(NS, "a", {"n": 2}),
        GetOp(NS, "a"),
        PutOp(NS, "b", {"n": 3}),
        PutOp(NS, "b", {"n": 4}),
        PutOp(NS, "c", {"n": 5}),
        PutOp(NS, "c", None),
        SearchOp(NS),
        GetOp(NS, "b"),
        ListNamespacesOp(),
    ]
    results = flow(store).batch(op for op in ops)
    assert results[0] is results[2] is results[5] is None
    assert results[1].value == {"n": 1} and keys(results[6]) == ["a"]
    assert results[7] is None and results[8] == [NS]
    now = {item.key: item.value for item in flow(store).search(NS)}
    assert now == {"a": {"n": 2}, "b": {"n": 4}}


def test_a_batch_of_nothing(store: Any, flow: Flow) -> None:
    assert flow(store).batch([]) == []
    with pytest.raises(TypeError, match="GetOp"):
        flow(store).batch(["get"])
    with pytest.raises(TypeError):
        flow(store).batch(None)
    with pytest.raises(TypeError, match="key"):
        flow(store).batch([GetOp(NS, 7)])


def test_a_batch_stores_all_puts_or_none(store: Any, flow: Flow) -> None:
    with pytest.raises(TypeError):
        flow(store).batch([PutOp(NS, "a", {"n": 1}), PutOp(NS, "b", {"n": Opaque()})])
    with pytest.raises(ValueError):
        flow(store).batch([PutOp(NS, "a", {"n": 1}), PutOp(NS, "b", {"n": 1}, ttl=-1)])
    assert flow(store).search(()) == []


@pytest.mark.parametrize("index", [True, "text", [1], 0.5])
def test_an_invalid_index_is_rejected(store: Any, flow: Flow, index: Any) -> None:
    with pytest.raises(TypeError, match="list of paths"):
        flow(store).put(NS, "a", {"n": 1}, index=index)


def test_an_index_is_ignored_without_one_in_the_store(store: Any, flow: Flow) -> None:
    for index in (None, False, [], ["text"]):
        flow(store).put(NS, "a", {"text": "figs"}, index=index)
    assert flow(store).get(NS, "a").value == {"text": "figs"}


def test_the_synchronous_methods_work_on_a_running_event_loop(store: Any) -> None:
    async def main() -> Any:
        store.put(NS, "a", {"n": 1})
        await store.aput(NS, "b", {"n": 2})
        return store.get(NS, "b"), await store.aget(NS, "a"), store.search(NS)

    b, a, found = asyncio.run(main())
    assert (a.value, b.value, len(found)) == ({"n": 1}, {"n": 2}, 2)


def test_many_tasks_at_once(store: Any) -> None:
    async def one(number: int) -> list[int]:
        namespace = ("tasks", str(number))
        for step in range(8):
            await store.aput(namespace, f"k{step}", {"n": number, "step": step})
        found = await store.asearch(namespace, limit=100)
        return sorted(item.value["step"] for item in found)

    async def main() -> list[list[int]]:
        return await asyncio.gather(*(one(number) for number in range(32)))

    assert asyncio.run(main()) == [list(range(8))] * 32
    assert len(store.list_namespaces()) == 32


def test_a_store_closes_itself(open_store: Callable[..., Any], flow: Flow) -> None:
    closed = open_store()
    if flow.is_async:

        async def use() -> None:
            async with closed as same:
                assert same is closed
                await same.aput(NS, "a", {"n": 1})

        flow.run(use())
    else:
        with closed as same:
            same.put(NS, "a", {"n": 1})
    flow(closed).close()
    calls: list[Callable[[], Any]] = [
        lambda: flow(closed).get(NS, "a"),
        lambda: flow(closed).batch([]),
        lambda: flow(closed).setup(),
        lambda: flow(closed).sweep_ttl(),
    ]
    for call in calls:
        with pytest.raises(RuntimeError, match="closed"):
            call()


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"index": {"embed": lambda texts: texts}}, ValueError, "dims"),
        ({"index": {"dims": 4}}, ValueError, "embed"),
        ({"index": {"dims": 0, "embed": print}}, ValueError, "dims must be 1 to 16,000"),
        ({"index": {"dims": -1, "embed": print}}, ValueError, "dims must be 1 to 16,000"),
        ({"index": {"dims": 4, "embed": print, "field": ["a"]}}, ValueError, "unknown keys: field"),
        ({"index": {"dims": 4, "embed": print, "distance_type": "hamming"}}, ValueError, "distance_type"),
        ({"index": {"dims": 4, "embed": print, "ann_index_config": {"kind": "tree"}}}, ValueError, "kind"),
        ({"index": {"dims": 4, "embed": print, "ann_index_config": {"lists": 1, "n": 1}}}, ValueError, "n;"),
        ({"index": {"dims": 4, "embed": "nobody:model"}}, Exception, "nobody"),
        ({"ttl": {"default_ttl": 0}}, ValueError, "invalid TTL"),
        ({"ttl": {"default_ttl": math.nan}}, ValueError, "invalid TTL"),
        ({"ttl": {"default": 1}}, ValueError, "unknown keys: default"),
    ],
)
def test_an_invalid_store_configuration_is_rejected(
    open_store: Callable[..., Any], options: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        open_store(**options)
